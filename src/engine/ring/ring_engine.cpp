// SPDX-License-Identifier: BSD-3-Clause
//
// Posting into the ring, seeing what is done, and the life of the kernel. What
// each word means and who decides is in ring_protocol.h.
#include "engine/ring/ring_engine.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "engine/ring/ring_words.h"

namespace nvl {

namespace {

// Like a lane's: no completion for so long, and the driver is asked.
constexpr double stall_check_ns = 1e6;

// The stream's next kernel is queued this long before the present one has to
// leave: above the time of a launch, far below a stay.
constexpr double handover_ahead_ns = 100e3;

// Stands in the slots of an operation's chunks but the last.
op_use chunk_use(nullptr);

bool ends_here(const op_end &end) noexcept
{
    return end.use != &chunk_use;
}

template<typename word> void write(word &at, word value) noexcept
{
    __atomic_store_n(&at, value, __ATOMIC_RELAXED);
}

} // namespace

ring_engine::ring_engine(const cuda_api &cuda, const life_ref &life, lane &fallback,
                         const ring_config &config) noexcept
    : cuda_(cuda), life_(life), fallback_(fallback), config_(config)
{
    posted_ = finished_ = config.first_number - 1;
    first_              = config.first_number;
    narrow_ns_          = config.narrow_ns;
}

// ---- posting ----------------------------------------------------------------

// How an operation is cut that finds `load` descriptors in flight.
uint32_t ring_engine::chunk_bytes(size_t size_bytes, uint32_t load) const noexcept
{
    if (size_bytes <= config_.alone_bytes) {
        return config_.alone_bytes;
    }
    if (load > config_.stream_descriptors) {
        const size_t part =
            size_bytes / config_.stream_pieces & ~size_t(511); // whole rows of a warp
        return (part < config_.chunk_large_bytes / 2)
                   ? config_.chunk_stream_bytes
                   : static_cast<uint32_t>(
                         std::min<size_t>(std::max<size_t>(part, config_.chunk_large_bytes),
                                          2 * config_.chunk_stream_bytes));
    }
    return (size_bytes <= config_.chunk_limit_bytes) ? config_.chunk_small_bytes
                                                     : config_.chunk_large_bytes;
}

bool ring_engine::is_done(uint32_t number) const noexcept
{
    return seen(shared_->done[number % ring_slots]) == number;
}

inline void ring_engine::write_slot(uint64_t dst, uint64_t src, uint32_t size_bytes,
                                    uint32_t flags) noexcept
{
    uint32_t         number = ++posted_;
    ring_descriptor &slot   = shared_->slots[ring_slot(number)];

    ends_[number % ring_slots] = op_end{nullptr, &chunk_use};
    write(slot.dst, dst);
    write(slot.size_bytes, size_bytes);
    write(slot.src, src);
    write(slot.flags, flags);
    // The poller may look before the tail says so: a half with this number
    // is complete.
    tell(slot.sequence_again, number);
    tell(slot.sequence, number);
}

inline void ring_engine::write_copy(const copy_piece &piece, uint32_t chunk,
                                    uint32_t flags) noexcept
{
    size_t offset = 0;
    for (; piece.size_bytes - offset > chunk; offset += chunk) {
        write_slot(piece.dst + offset, piece.src + offset, chunk, flags);
        flags |= ring_flag_more;
    }
    write_slot(piece.dst + offset, piece.src + offset,
               static_cast<uint32_t>(piece.size_bytes - offset), flags);
}

// Everything up to the last written slot is one operation.
inline void ring_engine::post(const op_end &end) noexcept
{
    ends_[posted_ % ring_slots] = end;
    tell(shared_->orders.tail, posted_);
}

ucs_status_t ring_engine::submit(const copy_piece *pieces, size_t count, const op_end &end,
                                 bool is_near) noexcept
{
    const uint32_t flags = ring_kind_copy | (is_near ? ring_flag_near : 0);
    if (__builtin_expect(!ready(), 0)) {
        return UCS_ERR_NO_RESOURCE;
    }

    // The one case that has to be quick: a small operation of one piece.
    if (__builtin_expect((count == 1) && (pieces->size_bytes <= config_.alone_bytes) &&
                             (in_flight() != ring_slots),
                         1)) {
        write_slot(pieces->dst, pieces->src, static_cast<uint32_t>(pieces->size_bytes), flags);
        post(end);
        if (__builtin_expect(!is_large(), 0)) {
            consider_growth(pieces->size_bytes);
        }
        return UCS_INPROGRESS;
    }
    return submit_cut(pieces, count, end, flags);
}

// Any number of pieces of any size.
ucs_status_t ring_engine::submit_cut(const copy_piece *pieces, size_t count, const op_end &end,
                                     uint32_t flags) noexcept
{
    const uint32_t load  = in_flight();
    size_t         total = 0;
    size_t         slots = count;
    for (size_t i = 0; i < count; ++i) {
        const size_t size = pieces[i].size_bytes;
        total += size;
        if (size > config_.alone_bytes) {
            slots += (size - 1) / chunk_bytes(size, load);
        }
    }
    if (__builtin_expect(slots > ring_slots - load, 0)) {
        return (slots > ring_slots) ? UCS_ERR_EXCEEDS_LIMIT : UCS_ERR_NO_RESOURCE;
    }
    if (__builtin_expect(count == 0, 0)) {
        return submit_marker(end);
    }

    for (size_t i = 0; i < count; ++i) {
        write_copy(pieces[i], chunk_bytes(pieces[i].size_bytes, load), flags);
    }
    post(end);
    if (!is_large()) {
        consider_growth(total);
    }
    return UCS_INPROGRESS;
}

ucs_status_t ring_engine::submit_inline(uint64_t dst, const void *bytes, uint32_t size_bytes,
                                        const op_end &end) noexcept
{
    if (size_bytes > ring_inline_bytes) {
        return UCS_ERR_EXCEEDS_LIMIT;
    }
    if (!ready() || (room() == 0)) {
        return UCS_ERR_NO_RESOURCE;
    }

    if (size_bytes <= sizeof(uint64_t)) {
        uint64_t value = 0;
        memcpy(&value, bytes, size_bytes);
        write_slot(dst, value, size_bytes, ring_kind_immediate);
    } else {
        uint32_t slot = (posted_ + 1) % ring_slots;
        memcpy(shared_->inline_data[slot], bytes, size_bytes);
        write_slot(dst, inline_address(slot), size_bytes, ring_kind_copy);
    }
    post(end);
    return UCS_INPROGRESS;
}

ucs_status_t ring_engine::submit_marker(const op_end &end) noexcept
{
    if (broken_ != UCS_OK) {
        return broken_;
    }
    if (waiting_ != nullptr) {
        return wait_marker(end);
    }
    if (room() == 0) {
        return UCS_ERR_NO_RESOURCE;
    }
    post_marker(end);
    return UCS_INPROGRESS;
}

void ring_engine::post_marker(const op_end &end) noexcept
{
    write_slot(0, 0, 0, ring_kind_nothing);
    post(end);
}

void ring_engine::post_atomic(waiter *one) noexcept
{
    const atomic_request &what  = one->request;
    one->slot                   = (posted_ + 1) % ring_slots;
    words_at(one->slot).compare = what.compare;
    write_slot(what.dst, what.operand, what.size_bytes,
               ring_kind_atomic | (what.what << ring_atomic_shift));
    post(op_end{one->end.comp, one});
    ++atomics_;
    if (!is_large()) {
        consider_growth(what.size_bytes);
    }
}

bool ring_engine::has_end(uint32_t number) const noexcept
{
    return ends_here(ends_[number % ring_slots]);
}

void ring_engine::forget_end(uint32_t number) noexcept
{
    ends_[number % ring_slots] = op_end{nullptr, &chunk_use};
}

// ---- what is done -----------------------------------------------------------

// Each done word that the GPU writes takes its line of sixteen out of the processor's cache, and
// the next look fetches it again. In a stream whose operations are posted one a call, three calls
// of four do not look; who only waits looks at the eighth word from here, which brings
// several at once, and now and then at the next one.
inline bool ring_engine::is_worth_a_look() noexcept
{
    constexpr uint32_t together     = 8;
    constexpr uint32_t calls_a_look = 4;

    const bool is_posting = (posted_ != polled_);
    polled_               = posted_;
    return (in_flight() < together) || ((++hesitations_ % calls_a_look) == 0) ||
           (!is_posting && is_done(finished_ + together));
}

// The clock and the kernel's words, when nothing was found: while a kernel serves and nobody waits
// for one, a call in eight is often enough. (A read of the clock is a tenth of what an operation
// in a stream costs.)
inline bool ring_engine::is_turn_to_attend() noexcept
{
    constexpr uint32_t calls_a_turn = 8;
    return (state_ != state::running) || (waiting_ != nullptr) || backing_ || (broken_ != UCS_OK) ||
           ((++turns_ % calls_a_turn) == 0);
}

unsigned ring_engine::poll(unsigned max) noexcept
{
    unsigned count  = 0;
    uint32_t before = finished_;

    for (bool go = is_worth_a_look(); go && (finished_ != posted_) && (count < max);) {
        uint32_t next = finished_ + 1;
        if (!is_done(next)) {
            break;
        }
        // By value: the completion may post, and so take this slot again.
        op_end end = ends_[next % ring_slots];
        finished_  = next;
        if (ends_here(end)) {
            op_finish(end, UCS_OK);
            ++count;
        }
    }

    if (finished_ != before) {
        stall_ticks_ = 0;
        bool is_turn = ((++polls_ % 64) == 0) || (waiting_ != nullptr);
        if (__builtin_expect(!is_turn, 1) || (count == 0)) {
            return count;
        }
    } else if (!is_busy() || !is_turn_to_attend()) {
        return 0;
    }

    count += attend();
    return (broken_ != UCS_OK) ? count + fail_all(broken_) : count;
}

unsigned ring_engine::fail_all(ucs_status_t status) noexcept
{
    // First: a completion that posts again is refused.
    state_   = state::idle;
    backing_ = false;
    first_   = posted_ + 1;

    unsigned count = 0;
    while (finished_ != posted_) {
        op_end end = ends_[++finished_ % ring_slots];
        if (ends_here(end)) {
            op_finish(end, status);
            ++count;
        }
    }
    return count + fail_waiting(status);
}

// At the end: nobody is told, but what the operations used is free.
void ring_engine::release_uses() noexcept
{
    broken_ = UCS_ERR_CANCELED; // nothing is written into what the user keeps, either
    while (finished_ != posted_) {
        op_end end = ends_[++finished_ % ring_slots];
        if (ends_here(end) && (end.use != nullptr)) {
            end.use->release();
        }
    }
}

// What there is to do beside the operations, while some are in flight; returns how
// many it ended.
unsigned ring_engine::attend() noexcept
{
    if (broken_ != UCS_OK) {
        return 0;
    }
    (void)refresh(); // may set times: `now` is after them
    if (((state_ == state::idle) || (state_ == state::cancelled)) && (first_ != posted_ + 1)) {
        take_back();
    }
    if (backing_) {
        take_back_next();
        (void)fallback_.poll(config_.take_back_max);
    }
    uint64_t now = clock_ticks();
    attend_waiting(now);
    check_stall(now);
    return (waiting_ != nullptr) ? serve_waiting() : 0;
}

// Work must not wait for a kernel that has not reported in; and a stream of
// work should find the next kernel waiting when this one's time is over.
void ring_engine::attend_waiting(uint64_t now) noexcept
{
    if ((state_ == state::launched) && (first_ != posted_ + 1)) {
        if (for_waiting_) {
            return; // nothing of it could be done another way
        }
        if (waiting_ticks_ == 0) {
            waiting_ticks_ = now;
        } else if (now - waiting_ticks_ > clock_from_ns(config_.hello_timeout_ns)) {
            cancel();
        }
        return;
    }
    double ahead_ns = std::min(handover_ahead_ns, config_.stay_ns / 4);
    if ((state_ == state::running) && (generation_ == newest_) && (in_flight() != 0) &&
        (now - hello_ticks_ > clock_from_ns(config_.stay_ns - ahead_ns))) {
        hand_over(is_large());
    }
}

void ring_engine::check_stall(uint64_t now) noexcept
{
    // What was taken back ends, or fails, with the lane.
    if (!is_busy() || ((state_ == state::idle) && backing_)) {
        return;
    }
    if (stall_ticks_ == 0) {
        stall_ticks_ = now;
        return;
    }
    if (now - stall_ticks_ < clock_from_ns(stall_check_ns)) {
        return;
    }
    stall_ticks_ = now;

    context_guard   guard(cuda_, *life_);
    relaxed_capture relaxed(cuda_);
    CUresult        code = guard.ok() ? cuda_.cuStreamQuery(stream_.get()) : guard.code();
    if (code == CUDA_ERROR_NOT_READY) {
        return;
    }
    if (code != CUDA_SUCCESS) {
        broken_ = cuda_failed(cuda_, code, "copy kernel", 1);
        return;
    }
    // Its last word was written before the stream was done with it. What that leads to
    // may be another launch.
    uint32_t asked = newest_;
    (void)refresh();
    const bool is_next_done = is_done(finished_ + 1);
    if (newest_ != asked) {
        return;
    }
    if ((state_ == state::running) || (state_ == state::launched)) {
        kernel_lost();
    } else if ((state_ == state::idle) && !backing_ && !is_next_done && (finished_ != posted_)) {
        NVL_ERROR("the copy kernel is gone and has left operations undone");
        broken_ = UCS_ERR_IO_ERROR;
    }
}

} // namespace nvl
