// SPDX-License-Identifier: BSD-3-Clause
//
// NVL_EMU_TIMING=1 gives copies the latency and the rate that the machine file names for the pair
// of GPUs. What is then measured is emulated, and says nothing about any hardware.
#ifndef NVLINK_EMULATOR_TIMING_H
#define NVLINK_EMULATOR_TIMING_H

#include "driver.h"

#include <chrono>

namespace emu {

// How long this copy takes, counted from its beginning; -1: host memory. 0: as long as it does.
std::chrono::nanoseconds time_of_copy(const device &engine, int dst_device, int src_device,
                                      size_t size) noexcept;

} // namespace emu

#endif
