// SPDX-License-Identifier: BSD-3-Clause
//
// See counters.h.
#include "counters.h"

#include <atomic>

namespace emu {
namespace {

std::atomic<unsigned long> totals[fn_count];
thread_local unsigned long of_thread[fn_count];

} // namespace

call_numbers count_call(fn id) noexcept
{
    unsigned i = static_cast<unsigned>(id);
    return {totals[i].fetch_add(1, std::memory_order_relaxed) + 1, ++of_thread[i]};
}

unsigned long calls_of(fn id) noexcept
{
    return totals[static_cast<unsigned>(id)].load(std::memory_order_relaxed);
}

void reset_counts() noexcept
{
    for (auto &total : totals)
        total.store(0, std::memory_order_relaxed);
}

} // namespace emu
