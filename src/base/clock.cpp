// SPDX-License-Identifier: BSD-3-Clause
//
// Calibrates the tick counter against the monotonic clock.
#include "base/clock.h"

namespace nvl {

namespace {

uint64_t monotonic_ns() noexcept
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

double calibrate() noexcept
{
    // 2 ms against a clock read of about 50 ns: an error under 0.01 %.
    constexpr uint64_t span_ns = 2000000;
    uint64_t           ns      = monotonic_ns();
    uint64_t           ticks   = clock_ticks();
    uint64_t           now_ns;
    do {
        now_ns = monotonic_ns();
    } while (now_ns - ns < span_ns);
    return static_cast<double>(clock_ticks() - ticks) / static_cast<double>(now_ns - ns);
}

} // namespace

double clock_rate() noexcept
{
    static const double rate = calibrate();
    return rate;
}

} // namespace nvl
