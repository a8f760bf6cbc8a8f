// SPDX-License-Identifier: BSD-3-Clause
//
// Planned failures of the emulated NVML, from NVL_EMU_FAULTS. Called by nvml.cpp before every
// function's body.
#ifndef NVLINK_EMULATOR_NVML_FAULTS_H
#define NVLINK_EMULATOR_NVML_FAULTS_H

#include "driver/nvml_abi.h"

namespace emu {

// Counts a call of `name`; true when it must fail with *code. A planned delay happens here.
bool nvml_fault(const char *name, nvl::nvml_return *code);

} // namespace emu

#endif
