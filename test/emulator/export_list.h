// SPDX-License-Identifier: BSD-3-Clause
//
// What a process has exported by legacy IPC handles: address -> memory file, in a file of its own
// that importers read. A legacy handle names process and address and nothing else, as the real
// driver's: freed and allocated anew at one address, memory has the same handle again.
#ifndef NVLINK_EMULATOR_EXPORT_LIST_H
#define NVLINK_EMULATOR_EXPORT_LIST_H

#include "backing.h"

#include <cuda.h>

namespace emu {

struct ipc_handle {
    uint32_t magic;
    int32_t  pid;
    int32_t  list_fd; // the list's descriptor in that process
    uint32_t reserved;
    uint64_t list_nonce; // that only this list carries
    uint64_t address;
};
static_assert(sizeof(ipc_handle) <= sizeof(CUipcMemHandle), "fits");

constexpr uint32_t ipc_magic = 0x4e564c49; // "NVLI"

// Names the memory in the list of this process. False: no room.
bool list_export(uint64_t address, const backing &memory, size_t size, ipc_handle *handle);
// The address is given back.
void unlist_export(uint64_t address);

// What the handle names now. CUDA_ERROR_INVALID_HANDLE: the process is gone;
// CUDA_ERROR_INVALID_VALUE: nothing is at that address any more. *size: of the allocation.
CUresult open_export(const ipc_handle &handle, std::shared_ptr<backing> *memory, size_t *size);

} // namespace emu

#endif
