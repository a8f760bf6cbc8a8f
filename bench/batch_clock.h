// SPDX-License-Identifier: BSD-3-Clause
//
// Times batches of something and reports them as bench/compare_ops reads them. For ops_bench and
// key_bench.
#ifndef NVLINK_BENCH_BATCH_CLOCK_H
#define NVLINK_BENCH_BATCH_CLOCK_H

#include <algorithm>
#include <cstdint>

#include <benchmark/benchmark.h>

#include "base/clock.h"

namespace nvl {

inline double seconds_of(uint64_t ticks)
{
    return static_cast<double>(ticks) / static_cast<double>(clock_from_ns(1e9));
}

// Times one batch in each iteration of a benchmark and keeps the fastest: on a machine that does
// other things as well, an average says how busy it was.
class batch_clock {
public:
    batch_clock(benchmark::State &state, unsigned batch) : state_(state), batch_(batch)
    {
    }

    void add(uint64_t ticks)
    {
        state_.SetIterationTime(seconds_of(ticks));
        best_ = std::min(best_, ticks);
        operations_ += batch_;
    }

    // `calls`: of the driver, in all batches.
    void report(uint64_t calls)
    {
        state_.counters["best_ns"] = seconds_of(best_) * 1e9 / batch_;
        state_.counters["calls"]   = static_cast<double>(calls) / static_cast<double>(operations_);
    }

private:
    benchmark::State &state_;
    unsigned          batch_;
    uint64_t          best_       = UINT64_MAX;
    uint64_t          operations_ = 0;
};

} // namespace nvl

#endif
