// SPDX-License-Identifier: BSD-3-Clause
//
// Handles that went with their context: of streams, events, modules and functions, and of contexts
// themselves. A real driver follows such a handle into memory that it has freed; here the call is
// refused as ever, and counted as a violation. Called by the look-ups of handles.
#ifndef NVLINK_EMULATOR_STALE_H
#define NVLINK_EMULATOR_STALE_H

#include <cstdint>

namespace emu {

void note_stale(uint64_t handle);
void refuse_stale(uint64_t handle); // a violation, if it is one of these

template<class Handle> void note_stale(Handle *handle)
{
    note_stale(reinterpret_cast<uint64_t>(handle));
}

template<class Handle> void refuse_stale(Handle *handle)
{
    refuse_stale(reinterpret_cast<uint64_t>(handle));
}

// What an application's next contexts are called: by the handle of the one that was destroyed last, as
// a real driver does when it takes the same memory again (emu_reuse_contexts).
void     reuse_contexts(bool on);
uint64_t take_used_context(); // 0: none is to be had

} // namespace emu

#endif
