// SPDX-License-Identifier: BSD-3-Clause
//
// cuMemcpyBatchAsync in both its forms: with failIdx, of CUDA 12.8, and without, of CUDA 13.0.
#include "copy.h"

using namespace emu;

namespace {

struct batch {
    const CUdeviceptr        *dsts, *srcs;
    const size_t             *sizes;
    size_t                    count;
    const CUmemcpyAttributes *attributes;
    const size_t             *firsts; // of each attribute, its first copy
    size_t                    attribute_count;
};

CUresult check_attributes(const batch &b)
{
    EMU_REQUIRE(b.attributes != nullptr && b.firsts != nullptr && b.attribute_count > 0 &&
                    b.attribute_count <= b.count,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(b.firsts[0] == 0, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < b.attribute_count; i++) {
        CUmemcpySrcAccessOrder order = b.attributes[i].srcAccessOrder;
        EMU_REQUIRE(order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
                        order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
                        order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
                    CUDA_ERROR_INVALID_VALUE);
        EMU_REQUIRE(b.attributes[i].flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE,
                    CUDA_ERROR_INVALID_VALUE);
        EMU_REQUIRE(b.firsts[i] < b.count && (i == 0 || b.firsts[i] > b.firsts[i - 1]),
                    CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

// *failed: the copy that was refused, or all ones when the batch as a whole was.
CUresult submit_batch(CUstream stream, const batch &b, size_t *failed)
{
    *failed = ~static_cast<size_t>(0);
    EMU_REQUIRE(b.dsts != nullptr && b.srcs != nullptr && b.sizes != nullptr && b.count > 0,
                CUDA_ERROR_INVALID_VALUE);
    bool is_legacy =
        (stream == nullptr && !stream_zero_is_per_thread()) || stream == CU_STREAM_LEGACY;
    EMU_REQUIRE(!is_legacy, CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(check_attributes(b));
    for (size_t i = 0; i < b.count; i++) {
        copy_shape shape;
        shape.dst     = b.dsts[i];
        shape.src     = b.srcs[i];
        shape.row     = b.sizes[i];
        CUresult code = b.sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
                                        : submit_copy(stream, shape, when::submitted);
        if (code != CUDA_SUCCESS) {
            *failed = i;
            return code;
        }
    }
    return CUDA_SUCCESS;
}

} // namespace

EMU_API(cuMemcpyBatchAsync,
        (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
         CUmemcpyAttributes *attributes, size_t *firsts, size_t attribute_count, size_t *fail_index,
         CUstream stream),
        (dsts, srcs, sizes, count, attributes, firsts, attribute_count, fail_index, stream))
{
    size_t   failed = 0;
    CUresult code   = submit_batch(
          stream, {dsts, srcs, sizes, count, attributes, firsts, attribute_count}, &failed);
    if (code != CUDA_SUCCESS && fail_index != nullptr)
        *fail_index = failed;
    return code;
}

EMU_API(cuMemcpyBatchAsync_v2,
        (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
         CUmemcpyAttributes *attributes, size_t *firsts, size_t attribute_count, CUstream stream),
        (dsts, srcs, sizes, count, attributes, firsts, attribute_count, stream))
{
    size_t failed = 0;
    return submit_batch(stream, {dsts, srcs, sizes, count, attributes, firsts, attribute_count},
                        &failed);
}
