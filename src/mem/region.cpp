// SPDX-License-Identifier: BSD-3-Clause
//
// Asks the driver about an address.
#include "mem/region.h"

#include <unistd.h>

namespace nvl {

namespace {

memory_kind kind_of(CUmemorytype type, bool is_managed) noexcept
{
    if (is_managed) {
        return memory_kind::managed;
    }
    switch (type) {
    case CU_MEMORYTYPE_DEVICE:
        return memory_kind::device;
    case CU_MEMORYTYPE_HOST:
        return memory_kind::host;
    default:
        return memory_kind::unknown;
    }
}

} // namespace

region region_query(places &where, const void *address) noexcept
{
    const cuda_api    &cuda         = where.cuda();
    CUmemorytype       type         = static_cast<CUmemorytype>(0);
    unsigned           managed      = 0;
    int                ordinal      = -1;
    CUcontext          context      = nullptr;
    unsigned long long buffer_id    = 0;
    CUdeviceptr        start        = 0;
    size_t             size         = 0;
    int                legacy       = 0;
    uint64_t           handle_types = 0;
    CUmemoryPool       pool         = nullptr;

    CUpointer_attribute names[]  = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                    CU_POINTER_ATTRIBUTE_CONTEXT,
                                    CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    void               *values[] = {&type,  &managed, &ordinal, &context,      &buffer_id,
                                    &start, &size,    &legacy,  &handle_types, &pool};
    static_assert(sizeof(names) / sizeof(names[0]) == sizeof(values) / sizeof(values[0]), "pairs");

    region found;
    auto   pointer = reinterpret_cast<CUdeviceptr>(address);
    if (cuda.cuPointerGetAttributes(sizeof(names) / sizeof(names[0]), names, values, pointer) !=
        CUDA_SUCCESS) {
        found.is_unanswered = true;
        return found;
    }

    found.kind = kind_of(type, managed != 0);
    if (found.kind == memory_kind::unknown) {
        return found;
    }

    if ((ordinal >= 0) && (found.kind != memory_kind::host)) {
        CUdevice device = 0;
        if (cuda.cuDeviceGet(&device, ordinal) == CUDA_SUCCESS) {
            found.gpu = where.find_gpu(device);
        }
    }
    found.context    = context;
    found.buffer_id  = buffer_id;
    found.base       = start;
    found.size_bytes = size;
    // A driver bug answers 0 for memory of cuMemAlloc, which always belongs to a
    // context; memory that belongs to none is VMM's or a pool's.
    found.legacy_ipc   = (legacy != 0) || (context != nullptr);
    found.handle_types = handle_types;
    found.pool         = pool;
    return found;
}

result<const place *> region_place(places &where, const region &found) noexcept
{
    CUdevice device = where.gpus()[found.gpu].device;
    return (found.context != nullptr) ? where.find(device, found.context) : where.primary(device);
}

region region_mapped(places &where, const region &found, uint64_t address,
                     size_t size_bytes) noexcept
{
    region part = found;
    if (!found.is_vmm()) {
        return part;
    }
    const cuda_api       &cuda = where.cuda();
    result<const place *> at   = region_place(where, found);
    if (!at.ok()) {
        return part;
    }
    context_guard guard = where.enter(*at.value());
    uint64_t      next  = address;
    bool          any   = false;
    while (guard.ok() && (!any || (next - address < size_bytes))) {
        CUdeviceptr base  = 0;
        size_t      bytes = 0;
        if ((cuda.cuMemGetAddressRange(&base, &bytes, next) != CUDA_SUCCESS) ||
            (any && (base != next)) || (next - base >= bytes)) {
            break;
        }
        part.base = any ? part.base : base;
        any       = true;
        next      = base + bytes;
    }
    if (any) {
        part.size_bytes = next - part.base;
    }
    return part;
}

void region_sync_memops(places &where, const region &found) noexcept
{
    unsigned on = 1;
    (void)where.cuda().cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, found.base);
}

bool region_is_registrable(places &where, const region &found) noexcept
{
    const cuda_api &cuda      = where.cuda();
    CUdevice        device    = where.gpus()[found.gpu].device;
    int             supported = 0;
    if ((cuda.cuMemGetHandleForAddressRange == nullptr) ||
        (cuda.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device) !=
         CUDA_SUCCESS) ||
        !supported) {
        return true; // then it is the peer-memory module's matter, which takes all
    }

    result<const place *> at = region_place(where, found);
    if (!at.ok()) {
        return false;
    }
    context_guard guard = where.enter(*at.value());
    auto          page  = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    uint64_t      first = found.base & ~(page - 1);
    uint64_t      last  = (found.base + found.size_bytes + page - 1) & ~(page - 1);
    int           fd    = -1;
    if (!guard.ok() ||
        (cuda.cuMemGetHandleForAddressRange(
             &fd, first, last - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS)) {
        return false;
    }
    (void)close(fd);
    return true;
}

} // namespace nvl
