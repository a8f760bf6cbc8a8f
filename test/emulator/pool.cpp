// SPDX-License-Identifier: BSD-3-Clause
//
// Stream-ordered allocation and memory pools, shared ones too. Memory is there when the call
// returns, which is earlier than the driver promises; it goes when the stream comes to the free.
#include "pool.h"
#include "report.h"
#include "sharing.h"
#include "vmm.h"

namespace emu {
namespace {

handle_table<CUmemoryPool, pool> &pools()
{
    static auto *only = new handle_table<CUmemoryPool, pool>;
    return *only;
}

std::shared_ptr<pool> make_pool(int dev, unsigned types, size_t max_size)
{
    auto made          = std::make_shared<pool>();
    made->handle       = make_handle<CUmemoryPool>(handle_kind::pool);
    made->device       = dev;
    made->handle_types = types;
    made->max_size     = max_size;
    pools().add(made->handle, made);
    return made;
}

std::shared_ptr<pool> default_pool_of(device &dev)
{
    std::lock_guard lock(drv().mutex);
    if (dev.default_pool == nullptr) {
        dev.default_pool             = make_pool(dev.ordinal, 0, 0);
        dev.default_pool->is_default = true;
    }
    return dev.default_pool;
}

std::shared_ptr<pool> current_pool_of(device &dev)
{
    {
        std::lock_guard lock(drv().mutex);
        if (dev.current_pool != nullptr)
            return dev.current_pool;
    }
    return default_pool_of(dev);
}

void give_access(range &r, pool &from)
{
    if (from.device >= 0)
        r.access[static_cast<size_t>(from.device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (auto &[dev, flags] : from.access)
        r.access[static_cast<size_t>(dev)] = flags;
}

std::shared_ptr<range> make_range(const std::shared_ptr<pool> &from, size_t size,
                                  const std::shared_ptr<backing> &memory)
{
    auto r          = std::make_shared<range>();
    r->base         = drv().memory.reserve(size, va_granule);
    r->size         = size;
    r->kind         = range_kind::pool;
    r->memory       = memory;
    r->bytes        = memory->bytes();
    r->device       = from->device;
    r->buffer_id    = next_buffer_id();
    r->handle_types = from->handle_types;
    r->owner_pool   = from;
    return r;
}

CUresult allocate(CUdeviceptr *pointer, size_t size, const std::shared_ptr<pool> &from,
                  CUstream handle)
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
    if (size == 0) {
        *pointer = 0;
        return CUDA_SUCCESS;
    }
    EMU_REQUIRE(!from->imported, CUDA_ERROR_INVALID_VALUE);
    device *dev = device_at(from->device);
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(size <= dev->facts->memory_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    std::shared_ptr<backing> memory;
    EMU_TRY(make_backing(dev, size, memory_source::pool, &memory));
    memory->page().handle_types = from->handle_types;
    auto r                      = make_range(from, size, memory);
    r->of_graph                 = s->is_capturing();
    EMU_REQUIRE(r->base != 0, CUDA_ERROR_OUT_OF_MEMORY);
    {
        std::lock_guard lock(from->mutex);
        EMU_REQUIRE(from->max_size == 0 || from->used + size <= from->max_size,
                    CUDA_ERROR_OUT_OF_MEMORY);
        give_access(*r, *from);
        from->used += size;
        from->used_high = std::max(from->used_high, from->used);
    }
    drv().memory.insert(r);
    *pointer = r->base;
    return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr pointer, CUstream handle)
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    if (pointer == 0)
        return CUDA_SUCCESS;
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && r->base == pointer, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(r->kind == range_kind::pool || r->kind == range_kind::alloc,
                CUDA_ERROR_INVALID_VALUE);
    // A node of a graph frees what a node of a graph has allocated.
    EMU_REQUIRE(r->of_graph || !s->is_capturing(), CUDA_ERROR_INVALID_VALUE);
    submit_ordered(*ctx, *s, [r] {
        if (free_range(r) != CUDA_SUCCESS)
            report_second_free(r->base);
    });
    return CUDA_SUCCESS;
}

CUresult pool_of(CUmemoryPool handle, std::shared_ptr<pool> *p)
{
    *p = pools().find(handle);
    return *p == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult device_pool(CUmemoryPool *out, CUdevice dev, bool current)
{
    EMU_REQUIRE(out != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *out = (current ? current_pool_of(*d) : default_pool_of(*d))->handle;
    return CUDA_SUCCESS;
}

CUresult located_pool(CUmemoryPool *out, const CUmemLocation *location, CUmemAllocationType type,
                      bool current)
{
    EMU_REQUIRE(location != nullptr && type == CU_MEM_ALLOCATION_TYPE_PINNED,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
    return device_pool(out, location->id, current);
}

CUresult set_device_pool(CUdevice dev, CUmemoryPool handle)
{
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    EMU_REQUIRE(p->device == dev && !p->imported, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard lock(drv().mutex);
    d->current_pool = p;
    return CUDA_SUCCESS;
}

} // namespace

void note_pool_free(range &r)
{
    if (r.owner_pool == nullptr || r.owner_pool->imported)
        return;
    std::lock_guard lock(r.owner_pool->mutex);
    r.owner_pool->used -= r.size;
}

size_t live_pools()
{
    size_t count = 0;
    for (auto &p : pools().all())
        count += !p->is_default;
    return count;
}

} // namespace emu

using namespace emu;

EMU_API(cuMemAllocAsync, (CUdeviceptr * pointer, size_t size, CUstream stream),
        (pointer, size, stream))
{
    std::shared_ptr<context>     ctx;
    std::shared_ptr<emu::stream> s;
    EMU_TRY(stream_of(stream, &s, &ctx));
    return allocate(pointer, size, current_pool_of(*ctx->dev), stream);
}

EMU_API(cuMemAllocFromPoolAsync,
        (CUdeviceptr * pointer, size_t size, CUmemoryPool handle, CUstream stream),
        (pointer, size, handle, stream))
{
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    return allocate(pointer, size, p, stream);
}

EMU_API(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream), (pointer, stream))
{
    return release(pointer, stream);
}

// The member maxSize has a name from CUDA 12.4 on.
static size_t max_size_of(const CUmemPoolProps &props)
{
    size_t size;
    memcpy(&size,
           reinterpret_cast<const char *>(&props) +
               offsetof(CUmemPoolProps, win32SecurityAttributes) + sizeof(void *),
           sizeof(size));
    return size;
}

EMU_API(cuMemPoolCreate, (CUmemoryPool * handle, const CUmemPoolProps *props), (handle, props))
{
    EMU_REQUIRE(handle != nullptr && props != nullptr &&
                    props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(props->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
    device *dev = device_at(props->location.id);
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_DEVICE);
    unsigned types = static_cast<unsigned>(props->handleTypes);
    EMU_TRY(check_handle_types(*dev, types));
    std::shared_ptr<backing> identity;
    if (types != 0) {
        EMU_TRY(make_backing(nullptr, page_size, memory_source::pool, &identity));
        identity->page().handle_types = types;
        memcpy(identity->page().device_uuid, dev->uuid.bytes, sizeof(dev->uuid.bytes));
        snprintf(identity->page().cluster, sizeof(identity->page().cluster), "%s",
                 fabric_name(*dev->facts).c_str());
    }
    auto made      = make_pool(dev->ordinal, types, max_size_of(*props));
    made->identity = identity;
    *handle        = made->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolDestroy, (CUmemoryPool handle), (handle))
{
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    EMU_REQUIRE(!p->is_default, CUDA_ERROR_INVALID_VALUE);
    pools().remove(handle);
    std::lock_guard lock(drv().mutex);
    for (auto &dev : drv().devices) {
        if (dev->current_pool == p)
            dev->current_pool = nullptr; // back to the default one
    }
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep), (handle, keep))
{
    EMU_UNUSED(keep);
    std::shared_ptr<pool> p;
    return pool_of(handle, &p); // freed memory is given back at once here
}

EMU_API(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice dev), (out, dev))
{
    return device_pool(out, dev, false);
}

EMU_API(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice dev), (out, dev))
{
    return device_pool(out, dev, true);
}

EMU_API(cuDeviceSetMemPool, (CUdevice dev, CUmemoryPool handle), (dev, handle))
{
    return set_device_pool(dev, handle);
}

EMU_API(cuMemGetDefaultMemPool,
        (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type),
        (out, location, type))
{
    return located_pool(out, location, type, false);
}

EMU_API(cuMemGetMemPool, (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type),
        (out, location, type))
{
    return located_pool(out, location, type, true);
}

EMU_API(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool handle),
        (location, type, handle))
{
    EMU_REQUIRE(location != nullptr && type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                    location->type == CU_MEM_LOCATION_TYPE_DEVICE,
                CUDA_ERROR_INVALID_VALUE);
    return set_device_pool(location->id, handle);
}

EMU_API(cuMemPoolGetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *out),
        (handle, attribute, out))
{
    EMU_REQUIRE(out != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    std::lock_guard lock(p->mutex);
    uint64_t        wide = 0;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(out, &p->reuse[attribute - 1], sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        wide = p->release_threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        wide = p->used;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        wide = p->used_high;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(out, &wide, sizeof(wide));
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
        (handle, attribute, value))
{
    EMU_REQUIRE(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    std::lock_guard lock(p->mutex);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(&p->reuse[attribute - 1], value, sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&p->release_threshold, value, sizeof(uint64_t));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
        uint64_t wide = 0;
        memcpy(&wide, value, sizeof(wide));
        EMU_REQUIRE(wide == 0, CUDA_ERROR_INVALID_VALUE);
        p->used_high = p->used;
        return CUDA_SUCCESS;
    }
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

EMU_API(cuMemPoolSetAccess,
        (CUmemoryPool handle, const CUmemAccessDesc *descriptions, size_t count),
        (handle, descriptions, count))
{
    EMU_REQUIRE(descriptions != nullptr && count > 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    for (size_t i = 0; i < count; i++) {
        EMU_REQUIRE(is_access(descriptions[i].flags), CUDA_ERROR_INVALID_VALUE);
        EMU_TRY(check_access_to(descriptions[i].location, p->device));
        // Its own device cannot lose the access.
        EMU_REQUIRE(descriptions[i].location.id != p->device ||
                        descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                    CUDA_ERROR_INVALID_DEVICE);
    }
    std::lock_guard lock(p->mutex);
    for (size_t i = 0; i < count; i++)
        p->access[descriptions[i].location.id] = static_cast<unsigned char>(descriptions[i].flags);
    for (auto &r : drv().memory.all()) {
        if (r->owner_pool == p)
            give_access(*r, *p);
    }
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolGetAccess,
        (CUmemAccess_flags * flags, CUmemoryPool handle, CUmemLocation *location),
        (flags, handle, location))
{
    EMU_REQUIRE(flags != nullptr && location != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    EMU_REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(device_at(location->id) != nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::lock_guard lock(p->mutex);
    auto            set = p->access.find(location->id);
    if (set != p->access.end())
        *flags = static_cast<CUmemAccess_flags>(set->second);
    else
        *flags = location->id == p->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolExportToShareableHandle,
        (void *out, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags),
        (out, handle, type, flags))
{
    EMU_REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(handle, &p));
    EMU_REQUIRE(p->identity != nullptr && !p->imported, CUDA_ERROR_INVALID_VALUE);
    return share_memory(out, *p->identity, page_size, static_cast<unsigned>(type), p->handle_types,
                        handle_purpose::pool);
}

EMU_API(cuMemPoolImportFromShareableHandle,
        (CUmemoryPool * out, void *os_handle, CUmemAllocationHandleType type,
         unsigned long long flags),
        (out, os_handle, type, flags))
{
    EMU_REQUIRE(out != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<backing> identity;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        EMU_TRY(open_shared_fd(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), &identity));
    } else {
        EMU_REQUIRE(type == CU_MEM_HANDLE_TYPE_FABRIC && os_handle != nullptr,
                    CUDA_ERROR_INVALID_VALUE);
        EMU_TRY(open_shared_fabric(os_handle, handle_purpose::pool, &identity));
    }
    EMU_REQUIRE(identity->page().source == memory_source::pool, CUDA_ERROR_INVALID_VALUE);
    int ordinal = 0;
    EMU_TRY(device_of_shared(*identity, &ordinal));
    auto made      = make_pool(ordinal, identity->page().handle_types, 0);
    made->imported = true;
    made->identity = identity;
    *out           = made->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr pointer), (out, pointer))
{
    EMU_REQUIRE(out != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && r->base == pointer && r->kind == range_kind::pool,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(r->owner_pool->identity != nullptr && !r->owner_pool->imported,
                CUDA_ERROR_INVALID_VALUE);
    memory_handle handle = handle_of(*r->memory, r->size, handle_purpose::pointer);
    handle.pool_nonce    = r->owner_pool->identity->page().nonce[0];
    memset(out, 0, sizeof(*out));
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

EMU_API(cuMemPoolImportPointer,
        (CUdeviceptr * out, CUmemoryPool pool_handle, CUmemPoolPtrExportData *share),
        (out, pool_handle, share))
{
    EMU_REQUIRE(out != nullptr && share != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<pool> p;
    EMU_TRY(pool_of(pool_handle, &p));
    memory_handle handle;
    memcpy(&handle, share, sizeof(handle));
    EMU_REQUIRE(p->imported && handle.purpose == handle_purpose::pointer &&
                    handle.pool_nonce == p->identity->page().nonce[0],
                CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<backing> memory = open_file(handle);
    EMU_REQUIRE(memory != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto r = make_range(p, handle.size, memory);
    EMU_REQUIRE(r->base != 0, CUDA_ERROR_MAP_FAILED);
    {
        std::lock_guard lock(p->mutex);
        give_access(*r, *p);
    }
    memory->count_import();
    drv().memory.insert(r);
    *out = r->base;
    return CUDA_SUCCESS;
}
