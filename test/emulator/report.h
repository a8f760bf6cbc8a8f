// SPDX-License-Identifier: BSD-3-Clause
//
// What the emulated driver tells about a run: counts of calls, what was not given back, frees
// under an open import, second frees, calls with stale handles. At exit into the files that the environment names, and on request (emu.h).
#ifndef NVLINK_EMULATOR_REPORT_H
#define NVLINK_EMULATOR_REPORT_H

#include "report_file.h"

#include <cstdint>

namespace emu {

// Writes NVL_EMU_COUNTERS and NVL_EMU_LEAKS when the process ends; called by cuInit.
void report_at_exit();

// Memory was freed that others have open.
void report_violation(uint64_t address, unsigned importers);

// A free that waited in a stream came to memory that another free had given back.
void report_second_free(uint64_t address);

// A call named a handle that its context has taken along (stale.h).
void report_stale(const char *call, uint64_t handle);

} // namespace emu

#endif
