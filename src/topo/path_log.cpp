// SPDX-License-Identifier: BSD-3-Clause
//
// The line and who has seen it.

#include "topo/path_log.h"

#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <tuple>

namespace nvl {

namespace {

// Never destroyed: the last memory of a peer may be opened while the process exits.
struct pairs_told {
    std::mutex                                       mutex;
    std::set<std::tuple<int, uuid_bytes, peer_side>> told;
};

bool is_news(int from, const uuid_bytes &peer, peer_side side)
{
    static auto                &all = *new pairs_told;
    std::lock_guard<std::mutex> guard(all.mutex);
    const std::tuple            one{from, peer, side};
    // emplace() would allocate each time.
    return (all.told.count(one) == 0) && all.told.insert(one).second;
}

} // namespace

std::string path_log_text(int from, const uuid_bytes &peer, peer_side side, const pair_path &path)
{
    const char *const whose[] = {"this process", "a peer", "a peer on another host"};
    char              head[96], speed[64];
    std::snprintf(head, sizeof(head), "GPU %d reaches %.12s of %s: ", from,
                  format_uuid(peer, "GPU-").c_str(), whose[static_cast<int>(side)]);
    if (!path.reachable()) {
        // It was opened all the same: the driver knows better.
        return head + ("by the driver's word, although " + path.reason);
    }
    std::snprintf(speed, sizeof(speed), "; push %.0f, pull %.0f GB/s", path.push_bytes_s / 1e9,
                  path.pull_bytes_s / 1e9);
    return head + path.reason + (path.kind == path_kind::same_gpu ? "" : speed);
}

void path_log_reached(const cuda_api &cuda, int from, const gpu_identity &peer,
                      peer_side side) noexcept
try {
    if (!log_enabled(log_level::warn) || !is_news(from, peer.uuid, side)) {
        return;
    }
    const pair_path path = topology::get(cuda).judge(from, side != peer_side::other_host, peer);
    NVL_LOG(path.degraded ? log_level::warn : log_level::info, "%s",
            path_log_text(from, peer.uuid, side, path).c_str());
} catch (const std::exception &) {
    // No memory for a line of text.
}

} // namespace nvl
