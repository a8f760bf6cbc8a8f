// SPDX-License-Identifier: BSD-3-Clause
//
// Planned faults: which calls and copies go wrong, and how. The rules come from NVL_EMU_FAULTS,
// from the file NVL_EMU_FAULTS_FILE, and from emu_add_faults; README.md has their grammar.
#ifndef NVLINK_EMULATOR_FAULTS_H
#define NVLINK_EMULATOR_FAULTS_H

#include "call.h"

namespace emu {

// False when no rule was ever set: the frame of a call then asks no further.
bool faults_are_planned() noexcept;

// What goes wrong with a call.
struct call_fault {
    CUresult code   = CUDA_SUCCESS; // not success: the call returns it and does nothing
    bool     skip   = false;        // it says success and does nothing
    bool     lost   = false;        // the event's point is never reached
    bool     astray = false;        // another device's context becomes current
};

// The count-th call of id in this process, the thread_count-th of this thread. May sleep, hang or
// kill the process.
call_fault fault_of_call(fn id, unsigned long count, unsigned long thread_count) noexcept;

// Of the call that this thread is in.
const call_fault &fault_of_this_call() noexcept;

bool add_faults(const char *rules) noexcept;
void clear_faults() noexcept;

} // namespace emu

#endif
