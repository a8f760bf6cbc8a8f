// SPDX-License-Identifier: BSD-3-Clause
//
// What the report needs of vmm.cpp and pool.cpp.
#ifndef NVLINK_EMULATOR_VMM_H
#define NVLINK_EMULATOR_VMM_H

#include <cstddef>
#include <cstdint>
#include <utility>

namespace emu {

// The reserved addresses around this one, base and size; zeroes: not reserved.
std::pair<uint64_t, size_t> reservation_of(uint64_t address);

size_t live_physical();
size_t live_reservations();
size_t live_pools();

} // namespace emu

#endif
