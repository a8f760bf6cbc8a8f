// SPDX-License-Identifier: BSD-3-Clause
//
// The forms of functions for which stream 0 is the calling thread's own (..._ptsz, ..._ptds): each
// does what the ordinary form does, with that one difference. It counts and is traced under its
// own name only.
#include "driver.h"

namespace {

// While it lives, stream 0 is the thread's and the ordinary form is not counted.
class per_thread_scope {
public:
    per_thread_scope()
    {
        emu::stream_zero_is_per_thread() = true;
    }
    ~per_thread_scope()
    {
        emu::stream_zero_is_per_thread() = false;
    }
    per_thread_scope(const per_thread_scope &)            = delete;
    per_thread_scope &operator=(const per_thread_scope &) = delete;
};

} // namespace

#define EMU_PER_THREAD(ordinary, name, params, args) \
    EMU_FUNCTION(CUresult, name, params)             \
    {                                                \
        return emu::enter(                           \
            emu::fn::name, #args,                    \
            [&]() -> CUresult {                      \
                per_thread_scope scope;              \
                return ordinary  args;               \
            },                                       \
            EMU_ARGS args);                          \
    }

EMU_PER_THREAD(cuEventRecord, cuEventRecord_ptsz, (CUevent hEvent, CUstream hStream),
               (hEvent, hStream))
EMU_PER_THREAD(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
               (CUevent hEvent, CUstream hStream, unsigned int flags), (hEvent, hStream, flags))
EMU_PER_THREAD(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
               (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                unsigned int sharedMemBytes, CUstream hStream, void **kernelParams),
               (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
                hStream, kernelParams))
EMU_PER_THREAD(cuLaunchHostFunc, cuLaunchHostFunc_ptsz,
               (CUstream hStream, CUhostFn fn, void *userData), (hStream, fn, userData))
EMU_PER_THREAD(cuLaunchKernel, cuLaunchKernel_ptsz,
               (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
               (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
                hStream, kernelParams, extra))
EMU_PER_THREAD(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
               (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
               (config, f, kernelParams, extra))
EMU_PER_THREAD(cuMemAllocAsync, cuMemAllocAsync_ptsz,
               (CUdeviceptr * dptr, size_t bytesize, CUstream hStream), (dptr, bytesize, hStream))
EMU_PER_THREAD(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
               (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
               (dptr, bytesize, pool, hStream))
EMU_PER_THREAD(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr dptr, CUstream hStream),
               (dptr, hStream))
EMU_PER_THREAD(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz,
               (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
               (devPtr, count, dstDevice, hStream))
EMU_PER_THREAD(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz,
               (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                CUstream hStream),
               (devPtr, count, location, flags, hStream))
EMU_PER_THREAD(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
               (dst, src, ByteCount))
EMU_PER_THREAD(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *pCopy), (pCopy))
EMU_PER_THREAD(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz,
               (const CUDA_MEMCPY2D *pCopy, CUstream hStream), (pCopy, hStream))
EMU_PER_THREAD(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *pCopy),
               (pCopy))
EMU_PER_THREAD(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *pCopy), (pCopy))
EMU_PER_THREAD(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz,
               (const CUDA_MEMCPY3D *pCopy, CUstream hStream), (pCopy, hStream))
EMU_PER_THREAD(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz,
               (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
                unsigned long long flags, CUstream hStream),
               (numOps, opList, failIdx, flags, hStream))
EMU_PER_THREAD(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz,
               (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
                CUstream hStream),
               (numOps, opList, flags, hStream))
EMU_PER_THREAD(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER *pCopy), (pCopy))
EMU_PER_THREAD(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz,
               (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream), (pCopy, hStream))
EMU_PER_THREAD(cuMemcpyAsync, cuMemcpyAsync_ptsz,
               (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
               (dst, src, ByteCount, hStream))
EMU_PER_THREAD(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
               (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                CUstream hStream),
               (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream))
EMU_PER_THREAD(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
               (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream),
               (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream))
EMU_PER_THREAD(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds,
               (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
               (dstDevice, srcDevice, ByteCount))
EMU_PER_THREAD(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
               (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
               (dstDevice, srcDevice, ByteCount, hStream))
EMU_PER_THREAD(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds,
               (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
               (dstHost, srcDevice, ByteCount))
EMU_PER_THREAD(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
               (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
               (dstHost, srcDevice, ByteCount, hStream))
EMU_PER_THREAD(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds,
               (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
               (dstDevice, srcHost, ByteCount))
EMU_PER_THREAD(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
               (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
               (dstDevice, srcHost, ByteCount, hStream))
EMU_PER_THREAD(cuMemcpyPeer, cuMemcpyPeer_ptds,
               (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                CUcontext srcContext, size_t ByteCount),
               (dstDevice, dstContext, srcDevice, srcContext, ByteCount))
EMU_PER_THREAD(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
               (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                CUcontext srcContext, size_t ByteCount, CUstream hStream),
               (dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream))
EMU_PER_THREAD(cuMemsetD16_v2, cuMemsetD16_v2_ptds,
               (CUdeviceptr dstDevice, unsigned short us, size_t N), (dstDevice, us, N))
EMU_PER_THREAD(cuMemsetD16Async, cuMemsetD16Async_ptsz,
               (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream),
               (dstDevice, us, N, hStream))
EMU_PER_THREAD(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds,
               (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                size_t Height),
               (dstDevice, dstPitch, us, Width, Height))
EMU_PER_THREAD(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz,
               (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                size_t Height, CUstream hStream),
               (dstDevice, dstPitch, us, Width, Height, hStream))
EMU_PER_THREAD(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds,
               (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                size_t Height),
               (dstDevice, dstPitch, ui, Width, Height))
EMU_PER_THREAD(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz,
               (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                size_t Height, CUstream hStream),
               (dstDevice, dstPitch, ui, Width, Height, hStream))
EMU_PER_THREAD(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds,
               (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                size_t Height),
               (dstDevice, dstPitch, uc, Width, Height))
EMU_PER_THREAD(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz,
               (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                size_t Height, CUstream hStream),
               (dstDevice, dstPitch, uc, Width, Height, hStream))
EMU_PER_THREAD(cuMemsetD32_v2, cuMemsetD32_v2_ptds,
               (CUdeviceptr dstDevice, unsigned int ui, size_t N), (dstDevice, ui, N))
EMU_PER_THREAD(cuMemsetD32Async, cuMemsetD32Async_ptsz,
               (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream),
               (dstDevice, ui, N, hStream))
EMU_PER_THREAD(cuMemsetD8_v2, cuMemsetD8_v2_ptds,
               (CUdeviceptr dstDevice, unsigned char uc, size_t N), (dstDevice, uc, N))
EMU_PER_THREAD(cuMemsetD8Async, cuMemsetD8Async_ptsz,
               (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream),
               (dstDevice, uc, N, hStream))
EMU_PER_THREAD(cuStreamAddCallback, cuStreamAddCallback_ptsz,
               (CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags),
               (hStream, callback, userData, flags))
EMU_PER_THREAD(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
               (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
                unsigned int flags),
               (stream, count, paramArray, flags))
EMU_PER_THREAD(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
               (CUstream hStream, CUstreamCaptureMode mode), (hStream, mode))
EMU_PER_THREAD(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream hStream, CUgraph *phGraph),
               (hStream, phGraph))
EMU_PER_THREAD(cuStreamGetAttribute, cuStreamGetAttribute_ptsz,
               (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out),
               (hStream, attr, value_out))
EMU_PER_THREAD(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
               (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                CUgraph *graph_out, const CUgraphNode **dependencies_out,
                size_t *numDependencies_out),
               (hStream, captureStatus_out, id_out, graph_out, dependencies_out,
                numDependencies_out))
EMU_PER_THREAD(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
               (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                CUgraph *graph_out, const CUgraphNode **dependencies_out,
                const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out),
               (hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                numDependencies_out))
EMU_PER_THREAD(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream hStream, CUcontext *pctx),
               (hStream, pctx))
EMU_PER_THREAD(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream hStream, CUdevice *device),
               (hStream, device))
EMU_PER_THREAD(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream hStream, unsigned int *flags),
               (hStream, flags))
EMU_PER_THREAD(cuStreamGetId, cuStreamGetId_ptsz, (CUstream hStream, unsigned long long *streamId),
               (hStream, streamId))
EMU_PER_THREAD(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream hStream, int *priority),
               (hStream, priority))
EMU_PER_THREAD(cuStreamIsCapturing, cuStreamIsCapturing_ptsz,
               (CUstream hStream, CUstreamCaptureStatus *captureStatus), (hStream, captureStatus))
EMU_PER_THREAD(cuStreamQuery, cuStreamQuery_ptsz, (CUstream hStream), (hStream))
EMU_PER_THREAD(cuStreamSetAttribute, cuStreamSetAttribute_ptsz,
               (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value),
               (hStream, attr, value))
EMU_PER_THREAD(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream hStream), (hStream))
EMU_PER_THREAD(cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
               (CUstream hStream, CUevent hEvent, unsigned int Flags), (hStream, hEvent, Flags))
EMU_PER_THREAD(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz,
               (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
               (stream, addr, value, flags))
EMU_PER_THREAD(cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz,
               (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
               (stream, addr, value, flags))
EMU_PER_THREAD(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz,
               (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),
               (stream, addr, value, flags))
EMU_PER_THREAD(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz,
               (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),
               (stream, addr, value, flags))
