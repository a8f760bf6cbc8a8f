// SPDX-License-Identifier: BSD-3-Clause
//
// The thread, and how it is left behind.

#include "topo/probe_watch.h"

#include "base/thread.h"
#include "driver/library.h"

#include <future>
#include <memory>

namespace nvl {

const char *probe_within(std::chrono::milliseconds limit, machine_facts &facts, probe_part part)
{
    const auto watch = std::make_shared<probe_watch>();
    // All that the thread touches is its own: the caller may be gone before it.
    std::packaged_task<machine_facts()> task([watch, part, copy = facts]() mutable {
        part(copy, *watch);
        return std::move(copy);
    });
    auto                                answer = task.get_future();
    std::thread asking = start_quiet_thread("nvlink-probe", std::move(task));

    if (!asking.joinable()) {
        part(facts, *watch);
        return nullptr;
    }
    if (answer.wait_for(limit) == std::future_status::ready) {
        asking.join();
        facts = answer.get();
        return nullptr;
    }
    watch->leave();
    keep_loaded(reinterpret_cast<const void *>(&probe_within));
    asking.detach();
    return watch->call();
}

} // namespace nvl
