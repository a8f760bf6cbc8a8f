// SPDX-License-Identifier: BSD-3-Clause
//
// A region: what the driver knows about the allocation around an address. One
// question to the driver; nothing is kept. Called by export, by uct's memory
// domain (detection) and for operations without a registration.
#ifndef NVLINK_MEM_REGION_H
#define NVLINK_MEM_REGION_H

#include <cstddef>
#include <cstdint>

#include "mem/place.h"

namespace nvl {

enum class memory_kind : uint8_t {
    unknown, // not CUDA's: ordinary host memory
    host,    // page-locked by CUDA
    device,
    managed
};

struct region {
    memory_kind        kind          = memory_kind::unknown;
    int                gpu           = -1;      // index into places::gpus(); -1 for host memory
    CUcontext          context       = nullptr; // null: VMM and pools belong to none
    uint64_t           base          = 0;       // of the allocation
    size_t             size_bytes    = 0;
    unsigned long long buffer_id     = 0; // differs when an address is used again
    bool               legacy_ipc    = false;
    uint64_t           handle_types  = 0; // CUmemAllocationHandleType bits it can be exported as
    CUmemoryPool       pool          = nullptr;
    bool               is_unanswered = false; // the driver gave an error instead

    // Mapped by cuMemMap: `base` and `size_bytes` are those of the reservation,
    // which may have many chunks and holes.
    bool is_vmm() const noexcept
    {
        return (kind == memory_kind::device) && !legacy_ipc && (pool == nullptr);
    }
};

// Never fails: what the driver does not know is `unknown`. Any thread, with or
// without a current context.
region region_query(places &where, const void *address) noexcept;

// The place of a region that has a GPU: of its context, or, where it belongs to
// none (VMM, pools), of its GPU's primary one. Any thread.
result<const place *> region_place(places &where, const region &found) noexcept;

// The chunks of a VMM range under [address, +size), as a region: up to the first
// hole. Anything else as it is.
region region_mapped(places &where, const region &found, uint64_t address,
                     size_t size_bytes) noexcept;

// Makes the application's own synchronous copies and fills of this memory finish
// before they return, as other devices of UCX need it too. Best effort.
void region_sync_memops(places &where, const region &found) noexcept;

// True if a network card could register the memory: what UCX wants to know of a
// detected address. `context` belongs to the region's GPU.
bool region_is_registrable(places &where, const region &found) noexcept;

} // namespace nvl

#endif
