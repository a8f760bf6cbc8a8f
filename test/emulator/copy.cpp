// SPDX-License-Identifier: BSD-3-Clause
//
// Copies and fills: checked when they are submitted, looked up again and done when the stream
// comes to them. What has vanished in between ends the context with CUDA_ERROR_ILLEGAL_ADDRESS,
// as it does a real one.
//
// Between two devices without peer access the real driver stages through host memory, so such a
// copy works here too. Only memory with access rights of its own (VMM, pools) is refused to a
// device that was given none.
#include "copy.h"
#include "stale.h"
#include "timing.h"
#include "unseen.h"

#include <cstring>
#include <unistd.h>

namespace emu {
namespace {

bool is_pageable(const std::vector<piece> &pieces)
{
    return pieces.size() == 1 && pieces[0].from == nullptr;
}

bool is_gpu(const std::vector<piece> &pieces)
{
    return !pieces.empty() && pieces[0].from != nullptr && !pieces[0].from->is_host();
}

bool may_touch_all(const context &ctx, const std::vector<piece> &pieces, bool write)
{
    for (const piece &p : pieces) {
        if (p.from != nullptr && p.from->has_own_access() &&
            !may_touch(*ctx.dev, &ctx, *p.from, write))
            return false;
    }
    return true;
}

// As seen on driver 580: access to VMM memory is that of the calling thread's context, not of the
// stream's, and without a context only what lies in one chunk is found.
bool may_touch_from_here(const std::vector<piece> &pieces, bool write)
{
    std::shared_ptr<context> here;
    const bool               none = current_context_even_faulty(&here) != CUDA_SUCCESS;
    for (const piece &p : pieces) {
        if (p.from != nullptr && p.from->kind == range_kind::vmm &&
            (none ? pieces.size() > 1 : !may_touch(*here->dev, here.get(), *p.from, write)))
            return false;
    }
    return true;
}

// The addresses that a shape spans, first to last byte; false if that is more than there are.
bool span(size_t row, size_t rows, size_t pitch, size_t planes, size_t plane, size_t *size)
{
    size_t to_plane = 0, to_row = 0;
    return !__builtin_mul_overflow(planes - 1, plane, &to_plane) &&
           !__builtin_mul_overflow(rows - 1, pitch, &to_row) &&
           !__builtin_add_overflow(to_plane, to_row, size) &&
           !__builtin_add_overflow(*size, row, size);
}

CUresult check_side(const context &ctx, uint64_t address, size_t size, side what, bool write,
                    std::vector<piece> *pieces)
{
    EMU_REQUIRE(drv().memory.locate(address, size, pieces), CUDA_ERROR_INVALID_VALUE);
    // "host" names ordinary or pinned memory, "gpu" whatever the driver knows.
    EMU_REQUIRE(what != side::gpu || !is_pageable(*pieces), CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(address != 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(may_touch_all(ctx, *pieces, write), CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(may_touch_from_here(*pieces, write), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

bool is_of_gpu(const piece &p)
{
    return p.from != nullptr && !p.from->is_host() && p.from->kind != range_kind::managed;
}

// Walks two piece lists side by side.
void copy_bytes(std::vector<piece> to, std::vector<piece> from)
{
    size_t i = 0, j = 0;
    while (i < to.size() && j < from.size()) {
        size_t n      = std::min(to[i].size, from[j].size);
        bool   to_gpu = is_of_gpu(to[i]), from_gpu = is_of_gpu(from[j]);
        if (to_gpu || from_gpu) {
            if (!from_gpu)
                tell_read(from[j].bytes, n);
            move_unseen(to[i].bytes, from[j].bytes, n);
            if (!to_gpu)
                tell_written(to[i].bytes, n);
        } else {
            memmove(to[i].bytes, from[j].bytes, n);
        }
        to[i].bytes += n;
        from[j].bytes += n;
        to[i].size -= n;
        from[j].size -= n;
        i += to[i].size == 0;
        j += from[j].size == 0;
    }
}

bool copy_row(uint64_t dst, uint64_t src, size_t size, const copy_fault &fault)
{
    std::vector<piece> to, from;
    if (size == 0)
        return true;
    if (!drv().memory.locate(dst, size, &to) || !drv().memory.locate(src, size, &from))
        return false;
    if (fault.nothing)
        return true;
    char *dropped = fault.drop ? to[0].bytes + to[0].size / 2 : nullptr;
    char  kept    = dropped != nullptr ? *dropped : '\0';
    copy_bytes(to, from);
    // What happens to be what was to be written would not be missed.
    if (dropped != nullptr)
        *dropped = static_cast<char>((*dropped != kept) ? kept : ~kept);
    if (fault.garble)
        to[0].bytes[to[0].size / 2] = static_cast<char>(to[0].bytes[to[0].size / 2] ^ 0x5a);
    return true;
}

bool copy_rows(const copy_shape &shape, const copy_fault &fault)
{
    for (size_t z = 0; z < shape.planes; z++) {
        for (size_t y = 0; y < shape.rows; y++) {
            uint64_t dst = shape.dst + z * shape.dst_plane + y * shape.dst_pitch;
            uint64_t src = shape.src + z * shape.src_plane + y * shape.src_pitch;
            if (!copy_row(dst, src, shape.row, fault))
                return false;
        }
    }
    return true;
}

// A planned fault: done is said now, the bytes come later. Not into memory that the program may
// have given back by then.
bool copy_later(const copy_shape &shape, const std::shared_ptr<std::vector<char>> &bytes,
                unsigned long late_us)
{
    std::vector<piece> to;
    if (late_us == 0 || !drv().memory.locate(shape.dst, shape.row, &to) || is_pageable(to))
        return false;
    std::thread([shape, bytes, late_us] {
        usleep(static_cast<useconds_t>(late_us));
        copy_rows(shape, {});
    }).detach();
    return true;
}

// Whatever happens to the copy, it takes its time.
class rest_of_time {
public:
    explicit rest_of_time(std::chrono::nanoseconds length)
        : length_(length), begin_(std::chrono::steady_clock::now())
    {
    }
    ~rest_of_time()
    {
        if (length_.count() > 0)
            std::this_thread::sleep_until(begin_ + length_);
    }
    rest_of_time(const rest_of_time &)            = delete;
    rest_of_time &operator=(const rest_of_time &) = delete;

private:
    const std::chrono::nanoseconds              length_;
    const std::chrono::steady_clock::time_point begin_;
};

void execute(const std::weak_ptr<context> &owner, const copy_shape &shape,
             const std::shared_ptr<std::vector<char>> &bytes, int dst_device, int src_device)
{
    auto ctx = owner.lock();
    if (ctx == nullptr || ctx->fault.load() != CUDA_SUCCESS)
        return;
    copy_fault fault =
        next_copy_fault(dst_device >= 0 && src_device >= 0 && dst_device != src_device);
    if (fault.hang)
        hang_for_ever();
    if (fault.delay_us > 0)
        usleep(static_cast<useconds_t>(fault.delay_us));
    rest_of_time time(
        time_of_copy(*ctx->dev, dst_device, src_device, shape.row * shape.rows * shape.planes));
    if (copy_later(shape, bytes, fault.late_us))
        return;
    if (fault.code != CUDA_SUCCESS)
        set_fault(ctx, fault.code);
    else if (!copy_rows(shape, fault))
        set_fault(ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
}

// Takes the bytes at once, in the layout that the shape describes; nullptr: they are not there any more.
std::shared_ptr<std::vector<char>> snapshot(const copy_shape &shape, copy_shape *packed)
{
    auto  bytes = std::make_shared<std::vector<char>>(shape.row * shape.rows * shape.planes);
    char *to    = bytes->data();
    for (size_t z = 0; z < shape.planes; z++) {
        for (size_t y = 0; y < shape.rows; y++) {
            uint64_t           src = shape.src + z * shape.src_plane + y * shape.src_pitch;
            std::vector<piece> from;
            if (!drv().memory.locate(src, shape.row, &from))
                return nullptr;
            copy_bytes({{to, shape.row, nullptr}}, from);
            to += shape.row;
        }
    }
    *packed           = shape;
    packed->src       = reinterpret_cast<uint64_t>(bytes->data());
    packed->src_pitch = shape.row;
    packed->src_plane = shape.row * shape.rows;
    return bytes;
}

// A call without a stream may return early, unless the memory or the context asks otherwise.
bool wants_synchronous(const context &ctx, const std::vector<piece> &pieces)
{
    return (ctx.flags & CU_CTX_SYNC_MEMOPS) != 0 ||
           (!pieces.empty() && pieces[0].from != nullptr && pieces[0].from->sync_memops);
}

int device_of(const std::vector<piece> &pieces)
{
    if (pieces.empty() || pieces[0].from == nullptr)
        return -1;
    const range &r = *pieces[0].from;
    return r.home >= 0 ? r.home : r.device;
}

} // namespace

CUresult submit_copy(CUstream handle, const copy_shape &shape, when until, reading how)
{
    std::shared_ptr<context> ctx; // the stream's: none need be current
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    if (until == when::finished)
        EMU_TRY(refuse_while_capturing());
    if (shape.row == 0 || shape.rows == 0 || shape.planes == 0)
        return CUDA_SUCCESS;
    size_t dst_size = 0, src_size = 0;
    EMU_REQUIRE(
        span(shape.row, shape.rows, shape.dst_pitch, shape.planes, shape.dst_plane, &dst_size) &&
            span(shape.row, shape.rows, shape.src_pitch, shape.planes, shape.src_plane, &src_size),
        CUDA_ERROR_INVALID_VALUE);
    std::vector<piece> to, from;
    EMU_TRY(check_side(*ctx, shape.dst, dst_size, shape.dst_side, true, &to));
    EMU_TRY(check_side(*ctx, shape.src, src_size, shape.src_side, false, &from));
    int dst_device = device_of(to), src_device = device_of(from);
    // What a call does whose caller cannot know when the bytes have been used: it waits for a copy
    // within host memory and for one that ends in pageable memory, and takes the bytes of pageable
    // memory along at once. Between devices a call returns early even without a stream.
    bool to_gpu = is_gpu(to), from_gpu = is_gpu(from);
    bool wait = (until == when::finished && (!(to_gpu && from_gpu) || wants_synchronous(*ctx, to) ||
                                             wants_synchronous(*ctx, from))) ||
                (!to_gpu && !from_gpu) || (is_pageable(to) && from_gpu);
    bool at_once = how == reading::at_once || (how == reading::usual && !wait && is_pageable(from));
    copy_shape                         todo = shape;
    std::shared_ptr<std::vector<char>> bytes;
    if (at_once) {
        bytes = snapshot(shape, &todo);
        EMU_REQUIRE(bytes != nullptr, CUDA_ERROR_INVALID_VALUE);
    }
    std::weak_ptr<context> owner = ctx;
    marker point = submit_ordered(*ctx, *s, [owner, todo, bytes, dst_device, src_device] {
        execute(owner, todo, bytes, dst_device, src_device);
    });
    if (wait && !s->is_capturing()) {
        point.wait();
        return static_cast<CUresult>(ctx->fault.load());
    }
    return CUDA_SUCCESS;
}

namespace {

bool fill_rows(const fill_shape &shape)
{
    for (size_t y = 0; y < shape.rows; y++) {
        std::vector<piece> pieces;
        size_t             size = shape.count * shape.value_size;
        if (!drv().memory.locate(shape.dst + y * shape.pitch, size, &pieces))
            return false;
        const char *value = reinterpret_cast<const char *>(&shape.value); // little endian
        size_t      at    = 0;
        for (piece &p : pieces) {
            if (shape.value_size == 1) {
                memset(p.bytes, value[0], p.size);
                continue;
            }
            for (size_t i = 0; i < p.size; i++, at++)
                p.bytes[i] = value[at % shape.value_size];
        }
    }
    return true;
}

} // namespace

CUresult submit_fill(CUstream handle, const fill_shape &shape, when until)
{
    std::shared_ptr<context> ctx; // the stream's: none need be current
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(shape.dst % shape.value_size == 0 &&
                    (shape.rows <= 1 || shape.pitch % shape.value_size == 0),
                CUDA_ERROR_INVALID_VALUE);
    if (shape.count == 0 || shape.rows == 0)
        return CUDA_SUCCESS;
    size_t row = 0, size = 0;
    EMU_REQUIRE(!__builtin_mul_overflow(shape.count, shape.value_size, &row) &&
                    span(row, shape.rows, shape.pitch, 1, 0, &size) &&
                    (shape.rows == 1 || shape.pitch >= row),
                CUDA_ERROR_INVALID_VALUE);
    std::vector<piece> to;
    EMU_TRY(check_side(*ctx, shape.dst, size, side::gpu, true, &to));
    // A fill of GPU memory returns early even without a stream, unless that memory asks otherwise.
    bool wait = until == when::finished && (!is_of_gpu(to[0]) || wants_synchronous(*ctx, to));
    std::weak_ptr<context> owner = ctx;
    marker                 point = submit_ordered(*ctx, *s, [owner, shape] {
        auto alive = owner.lock();
        if (alive != nullptr && alive->fault.load() == CUDA_SUCCESS && !fill_rows(shape))
            set_fault(alive, CUDA_ERROR_ILLEGAL_ADDRESS);
    });
    if (wait && !s->is_capturing()) {
        point.wait();
        return static_cast<CUresult>(ctx->fault.load());
    }
    return CUDA_SUCCESS;
}

} // namespace emu

using namespace emu;

static copy_shape line(uint64_t dst, side dst_side, uint64_t src, side src_side, size_t size)
{
    copy_shape shape;
    shape.dst      = dst;
    shape.src      = src;
    shape.row      = size;
    shape.dst_side = dst_side;
    shape.src_side = src_side;
    return shape;
}

static uint64_t number(const void *pointer)
{
    return reinterpret_cast<uint64_t>(pointer);
}

EMU_API(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t size), (dst, src, size))
{
    return submit_copy(nullptr, line(dst, side::any, src, side::any, size), when::finished);
}

EMU_API(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream),
        (dst, src, size, stream))
{
    return submit_copy(stream, line(dst, side::any, src, side::any, size), when::submitted);
}

EMU_API(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t size), (dst, src, size))
{
    return submit_copy(nullptr, line(dst, side::gpu, number(src), side::host, size),
                       when::finished);
}

EMU_API(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t size), (dst, src, size))
{
    return submit_copy(nullptr, line(number(dst), side::host, src, side::gpu, size),
                       when::finished);
}

EMU_API(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t size), (dst, src, size))
{
    return submit_copy(nullptr, line(dst, side::gpu, src, side::gpu, size), when::finished);
}

EMU_API(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t size, CUstream stream),
        (dst, src, size, stream))
{
    return submit_copy(stream, line(dst, side::gpu, number(src), side::host, size),
                       when::submitted);
}

EMU_API(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t size, CUstream stream),
        (dst, src, size, stream))
{
    return submit_copy(stream, line(number(dst), side::host, src, side::gpu, size),
                       when::submitted);
}

EMU_API(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream),
        (dst, src, size, stream))
{
    return submit_copy(stream, line(dst, side::gpu, src, side::gpu, size), when::submitted);
}

static CUresult check_contexts(CUcontext a, CUcontext b)
{
    refuse_stale(a);
    refuse_stale(b);
    EMU_REQUIRE(drv().contexts.find(a) != nullptr && drv().contexts.find(b) != nullptr,
                CUDA_ERROR_INVALID_CONTEXT);
    return CUDA_SUCCESS;
}

EMU_API(cuMemcpyPeer,
        (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t size),
        (dst, dst_ctx, src, src_ctx, size))
{
    EMU_TRY(check_contexts(dst_ctx, src_ctx));
    return submit_copy(nullptr, line(dst, side::gpu, src, side::gpu, size), when::finished);
}

EMU_API(cuMemcpyPeerAsync,
        (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t size,
         CUstream stream),
        (dst, dst_ctx, src, src_ctx, size, stream))
{
    EMU_TRY(check_contexts(dst_ctx, src_ctx));
    return submit_copy(stream, line(dst, side::gpu, src, side::gpu, size), when::submitted);
}

static fill_shape fill(uint64_t dst, uint32_t value, unsigned value_size, size_t count)
{
    fill_shape shape;
    shape.dst        = dst;
    shape.value      = value;
    shape.value_size = value_size;
    shape.count      = count;
    return shape;
}

EMU_API(cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t count), (dst, value, count))
{
    return submit_fill(nullptr, fill(dst, value, 1, count), when::finished);
}

EMU_API(cuMemsetD16_v2, (CUdeviceptr dst, unsigned short value, size_t count), (dst, value, count))
{
    return submit_fill(nullptr, fill(dst, value, 2, count), when::finished);
}

EMU_API(cuMemsetD32_v2, (CUdeviceptr dst, unsigned int value, size_t count), (dst, value, count))
{
    return submit_fill(nullptr, fill(dst, value, 4, count), when::finished);
}

EMU_API(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream),
        (dst, value, count, stream))
{
    return submit_fill(stream, fill(dst, value, 1, count), when::submitted);
}

EMU_API(cuMemsetD16Async, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream),
        (dst, value, count, stream))
{
    return submit_fill(stream, fill(dst, value, 2, count), when::submitted);
}

EMU_API(cuMemsetD32Async, (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream),
        (dst, value, count, stream))
{
    return submit_fill(stream, fill(dst, value, 4, count), when::submitted);
}

static CUresult fill_2d(CUstream stream, CUdeviceptr dst, size_t pitch, uint32_t value,
                        unsigned value_size, size_t width, size_t height, when until)
{
    fill_shape shape = fill(dst, value, value_size, width);
    shape.rows       = height;
    shape.pitch      = pitch;
    return submit_fill(stream, shape, until);
}

EMU_API(cuMemsetD2D8_v2,
        (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height),
        (dst, pitch, value, width, height))
{
    return fill_2d(nullptr, dst, pitch, value, 1, width, height, when::finished);
}

EMU_API(cuMemsetD2D8Async,
        (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
         CUstream stream),
        (dst, pitch, value, width, height, stream))
{
    return fill_2d(stream, dst, pitch, value, 1, width, height, when::submitted);
}

EMU_API(cuMemsetD2D16_v2,
        (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height),
        (dst, pitch, value, width, height))
{
    return fill_2d(nullptr, dst, pitch, value, 2, width, height, when::finished);
}

EMU_API(cuMemsetD2D16Async,
        (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
         CUstream stream),
        (dst, pitch, value, width, height, stream))
{
    return fill_2d(stream, dst, pitch, value, 2, width, height, when::submitted);
}

EMU_API(cuMemsetD2D32_v2,
        (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height),
        (dst, pitch, value, width, height))
{
    return fill_2d(nullptr, dst, pitch, value, 4, width, height, when::finished);
}

EMU_API(cuMemsetD2D32Async,
        (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height,
         CUstream stream),
        (dst, pitch, value, width, height, stream))
{
    return fill_2d(stream, dst, pitch, value, 4, width, height, when::submitted);
}
