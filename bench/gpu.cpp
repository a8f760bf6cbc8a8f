// SPDX-License-Identifier: BSD-3-Clause
//
// The driver's functions by name, and what the programs here do with them.
#include "gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

#include "driver/cuda_newer.h"

namespace nvl {

namespace {

#define NVL_BENCH_TEXT(_text)  #_text
#define NVL_BENCH_QUOTE(_text) NVL_BENCH_TEXT(_text)

// cuda.h makes of cuMemAlloc the version that it was written for, so the macro is quoted expanded.
gpu_driver open_driver()
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(2);
    }
    gpu_driver driver;
#define NVL_BENCH_LOAD(_member, _function)                                                      \
    driver._member =                                                                            \
        reinterpret_cast<decltype(driver._member)>(dlsym(library, NVL_BENCH_QUOTE(_function))); \
    if (driver._member == nullptr) {                                                            \
        fprintf(stderr, "libcuda.so.1 has no %s\n", NVL_BENCH_QUOTE(_function));                \
        exit(2);                                                                                \
    }
    NVL_BENCH_CUDA(NVL_BENCH_LOAD)
#undef NVL_BENCH_LOAD
    driver.need(driver.init(0), "cuInit");
    return driver;
}

} // namespace

const gpu_driver &gpu_driver::get()
{
    static const gpu_driver driver = open_driver();
    return driver;
}

void gpu_driver::need(CUresult code, const char *what) const
{
    if (code != CUDA_SUCCESS) {
        const char *name = nullptr;
        error_name(code, &name);
        fprintf(stderr, "%s failed: %s (%d)\n", what, name != nullptr ? name : "?", code);
        fflush(stdout);
        _Exit(2);
    }
}

// NVL_ONE_GPU=1: the first GPU stands for all.
gpu::gpu(int ordinal) : ordinal_(ordinal)
{
    const char *one = getenv("NVL_ONE_GPU");
    if (one != nullptr && strcmp(one, "1") == 0) {
        ordinal_ = ordinal = 0;
    }
    const gpu_driver &driver = gpu_driver::get();
    CUdevice          device;
    CUcontext         context;
    driver.need(driver.device_get(&device, ordinal), "cuDeviceGet");
    driver.need(driver.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    driver.need(driver.context_set(context), "cuCtxSetCurrent");
}

std::string gpu::name() const
{
    const gpu_driver &driver    = gpu_driver::get();
    char              text[128] = "";
    CUdevice          device;
    driver.need(driver.device_get(&device, ordinal_), "cuDeviceGet");
    driver.need(driver.device_name(text, sizeof(text), device), "cuDeviceGetName");
    return text;
}

void gpu::synchronize() const
{
    const gpu_driver &driver = gpu_driver::get();
    driver.need(driver.context_synchronize(), "cuCtxSynchronize");
}

void gpu::reset() const
{
    const gpu_driver &driver = gpu_driver::get();
    CUdevice          device;
    driver.need(driver.device_get(&device, ordinal_), "cuDeviceGet");
    driver.need(driver.primary_reset(device), "cuDevicePrimaryCtxReset");
}

bool parse_allocate_as(const std::string &name, allocate_as *as)
{
    const char *const names[] = {"alloc",      "vmm",  "vmm_chunks", "vmm_none",
                                 "vmm_fabric", "pool", "pool_none",  "pool_fabric"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        if (name == names[i]) {
            *as = static_cast<allocate_as>(i);
            return true;
        }
    }
    return false;
}

namespace {

CUmemLocation current_location()
{
    CUmemLocation where{};
    CUdevice      device;
    gpu_driver::get().need(gpu_driver::get().current_device(&device), "cuCtxGetDevice");
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    where.id   = device;
    return where;
}

} // namespace

CUmemAllocationHandleType gpu_memory::handle_types() const
{
    switch (as_) {
    case allocate_as::vmm_fabric:
    case allocate_as::pool_fabric:
        return CU_MEM_HANDLE_TYPE_FABRIC;
    case allocate_as::vmm:
    case allocate_as::vmm_chunks:
    case allocate_as::pool:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    default:
        return CU_MEM_HANDLE_TYPE_NONE;
    }
}

// In pieces of `chunk` bytes, each with memory of its own behind it.
void gpu_memory::map_chunks(size_t chunk)
{
    const gpu_driver   &driver = gpu_driver::get();
    CUmemAllocationProp prop{};
    CUmemAccessDesc     access{};
    prop.type                 = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location             = current_location();
    prop.requestedHandleTypes = handle_types();
    access.location           = prop.location;
    access.flags              = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mapped_                   = (size_ + chunk - 1) / chunk * chunk;
    driver.need(driver.reserve(&address_, mapped_, 0, 0, 0), "cuMemAddressReserve");
    for (size_t at = 0; at < mapped_; at += chunk) {
        CUmemGenericAllocationHandle handle;
        driver.need(driver.create(&handle, chunk, &prop, 0), "cuMemCreate");
        driver.need(driver.map(address_ + at, chunk, 0, handle, 0), "cuMemMap");
        driver.need(driver.release(handle), "cuMemRelease");
    }
    driver.need(driver.set_access(address_, mapped_, &access, 1), "cuMemSetAccess");
}

// One pool of each kind a process, as allocators have it.
void gpu_memory::take_from_pool()
{
    static CUmemoryPool pools[static_cast<int>(allocate_as::pool_fabric) + 1];
    const gpu_driver   &driver = gpu_driver::get();
    CUmemoryPool       &pool   = pools[static_cast<int>(as_)];
    if (pool == nullptr) {
        CUmemPoolProps props{};
        props.allocType   = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location    = current_location();
        props.handleTypes = handle_types();
        driver.need(driver.pool_create(&pool, &props), "cuMemPoolCreate");
    }
    driver.need(driver.pool_alloc(&address_, size_, pool, nullptr), "cuMemAllocFromPoolAsync");
    driver.need(driver.context_synchronize(), "cuCtxSynchronize");
}

gpu_memory::gpu_memory(size_t size, allocate_as as) : size_(size), as_(as)
{
    constexpr size_t  granule = 2u << 20;
    const gpu_driver &driver  = gpu_driver::get();
    switch (as) {
    case allocate_as::alloc:
        driver.need(driver.alloc(&address_, size), "cuMemAlloc");
        break;
    case allocate_as::vmm:
    case allocate_as::vmm_none:
    case allocate_as::vmm_fabric:
        map_chunks((size + granule - 1) / granule * granule);
        break;
    case allocate_as::vmm_chunks:
        map_chunks(granule);
        break;
    default:
        take_from_pool();
    }
}

gpu_memory::~gpu_memory()
{
    const gpu_driver &driver = gpu_driver::get();
    if (mapped_ == 0) {
        driver.need(driver.free(address_), "cuMemFree");
        return;
    }
    driver.need(driver.unmap(address_, mapped_), "cuMemUnmap");
    driver.need(driver.unreserve(address_, mapped_), "cuMemAddressFree");
}

void gpu_memory::copy_in(size_t offset, const void *from, size_t size) const
{
    const gpu_driver &driver = gpu_driver::get();
    driver.need(driver.copy_in(address_ + offset, from, size), "cuMemcpyHtoD");
}

void gpu_memory::copy_out(size_t offset, void *to, size_t size) const
{
    const gpu_driver &driver = gpu_driver::get();
    driver.need(driver.copy_out(to, address_ + offset, size), "cuMemcpyDtoH");
}

void gpu_memory::copy_within(size_t offset, const gpu_memory &from, size_t from_offset,
                             size_t size) const
{
    const gpu_driver &driver = gpu_driver::get();
    driver.need(driver.copy_within(address_ + offset, from.address_ + from_offset, size, nullptr),
                "cuMemcpyDtoDAsync");
}

void gpu_memory::fill(size_t offset, uint8_t value, size_t size) const
{
    const gpu_driver &driver = gpu_driver::get();
    CUdeviceptr       start  = address_ + offset;
    // Words where they fit: another kernel of the driver's, at the speed of the memory.
    if (start % sizeof(uint32_t) == 0 && size % sizeof(uint32_t) == 0) {
        driver.need(driver.set_words(start, 0x01010101u * value, size / sizeof(uint32_t), nullptr),
                    "cuMemsetD32Async");
    } else {
        driver.need(driver.set_bytes(start, value, size, nullptr), "cuMemsetD8Async");
    }
}

pinned_memory::pinned_memory(size_t size)
{
    const gpu_driver &driver = gpu_driver::get();
    driver.need(driver.alloc_host(&pointer_, size), "cuMemAllocHost");
}

pinned_memory::~pinned_memory()
{
    const gpu_driver &driver = gpu_driver::get();
    driver.need(driver.free_host(pointer_), "cuMemFreeHost");
}

} // namespace nvl
