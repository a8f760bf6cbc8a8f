// SPDX-License-Identifier: BSD-3-Clause
//
// Memory is the host's; copies do not copy; the lingering kernel is there as soon as it is launched.
#include "prompt_gpu.h"

#include <cstdlib>
#include <cstring>

#include "engine/ring/ring.h"

namespace nvl {

namespace {

struct prompt_state {
    ring_shared *ring       = nullptr; // of the kernel that is there
    uint32_t     generation = 0;
    uint32_t     done       = 0; // last number
    uint64_t     calls      = 0;
    uint64_t     handles    = 0;
};

prompt_state gpu_g;

template<typename handle> CUresult make_handle(handle *handle_p)
{
    *handle_p = reinterpret_cast<handle>(++gpu_g.handles);
    return CUDA_SUCCESS;
}

CUresult allocate(void **block, size_t size_bytes)
{
    *block = aligned_alloc(4096, (size_bytes + 4095) / 4096 * 4096);
    memset(*block, 0, size_bytes);
    return CUDA_SUCCESS;
}

CUresult start_kernel(const ring_launch &launch)
{
    if (launch.follow == 0) {
        gpu_g.done = launch.first - 1;
    }
    gpu_g.ring       = reinterpret_cast<ring_shared *>(launch.shared);
    gpu_g.generation = launch.generation;
    __atomic_store_n(&gpu_g.ring->hello, launch.generation, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

// The kernel goes when it is asked to; until then its stream is busy.
CUresult query_stream()
{
    ++gpu_g.calls;
    if (gpu_g.ring == nullptr) {
        return CUDA_SUCCESS;
    }
    const ring_orders &orders = gpu_g.ring->orders;
    if ((orders.leave_now != gpu_g.generation) && (orders.leave_drained != gpu_g.generation)) {
        return CUDA_ERROR_NOT_READY;
    }
    __atomic_store_n(&gpu_g.ring->left, ring_word(gpu_g.generation, gpu_g.done + 1),
                     __ATOMIC_RELEASE);
    gpu_g.ring = nullptr;
    return CUDA_SUCCESS;
}

} // namespace

prompt_gpu::prompt_gpu()
{
    gpu_g = prompt_state();
    fill_set_up();
    fill_data_path();
}

prompt_gpu::~prompt_gpu()
{
    gpu_g = prompt_state();
}

void prompt_gpu::fill_set_up()
{
    cuda_.cuGetErrorName = [](CUresult, const char **text) -> CUresult {
        *text = "CUDA_ERROR";
        return CUDA_SUCCESS;
    };
    cuda_.cuGetErrorString     = cuda_.cuGetErrorName;
    cuda_.cuDeviceGetAttribute = [](int *value, CUdevice_attribute, CUdevice) -> CUresult {
        *value = 1;
        return CUDA_SUCCESS;
    };
    cuda_.cuCtxGetStreamPriorityRange = [](int *least, int *greatest) -> CUresult {
        *least = *greatest = 0;
        return CUDA_SUCCESS;
    };
    cuda_.cuStreamCreateWithPriority = [](CUstream *stream_p, unsigned, int) -> CUresult {
        return make_handle(stream_p);
    };
    cuda_.cuStreamDestroy     = [](CUstream) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuStreamSynchronize = [](CUstream) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuEventCreate       = [](CUevent *event_p, unsigned) -> CUresult {
        return make_handle(event_p);
    };
    cuda_.cuEventDestroy = [](CUevent) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuCtxGetDevice = [](CUdevice *device) -> CUresult {
        *device = 0;
        return CUDA_SUCCESS;
    };
    cuda_.cuDevicePrimaryCtxRetain = [](CUcontext *context, CUdevice) -> CUresult {
        *context = nullptr;
        return CUDA_SUCCESS;
    };
    cuda_.cuDevicePrimaryCtxRelease = [](CUdevice) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuMemHostRegister     = [](void *, size_t, unsigned) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuMemHostUnregister   = [](void *) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuPointerGetAttribute = [](void *value, CUpointer_attribute, CUdeviceptr) -> CUresult {
        *static_cast<unsigned long long *>(value) = 1; // one allocation, which stays
        return CUDA_SUCCESS;
    };
    cuda_.cuMemHostGetDevicePointer = [](CUdeviceptr *address, void *block, unsigned) -> CUresult {
        *address = reinterpret_cast<CUdeviceptr>(block);
        return CUDA_SUCCESS;
    };
    cuda_.cuMemAlloc = [](CUdeviceptr *address, size_t size_bytes) -> CUresult {
        return allocate(reinterpret_cast<void **>(address), size_bytes);
    };
    cuda_.cuMemFree = [](CUdeviceptr address) -> CUresult {
        free(reinterpret_cast<void *>(address));
        return CUDA_SUCCESS;
    };
    cuda_.cuMemsetD8Async = [](CUdeviceptr, unsigned char, size_t, CUstream) -> CUresult {
        return CUDA_SUCCESS; // allocate() has cleared it
    };
    cuda_.cuModuleLoadData = [](CUmodule *module_p, const void *) -> CUresult {
        return make_handle(module_p);
    };
    cuda_.cuModuleUnload      = [](CUmodule) -> CUresult { return CUDA_SUCCESS; };
    cuda_.cuModuleGetFunction = [](CUfunction *function_p, CUmodule, const char *) -> CUresult {
        return make_handle(function_p);
    };
    cuda_.cuFuncSetAttribute = [](CUfunction, CUfunction_attribute, int) -> CUresult {
        return CUDA_SUCCESS;
    };
}

void prompt_gpu::fill_data_path()
{
    cuda_.cuCtxPushCurrent = [](CUcontext) -> CUresult {
        ++gpu_g.calls;
        return CUDA_SUCCESS;
    };
    cuda_.cuCtxPopCurrent = [](CUcontext *) -> CUresult {
        ++gpu_g.calls;
        return CUDA_SUCCESS;
    };
    cuda_.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode *) -> CUresult {
        ++gpu_g.calls;
        return CUDA_SUCCESS;
    };
    cuda_.cuMemcpyAsync = [](CUdeviceptr, CUdeviceptr, size_t, CUstream) -> CUresult {
        ++gpu_g.calls;
        return CUDA_SUCCESS;
    };
    cuda_.cuEventRecord = [](CUevent, CUstream) -> CUresult {
        ++gpu_g.calls;
        return CUDA_SUCCESS;
    };
    cuda_.cuEventQuery = [](CUevent) -> CUresult {
        ++gpu_g.calls;
        return CUDA_SUCCESS;
    };
    cuda_.cuStreamQuery        = [](CUstream) -> CUresult { return query_stream(); };
    cuda_.cuStreamWriteValue32 = [](CUstream, CUdeviceptr address, cuuint32_t value,
                                    unsigned) -> CUresult {
        ++gpu_g.calls;
        __atomic_store_n(reinterpret_cast<uint32_t *>(address), value, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    };
    cuda_.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void **arguments, void **) -> CUresult {
        ++gpu_g.calls;
        ring_launch launch;
        memcpy(&launch, arguments[0], sizeof(launch));
        return start_kernel(launch);
    };
}

void prompt_gpu::finish_ring()
{
    if (gpu_g.ring == nullptr) {
        return;
    }
    uint32_t tail = __atomic_load_n(&gpu_g.ring->orders.tail, __ATOMIC_ACQUIRE);
    while (gpu_g.done != tail) {
        ++gpu_g.done;
        gpu_g.ring->done[gpu_g.done % ring_slots] = gpu_g.done;
    }
}

uint64_t prompt_gpu::take_calls()
{
    uint64_t calls = gpu_g.calls;
    gpu_g.calls    = 0;
    return calls;
}

} // namespace nvl
