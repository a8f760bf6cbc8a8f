// SPDX-License-Identifier: BSD-3-Clause
//
// Planned failures of the emulated NVML, from NVL_EMU_FAULTS. Called by nvml.cpp before every
// function's body.
#ifndef NVLINK_EMULATOR_NVML_FAULTS_H
#define NVLINK_EMULATOR_NVML_FAULTS_H

#include "driver/nvml_abi.h"

#include <mutex>

namespace emu {

// Counts a call of `name`; true when it must fail with *code. A planned delay happens here, under
// the caller's lock; a call that hangs gives it up, and the others go on.
bool nvml_fault(const char *name, std::unique_lock<std::mutex> &lock, nvl::nvml_return *code);

} // namespace emu

#endif
