// SPDX-License-Identifier: BSD-3-Clause
//
// Legacy IPC handles: see export_list.h for what is in one. Opened through /proc, which works for
// as long as the exporter lives. As the real driver does it (580): a second open in a context gives
// the same pointer and counts, an open in another context of the same device is refused, and what
// is open answers for its handle even if the exporter has put other memory at that address.
#include "driver.h"
#include "export_list.h"

#include <cstring>
#include <unistd.h>

using namespace emu;

namespace {

bool is_of_this_host(const backing &memory)
{
    const shared_page &page = memory.page();
    return machine().host.compare(0, sizeof(page.host) - 1, page.host) == 0;
}

bool is_import_of(const range &r, const ipc_handle &handle)
{
    return r.kind == range_kind::imported && r.opens > 0 && r.import_list == handle.list_nonce &&
           r.import_address == handle.address;
}

// What of this handle is open here already: *open is set when it is in this very context.
CUresult find_open(const ipc_handle &handle, const context &ctx, std::shared_ptr<range> *open)
{
    for (auto &r : drv().memory.all()) {
        if (!is_import_of(*r, handle))
            continue;
        if (r->context_id == ctx.id) {
            *open = r;
            return CUDA_SUCCESS;
        }
        EMU_REQUIRE(r->device != ctx.dev->ordinal, CUDA_ERROR_INVALID_HANDLE);
    }
    return CUDA_SUCCESS;
}

// The device of the current context gets access to the memory's device, if it may have it.
CUresult enable_lazily(context &ctx, const device &owner)
{
    if (&owner == ctx.dev)
        return CUDA_SUCCESS;
    EMU_REQUIRE(can_reach(*ctx.dev, owner), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    std::lock_guard lock(ctx.peers_mutex);
    if (has_peer_device(ctx, owner.ordinal) || ctx.ipc_peers.count(owner.ordinal) != 0)
        return CUDA_SUCCESS;
    EMU_REQUIRE(peer_devices(ctx) < peer_room(), CUDA_ERROR_TOO_MANY_PEERS);
    ctx.ipc_peers.insert(owner.ordinal);
    return CUDA_SUCCESS;
}

CUresult map_import(const ipc_handle &handle, context &ctx, std::shared_ptr<range> *made)
{
    auto r = std::make_shared<range>();
    EMU_TRY(open_export(handle, &r->memory, &r->size));
    EMU_REQUIRE(is_of_this_host(*r->memory), CUDA_ERROR_INVALID_VALUE);
    device *owner = device_of_uuid(r->memory->page().device_uuid);
    if (owner == nullptr)
        owner = hidden_device_of_uuid(r->memory->page().device_uuid);
    EMU_REQUIRE(owner != nullptr, CUDA_ERROR_INVALID_DEVICE);
    EMU_TRY(enable_lazily(ctx, *owner));
    r->base = drv().memory.reserve(r->size, va_granule);
    EMU_REQUIRE(r->base != 0, CUDA_ERROR_MAP_FAILED);
    r->kind           = range_kind::imported;
    r->bytes          = r->memory->bytes();
    r->home           = owner->ordinal;
    r->device         = ctx.dev->ordinal; // the real driver names the opener's, not the owner's
    r->context        = ctx.handle;
    r->context_id     = ctx.id;
    r->buffer_id      = next_buffer_id();
    r->import_list    = handle.list_nonce;
    r->import_address = handle.address;
    r->memory->count_import();
    drv().memory.insert(r);
    *made = r;
    return CUDA_SUCCESS;
}

// Opens and closes of this process, one at a time.
std::mutex &imports_mutex()
{
    static std::mutex *only = new std::mutex;
    return *only;
}

CUresult open_handle(CUdeviceptr *pointer, const CUipcMemHandle &raw, unsigned flags)
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_TRY(refuse_while_capturing());
    EMU_REQUIRE(pointer != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
    ipc_handle handle;
    memcpy(&handle, &raw, sizeof(handle));
    EMU_REQUIRE(handle.magic == ipc_magic, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(handle.pid != getpid(), CUDA_ERROR_INVALID_CONTEXT);
    std::lock_guard        lock(imports_mutex());
    std::shared_ptr<range> r;
    EMU_TRY(find_open(handle, *ctx, &r));
    if (r == nullptr)
        EMU_TRY(map_import(handle, *ctx, &r));
    r->opens++;
    *pointer = r->base;
    return CUDA_SUCCESS;
}

} // namespace

EMU_API(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr pointer), (handle, pointer))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    // Any address in the allocation will do.
    EMU_REQUIRE(r != nullptr && r->kind == range_kind::alloc, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(r->legacy_ipc, CUDA_ERROR_NOT_SUPPORTED);
    ipc_handle made;
    EMU_REQUIRE(list_export(r->base, *r->memory, r->size, &made), CUDA_ERROR_OUT_OF_MEMORY);
    r->exported = true;
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &made, sizeof(made));
    return CUDA_SUCCESS;
}

EMU_API(cuIpcOpenMemHandle_v2, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags),
        (pointer, handle, flags))
{
    return open_handle(pointer, handle, flags);
}

EMU_API(cuIpcOpenMemHandle, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags),
        (pointer, handle, flags))
{
    return open_handle(pointer, handle, flags);
}

EMU_API(cuIpcCloseMemHandle, (CUdeviceptr pointer), (pointer))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_TRY(refuse_while_capturing());
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && r->base == pointer && r->kind == range_kind::imported,
                CUDA_ERROR_INVALID_VALUE);
    {
        // Another thread may have closed it since, and opened something else there.
        std::lock_guard lock(imports_mutex());
        EMU_REQUIRE(r->opens > 0, CUDA_ERROR_INVALID_VALUE);
        if (--r->opens > 0)
            return CUDA_SUCCESS;
    }
    wait_for_users(r->device);
    return free_range(r);
}
