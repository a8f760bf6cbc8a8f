// SPDX-License-Identifier: BSD-3-Clause
//
// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync, each in both its forms: with failIdx, of CUDA 12.8, and
// without, of CUDA 13.0.
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

// What is said of a failed batch that no single copy is to blame for.
constexpr size_t whole_batch = ~static_cast<size_t>(0);

bool is_legacy(CUstream stream)
{
    return (stream == nullptr && !stream_zero_is_per_thread()) || stream == CU_STREAM_LEGACY;
}

bool are_known(CUmemcpySrcAccessOrder order, unsigned flags)
{
    return (order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
            order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY) &&
           flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
}

reading reading_of(CUmemcpySrcAccessOrder order)
{
    switch (order) {
    case CU_MEMCPY_SRC_ACCESS_ORDER_STREAM:
        return reading::in_order;
    case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL:
        return reading::at_once;
    default:
        return reading::usual;
    }
}

CUresult check_attributes(const batch &b)
{
    EMU_REQUIRE(b.attributes != nullptr && b.firsts != nullptr && b.attribute_count > 0 &&
                    b.attribute_count <= b.count,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(b.firsts[0] == 0, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < b.attribute_count; i++) {
        EMU_REQUIRE(are_known(b.attributes[i].srcAccessOrder, b.attributes[i].flags),
                    CUDA_ERROR_INVALID_VALUE);
        EMU_REQUIRE(b.firsts[i] < b.count && (i == 0 || b.firsts[i] > b.firsts[i - 1]),
                    CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

// *failed: the copy that was refused, or all ones when the batch as a whole was.
CUresult submit_batch(CUstream stream, const batch &b, size_t *failed)
{
    *failed = whole_batch;
    EMU_REQUIRE(b.dsts != nullptr && b.srcs != nullptr && b.sizes != nullptr && b.count > 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(!is_legacy(stream), CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(check_attributes(b));
    size_t attribute = 0; // of this copy
    for (size_t i = 0; i < b.count; i++) {
        if (attribute + 1 < b.attribute_count && b.firsts[attribute + 1] == i)
            attribute++;
        const reading how = reading_of(b.attributes[attribute].srcAccessOrder);
        copy_shape    shape;
        shape.dst     = b.dsts[i];
        shape.src     = b.srcs[i];
        shape.row     = b.sizes[i];
        CUresult code = b.sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE
                                        : submit_copy(stream, shape, when::submitted, how);
        if (code != CUDA_SUCCESS) {
            *failed = i;
            return code;
        }
    }
    return CUDA_SUCCESS;
}

// Where one end of a box begins, and its steps. There is no CUDA array here that it could be.
CUresult end_of_box(const CUmemcpy3DOperand &end, const CUextent3D &extent, uint64_t *begin,
                    size_t *pitch, size_t *plane)
{
    EMU_REQUIRE(end.type == CU_MEMCPY_OPERAND_TYPE_POINTER, CUDA_ERROR_INVALID_VALUE);
    const auto  &place  = end.op.ptr;
    const size_t height = place.layerHeight == 0 ? extent.height : place.layerHeight;
    *begin              = place.ptr;
    *pitch              = place.rowLength == 0 ? extent.width : place.rowLength;
    EMU_REQUIRE(*pitch >= extent.width && height >= extent.height &&
                    !__builtin_mul_overflow(*pitch, height, plane),
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult submit_box(CUstream stream, const CUDA_MEMCPY3D_BATCH_OP &op)
{
    copy_shape shape;
    shape.row    = op.extent.width;
    shape.rows   = op.extent.height;
    shape.planes = op.extent.depth;
    EMU_REQUIRE(shape.row > 0 && shape.rows > 0 && shape.planes > 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(are_known(op.srcAccessOrder, op.flags), CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(end_of_box(op.dst, op.extent, &shape.dst, &shape.dst_pitch, &shape.dst_plane));
    EMU_TRY(end_of_box(op.src, op.extent, &shape.src, &shape.src_pitch, &shape.src_plane));
    return submit_copy(stream, shape, when::submitted, reading_of(op.srcAccessOrder));
}

CUresult submit_boxes(CUstream stream, size_t count, const CUDA_MEMCPY3D_BATCH_OP *ops,
                      unsigned long long flags, size_t *failed)
{
    *failed = whole_batch;
    EMU_REQUIRE(ops != nullptr && count > 0 && flags == 0 && !is_legacy(stream),
                CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        CUresult code = submit_box(stream, ops[i]);
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

EMU_API(cuMemcpy3DBatchAsync,
        (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail_index, unsigned long long flags,
         CUstream stream),
        (count, ops, fail_index, flags, stream))
{
    size_t   failed = 0;
    CUresult code   = submit_boxes(stream, count, ops, flags, &failed);
    if (code != CUDA_SUCCESS && fail_index != nullptr)
        *fail_index = failed;
    return code;
}

EMU_API(cuMemcpy3DBatchAsync_v2,
        (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream),
        (count, ops, flags, stream))
{
    size_t failed = 0;
    return submit_boxes(stream, count, ops, flags, &failed);
}
