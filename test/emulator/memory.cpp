// SPDX-License-Identifier: BSD-3-Clause
//
// Allocation of device, host and managed memory, and registration of the program's own.
#include "driver.h"
#include "export_list.h"
#include "pool.h"
#include "report.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

std::shared_ptr<range> gpu_range(uint64_t address)
{
    return drv().memory.find(address);
}

namespace {

void describe(backing &memory, const device *dev)
{
    shared_page &page = memory.page();
    if (dev != nullptr)
        memcpy(page.device_uuid, dev->uuid.bytes, sizeof(page.device_uuid));
    snprintf(page.host, sizeof(page.host), "%s", machine().host.c_str());
    if (dev != nullptr)
        snprintf(page.cluster, sizeof(page.cluster), "%s", fabric_name(*dev->facts).c_str());
}

void belongs_to(range &r, const context *ctx)
{
    if (ctx != nullptr) {
        r.context    = ctx->handle;
        r.context_id = ctx->id;
    }
}

} // namespace

CUresult make_backing(device *dev, size_t size, memory_source source,
                      std::shared_ptr<backing> *made)
{
    size = round_up(size, page_size);
    if (dev != nullptr) {
        uint64_t before = dev->used_bytes.fetch_add(size);
        if (before + size > dev->facts->memory_bytes) {
            dev->used_bytes -= size;
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    *made = backing::create(size, source);
    if (*made == nullptr) {
        if (dev != nullptr)
            dev->used_bytes -= size;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (dev != nullptr)
        (*made)->used_bytes = &dev->used_bytes;
    describe(**made, dev);
    return CUDA_SUCCESS;
}

CUresult allocate_device_memory(device &dev, const context *ctx, size_t size, range_kind kind,
                                std::shared_ptr<range> *made)
{
    EMU_REQUIRE(size <= dev.facts->memory_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    auto r = std::make_shared<range>();
    EMU_TRY(make_backing(&dev, size, memory_source::alloc, &r->memory));
    bool is_small = kind == range_kind::alloc && size <= packed_max;
    r->base = is_small ? drv().memory.reserve_packed(size) : drv().memory.reserve(size, va_granule);
    EMU_REQUIRE(r->base != 0, CUDA_ERROR_OUT_OF_MEMORY);
    r->size       = size;
    r->kind       = kind;
    r->bytes      = r->memory->bytes();
    r->device     = dev.ordinal;
    r->buffer_id  = next_buffer_id();
    r->legacy_ipc = dev.facts->legacy_ipc && kind == range_kind::alloc;
    belongs_to(*r, ctx);
    drv().memory.insert(r);
    *made = r;
    return CUDA_SUCCESS;
}

// Takes a range out of the address space; the bytes go when nobody uses them any more. A range that
// is not there any more is refused: its address may be another's by now.
CUresult free_range(const std::shared_ptr<range> &r)
{
    if (!drv().memory.remove(r))
        return CUDA_ERROR_INVALID_VALUE;
    bool is_import =
        r->kind == range_kind::imported || (r->owner_pool != nullptr && r->owner_pool->imported);
    if (r->memory != nullptr && !is_import && r->kind != range_kind::vmm) {
        if (unsigned importers = r->memory->live_importers())
            report_violation(r->base, importers);
        r->memory->page().freed = 1;
        if (r->exported)
            unlist_export(r->base);
    }
    if (is_import)
        r->memory->uncount_import();
    if (r->kind == range_kind::pool)
        note_pool_free(*r);
    if (r->kind == range_kind::managed) // the processor loses its access
        mmap(reinterpret_cast<void *>(r->base), round_up(r->size, page_size), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (r->kind == range_kind::host_alloc)
        munmap(reinterpret_cast<void *>(r->base), round_up(r->size, page_size));
    else if (r->kind != range_kind::host_registered && r->kind != range_kind::vmm)
        drv().memory.release(r->base, r->size);
    return CUDA_SUCCESS;
}

void forget_context_memory(const context &ctx)
{
    for (auto &r : drv().memory.all()) {
        if (r->context_id == ctx.id && r->context == ctx.handle)
            free_range(r);
    }
}

bool may_touch(const device &dev, const context *ctx, const range &r, bool write)
{
    if (r.is_host() || r.kind == range_kind::managed)
        return true;
    if (r.has_own_access()) {
        unsigned needed =
            write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
        return (r.access[static_cast<size_t>(dev.ordinal)].load() & needed) == needed;
    }
    if (r.device == dev.ordinal)
        return true;
    if (ctx == nullptr)
        return false;
    auto           &peers = const_cast<context *>(ctx)->peers_mutex;
    std::lock_guard lock(peers);
    return ctx->peers.count(r.context_id) != 0;
}

namespace {

// What the driver does around every allocation and free: no unsafe call while capturing.
CUresult begin_allocation(std::shared_ptr<context> *ctx)
{
    EMU_TRY(current_context(ctx));
    return refuse_while_capturing();
}

CUresult allocate_host(void **pointer, size_t size, unsigned flags, const context &ctx)
{
    if (size == 0) {
        *pointer = nullptr;
        return CUDA_SUCCESS;
    }
    void *bytes = mmap(nullptr, round_up(size, page_size), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EMU_REQUIRE(bytes != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    auto r       = std::make_shared<range>();
    r->base      = reinterpret_cast<uint64_t>(bytes);
    r->size      = size;
    r->kind      = range_kind::host_alloc;
    r->bytes     = static_cast<char *>(bytes);
    r->buffer_id = next_buffer_id();
    r->flags     = flags;
    belongs_to(*r, &ctx);
    drv().memory.insert(r);
    *pointer = bytes;
    return CUDA_SUCCESS;
}

} // namespace
} // namespace emu

using namespace emu;

EMU_API(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t size), (pointer, size))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    EMU_REQUIRE(pointer != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> made;
    EMU_TRY(allocate_device_memory(*ctx->dev, ctx.get(), size, range_kind::alloc, &made));
    *pointer = made->base;
    return CUDA_SUCCESS;
}

EMU_API(cuMemAllocPitch_v2,
        (CUdeviceptr * pointer, size_t *pitch, size_t width, size_t height, unsigned int element),
        (pointer, pitch, width, height, element))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    EMU_REQUIRE(pointer != nullptr && pitch != nullptr && width > 0 && height > 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(element == 4 || element == 8 || element == 16, CUDA_ERROR_INVALID_VALUE);
    const size_t most = ctx->dev->facts->memory_bytes;
    EMU_REQUIRE(width <= most && height <= most / round_up(width, 512), CUDA_ERROR_OUT_OF_MEMORY);
    size_t                 row = round_up(width, 512);
    std::shared_ptr<range> made;
    EMU_TRY(allocate_device_memory(*ctx->dev, ctx.get(), row * height, range_kind::alloc, &made));
    *pointer = made->base;
    *pitch   = row;
    return CUDA_SUCCESS;
}

EMU_API(cuMemFree_v2, (CUdeviceptr pointer), (pointer))
{
    if (pointer == 0)
        return CUDA_SUCCESS;
    std::shared_ptr<context> ctx; // none need be current
    if (current_context_even_faulty(&ctx) == CUDA_SUCCESS)
        EMU_TRY(static_cast<CUresult>(ctx->fault.load()));
    EMU_TRY(refuse_while_capturing());
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && r->base == pointer, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(r->kind == range_kind::alloc || r->kind == range_kind::managed ||
                    r->kind == range_kind::pool,
                CUDA_ERROR_INVALID_VALUE);
    // Work that was submitted before ends first.
    wait_for_users(r->kind == range_kind::alloc ? r->device : -1);
    return free_range(r);
}

EMU_API(cuMemAllocManaged, (CUdeviceptr * pointer, size_t size, unsigned int flags),
        (pointer, size, flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    EMU_REQUIRE(pointer != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST,
                CUDA_ERROR_INVALID_VALUE);
    auto r = std::make_shared<range>();
    EMU_TRY(make_backing(nullptr, size, memory_source::managed, &r->memory));
    r->base = drv().memory.reserve(size, va_granule);
    EMU_REQUIRE(r->base != 0, CUDA_ERROR_OUT_OF_MEMORY);
    void *seen = mmap(reinterpret_cast<void *>(r->base), r->memory->size(), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED, r->memory->fd(), 0);
    EMU_REQUIRE(seen != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    r->size        = size;
    r->kind        = range_kind::managed;
    r->bytes       = static_cast<char *>(seen); // the same addresses, for the sanitizers' sake
    r->device      = ctx->dev->ordinal;
    r->buffer_id   = next_buffer_id();
    r->flags       = flags;
    r->sync_memops = true;
    belongs_to(*r, ctx.get());
    drv().memory.insert(r);
    *pointer = r->base;
    return CUDA_SUCCESS;
}

EMU_API(cuMemAllocHost_v2, (void **pointer, size_t size), (pointer, size))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    EMU_REQUIRE(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
    return allocate_host(pointer, size, 0, *ctx);
}

EMU_API(cuMemHostAlloc, (void **pointer, size_t size, unsigned int flags), (pointer, size, flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    EMU_REQUIRE(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                           CU_MEMHOSTALLOC_WRITECOMBINED)) == 0,
                CUDA_ERROR_INVALID_VALUE);
    return allocate_host(pointer, size, flags, *ctx);
}

EMU_API(cuMemFreeHost, (void *pointer), (pointer))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    if (pointer == nullptr)
        return CUDA_SUCCESS;
    std::shared_ptr<range> r = gpu_range(reinterpret_cast<uint64_t>(pointer));
    EMU_REQUIRE(r != nullptr && r->bytes == pointer && r->kind == range_kind::host_alloc,
                CUDA_ERROR_INVALID_VALUE);
    wait_for_users(r->device);
    return free_range(r);
}

// Does the process have memory at all these addresses?
static bool is_mapped(uint64_t base, size_t size)
{
    constexpr uint64_t         at_once = 1u << 16; // pages
    const auto                 page    = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> there(at_once);
    uint64_t                   end = 0;
    if (__builtin_add_overflow(base, size, &end) || end > UINT64_MAX - page)
        return false;
    for (uint64_t at = base / page * page; at < end; at += at_once * page) {
        const size_t bytes = std::min(at_once * page, end - at);
        if (mincore(reinterpret_cast<void *>(at), bytes, there.data()) != 0)
            return false;
    }
    return true;
}

EMU_API(cuMemHostRegister_v2, (void *pointer, size_t size, unsigned int flags),
        (pointer, size, flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    EMU_REQUIRE(pointer != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((flags & ~(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                           CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)) == 0,
                CUDA_ERROR_INVALID_VALUE);
    uint64_t base = reinterpret_cast<uint64_t>(pointer);
    EMU_REQUIRE(!drv().memory.is_gpu_address(base), CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(is_mapped(base, size), CUDA_ERROR_INVALID_VALUE);
    for (auto &other : drv().memory.within(base, size))
        EMU_REQUIRE(other->kind == range_kind::host_registered, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(!drv().memory.overlaps(base, size), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    auto r       = std::make_shared<range>();
    r->base      = base;
    r->size      = size;
    r->kind      = range_kind::host_registered;
    r->bytes     = static_cast<char *>(pointer);
    r->buffer_id = next_buffer_id();
    r->flags     = flags;
    belongs_to(*r, ctx.get());
    drv().memory.insert(r);
    return CUDA_SUCCESS;
}

EMU_API(cuMemHostUnregister, (void *pointer), (pointer))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(begin_allocation(&ctx));
    std::shared_ptr<range> r = gpu_range(reinterpret_cast<uint64_t>(pointer));
    EMU_REQUIRE(r != nullptr, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EMU_REQUIRE(r->bytes == pointer && r->kind == range_kind::host_registered,
                CUDA_ERROR_INVALID_VALUE);
    wait_for_users(r->device);
    return free_range(r);
}

EMU_API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * pointer, void *host, unsigned int flags),
        (pointer, host, flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(pointer != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(reinterpret_cast<uint64_t>(host));
    EMU_REQUIRE(r != nullptr && r->is_host(), CUDA_ERROR_INVALID_VALUE);
    *pointer = reinterpret_cast<uint64_t>(host);
    return CUDA_SUCCESS;
}

EMU_API(cuMemHostGetFlags, (unsigned int *flags, void *host), (flags, host))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(flags != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(reinterpret_cast<uint64_t>(host));
    EMU_REQUIRE(r != nullptr && r->is_host(), CUDA_ERROR_INVALID_VALUE);
    *flags = r->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

EMU_API(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total), (free_bytes, total))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    size_t all  = ctx->dev->facts->memory_bytes;
    size_t used = ctx->dev->used_bytes;
    if (free_bytes != nullptr)
        *free_bytes = all - used;
    if (total != nullptr)
        *total = all;
    return CUDA_SUCCESS;
}

EMU_API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr pointer),
        (base, size, pointer))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && r->kind != range_kind::host_registered, CUDA_ERROR_NOT_FOUND);
    if (base != nullptr)
        *base = r->base;
    if (size != nullptr)
        *size = r->size;
    return CUDA_SUCCESS;
}
