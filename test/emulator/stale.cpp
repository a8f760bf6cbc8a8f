// SPDX-License-Identifier: BSD-3-Clause
//
// See stale.h.
#include "stale.h"
#include "call.h"
#include "driver.h"
#include "report.h"

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace emu {

namespace {

struct stale_handles {
    std::mutex                   mutex;
    std::unordered_set<uint64_t> all;
    bool                         reuse        = false;
    uint64_t                     last_context = 0;
    std::atomic<bool>            any{false}; // ever: most processes look no further
};

stale_handles &stale()
{
    static stale_handles *only = new stale_handles;
    return *only;
}

bool is_context(uint64_t handle)
{
    return (handle >> 40) == static_cast<uint64_t>(handle_kind::context);
}

} // namespace

void note_stale(uint64_t handle)
{
    std::lock_guard lock(stale().mutex);
    stale().all.insert(handle);
    if (is_context(handle))
        stale().last_context = handle;
    stale().any.store(true);
}

void refuse_stale(uint64_t handle)
{
    if (!stale().any.load())
        return;
    {
        std::lock_guard lock(stale().mutex);
        if (stale().all.count(handle) == 0)
            return;
    }
    report_stale(name_of_this_call(), handle);
}

void reuse_contexts(bool on)
{
    std::lock_guard lock(stale().mutex);
    stale().reuse = on;
}

uint64_t take_used_context()
{
    std::lock_guard lock(stale().mutex);
    if (!stale().reuse)
        return 0;
    uint64_t handle = stale().last_context;
    return stale().all.erase(handle) != 0 ? handle : 0;
}

} // namespace emu
