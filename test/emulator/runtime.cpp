// SPDX-License-Identifier: BSD-3-Clause
//
// The part of the CUDA runtime that UCX's ucx_perftest and memory hooks use, on top of whatever
// libcuda.so.1 is loaded. Takes the place of the runtime library inside a copy of UCX's wheel.
// Its symbols carry the version node libcudart.so.13, as the linked programs ask for.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <vector>

#define RT_EXPORT extern "C" __attribute__((visibility("default")))

// Of functions that no header declares.
#define RT_DEFINE(type, name, params) \
    RT_EXPORT type name params;       \
    RT_EXPORT type name params

namespace {

thread_local cudaError_t last_error  = cudaSuccess;
thread_local int         chosen      = 0;
thread_local bool        has_context = false; // this thread's context was set by us

// The runtime's codes are the driver's, but for two that it renames.
cudaError_t keep(CUresult code)
{
    cudaError_t error = static_cast<cudaError_t>(code);
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

CUresult init_once()
{
    static const CUresult code = cuInit(0);
    return code;
}

// One primary context a device, retained for the life of the process.
CUresult primary_of(int device, CUcontext *ctx)
{
    static std::mutex             mutex;
    static std::vector<CUcontext> contexts(64, nullptr);
    std::lock_guard<std::mutex>   lock(mutex);
    if (device < 0 || device >= static_cast<int>(contexts.size()))
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext &slot = contexts[static_cast<size_t>(device)];
    if (slot == nullptr) {
        CUresult code = cuDevicePrimaryCtxRetain(&slot, device);
        if (code != CUDA_SUCCESS)
            return code;
    }
    *ctx = slot;
    return CUDA_SUCCESS;
}

// What every call of the runtime begins with: a driver and a current context.
CUresult begin()
{
    CUresult code = init_once();
    if (code != CUDA_SUCCESS)
        return code;
    CUcontext current = nullptr;
    code              = cuCtxGetCurrent(&current);
    if (code != CUDA_SUCCESS || current != nullptr)
        return code;
    code = primary_of(chosen, &current);
    if (code != CUDA_SUCCESS)
        return code;
    has_context = true;
    return cuCtxSetCurrent(current);
}

#define RT_BEGIN()                   \
    do {                             \
        CUresult rt_code = begin();  \
        if (rt_code != CUDA_SUCCESS) \
            return keep(rt_code);    \
    } while (0)

CUdeviceptr number(const void *pointer)
{
    return reinterpret_cast<CUdeviceptr>(pointer);
}

} // namespace

RT_EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    CUresult code = init_once();
    if (code == CUDA_SUCCESS)
        code = cuDeviceGetCount(count);
    if (code != CUDA_SUCCESS && count != nullptr)
        *count = 0;
    return keep(code);
}

RT_EXPORT cudaError_t cudaSetDevice(int device)
{
    CUcontext ctx  = nullptr;
    CUresult  code = init_once();
    if (code == CUDA_SUCCESS)
        code = primary_of(device, &ctx);
    if (code == CUDA_SUCCESS)
        code = cuCtxSetCurrent(ctx);
    if (code == CUDA_SUCCESS) {
        chosen      = device;
        has_context = true;
    }
    return keep(code);
}

RT_EXPORT cudaError_t cudaGetDevice(int *device)
{
    RT_BEGIN();
    return keep(cuCtxGetDevice(device));
}

RT_EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    RT_BEGIN();
    return keep(cuCtxSynchronize());
}

RT_EXPORT cudaError_t cudaMalloc(void **pointer, size_t size)
{
    RT_BEGIN();
    if (size == 0) {
        *pointer = nullptr;
        return cudaSuccess;
    }
    CUdeviceptr made = 0;
    CUresult    code = cuMemAlloc(&made, size);
    if (code == CUDA_SUCCESS)
        *pointer = reinterpret_cast<void *>(made);
    return keep(code);
}

RT_EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned int flags)
{
    RT_BEGIN();
    CUdeviceptr made = 0;
    CUresult    code = cuMemAllocManaged(&made, size, flags);
    if (code == CUDA_SUCCESS)
        *pointer = reinterpret_cast<void *>(made);
    return keep(code);
}

RT_EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    RT_BEGIN();
    CUdeviceptr made = 0;
    CUresult    code = cuMemAllocPitch(&made, pitch, width, height, 4);
    if (code == CUDA_SUCCESS)
        *pointer = reinterpret_cast<void *>(made);
    return keep(code);
}

RT_EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    RT_BEGIN();
    CUdeviceptr made = 0;
    CUresult    code = cuMemAllocAsync(&made, size, stream);
    if (code == CUDA_SUCCESS)
        *pointer = reinterpret_cast<void *>(made);
    return keep(code);
}

RT_EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t pool,
                                              cudaStream_t stream)
{
    RT_BEGIN();
    CUdeviceptr made = 0;
    CUresult    code = cuMemAllocFromPoolAsync(&made, size, pool, stream);
    if (code == CUDA_SUCCESS)
        *pointer = reinterpret_cast<void *>(made);
    return keep(code);
}

RT_EXPORT cudaError_t cudaFree(void *pointer)
{
    RT_BEGIN();
    return keep(cuMemFree(number(pointer)));
}

RT_EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    RT_BEGIN();
    return keep(cuMemFreeAsync(number(pointer), stream));
}

RT_EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    RT_BEGIN();
    return keep(cuMemHostAlloc(pointer, size, flags));
}

RT_EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    RT_BEGIN();
    return keep(cuMemFreeHost(pointer));
}

RT_EXPORT cudaError_t cudaHostGetDevicePointer(void **pointer, void *host, unsigned int flags)
{
    RT_BEGIN();
    CUdeviceptr device = 0;
    CUresult    code   = cuMemHostGetDevicePointer(&device, host, flags);
    if (code == CUDA_SUCCESS)
        *pointer = reinterpret_cast<void *>(device);
    return keep(code);
}

RT_EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, cudaMemcpyKind)
{
    RT_BEGIN();
    return keep(cuMemcpy(number(dst), number(src), size));
}

RT_EXPORT cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, cudaMemcpyKind,
                                      cudaStream_t stream)
{
    RT_BEGIN();
    return keep(cuMemcpyAsync(number(dst), number(src), size, stream));
}

RT_EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t size)
{
    RT_BEGIN();
    return keep(cuMemsetD8(number(pointer), static_cast<unsigned char>(value), size));
}

RT_EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    RT_BEGIN();
    return keep(cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

RT_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    CUresult code = begin();
    return keep(code != CUDA_SUCCESS ? code : cuStreamCreate(stream, flags));
}

RT_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    CUresult code = init_once();
    return keep(code != CUDA_SUCCESS ? code : cuDeviceGetPCIBusId(text, length, device));
}

RT_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    CUresult code = init_once();
    return keep(code != CUDA_SUCCESS ? code : cuDeviceGetByPCIBusId(device, text));
}

RT_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    RT_BEGIN();
    return keep(cuStreamSynchronize(stream));
}

RT_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    RT_BEGIN();
    return keep(cuStreamDestroy(stream));
}

RT_EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error        = cudaSuccess;
    return error;
}

RT_EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

RT_EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = nullptr;
    cuGetErrorString(static_cast<CUresult>(error), &text);
    return text == nullptr ? "unrecognized error code" : text;
}

RT_EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    const char *text = nullptr;
    cuGetErrorName(static_cast<CUresult>(error), &text);
    return text == nullptr ? "unrecognized error code" : text;
}

// Variables of kernels that nvcc registers: no program on the emulated driver has any.
RT_EXPORT cudaError_t cudaGetSymbolSize(size_t *, const void *)
{
    return last_error = cudaErrorInvalidSymbol;
}

RT_EXPORT cudaError_t cudaGetSymbolAddress(void **, const void *)
{
    return last_error = cudaErrorInvalidSymbol;
}

RT_EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    return keep(cuDriverGetVersion(version));
}

RT_EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// What nvcc puts into programs that carry kernels of their own. They load, and a launch is
// refused: the emulated driver runs only kernels with a host build (emu_kernel.h).
RT_DEFINE(void **, __cudaRegisterFatBinary, (void *))
{
    static void *nothing = nullptr;
    return &nothing;
}

RT_DEFINE(void, __cudaRegisterFatBinaryEnd, (void **))
{
}

RT_DEFINE(void, __cudaUnregisterFatBinary, (void **))
{
}

RT_DEFINE(void, __cudaRegisterFunction,
          (void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *,
           int *))
{
}

RT_DEFINE(void, __cudaRegisterVar, (void **, char *, char *, const char *, int, size_t, int, int))
{
}

#if CUDART_VERSION < 12010
using cudaKernel_t = struct CUkern_st *;
#endif

RT_DEFINE(unsigned, __cudaPushCallConfiguration, (dim3, dim3, size_t, void *))
{
    return cudaErrorNotSupported;
}

RT_DEFINE(cudaError_t, __cudaPopCallConfiguration, (dim3 *, dim3 *, size_t *, void *))
{
    return last_error = cudaErrorNotSupported;
}

RT_DEFINE(cudaError_t, __cudaGetKernel, (cudaKernel_t *, const void *))
{
    return last_error = cudaErrorNotSupported;
}

RT_DEFINE(cudaError_t, __cudaLaunchKernel,
          (cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t))
{
    return last_error = cudaErrorNotSupported;
}

RT_EXPORT cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t)
{
    return last_error = cudaErrorNotSupported;
}
