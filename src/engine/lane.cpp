// SPDX-License-Identifier: BSD-3-Clause
//
// Submission to a stream and detection of completions.
#include "engine/lane.h"

#include <new>

#include "base/clock.h"
#include "base/log.h"

namespace nvl {

namespace {

// A stream that failed writes no word. After this long without a completion
// the driver is asked; far above any copy's wake-up, so that the question costs
// nothing in proportion.
constexpr double stall_check_ns = 1e6;

} // namespace

lane::lane(const cuda_api &cuda, const life_ref &life, const lane_config &config) noexcept
    : cuda_(cuda), life_(life), config_(config)
{
}

result<std::unique_ptr<lane>> lane::create(const cuda_api &cuda, CUcontext context,
                                           const lane_config &config) noexcept
{
    result<life_ref> life = context_life::of(cuda, context);
    if (!life.ok()) {
        return life.status();
    }
    std::unique_ptr<lane> self(new (std::nothrow) lane(cuda, life.value(), config));
    if (!self) {
        return UCS_ERR_NO_MEMORY;
    }

    context_guard guard(cuda, context);
    if (!guard.ok()) {
        return cuda_failed(cuda, guard.code(), "cuCtxPushCurrent", 1);
    }

    ucs_status_t status = self->open();
    if (status != UCS_OK) {
        return status;
    }
    return self;
}

ucs_status_t lane::open() noexcept
{
    relaxed_capture relaxed(cuda_);

    slots_.reset(new (std::nothrow) slot[config_.depth]);
    if (!slots_) {
        return UCS_ERR_NO_MEMORY;
    }

    CUstream     raw    = nullptr;
    ucs_status_t status = NVL_CUDA_CALL(cuda_, cuStreamCreateWithPriority, &raw,
                                        CU_STREAM_NON_BLOCKING, config_.priority);
    if (status != UCS_OK) {
        return status;
    }
    stream_ = stream(cuda_, life_, raw);

    if (cuda_.cuStreamWriteValue32 == nullptr) {
        config_.completion = lane_completion::by_event;
    }
    return (config_.completion == lane_completion::by_word) ? open_word() : open_events();
}

ucs_status_t lane::open_word() noexcept
{
    CUresult             code = CUDA_SUCCESS;
    result<pinned_block> made = pinned_block::make(cuda_, life_, 64, &code);
    if (!made.ok()) {
        return cuda_failed(cuda_, code, "a page-locked word", 1);
    }
    word_block_ = std::move(made.value());
    word_       = static_cast<volatile uint32_t *>(word_block_.get());
    return UCS_OK;
}

ucs_status_t lane::open_events() noexcept
{
    events_.reset(new (std::nothrow) event[config_.depth]);
    if (!events_) {
        return UCS_ERR_NO_MEMORY;
    }
    for (unsigned i = 0; i < config_.depth; ++i) {
        CUevent      raw    = nullptr;
        ucs_status_t status = NVL_CUDA_CALL(cuda_, cuEventCreate, &raw, CU_EVENT_DISABLE_TIMING);
        if (status != UCS_OK) {
            return status;
        }
        events_[i] = event(cuda_, life_, raw);
    }
    return UCS_OK;
}

lane::~lane()
{
    if (!stream_ || process_is_exiting()) {
        return;
    }
    // Also with nothing in flight: a callback that was armed may be on its way.
    settle();
    if (in_flight() != 0) {
        NVL_DEBUG("lane closed with %u operations in flight", in_flight());
    }
    // Nobody is told, but what they used is free.
    while (finished_ != posted_) {
        op_use *use = slots_[++finished_ % config_.depth].end.use;
        if (use != nullptr) {
            use->release();
        }
    }
}

// The application has destroyed or reset the context: its stream and its events are
// gone, and so is whatever was to end.
bool lane::is_cut_off() noexcept
{
    if (__builtin_expect(!life_->is_over_lately(), 1)) {
        return false;
    }
    if (broken_ == UCS_OK) {
        broken_ = cuda_failed(cuda_, CUDA_ERROR_CONTEXT_IS_DESTROYED, "copy", 1);
    }
    return true;
}

CUresult lane::copy(const copy_piece &piece) noexcept
{
    return cuda_.cuMemcpyAsync(piece.dst, piece.src, piece.size_bytes, stream_.get());
}

CUresult lane::copy(const copy_box &box) noexcept
{
    CUDA_MEMCPY2D shape{};
    shape.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    shape.srcDevice     = box.src;
    shape.srcPitch      = box.src_step;
    shape.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    shape.dstDevice     = box.dst;
    shape.dstPitch      = box.dst_step;
    shape.WidthInBytes  = box.row_bytes;
    shape.Height        = box.rows;
    return cuda_.cuMemcpy2DAsync(&shape, stream_.get());
}

ucs_status_t lane::submit_box(const copy_box &box, const op_end &end) noexcept
{
    if (broken_ != UCS_OK) {
        return broken_;
    }
    if ((cuda_.cuMemcpy2DAsync == nullptr) || !is_pitched(box)) {
        return UCS_ERR_UNSUPPORTED;
    }
    if (is_full()) {
        return UCS_ERR_NO_RESOURCE;
    }
    if (is_cut_off()) {
        return broken_;
    }

    // The rows may be of another context than the caller's current one.
    context_guard guard(cuda_, life_->context());
    CUresult      code = guard.ok() ? copy(box) : guard.code();
    return (code == CUDA_SUCCESS) ? record(end) : cuda_failed(cuda_, code, "cuMemcpy2DAsync", 1);
}

CUresult lane::signal(uint32_t number) noexcept
{
    if (config_.completion == lane_completion::by_word) {
        // The default flag orders the write after the stream's earlier copies.
        return cuda_.cuStreamWriteValue32(stream_.get(), word_block_.on_gpu(), number,
                                          CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    return cuda_.cuEventRecord(events_[number % config_.depth].get(), stream_.get());
}

ucs_status_t lane::record(const op_end &end) noexcept
{
    uint32_t number = posted_ + 1;
    CUresult code   = signal(number);
    if (code != CUDA_SUCCESS) {
        settle();
        return cuda_failed(cuda_, code, "completion signal", 1);
    }
    take_slot(end, false);
    return UCS_INPROGRESS;
}

void lane::take_slot(const op_end &end, bool is_marker) noexcept
{
    slot &mine     = slots_[++posted_ % config_.depth];
    mine.end       = end;
    mine.is_marker = is_marker;
}

ucs_status_t lane::submit(const copy_piece *pieces, size_t count, const op_end &end) noexcept
{
    if (__builtin_expect(broken_ != UCS_OK, 0)) {
        return broken_;
    }
    if (is_full()) {
        return UCS_ERR_NO_RESOURCE;
    }
    // With something in flight poll() looks; a stream of operations is spared the clock.
    if ((in_flight() == 0) && is_cut_off()) {
        return broken_;
    }

    CUresult code = CUDA_SUCCESS;
    size_t   i    = 0;
    for (; (i < count) && (code == CUDA_SUCCESS); ++i) {
        code = copy(pieces[i]);
    }
    if (__builtin_expect(code == CUDA_SUCCESS, 1)) {
        return record(end);
    }

    // A thread without a current context, or with that of another GPU: the driver
    // took nothing. It says so by either code (INVALID_VALUE: a range of several
    // chunks). The common case is spared the question.
    if (((code == CUDA_ERROR_INVALID_CONTEXT) || (code == CUDA_ERROR_INVALID_VALUE)) && (i == 1)) {
        context_guard guard(cuda_, *life_);
        code = guard.code();
        for (i = 0; (i < count) && (code == CUDA_SUCCESS); ++i) {
            code = copy(pieces[i]);
        }
        if (code == CUDA_SUCCESS) {
            return record(end);
        }
    }
    if (i > 1) {
        keep_until_done(end.use);
    }
    return cuda_failed(cuda_, code, "cuMemcpyAsync", 1);
}

// The first pieces of an operation that failed are on their way: what they use
// stays until they are through.
void lane::keep_until_done(op_use *use) noexcept
{
    if (use != nullptr) {
        use->acquire();
        if (record(op_end{nullptr, use}) != UCS_INPROGRESS) {
            use->release(); // record() has waited for them
        }
    }
}

// Copies of an operation that failed are on their way and nobody will see their
// end: waits for them, so that what they use may go with the error.
void lane::settle() noexcept
{
    context_guard   guard(cuda_, *life_);
    relaxed_capture relaxed(cuda_);
    if (guard.ok()) {
        (void)cuda_.cuStreamSynchronize(stream_.get());
    }
}

ucs_status_t lane::submit_marker(const op_end &end) noexcept
{
    if (broken_ != UCS_OK) {
        return broken_;
    }
    if (is_full()) {
        return UCS_ERR_NO_RESOURCE;
    }
    take_slot(end, true);
    return UCS_INPROGRESS;
}

uint32_t lane::completed_by_events() noexcept
{
    uint32_t number = finished_;
    if (__builtin_expect(is_cut_off(), 0)) {
        return number;
    }
    // An event query in the mode that capture wants would be refused and would
    // spoil the application's capture. It needs no current context.
    relaxed_capture relaxed(cuda_);
    while (number != posted_) {
        if (slots_[(number + 1) % config_.depth].is_marker) {
            ++number;
            continue;
        }
        CUresult code = cuda_.cuEventQuery(events_[(number + 1) % config_.depth].get());
        if (code == CUDA_ERROR_NOT_READY) {
            break;
        }
        if (code != CUDA_SUCCESS) {
            broken_ = cuda_failed(cuda_, code, "copy", 1);
            break;
        }
        ++number;
    }
    return number;
}

uint32_t lane::completed() noexcept
{
    if (config_.completion == lane_completion::by_word) {
        // acquire: what the copies brought is seen by whoever is told.
        // Partner: the fence that the stream write carries by default.
        return __atomic_load_n(const_cast<const uint32_t *>(word_), __ATOMIC_ACQUIRE);
    }
    return completed_by_events();
}

ucs_status_t lane::check_stall() noexcept
{
    uint64_t now = clock_ticks();
    if (stall_since_ == 0) {
        stall_since_ = now;
        return UCS_OK;
    }
    if ((now - stall_since_) < clock_from_ns(stall_check_ns)) {
        return UCS_OK;
    }
    stall_since_ = now;

    context_guard   guard(cuda_, *life_);
    relaxed_capture relaxed(cuda_);
    CUresult        code = guard.ok() ? cuda_.cuStreamQuery(stream_.get()) : guard.code();
    if ((code == CUDA_SUCCESS) || (code == CUDA_ERROR_NOT_READY)) {
        return UCS_OK;
    }
    return cuda_failed(cuda_, code, "copy", 1);
}

unsigned lane::fail_all(ucs_status_t status) noexcept
{
    unsigned count = 0;
    while (finished_ != posted_) {
        op_end end = slots_[++finished_ % config_.depth].end;
        op_finish(end, status);
        ++count;
    }
    return count;
}

bool lane::is_next_complete(uint32_t signalled) const noexcept
{
    uint32_t next = finished_ + 1;
    return slots_[next % config_.depth].is_marker || (static_cast<int32_t>(signalled - next) >= 0);
}

unsigned lane::poll(unsigned max) noexcept
{
    if (finished_ == posted_) {
        return 0;
    }

    uint32_t signalled = completed();
    unsigned count     = 0;
    while ((count < max) && (finished_ != posted_) && is_next_complete(signalled)) {
        // By value: the completion may post, and so take this slot again.
        op_end end = slots_[++finished_ % config_.depth].end;
        op_finish(end, UCS_OK);
        ++count;
    }
    if (count != 0) {
        stall_since_ = 0;
        return count;
    }

    if (broken_ == UCS_OK) {
        broken_ = check_stall();
    }
    return (broken_ != UCS_OK) ? fail_all(broken_) : 0;
}

} // namespace nvl
