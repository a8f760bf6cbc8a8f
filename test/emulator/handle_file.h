// SPDX-License-Identifier: BSD-3-Clause
//
// How a handle of 64 bytes names a memory file in another process: process, descriptor there, and
// a number that only this file carries, so that a handle outlived by its memory is found out.
// Used by ipc.cpp, vmm.cpp (fabric handles) and pool.cpp.
#ifndef NVLINK_EMULATOR_HANDLE_FILE_H
#define NVLINK_EMULATOR_HANDLE_FILE_H

#include "backing.h"

#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace emu {

enum class handle_purpose : uint32_t {
    legacy_ipc = 0x4e564c49, // "NVLI"
    fabric     = 0x4e564c46,
    pool       = 0x4e564c50,
    pointer    = 0x4e564c58,
    event      = 0x4e564c45,
};

struct memory_handle {
    handle_purpose purpose;
    int32_t        pid;
    int32_t        fd;
    uint32_t       reserved;
    uint64_t       nonce[2];
    uint64_t       size;       // of the allocation
    uint64_t       pool_nonce; // of a pointer: the pool's
};
static_assert(sizeof(memory_handle) <= 64, "fits CUDA's handles of 64 bytes");

inline memory_handle handle_of(const backing &memory, size_t size, handle_purpose purpose)
{
    memory_handle handle{};
    handle.purpose  = purpose;
    handle.pid      = getpid();
    handle.fd       = memory.fd();
    handle.nonce[0] = memory.page().nonce[0];
    handle.nonce[1] = memory.page().nonce[1];
    handle.size     = size;
    return handle;
}

inline bool is_same_file(const memory_handle &handle, const backing &memory)
{
    return memory.page().nonce[0] == handle.nonce[0] && memory.page().nonce[1] == handle.nonce[1];
}

// nullptr: the process is gone, or the descriptor is another file by now, or is given back.
inline std::shared_ptr<backing> open_file(const memory_handle &handle)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return nullptr;
    std::shared_ptr<backing> memory = backing::adopt(fd);
    bool good = memory != nullptr && is_same_file(handle, *memory) && memory->page().freed == 0 &&
                handle.size <= memory->size();
    return good ? memory : nullptr;
}

} // namespace emu

#endif
