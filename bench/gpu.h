// SPDX-License-Identifier: BSD-3-Clause
//
// One GPU of this process, for the programs here that move data through UCP: its primary context,
// memory, copies. Opens libcuda.so.1 itself, so that a program needs no CUDA to be built or started.
// Any failed call of the driver ends the process.
#ifndef NVLINK_BENCH_GPU_H
#define NVLINK_BENCH_GPU_H

#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda.h>

namespace nvl {

// Name in this table, name in the library, as cuda.h declares it.
#define NVL_BENCH_CUDA(_row)                                                                       \
    _row(init, cuInit) _row(error_name, cuGetErrorName) _row(device_get, cuDeviceGet)              \
        _row(device_name, cuDeviceGetName) _row(primary_retain, cuDevicePrimaryCtxRetain) _row(    \
            context_set, cuCtxSetCurrent) _row(context_synchronize, cuCtxSynchronize)              \
            _row(alloc, cuMemAlloc) _row(free, cuMemFree) _row(alloc_host, cuMemAllocHost) _row(   \
                free_host, cuMemFreeHost) _row(copy_in, cuMemcpyHtoD) _row(copy_out, cuMemcpyDtoH) \
                _row(copy_within, cuMemcpyDtoDAsync) _row(set_bytes, cuMemsetD8Async)              \
                    _row(set_words, cuMemsetD32Async) _row(create, cuMemCreate)                    \
                        _row(release, cuMemRelease) _row(reserve, cuMemAddressReserve)             \
                            _row(unreserve, cuMemAddressFree) _row(map, cuMemMap)                  \
                                _row(unmap, cuMemUnmap) _row(set_access, cuMemSetAccess)           \
                                    _row(pool_create, cuMemPoolCreate)                             \
                                        _row(pool_alloc, cuMemAllocFromPoolAsync)                  \
                                            _row(current_device, cuCtxGetDevice)                   \
                                                _row(alloc_managed, cuMemAllocManaged)             \
                                                    _row(primary_reset, cuDevicePrimaryCtxReset)

struct gpu_driver {
#define NVL_BENCH_MEMBER(_member, _function) decltype(&::_function) _member = nullptr;
    NVL_BENCH_CUDA(NVL_BENCH_MEMBER)
#undef NVL_BENCH_MEMBER

    // Opens the library and cuInit's it.
    static const gpu_driver &get();
    void                     need(CUresult code, const char *what) const;
};

// What cuMemAlloc is replaced by, as an application's allocator may do it.
enum class allocate_as {
    alloc,
    vmm,
    vmm_chunks,
    vmm_none,
    vmm_fabric,
    pool,
    pool_none,
    pool_fabric
};

// The kind by its name above; false if there is none.
bool parse_allocate_as(const std::string &name, allocate_as *as);

// A GPU whose primary context is current in this thread.
class gpu {
public:
    explicit gpu(int ordinal);

    std::string name() const;
    void        synchronize() const;
    // What cudaDeviceReset does: everything in the context is gone.
    void reset() const;

private:
    int ordinal_;
};

// Memory of the GPU whose context is current.
class gpu_memory {
public:
    explicit gpu_memory(size_t size, allocate_as as = allocate_as::alloc);
    ~gpu_memory();
    gpu_memory(const gpu_memory &)            = delete;
    gpu_memory &operator=(const gpu_memory &) = delete;

    uint64_t address() const
    {
        return address_;
    }

    void *pointer(size_t offset = 0) const
    {
        return reinterpret_cast<void *>(address_ + offset);
    }

    size_t size() const
    {
        return size_;
    }

    void copy_in(size_t offset, const void *from, size_t size) const;
    void copy_out(size_t offset, void *to, size_t size) const;
    // By the GPU itself, not waited for: gpu.synchronize().
    void copy_within(size_t offset, const gpu_memory &from, size_t from_offset, size_t size) const;
    void fill(size_t offset, uint8_t value, size_t size) const;

private:
    void map_chunks(size_t chunk);
    void take_from_pool();
    // What others may open it by.
    CUmemAllocationHandleType handle_types() const;

    CUdeviceptr address_ = 0;
    size_t      size_;
    allocate_as as_;
    size_t      mapped_ = 0; // of VMM
};

// Host memory that the GPU reads and writes at full speed.
class pinned_memory {
public:
    explicit pinned_memory(size_t size);
    ~pinned_memory();
    pinned_memory(const pinned_memory &)            = delete;
    pinned_memory &operator=(const pinned_memory &) = delete;

    uint8_t *data() const
    {
        return static_cast<uint8_t *>(pointer_);
    }

private:
    void *pointer_ = nullptr;
};

} // namespace nvl

#endif
