// SPDX-License-Identifier: BSD-3-Clause
//
// What toolkits before 13.0 lack of the driver API that is emulated: declarations by the values and
// layouts of the later ones, so that the emulated driver is the same whatever toolkit built it.
// From 12.0 on. Included by cuda_internal.h after cuda.h.
#ifndef NVLINK_EMULATOR_CUDA_NEWER_H
#define NVLINK_EMULATOR_CUDA_NEWER_H

#include "driver/cuda_newer.h"

#if CUDA_VERSION < 12010
constexpr unsigned CU_CTX_SYNC_MEMOPS = 0x80;
struct CUmulticastObjectProp {
    unsigned           numDevices;
    size_t             size;
    unsigned long long handleTypes, flags;
};
enum CUmulticastGranularity_flags {
    CU_MULTICAST_GRANULARITY_MINIMUM     = 0,
    CU_MULTICAST_GRANULARITY_RECOMMENDED = 1,
};
#endif

#if CUDA_VERSION < 12020
constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_NUMA_ID = static_cast<CUdevice_attribute>(131);
constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID =
    static_cast<CUdevice_attribute>(134);
#endif

#if CUDA_VERSION < 12030
constexpr CUdevice_attribute CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED =
    static_cast<CUdevice_attribute>(128);
struct CUgraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};
#endif

#if CUDA_VERSION < 12040
enum CUfunctionLoadingState {
    CU_FUNCTION_LOADING_STATE_UNLOADED = 0,
    CU_FUNCTION_LOADING_STATE_LOADED   = 1,
};
#endif

#if CUDA_VERSION < 12050
struct CUctxCreateParams {
    CUexecAffinityParam *execAffinityParams;
    int                  numExecAffinityParams;
    void                *cigParams;
};
#endif

#if CUDA_VERSION < 12080
constexpr CUpointer_attribute CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE =
    static_cast<CUpointer_attribute>(21);
constexpr unsigned CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE = 1;
constexpr unsigned CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE  = 1;
enum CUmemcpySrcAccessOrder {
    CU_MEMCPY_SRC_ACCESS_ORDER_INVALID         = 0,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM          = 1,
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY             = 3,
};
struct CUmemcpyAttributes {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation          srcLocHint, dstLocHint;
    unsigned               flags;
};
enum CUmemcpy3DOperandType {
    CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
    CU_MEMCPY_OPERAND_TYPE_ARRAY   = 2,
};
struct CUoffset3D {
    size_t x, y, z;
};
struct CUextent3D {
    size_t width, height, depth;
};
struct CUmemcpy3DOperand {
    CUmemcpy3DOperandType type;
    union {
        struct {
            CUdeviceptr   ptr;
            size_t        rowLength, layerHeight;
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray    array;
            CUoffset3D offset;
        } array;
    } op;
};
struct CUDA_MEMCPY3D_BATCH_OP {
    CUmemcpy3DOperand      src, dst;
    CUextent3D             extent;
    CUmemcpySrcAccessOrder srcAccessOrder;
    unsigned               flags;
};
#endif

#if CUDA_VERSION < 13000
constexpr CUdevice_P2PAttribute CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED =
    static_cast<CUdevice_P2PAttribute>(5);
#endif

extern "C" {

#if CUDA_VERSION < 12010
CUresult cuCtxSetFlags(unsigned flags);
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                            CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                            unsigned long long flags);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr memory,
                             size_t size, unsigned long long flags);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev, size_t at,
                           size_t size);
CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags which);
#endif

#if CUDA_VERSION < 12020
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice,
                        CUmemLocation location);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location,
                               unsigned flags, CUstream stream);
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t size, CUmemLocation location,
                                    unsigned flags, CUstream stream);
#endif

#if CUDA_VERSION < 12030
CUresult cuFuncGetName(const char **name, CUfunction function);
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *count);
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                        cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode     **dependencies,
                                        const CUgraphEdgeData **edges, size_t *count);
#endif

#if CUDA_VERSION < 12040
CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module);
CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function);
CUresult cuFuncLoad(CUfunction function);
#endif

#if CUDA_VERSION < 12050
CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice dev);
#endif

#if CUDA_VERSION < 12080
CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end);
CUresult cuStreamGetDevice(CUstream stream, CUdevice *dev);
CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *dev);
CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *firsts, size_t attribute_count,
                            size_t *fail_index, CUstream stream);
CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attributes, size_t *firsts,
                                 size_t attribute_count, size_t *fail_index, CUstream stream);
CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail_index,
                              unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail_index,
                                   unsigned long long flags, CUstream stream);
#endif

#if CUDA_VERSION < 13000
CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx);
CUresult cuCtxSynchronize_v2(CUcontext ctx);
CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *firsts,
                               size_t attribute_count, CUstream stream);
CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                    size_t count, CUmemcpyAttributes *attributes, size_t *firsts,
                                    size_t attribute_count, CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops,
                                 unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops,
                                      unsigned long long flags, CUstream stream);
#endif

} // extern "C"

#endif
