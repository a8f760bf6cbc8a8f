// SPDX-License-Identifier: BSD-3-Clause
//
// Atomic operations in the ring. Only a kernel can do them, so where none is there
// they wait, with the markers behind them, for one that is launched; and what a
// kernel left behind waits for the next one. Each is in one of two states: in a slot
// that the present kernel may take, or waiting outside of the ring. Which one took a
// slot is decided by the protocol, so that none is done twice.
#include "engine/ring/ring_engine.h"

#include <cstring>
#include <new>

#include "base/clock.h"

namespace nvl {

// ---- the pool ---------------------------------------------------------------

ring_engine::waiter *ring_engine::take_waiter(const op_end &end) noexcept
{
    waiter *one   = free_waiters_;
    free_waiters_ = one->next;
    --num_free_;
    one->self      = this;
    one->end       = end;
    one->is_marker = false;
    one->count.store(1, std::memory_order_relaxed);
    return one;
}

void ring_engine::free_waiter(waiter *one) noexcept
{
    if (one->is_extra) {
        delete one;
        return;
    }
    one->next     = free_waiters_;
    free_waiters_ = one;
    ++num_free_;
}

// The end of one that was in the ring; called before its completion.
void ring_engine::atomic_ended(op_use *use) noexcept
{
    auto        *one  = static_cast<waiter *>(use);
    ring_engine &self = *one->self;
    if ((one->request.result != nullptr) && (self.broken_ == UCS_OK)) {
        // GPUs and their hosts are little endian: a small value comes first.
        memcpy(one->request.result, &self.words_at(one->slot).before, one->request.size_bytes);
    }
    --self.atomics_;
    if (one->end.use != nullptr) {
        one->end.use->release();
    }
    self.free_waiter(one);
}

// ---- posting ----------------------------------------------------------------

ucs_status_t ring_engine::submit_atomic(const atomic_request &request, const op_end &end) noexcept
{
    if (broken_ != UCS_OK) {
        return broken_;
    }
    if (refused_ >= refused_max) {
        return UCS_ERR_IO_ERROR;
    }
    if (num_free_ <= marker_reserve) {
        return UCS_ERR_NO_RESOURCE;
    }

    waiter *one  = take_waiter(end);
    one->request = request;
    if (__builtin_expect((waiting_ == nullptr) && ready() && (room() != 0), 1)) {
        post_atomic(one);
    } else {
        wait_for_kernel(one);
        call_kernel();
    }
    return UCS_INPROGRESS;
}

void ring_engine::wait_for_kernel(waiter *one) noexcept
{
    one->next = nullptr;
    if (waiting_ == nullptr) {
        waiting_ = one;
    } else {
        last_waiting_->next = one;
    }
    last_waiting_ = one;
}

ucs_status_t ring_engine::wait_marker(const op_end &end) noexcept
{
    if (free_waiters_ == nullptr) {
        return UCS_ERR_NO_RESOURCE;
    }
    waiter *one    = take_waiter(end);
    one->is_marker = true;
    wait_for_kernel(one);
    return UCS_INPROGRESS;
}

// ---- waiting ----------------------------------------------------------------

// However long ago the last one was, and however little those before it did: there
// is no other way. A driver that refused is not asked again at once. What waits is
// posted before the launch: the kernel finds it however late the next poll comes.
void ring_engine::call_kernel() noexcept
{
    bool is_free = (state_ == state::idle) && !backing_ && (first_ == posted_ + 1);
    bool may_ask = (refused_ == 0) || (static_cast<int64_t>(clock_ticks() - not_before_) >= 0);
    if (!is_free || !may_ask || (refused_ >= refused_max)) {
        return;
    }
    post_waiting();
    if (launch(want_large_, false)) {
        for_waiting_   = true;
        generation_    = newest_;
        state_         = state::launched;
        waiting_ticks_ = 0;
    }
}

void ring_engine::post_waiting() noexcept
{
    while ((waiting_ != nullptr) && (room() != 0)) {
        waiter *one = waiting_;
        waiting_    = one->next;
        if (one->is_marker) {
            post_marker(one->end);
            free_waiter(one);
        } else {
            post_atomic(one);
        }
    }
}

// Posts what waits if a kernel is there, calls one if not; returns how many ended.
unsigned ring_engine::serve_waiting() noexcept
{
    if (refused_ >= refused_max) {
        return fail_waiting(UCS_ERR_IO_ERROR);
    }
    if (ready()) {
        post_waiting();
    }
    if ((waiting_ != nullptr) && (state_ == state::idle)) {
        call_kernel();
    }
    return 0;
}

unsigned ring_engine::fail_waiting(ucs_status_t status) noexcept
{
    unsigned count = 0;
    while (waiting_ != nullptr) {
        waiter *one = waiting_;
        waiting_    = one->next;
        op_end end  = one->end;
        free_waiter(one);
        op_finish(end, status);
        ++count;
    }
    return count;
}

void ring_engine::drop_waiting() noexcept
{
    while (waiting_ != nullptr) {
        waiter *one = waiting_;
        waiting_    = one->next;
        if (one->end.use != nullptr) {
            one->end.use->release();
        }
        free_waiter(one);
    }
}

// ---- what a kernel left -----------------------------------------------------

// Takes out of its slot what ends there; there is nothing to do there any more. Null:
// no memory.
ring_engine::waiter *ring_engine::pull_out(uint32_t number) noexcept
{
    ring_descriptor &slot = shared_->slots[ring_slot(number)];
    op_end           end  = ends_[number % ring_slots];
    waiter          *one;
    if ((slot.flags & ring_kind_mask) == ring_kind_atomic) {
        one = static_cast<waiter *>(end.use);
        --atomics_;
    } else {
        one = new (std::nothrow) waiter;
        if (one == nullptr) {
            return nullptr;
        }
        one->is_extra  = true;
        one->is_marker = true;
        one->end       = end;
    }
    forget_end(number);
    __atomic_store_n(&slot.flags, ring_kind_nothing, __ATOMIC_RELAXED);
    return one;
}

// From first_ on no kernel takes anything: what only a kernel can do waits outside
// of the ring, in front of what waits there already, and so do the markers behind
// it. `is_lost`: a kernel may have done part of it without a word.
void ring_engine::reclaim_atomics(bool is_lost) noexcept
{
    if (atomics_ == 0) {
        return;
    }
    waiter *first = nullptr;
    waiter *last  = nullptr;
    for (uint32_t number = first_; number != posted_ + 1; ++number) {
        uint32_t kind      = shared_->slots[ring_slot(number)].flags & ring_kind_mask;
        bool     is_atomic = (kind == ring_kind_atomic) && !(is_lost && is_done(number));
        bool     is_marker = (kind == ring_kind_nothing) && (first != nullptr) && has_end(number);
        if (!is_atomic && !is_marker) {
            continue;
        }
        waiter *one = pull_out(number);
        if (one == nullptr) {
            broken_ = UCS_ERR_NO_MEMORY; // everything ends with it
            break;
        }
        (first == nullptr ? first : last->next) = one;
        last                                    = one;
    }
    if (first != nullptr) {
        last->next = waiting_;
        if (waiting_ == nullptr) {
            last_waiting_ = last;
        }
        waiting_ = first;
    }
}

} // namespace nvl
