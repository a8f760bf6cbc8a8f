// SPDX-License-Identifier: BSD-3-Clause
//
// How often each function was called.
#ifndef NVLINK_EMULATOR_COUNTERS_H
#define NVLINK_EMULATOR_COUNTERS_H

#include "call.h"

namespace emu {

struct call_numbers {
    unsigned long in_process; // the how-manieth call of the function this is
    unsigned long in_thread;
};
call_numbers  count_call(fn id) noexcept;
unsigned long calls_of(fn id) noexcept;
void          reset_counts() noexcept;

} // namespace emu

#endif
