// SPDX-License-Identifier: BSD-3-Clause
//
// Copies of rectangles and boxes of linear memory. CUDA arrays are not emulated.
#include "copy.h"

using namespace emu;

namespace {

constexpr size_t max_pitch = 2147483647; // CU_DEVICE_ATTRIBUTE_MAX_PITCH

// One end of a box copy, as both CUDA structures describe it.
struct box_end {
    CUmemorytype type;
    const void  *host;
    CUdeviceptr  device;
    size_t       x, y, z, pitch, height;
};

CUresult address_of(const box_end &end, size_t row, size_t height, uint64_t *address, side *what)
{
    switch (end.type) {
    case CU_MEMORYTYPE_HOST:
        *address = reinterpret_cast<uint64_t>(end.host);
        *what    = side::host;
        break;
    case CU_MEMORYTYPE_DEVICE:
        *address = end.device;
        *what    = side::gpu;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        *address = end.device;
        *what    = side::any;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t least = 0, lines = 0, rows = 0, bytes = 0;
    EMU_REQUIRE(!__builtin_add_overflow(row, end.x, &least) &&
                    (end.pitch == 0 || end.pitch >= least) &&
                    !__builtin_add_overflow(height, end.y, &lines) &&
                    (end.height == 0 || end.height >= lines) &&
                    !__builtin_mul_overflow(end.z, end.height, &rows) &&
                    !__builtin_add_overflow(rows, end.y, &rows) &&
                    !__builtin_mul_overflow(rows, end.pitch == 0 ? least : end.pitch, &bytes) &&
                    !__builtin_add_overflow(bytes, end.x, &bytes) &&
                    !__builtin_add_overflow(*address, bytes, address),
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult copy_box(CUstream stream, const box_end &to, const box_end &from, size_t width,
                  size_t height, size_t depth, when until)
{
    copy_shape shape;
    shape.row    = width;
    shape.rows   = height;
    shape.planes = depth;
    EMU_TRY(address_of(to, width, height, &shape.dst, &shape.dst_side));
    EMU_TRY(address_of(from, width, height, &shape.src, &shape.src_side));
    shape.dst_pitch = to.pitch == 0 ? width + to.x : to.pitch;
    shape.src_pitch = from.pitch == 0 ? width + from.x : from.pitch;
    EMU_REQUIRE(
        !__builtin_mul_overflow(shape.dst_pitch, std::max(to.height, height), &shape.dst_plane) &&
            !__builtin_mul_overflow(shape.src_pitch, std::max(from.height, height),
                                    &shape.src_plane),
        CUDA_ERROR_INVALID_VALUE);
    return submit_copy(stream, shape, until);
}

// Of the calls for which CUDA's header says so.
CUresult check_pitches(size_t to, size_t from)
{
    return to <= max_pitch && from <= max_pitch ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_2d(CUstream stream, const CUDA_MEMCPY2D *copy, when until)
{
    EMU_REQUIRE(copy != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(check_pitches(copy->dstPitch, copy->srcPitch));
    box_end to{copy->dstMemoryType, copy->dstHost,
               copy->dstDevice,     copy->dstXInBytes,
               copy->dstY,          0,
               copy->dstPitch,      0};
    box_end from{copy->srcMemoryType, copy->srcHost,
                 copy->srcDevice,     copy->srcXInBytes,
                 copy->srcY,          0,
                 copy->srcPitch,      0};
    return copy_box(stream, to, from, copy->WidthInBytes, copy->Height, 1, until);
}

CUresult copy_3d(CUstream stream, const CUDA_MEMCPY3D *copy, when until)
{
    EMU_REQUIRE(copy != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(check_pitches(copy->dstPitch, copy->srcPitch));
    EMU_REQUIRE(copy->srcLOD == 0 && copy->dstLOD == 0 && copy->reserved0 == nullptr &&
                    copy->reserved1 == nullptr,
                CUDA_ERROR_INVALID_VALUE);
    box_end to{copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes,
               copy->dstY,          copy->dstZ,    copy->dstPitch,  copy->dstHeight};
    box_end from{copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes,
                 copy->srcY,          copy->srcZ,    copy->srcPitch,  copy->srcHeight};
    return copy_box(stream, to, from, copy->WidthInBytes, copy->Height, copy->Depth, until);
}

CUresult copy_3d_peer(CUstream stream, const CUDA_MEMCPY3D_PEER *copy, when until)
{
    EMU_REQUIRE(copy != nullptr, CUDA_ERROR_INVALID_VALUE);
    box_end to{copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes,
               copy->dstY,          copy->dstZ,    copy->dstPitch,  copy->dstHeight};
    box_end from{copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes,
                 copy->srcY,          copy->srcZ,    copy->srcPitch,  copy->srcHeight};
    return copy_box(stream, to, from, copy->WidthInBytes, copy->Height, copy->Depth, until);
}

} // namespace

EMU_API(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy))
{
    return copy_2d(nullptr, copy, when::finished);
}

EMU_API(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), (copy))
{
    return copy_2d(nullptr, copy, when::finished);
}

EMU_API(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
{
    return copy_2d(stream, copy, when::submitted);
}

EMU_API(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), (copy))
{
    return copy_3d(nullptr, copy, when::finished);
}

EMU_API(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
{
    return copy_3d(stream, copy, when::submitted);
}

EMU_API(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), (copy))
{
    return copy_3d_peer(nullptr, copy, when::finished);
}

EMU_API(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream))
{
    return copy_3d_peer(stream, copy, when::submitted);
}
