// SPDX-License-Identifier: BSD-3-Clause
//
// Asks what is allowed before it allows more.
#include "mem/access.h"

#include <cinttypes>

#include "base/log.h"

namespace nvl {

namespace {

CUmemAccessDesc full_access(CUdevice device) noexcept
{
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id   = device;
    access.flags         = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

CUresult allow_chunk(const cuda_api &cuda, CUdeviceptr base, size_t size,
                     const CUmemAccessDesc &access) noexcept
{
    unsigned long long has = 0;
    if ((cuda.cuMemGetAccess != nullptr) &&
        (cuda.cuMemGetAccess(&has, &access.location, base) == CUDA_SUCCESS) &&
        (has == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
        return CUDA_SUCCESS;
    }
    return cuda.cuMemSetAccess(base, size, &access, 1);
}

// Chunk by chunk: one may have another access than its neighbour.
CUresult allow_range(places &where, const region &found, uint64_t base, size_t size_bytes,
                     const CUmemAccessDesc &access) noexcept
{
    const cuda_api &cuda = where.cuda();
    for (uint64_t at = base; at - base < size_bytes;) {
        region chunk = region_mapped(where, found, at, 1);
        if (at - chunk.base >= chunk.size_bytes) {
            return CUDA_ERROR_NOT_FOUND;
        }
        CUresult code = allow_chunk(cuda, chunk.base, chunk.size_bytes, access);
        if (code != CUDA_SUCCESS) {
            return code;
        }
        at = chunk.base + chunk.size_bytes;
    }
    return CUDA_SUCCESS;
}

CUresult allow_pool(const cuda_api &cuda, CUmemoryPool pool, const CUmemAccessDesc &access) noexcept
{
    CUmemAccess_flags has   = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemLocation     which = access.location;
    if ((cuda.cuMemPoolGetAccess != nullptr) &&
        (cuda.cuMemPoolGetAccess(&has, pool, &which) == CUDA_SUCCESS) &&
        (has == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
        return CUDA_SUCCESS;
    }
    return cuda.cuMemPoolSetAccess(pool, &access, 1);
}

} // namespace

ucs_status_t allow_access(places &where, const region &found, uint64_t base, size_t size_bytes,
                          const place &from) noexcept
{
    const cuda_api &cuda = where.cuda();
    bool            can  = (found.pool != nullptr) ? (cuda.cuMemPoolSetAccess != nullptr)
                                                   : (cuda.cuMemSetAccess != nullptr);
    if (!can || (!found.is_vmm() && (found.pool == nullptr))) {
        result<const place *> owner = region_place(where, found);
        return owner.ok() ? where.enable_peer(from, *owner.value()) : owner.status();
    }
    // On its own GPU that is the application's business.
    if (static_cast<unsigned>(found.gpu) == from.gpu) {
        return UCS_OK;
    }

    CUmemAccessDesc access = full_access(where.gpus()[from.gpu].device);
    context_guard   guard  = where.enter(from);
    relaxed_capture relaxed(cuda);
    CUresult        code = !guard.ok()               ? guard.code()
                           : (found.pool != nullptr) ? allow_pool(cuda, found.pool, access)
                                                     : allow_range(where, found, base, size_bytes, access);
    if (code != CUDA_SUCCESS) {
        NVL_DIAG("GPU %d cannot reach memory of GPU %d at 0x%" PRIx64 ": %s",
                 where.gpus()[from.gpu].ordinal, where.gpus()[found.gpu].ordinal, base,
                 cuda.error_text(code));
        return UCS_ERR_UNREACHABLE;
    }
    return UCS_OK;
}

} // namespace nvl
