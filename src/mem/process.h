// SPDX-License-Identifier: BSD-3-Clause
//
// Who this process is, for its peers: host, PID namespace, PID, and a random
// token, because two containers can each have a PID 1. Called by mem and uct;
// calls nothing.
#ifndef NVLINK_MEM_PROCESS_H
#define NVLINK_MEM_PROCESS_H

#include <cstdint>

namespace nvl {

struct process_identity {
    uint64_t host_id = 0; // equal on one host, as UCX defines it
    uint64_t token   = 0; // random, once per process
    uint32_t pid     = 0;
    uint32_t pid_ns  = 0; // inode of the PID namespace
};

inline bool operator==(const process_identity &a, const process_identity &b) noexcept
{
    return (a.host_id == b.host_id) && (a.token == b.token) && (a.pid == b.pid) &&
           (a.pid_ns == b.pid_ns);
}

// Made at the first call and kept; `host_id` is what the UCX that loaded the
// plugin calls the host. A forked child is the same process here: CUDA does not
// work in it. Any thread.
const process_identity &process_self(uint64_t host_id) noexcept;

// The inode of this process's PID namespace; 0 if it cannot be told.
uint32_t process_pid_namespace() noexcept;

} // namespace nvl

#endif
