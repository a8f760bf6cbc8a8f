// SPDX-License-Identifier: BSD-3-Clause
//
// A clock for the data path: one unprivileged read of the processor's constant
// counter, no system call. Ticks are converted once, at set-up, by clock_rate().
#ifndef NVLINK_BASE_CLOCK_H
#define NVLINK_BASE_CLOCK_H

#include <cstdint>
#include <ctime>

namespace nvl {

inline uint64_t clock_ticks() noexcept
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
#endif
}

// Ticks a nanosecond, measured once against CLOCK_MONOTONIC (takes 2 ms the
// first time). Any thread.
double clock_rate() noexcept;

inline uint64_t clock_from_ns(double ns) noexcept
{
    return static_cast<uint64_t>(ns * clock_rate());
}

} // namespace nvl

#endif
