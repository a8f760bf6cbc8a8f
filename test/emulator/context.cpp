// SPDX-License-Identifier: BSD-3-Clause
//
// Contexts: primary and own, the stack of each thread, and what a dying context takes along.
#include "driver.h"
#include "faults.h"
#include "module.h"
#include "stale.h"

#include <algorithm>
#include <unistd.h>

namespace emu {

context_stack &contexts_of_thread()
{
    static thread_local context_stack stack;
    return stack;
}

namespace {

// Every context there ever was: the driver still knows a destroyed one's handle and device.
struct known_contexts {
    std::mutex                    mutex;
    std::map<CUcontext, device *> devices;
};

known_contexts &known()
{
    static known_contexts *only = new known_contexts;
    return *only;
}

// nullptr: no context ever had this handle.
device *known_device(CUcontext handle)
{
    std::lock_guard lock(known().mutex);
    auto            found = known().devices.find(handle);
    return found == known().devices.end() ? nullptr : found->second;
}

} // namespace

CUresult current_context_even_faulty(std::shared_ptr<context> *ctx)
{
    context_stack &stack = contexts_of_thread();
    EMU_REQUIRE(stack.depth > 0 && stack.items[stack.depth - 1] != nullptr,
                CUDA_ERROR_INVALID_CONTEXT);
    *ctx = drv().contexts.find(stack.items[stack.depth - 1]);
    return *ctx == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult current_context(std::shared_ptr<context> *ctx)
{
    EMU_TRY(current_context_even_faulty(ctx));
    return static_cast<CUresult>((*ctx)->fault.load());
}

void set_fault(const std::weak_ptr<context> &ctx, CUresult code)
{
    if (auto owner = ctx.lock()) {
        int none = CUDA_SUCCESS;
        owner->fault.compare_exchange_strong(none, code);
    }
}

void wait_for_context(context &ctx)
{
    std::vector<std::shared_ptr<stream>> streams;
    {
        std::lock_guard lock(ctx.submit_mutex);
        if (ctx.legacy != nullptr)
            streams.push_back(ctx.legacy);
        for (auto &entry : ctx.per_thread)
            streams.push_back(entry.second);
        for (auto &entry : ctx.streams)
            streams.push_back(entry.second);
        streams.insert(streams.end(), ctx.leaving.begin(), ctx.leaving.end());
    }
    for (auto &s : streams)
        s->last().wait();
}

namespace {

bool uses_device(context &ctx, int ordinal)
{
    if (ordinal < 0 || ctx.dev->ordinal == ordinal)
        return true;
    std::lock_guard lock(ctx.peers_mutex);
    return has_peer_device(ctx, ordinal) || ctx.ipc_peers.count(ordinal) != 0;
}

// Access that others have to a context ends with it.
void forget_peer(const context &gone)
{
    for (auto &ctx : drv().contexts.all()) {
        std::lock_guard lock(ctx->peers_mutex);
        ctx->peers.erase(gone.id);
    }
}

} // namespace

void wait_for_users(int memory_device)
{
    for (auto &ctx : drv().contexts.all()) {
        if (uses_device(*ctx, memory_device))
            wait_for_context(*ctx);
    }
}

namespace {

std::atomic<unsigned long long> next_context_id{1};

std::shared_ptr<context> make_context(device *dev, unsigned flags, CUcontext handle, bool primary)
{
    auto ctx        = std::make_shared<context>();
    ctx->handle     = handle;
    ctx->id         = next_context_id++;
    ctx->dev        = dev;
    ctx->flags      = flags;
    ctx->is_primary = primary;
    drv().contexts.add(handle, ctx);
    std::lock_guard lock(known().mutex);
    known().devices[handle] = dev;
    return ctx;
}

void destroy_context(const std::shared_ptr<context> &ctx)
{
    wait_for_context(*ctx);
    drv().contexts.remove(ctx->handle);
    ctx->destroyed = true;
    if (!ctx->is_primary)
        note_stale(ctx->handle); // a primary one's stays good
    std::vector<std::shared_ptr<stream>> streams;
    {
        std::lock_guard lock(ctx->submit_mutex);
        for (auto &entry : ctx->streams)
            streams.push_back(entry.second);
        for (auto &entry : ctx->per_thread)
            streams.push_back(entry.second);
        if (ctx->legacy != nullptr)
            streams.push_back(ctx->legacy);
        ctx->streams.clear();
        ctx->per_thread.clear();
        ctx->legacy = nullptr;
    }
    for (auto &s : streams) {
        if (drv().streams.remove(s->handle) != nullptr)
            note_stale(s->handle);
        forget_capture(*s);
        s->close();
    }
    for (auto &e : drv().events.all()) {
        if (e->context_id == ctx->id && drv().events.remove(e->handle) != nullptr)
            note_stale(e->handle);
    }
    forget_modules(*ctx);
    forget_context_memory(*ctx);
    forget_peer(*ctx);
    // Taken to be less than a real one needs: who looks now and then whether it lives may know that.
    usleep(1000);
}

CUresult check_flags(unsigned flags)
{
    unsigned schedule = flags & CU_CTX_SCHED_MASK;
    EMU_REQUIRE((flags & ~CU_CTX_FLAGS_MASK) == 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
                    schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC,
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

// A planned fault: a context of another device in the place of this one.
CUcontext maybe_astray(CUcontext handle)
{
    device *meant = known_device(handle);
    if (!fault_of_this_call().astray || meant == nullptr)
        return handle;
    for (auto &other : drv().devices) {
        std::shared_ptr<context> ctx;
        if (other.get() != meant && retain_primary(other.get(), &ctx) == CUDA_SUCCESS)
            return ctx->handle;
    }
    return handle;
}

CUresult push(CUcontext handle)
{
    context_stack &stack = contexts_of_thread();
    EMU_REQUIRE(stack.depth < max_context_depth, CUDA_ERROR_OUT_OF_MEMORY);
    stack.items[stack.depth++] = handle;
    return CUDA_SUCCESS;
}

CUresult create_context(CUcontext *handle, unsigned flags, CUdevice dev)
{
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    EMU_TRY(check_flags(flags));
    auto made = reinterpret_cast<CUcontext>(take_used_context());
    if (made == nullptr)
        made = make_handle<CUcontext>(handle_kind::context);
    EMU_TRY(push(made));
    make_context(d, flags, made, false);
    *handle = made;
    return CUDA_SUCCESS;
}

} // namespace

CUresult retain_primary(device *dev, std::shared_ptr<context> *ctx)
{
    std::lock_guard lock(drv().mutex);
    if (dev->primary == nullptr)
        dev->primary = make_context(dev, dev->primary_flags, dev->primary_handle, true);
    dev->primary_refs++;
    *ctx = dev->primary;
    return CUDA_SUCCESS;
}

namespace {

CUresult release_primary(device *dev, bool all)
{
    std::shared_ptr<context> dying;
    {
        std::lock_guard lock(drv().mutex);
        if (!all)
            EMU_REQUIRE(dev->primary_refs > 0, CUDA_ERROR_INVALID_CONTEXT);
        if (dev->primary_refs > 0 && !all)
            dev->primary_refs--;
        if (dev->primary_refs == 0 || all)
            dying = std::move(dev->primary);
        if (dying != nullptr)
            dev->primary = nullptr;
    }
    if (dying != nullptr)
        destroy_context(dying);
    return CUDA_SUCCESS;
}

} // namespace
} // namespace emu

using namespace emu;

EMU_API(cuDevicePrimaryCtxRetain, (CUcontext * handle, CUdevice dev), (handle, dev))
{
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::shared_ptr<context> ctx;
    EMU_TRY(retain_primary(d, &ctx));
    *handle = ctx->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuDevicePrimaryCtxRelease_v2, (CUdevice dev), (dev))
{
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    return release_primary(d, false);
}

EMU_API(cuDevicePrimaryCtxReset_v2, (CUdevice dev), (dev))
{
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    return release_primary(d, true);
}

EMU_API(cuDevicePrimaryCtxSetFlags_v2, (CUdevice dev, unsigned int flags), (dev, flags))
{
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    EMU_TRY(check_flags(flags));
    std::lock_guard lock(drv().mutex);
    d->primary_flags = flags;
    if (d->primary != nullptr)
        d->primary->flags = flags;
    return CUDA_SUCCESS;
}

EMU_API(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned int *flags, int *active),
        (dev, flags, active))
{
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    EMU_REQUIRE(flags != nullptr && active != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard lock(drv().mutex);
    *flags  = d->primary_flags;
    *active = d->primary != nullptr;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxCreate_v2, (CUcontext * handle, unsigned int flags, CUdevice dev),
        (handle, flags, dev))
{
    return create_context(handle, flags, dev);
}

EMU_API(cuCtxCreate_v3,
        (CUcontext * handle, CUexecAffinityParam *params, int count, unsigned int flags,
         CUdevice dev),
        (handle, params, count, flags, dev))
{
    EMU_REQUIRE(count == 0 && params == nullptr, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    return create_context(handle, flags, dev);
}

EMU_API(cuCtxCreate_v4,
        (CUcontext * handle, CUctxCreateParams *params, unsigned int flags, CUdevice dev),
        (handle, params, flags, dev))
{
    EMU_REQUIRE(params == nullptr || params->numExecAffinityParams == 0,
                CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    return create_context(handle, flags, dev);
}

EMU_API(cuCtxDestroy_v2, (CUcontext handle), (handle))
{
    EMU_REQUIRE(known_device(handle) != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    auto ctx = drv().contexts.find(handle);
    refuse_stale(handle);
    EMU_REQUIRE(ctx != nullptr, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EMU_REQUIRE(!ctx->is_primary, CUDA_ERROR_INVALID_CONTEXT);
    destroy_context(ctx);
    context_stack &stack = contexts_of_thread();
    if (stack.depth > 0 && stack.items[stack.depth - 1] == handle)
        stack.depth--;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxPushCurrent_v2, (CUcontext handle), (handle))
{
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(known_device(handle) != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    // Even a destroyed one: the calls that need it refuse it, and a real pop frees what it has
    // freed already.
    refuse_stale(handle);
    return push(maybe_astray(handle));
}

EMU_API(cuCtxPopCurrent_v2, (CUcontext * handle), (handle))
{
    context_stack &stack = contexts_of_thread();
    EMU_REQUIRE(stack.depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    CUcontext top = stack.items[--stack.depth];
    if (handle != nullptr)
        *handle = top;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxSetCurrent, (CUcontext handle), (handle))
{
    context_stack &stack = contexts_of_thread();
    if (handle == nullptr) {
        if (stack.depth > 0)
            stack.depth--;
        return CUDA_SUCCESS;
    }
    EMU_REQUIRE(known_device(handle) != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    refuse_stale(handle);
    if (stack.depth == 0)
        return push(maybe_astray(handle));
    stack.items[stack.depth - 1] = maybe_astray(handle);
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetCurrent, (CUcontext * handle), (handle))
{
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    context_stack &stack = contexts_of_thread();
    *handle              = stack.depth > 0 ? stack.items[stack.depth - 1] : nullptr;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetDevice, (CUdevice * dev), (dev))
{
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_VALUE);
    context_stack &stack = contexts_of_thread();
    EMU_REQUIRE(stack.depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    *dev = known_device(stack.items[stack.depth - 1])->ordinal; // even of a destroyed one
    return CUDA_SUCCESS;
}

// A null handle means the current context in the calls that take one.
static CUresult context_or_current(CUcontext handle, std::shared_ptr<context> *ctx)
{
    if (handle == nullptr)
        return current_context_even_faulty(ctx);
    EMU_REQUIRE(known_device(handle) != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    refuse_stale(handle);
    *ctx = drv().contexts.find(handle);
    return *ctx == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

EMU_API(cuCtxGetDevice_v2, (CUdevice * dev, CUcontext handle), (dev, handle))
{
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    EMU_TRY(context_or_current(handle, &ctx));
    *dev = ctx->dev->ordinal;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetId, (CUcontext handle, unsigned long long *id), (handle, id))
{
    EMU_REQUIRE(id != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    EMU_TRY(context_or_current(handle, &ctx));
    *id = ctx->id;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetFlags, (unsigned int *flags), (flags))
{
    EMU_REQUIRE(flags != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context_even_faulty(&ctx));
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxSetFlags, (unsigned int flags), (flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context_even_faulty(&ctx));
    EMU_REQUIRE((flags & ~CU_CTX_FLAGS_MASK) == 0, CUDA_ERROR_INVALID_VALUE);
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetApiVersion, (CUcontext handle, unsigned int *version), (handle, version))
{
    EMU_REQUIRE(version != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    EMU_TRY(context_or_current(handle, &ctx));
    *version = 3020; // what the driver has answered since CUDA 3.2
    return CUDA_SUCCESS;
}

EMU_API(cuCtxSynchronize, (void), ())
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_TRY(refuse_while_capturing());
    wait_for_context(*ctx);
    return static_cast<CUresult>(ctx->fault.load());
}

EMU_API(cuCtxSynchronize_v2, (CUcontext handle), (handle))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(context_or_current(handle, &ctx));
    EMU_TRY(refuse_while_capturing());
    wait_for_context(*ctx);
    return static_cast<CUresult>(ctx->fault.load());
}

EMU_API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    if (least != nullptr)
        *least = 0;
    if (greatest != nullptr)
        *greatest = -5;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetLimit, (size_t * value, CUlimit limit), (value, limit))
{
    EMU_REQUIRE(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(limit < CU_LIMIT_MAX, CUDA_ERROR_UNSUPPORTED_LIMIT);
    std::lock_guard lock(ctx->peers_mutex);
    auto            set = ctx->limits.find(limit);
    *value              = set == ctx->limits.end() ? 1024 : set->second;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(limit < CU_LIMIT_MAX, CUDA_ERROR_UNSUPPORTED_LIMIT);
    std::lock_guard lock(ctx->peers_mutex);
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxGetCacheConfig, (CUfunc_cache * config), (config))
{
    EMU_REQUIRE(config != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxSetCacheConfig, (CUfunc_cache config), (config))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL,
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}
