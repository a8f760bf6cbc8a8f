// SPDX-License-Identifier: BSD-3-Clause
//
// Streams as CUDA shows them: handles and default streams, the order between the legacy default
// stream and the others, host functions, waits for values in memory.
#include "driver.h"
#include "stale.h"

#include <algorithm>
#include <cstring>
#include <unistd.h>

namespace emu {

bool &stream_zero_is_per_thread() noexcept
{
    static thread_local bool on = false;
    return on;
}

namespace {

std::shared_ptr<stream> default_stream(const std::shared_ptr<context> &ctx, bool per_thread)
{
    std::lock_guard          lock(ctx->submit_mutex);
    std::shared_ptr<stream> &slot =
        per_thread ? ctx->per_thread[std::this_thread::get_id()] : ctx->legacy;
    if (slot == nullptr)
        slot = std::make_shared<stream>(ctx, per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY,
                                        CU_STREAM_DEFAULT, 0);
    return slot;
}

} // namespace

CUresult stream_of(CUstream handle, std::shared_ptr<stream> *s, std::shared_ptr<context> *ctx)
{
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        EMU_TRY(current_context(ctx));
        bool per_thread =
            handle == CU_STREAM_PER_THREAD || (handle == nullptr && stream_zero_is_per_thread());
        if (!per_thread)
            EMU_TRY(refuse_legacy_while_capturing(**ctx));
        *s = default_stream(*ctx, per_thread);
        return CUDA_SUCCESS;
    }
    refuse_stale(handle);
    *s = drv().streams.find(handle);
    EMU_REQUIRE(*s != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *ctx = (*s)->owner.lock();
    EMU_REQUIRE(*ctx != nullptr, CUDA_ERROR_INVALID_HANDLE);
    return static_cast<CUresult>((*ctx)->fault.load());
}

marker submit_ordered(context &ctx, stream &s, std::function<void()> work,
                      std::vector<marker> after)
{
    if (s.is_capturing())
        return {}; // it goes into a graph, which nobody can launch here
    std::lock_guard lock(ctx.submit_mutex);
    if (&s == ctx.legacy.get()) {
        for (auto &entry : ctx.streams) {
            if ((entry.second->flags & CU_STREAM_NON_BLOCKING) == 0)
                after.push_back(entry.second->last());
        }
        for (auto &entry : ctx.per_thread)
            after.push_back(entry.second->last());
        for (auto &gone : ctx.leaving) {
            if ((gone->flags & CU_STREAM_NON_BLOCKING) == 0)
                after.push_back(gone->last());
        }
    } else if ((s.flags & CU_STREAM_NON_BLOCKING) == 0 && ctx.legacy != nullptr) {
        after.push_back(ctx.legacy->last());
    }
    return s.submit(std::move(work), std::move(after));
}

} // namespace emu

using namespace emu;

static CUresult create_stream(CUstream *handle, unsigned flags, int priority)
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((flags & ~CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE);
    priority  = std::max(-5, std::min(0, priority));
    auto made = make_handle<CUstream>(handle_kind::stream);
    auto s    = std::make_shared<stream>(ctx, made, flags, priority);
    drv().streams.add(made, s);
    std::lock_guard lock(ctx->submit_mutex);
    ctx->streams[made] = s;
    *handle            = made;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamCreate, (CUstream * handle, unsigned int flags), (handle, flags))
{
    return create_stream(handle, flags, 0);
}

EMU_API(cuStreamCreateWithPriority, (CUstream * handle, unsigned int flags, int priority),
        (handle, flags, priority))
{
    return create_stream(handle, flags, priority);
}

EMU_API(cuStreamDestroy_v2, (CUstream handle), (handle))
{
    refuse_stale(handle);
    auto s = drv().streams.remove(handle);
    EMU_REQUIRE(s != nullptr, CUDA_ERROR_INVALID_HANDLE);
    if (auto ctx = s->owner.lock()) {
        std::lock_guard lock(ctx->submit_mutex);
        ctx->streams.erase(handle);
        // Who waits for the context waits for the work that it has left.
        auto &leaving = ctx->leaving;
        leaving.erase(std::remove_if(leaving.begin(), leaving.end(),
                                     [](const auto &gone) { return gone->last().done(); }),
                      leaving.end());
        if (!s->last().done())
            leaving.push_back(s);
    }
    forget_capture(*s);
    s->close();
    return CUDA_SUCCESS;
}

EMU_API(cuStreamQuery, (CUstream handle), (handle))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_TRY(refuse_on_capturing(*s));
    EMU_TRY(refuse_while_capturing());
    bool done = s->last().done();
    EMU_TRY(static_cast<CUresult>(ctx->fault.load()));
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EMU_API(cuStreamSynchronize, (CUstream handle), (handle))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_TRY(refuse_on_capturing(*s));
    EMU_TRY(refuse_while_capturing());
    if (s == ctx->legacy)
        submit_ordered(*ctx, *s, [] {}); // it also waits for the blocking streams
    s->last().wait();
    return static_cast<CUresult>(ctx->fault.load());
}

EMU_API(cuStreamGetFlags, (CUstream handle, unsigned int *flags), (handle, flags))
{
    EMU_REQUIRE(flags != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *flags = s->flags;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamGetPriority, (CUstream handle, int *priority), (handle, priority))
{
    EMU_REQUIRE(priority != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *priority = s->priority;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamGetId, (CUstream handle, unsigned long long *id), (handle, id))
{
    EMU_REQUIRE(id != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *id = s->id;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamGetCtx, (CUstream handle, CUcontext *out), (handle, out))
{
    EMU_REQUIRE(out != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *out = ctx->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamGetDevice, (CUstream handle, CUdevice *dev), (handle, dev))
{
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *dev = ctx->dev->ordinal;
    return CUDA_SUCCESS;
}

EMU_API(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *argument),
        (handle, function, argument))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::weak_ptr<context> owner = ctx;
    submit_ordered(*ctx, *s, [owner, function, argument] {
        auto alive = owner.lock();
        // A host function is not called in a context whose work has failed.
        if (alive == nullptr || alive->fault.load() != CUDA_SUCCESS)
            return;
        inside_host_function() = true;
        function(argument);
        inside_host_function() = false;
    });
    return CUDA_SUCCESS;
}

EMU_API(cuStreamAddCallback,
        (CUstream handle, CUstreamCallback function, void *argument, unsigned int flags),
        (handle, function, argument, flags))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(function != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
    std::weak_ptr<context> owner = ctx;
    submit_ordered(*ctx, *s, [owner, handle, function, argument] {
        auto     alive         = owner.lock();
        CUresult code          = alive == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                  : static_cast<CUresult>(alive->fault.load());
        inside_host_function() = true;
        function(handle, code, argument); // told of the error, unlike a host function
        inside_host_function() = false;
    });
    return CUDA_SUCCESS;
}

namespace {

bool value_meets(uint64_t seen, uint64_t wanted, unsigned flags, bool wide)
{
    uint64_t mask = wide ? ~0ull : 0xffffffffull;
    uint64_t sign = wide ? 1ull << 63 : 1ull << 31;
    switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: // cyclic: the difference is not negative
        return (((seen - wanted) & mask) & sign) == 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return (seen & mask) == (wanted & mask);
    case CU_STREAM_WAIT_VALUE_AND:
        return ((seen & wanted) & mask) != 0;
    default: // NOR
        return (~(seen | wanted) & mask) != 0;
    }
}

uint64_t load_word(const char *bytes, bool wide)
{
    if (wide)
        return __atomic_load_n(reinterpret_cast<const uint64_t *>(bytes), __ATOMIC_ACQUIRE);
    return __atomic_load_n(reinterpret_cast<const uint32_t *>(bytes), __ATOMIC_ACQUIRE);
}

void store_word(char *bytes, uint64_t value, bool wide)
{
    if (wide)
        __atomic_store_n(reinterpret_cast<uint64_t *>(bytes), value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(reinterpret_cast<uint32_t *>(bytes), static_cast<uint32_t>(value),
                         __ATOMIC_RELEASE);
}

struct word_op {
    uint64_t address = 0, value = 0;
    unsigned flags = 0;
    bool     wide = false, is_wait = false;
};

CUresult check_word(const context &ctx, const word_op &op)
{
    std::vector<piece> pieces;
    EMU_REQUIRE(op.address % (op.wide ? 8 : 4) == 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(drv().memory.locate(op.address, op.wide ? 8 : 4, &pieces) &&
                    pieces[0].from != nullptr,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(may_touch(*ctx.dev, &ctx, *pieces[0].from, !op.is_wait), CUDA_ERROR_INVALID_VALUE);
    unsigned known = op.is_wait ? 3u | static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)
                                : static_cast<unsigned>(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
    EMU_REQUIRE((op.flags & ~known) == 0, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

void run_word(const std::weak_ptr<context> &owner, const word_op &op)
{
    for (;;) {
        auto ctx = owner.lock();
        if (ctx == nullptr || ctx->fault.load() != CUDA_SUCCESS)
            return;
        std::vector<piece> pieces;
        if (!drv().memory.locate(op.address, op.wide ? 8 : 4, &pieces)) {
            set_fault(owner, CUDA_ERROR_ILLEGAL_ADDRESS);
            return;
        }
        if (!op.is_wait) {
            store_word(pieces[0].bytes, op.value, op.wide);
            return;
        }
        if (value_meets(load_word(pieces[0].bytes, op.wide), op.value, op.flags, op.wide))
            return;
        ctx = nullptr;
        usleep(10);
    }
}

CUresult submit_words(CUstream handle, const std::vector<word_op> &ops)
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    for (const word_op &op : ops)
        EMU_TRY(check_word(*ctx, op));
    std::weak_ptr<context> owner = ctx;
    submit_ordered(*ctx, *s, [owner, ops] {
        for (const word_op &op : ops)
            run_word(owner, op);
    });
    return CUDA_SUCCESS;
}

word_op word(uint64_t address, uint64_t value, unsigned flags, bool wide, bool is_wait)
{
    word_op op;
    op.address = address;
    op.value   = value;
    op.flags   = flags;
    op.wide    = wide;
    op.is_wait = is_wait;
    return op;
}

} // namespace

EMU_API(cuStreamWriteValue32_v2,
        (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
        (stream, address, value, flags))
{
    return submit_words(stream, {word(address, value, flags, false, false)});
}

EMU_API(cuStreamWriteValue64_v2,
        (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
        (stream, address, value, flags))
{
    return submit_words(stream, {word(address, value, flags, true, false)});
}

EMU_API(cuStreamWaitValue32_v2,
        (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
        (stream, address, value, flags))
{
    return submit_words(stream, {word(address, value, flags, false, true)});
}

EMU_API(cuStreamWaitValue64_v2,
        (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
        (stream, address, value, flags))
{
    return submit_words(stream, {word(address, value, flags, true, true)});
}

EMU_API(cuStreamBatchMemOp_v2,
        (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags),
        (stream, count, params, flags))
{
    EMU_REQUIRE(count <= 256 && (params != nullptr || count == 0) && flags == 0,
                CUDA_ERROR_INVALID_VALUE);
    std::vector<word_op> ops;
    for (unsigned i = 0; i < count; i++) {
        const CUstreamBatchMemOpParams &p = params[i];
        switch (p.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            ops.push_back(
                word(p.waitValue.address, p.waitValue.value, p.waitValue.flags, false, true));
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            ops.push_back(
                word(p.waitValue.address, p.waitValue.value64, p.waitValue.flags, true, true));
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            ops.push_back(
                word(p.writeValue.address, p.writeValue.value, p.writeValue.flags, false, false));
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            ops.push_back(
                word(p.writeValue.address, p.writeValue.value64, p.writeValue.flags, true, false));
            break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER:
            break; // the processor's memory is coherent
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return submit_words(stream, ops);
}
