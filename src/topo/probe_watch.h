// SPDX-License-Identifier: BSD-3-Clause
//
// A part of the probe in a thread of its own, which is left behind where a call does not return.
// For probe*.cpp only; calls base and driver/library.h.
#ifndef NVLINK_TOPO_PROBE_WATCH_H
#define NVLINK_TOPO_PROBE_WATCH_H

#include "topo/facts.h"

#include <atomic>
#include <chrono>

namespace nvl {

// An answer of NVML is not waited for any longer than this, from the first call on: more than the
// patience of probe_nvml.cpp and a call of seconds, which comes back.
constexpr auto nvml_limit = std::chrono::seconds(5);

// What both sides see of a part. Any thread.
class probe_watch {
public:
    // The asking side, before each call. `name` is static.
    void begin(const char *name) noexcept
    {
        call_.store(name, std::memory_order_relaxed);
    }

    const char *call() const noexcept
    {
        return call_.load(std::memory_order_relaxed);
    }

    void leave() noexcept
    {
        left_.store(true, std::memory_order_relaxed);
    }

    // Nobody waits any more, and the process may be at its end: touch nothing but your own.
    bool is_left() const noexcept
    {
        return left_.load(std::memory_order_relaxed);
    }

private:
    std::atomic<const char *> call_{""};
    std::atomic<bool>         left_{false};
};

using probe_part = void (*)(machine_facts &facts, probe_watch &watch);

// Runs `part` on a copy of `facts` and waits for it. In time: `facts` is what it made of them, the
// result is null. Else the result is the call that it was in, `facts` is untouched, and the thread
// stays behind with its copy; it holds up neither exit() nor dlclose. Where there is no thread to be
// had the part runs in the caller's, without a limit. May throw std::bad_alloc only.
const char *probe_within(std::chrono::milliseconds limit, machine_facts &facts, probe_part part);

} // namespace nvl

#endif
