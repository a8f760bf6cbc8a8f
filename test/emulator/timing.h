// SPDX-License-Identifier: BSD-3-Clause
//
// NVL_EMU_TIMING=1 gives copies the latency and the rate that the machine file names for the pair
// of GPUs. What is then measured is emulated, and says nothing about any hardware.
#ifndef NVLINK_EMULATOR_TIMING_H
#define NVLINK_EMULATOR_TIMING_H

#include "driver.h"

namespace emu {

// Sleeps as long as this copy takes; -1: host memory. Called by stream threads.
void take_time(const device &engine, int dst_device, int src_device, size_t size) noexcept;

} // namespace emu

#endif
