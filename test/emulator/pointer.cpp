// SPDX-License-Identifier: BSD-3-Clause
//
// Attributes of pointers and of ranges.
#include "driver.h"
#include "pool.h"
#include "vmm.h"

#include <cstring>

using namespace emu;

namespace {

template<class T> void give(void *out, T value)
{
    memcpy(out, &value, sizeof(value));
}

bool is_mapped_host(const range &r)
{
    return r.is_host();
}

unsigned access_flags(const range &r)
{
    std::shared_ptr<context> ctx;
    if (current_context_even_faulty(&ctx) != CUDA_SUCCESS)
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
    device *owner = device_at(r.device);
    // What peer access decides is shown as it could be, not as it is enabled.
    if (!r.has_own_access() && owner != nullptr && can_reach(*ctx->dev, *owner))
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    if (may_touch(*ctx->dev, ctx.get(), r, true))
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    return may_touch(*ctx->dev, ctx.get(), r, false) ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                                                     : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

CUmemorytype memory_type(const range &r)
{
    return r.is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

int ordinal_of(const range &r)
{
    if (r.device >= 0)
        return r.device;
    auto ctx = drv().contexts.find(r.context);
    return ctx == nullptr ? CU_DEVICE_INVALID : ctx->dev->ordinal;
}

// A mapping belongs to its whole reservation, which may have several.
std::pair<uint64_t, size_t> whole_range(const range &r)
{
    if (r.kind == range_kind::vmm)
        return reservation_of(r.base);
    return {r.base, r.size};
}

CUmemoryPool pool_of(const range &r)
{
    return r.owner_pool == nullptr ? nullptr : r.owner_pool->handle;
}

// The answers for an address that the driver knows.
CUresult attribute_of(const range &r, uint64_t address, CUpointer_attribute attribute, void *out)
{
    switch (static_cast<int>(attribute)) { // some are newer than the toolkit
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        give(out, r.context);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        give(out, static_cast<unsigned>(memory_type(r)));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        give(out, static_cast<CUdeviceptr>(address));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        EMU_REQUIRE(is_mapped_host(r) || r.kind == range_kind::managed, CUDA_ERROR_INVALID_VALUE);
        give(out, reinterpret_cast<void *>(address));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        give(out, static_cast<int>(r.sync_memops.load()));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        give(out, static_cast<unsigned long long>(r.buffer_id));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        give(out, static_cast<int>(r.kind == range_kind::managed));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        give(out, ordinal_of(r));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        give(out, static_cast<int>(r.legacy_ipc));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        give(out, static_cast<CUdeviceptr>(whole_range(r).first));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        give(out, whole_range(r).second);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        give(out, static_cast<CUdeviceptr>(r.base));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        give(out, static_cast<size_t>(r.size));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        give(out, 1);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        give(out, static_cast<unsigned long long>(r.handle_types));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        give(out, static_cast<int>(!r.is_host() && r.kind != range_kind::managed));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        give(out, access_flags(r));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        give(out, pool_of(r));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        give(out, static_cast<unsigned long long>(r.memory == nullptr ? r.buffer_id
                                                                      : r.memory->block_id()));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        give(out, 0);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// cuPointerGetAttributes gives zeroes where cuPointerGetAttribute refuses.
CUresult attribute_of_unknown(CUpointer_attribute attribute, void *out)
{
    switch (static_cast<int>(attribute)) { // some are newer than the toolkit
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        give(out, 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        give(out, static_cast<int>(CU_DEVICE_INVALID));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        EMU_REQUIRE(attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
                        attribute <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                    CUDA_ERROR_INVALID_VALUE);
        give(out, 0ull);
        return CUDA_SUCCESS;
    }
}

} // namespace

EMU_API(cuPointerGetAttribute, (void *out, CUpointer_attribute attribute, CUdeviceptr pointer),
        (out, attribute, pointer))
{
    EMU_REQUIRE(out != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr, CUDA_ERROR_INVALID_VALUE);
    return attribute_of(*r, pointer, attribute, out);
}

EMU_API(cuPointerGetAttributes,
        (unsigned int count, CUpointer_attribute *attributes, void **out, CUdeviceptr pointer),
        (count, attributes, out, pointer))
{
    EMU_REQUIRE(count > 0 && attributes != nullptr && out != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    for (unsigned i = 0; i < count; i++) {
        EMU_REQUIRE(out[i] != nullptr, CUDA_ERROR_INVALID_VALUE);
        CUresult code = CUDA_ERROR_INVALID_VALUE;
        if (r != nullptr)
            code = attribute_of(*r, pointer, attributes[i], out[i]);
        if (code != CUDA_SUCCESS)
            EMU_TRY(attribute_of_unknown(attributes[i], out[i]));
    }
    return CUDA_SUCCESS;
}

EMU_API(cuPointerSetAttribute,
        (const void *value, CUpointer_attribute attribute, CUdeviceptr pointer),
        (value, attribute, pointer))
{
    EMU_REQUIRE(value != nullptr && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr, CUDA_ERROR_INVALID_VALUE);
    int on = 0;
    memcpy(&on, value, sizeof(on));
    r->sync_memops = on != 0;
    return CUDA_SUCCESS;
}

EMU_API(cuMemRangeGetAttribute,
        (void *out, size_t out_size, CUmem_range_attribute attribute, CUdeviceptr pointer,
         size_t size),
        (out, out_size, attribute, pointer, size))
{
    EMU_REQUIRE(out != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && r->kind == range_kind::managed &&
                    size <= r->size - (pointer - r->base),
                CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        EMU_REQUIRE(out_size == 4, CUDA_ERROR_INVALID_VALUE);
        give(out, 0);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        EMU_REQUIRE(out_size == 4, CUDA_ERROR_INVALID_VALUE);
        give(out, static_cast<int>(CU_DEVICE_INVALID));
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
