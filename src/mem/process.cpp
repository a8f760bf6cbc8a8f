// SPDX-License-Identifier: BSD-3-Clause
//
// Reads the process's identity from the system.
#include "mem/process.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

namespace nvl {

namespace {

uint64_t random_token() noexcept
{
    uint64_t token = 0;
    if (getrandom(&token, sizeof(token), 0) != sizeof(token)) {
        token = clock_ticks() * 0x9e3779b97f4a7c15ull;
    }
    return token;
}

} // namespace

uint32_t process_pid_namespace() noexcept
{
    struct stat ns;
    return (stat("/proc/self/ns/pid", &ns) == 0) ? static_cast<uint32_t>(ns.st_ino) : 0;
}

const process_identity &process_self(uint64_t host_id) noexcept
{
    static const process_identity self = [host_id] {
        process_identity made;
        made.host_id = host_id;
        made.token   = random_token();
        made.pid     = static_cast<uint32_t>(getpid());
        made.pid_ns  = process_pid_namespace();
        return made;
    }();
    return self;
}

} // namespace nvl
