// SPDX-License-Identifier: BSD-3-Clause
//
// Hints about managed memory, and small calls that change nothing here: taken, checked, ignored.
#include "driver.h"

using namespace emu;

static CUresult check_managed(CUdeviceptr pointer, size_t size)
{
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(size > 0 && r != nullptr && r->kind == range_kind::managed &&
                    size <= r->size - (pointer - r->base),
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult prefetch(CUdeviceptr pointer, size_t size, CUstream handle)
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_TRY(check_managed(pointer, size));
    submit_ordered(*ctx, *s, [] {});
    return CUDA_SUCCESS;
}

EMU_API(cuMemPrefetchAsync, (CUdeviceptr pointer, size_t size, CUdevice dev, CUstream stream),
        (pointer, size, dev, stream))
{
    EMU_REQUIRE(dev == CU_DEVICE_CPU || device_at(dev) != nullptr, CUDA_ERROR_INVALID_DEVICE);
    return prefetch(pointer, size, stream);
}

EMU_API(cuMemPrefetchAsync_v2,
        (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags,
         CUstream stream),
        (pointer, size, location, flags, stream))
{
    EMU_REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_at(location.id) != nullptr,
                CUDA_ERROR_INVALID_DEVICE);
    return prefetch(pointer, size, stream);
}

EMU_API(cuMemAdvise, (CUdeviceptr pointer, size_t size, CUmem_advise advice, CUdevice dev),
        (pointer, size, advice, dev))
{
    EMU_REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY &&
                    advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(dev == CU_DEVICE_CPU || device_at(dev) != nullptr, CUDA_ERROR_INVALID_DEVICE);
    return check_managed(pointer, size);
}

EMU_API(cuMemAdvise_v2,
        (CUdeviceptr pointer, size_t size, CUmem_advise advice, CUmemLocation location),
        (pointer, size, advice, location))
{
    EMU_UNUSED(location);
    EMU_REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY &&
                    advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                CUDA_ERROR_INVALID_VALUE);
    return check_managed(pointer, size);
}

EMU_API(cuStreamAttachMemAsync,
        (CUstream handle, CUdeviceptr pointer, size_t size, unsigned int flags),
        (handle, pointer, size, flags))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ||
                    flags == CU_MEM_ATTACH_SINGLE,
                CUDA_ERROR_INVALID_VALUE);
    return check_managed(pointer, size == 0 ? 1 : size);
}

EMU_API(cuFlushGPUDirectRDMAWrites,
        (CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope),
        (target, scope))
{
    EMU_UNUSED(scope);
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

EMU_API(cuCtxResetPersistingL2Cache, (void), ())
{
    std::shared_ptr<context> ctx;
    return current_context(&ctx);
}

EMU_API(cuMemRangeGetAttributes,
        (void **out, size_t *sizes, CUmem_range_attribute *attributes, size_t count,
         CUdeviceptr pointer, size_t size),
        (out, sizes, attributes, count, pointer, size))
{
    EMU_REQUIRE(out != nullptr && sizes != nullptr && attributes != nullptr && count > 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(check_managed(pointer, size));
    return CUDA_ERROR_NOT_SUPPORTED; // one by one: cuMemRangeGetAttribute
}
