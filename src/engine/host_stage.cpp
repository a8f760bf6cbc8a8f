// SPDX-License-Identifier: BSD-3-Clause
//
// Slots, the operations that pass through them, and their order.
#include "engine/host_stage.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/log.h"

namespace nvl {

host_stage::host_stage(const cuda_api &cuda, lane &push, lane &pull,
                       const host_stage_config &config) noexcept
    : cuda_(cuda), push_(push), pull_(pull), config_(config)
{
}

result<std::unique_ptr<host_stage>> host_stage::create(const cuda_api &cuda, const life_ref &life,
                                                       lane &push, lane &pull,
                                                       const host_stage_config &config) noexcept
{
    std::unique_ptr<host_stage> self(new (std::nothrow) host_stage(cuda, push, pull, config));
    if (!self) {
        return UCS_ERR_NO_MEMORY;
    }
    ucs_status_t status = self->open(life);
    if (status != UCS_OK) {
        return status;
    }
    return self;
}

ucs_status_t host_stage::open(const life_ref &life) noexcept
{
    size_t count = std::max<size_t>(config_.total_bytes / config_.slot_bytes, 2);
    ops_.reset(new (std::nothrow) op[config_.depth]);
    slots_.reset(new (std::nothrow) slot[count]);
    if (!ops_ || !slots_) {
        return UCS_ERR_NO_MEMORY;
    }

    void                *bytes = nullptr;
    CUresult             code  = CUDA_SUCCESS;
    result<pinned_block> made  = pinned_block::make(cuda_, life, count * config_.slot_bytes, &code);
    if (made.ok()) {
        pinned_ = std::move(made.value());
        bytes   = pinned_.get();
    } else {
        // The driver then copies each slot itself before it returns: slower, but no
        // longer than one slot at a time.
        NVL_DIAG("no page-locked memory for host buffers (%s): they go more slowly",
                 cuda_.error_text(code));
        ordinary_.reset(new (std::nothrow) uint8_t[count * config_.slot_bytes]);
        bytes = ordinary_.get();
        if (bytes == nullptr) {
            return UCS_ERR_NO_MEMORY;
        }
    }

    for (size_t i = 0; i < count; ++i) {
        slots_[i].self      = this;
        slots_[i].bytes     = static_cast<uint8_t *>(bytes) + i * config_.slot_bytes;
        slots_[i].done.func = slot_done;
        slots_[i].next      = free_;
        free_               = &slots_[i];
    }
    return UCS_OK;
}

host_stage::~host_stage()
{
    // Nobody is told, but what the operations used is free.
    while (finished_ != posted_) {
        op_use *use = at(++finished_).end.use;
        if (use != nullptr) {
            use->release();
        }
    }
}

ucs_status_t host_stage::submit(bool push, const copy_box &box, const op_end &end) noexcept
{
    if (room() == 0) {
        return UCS_ERR_NO_RESOURCE;
    }
    bool is_first = waiting(push) == nullptr;
    op  &mine     = at(++posted_);
    mine          = op();
    mine.end      = end;
    mine.box      = box;
    mine.push     = push;
    mine.total    = box.row_bytes * box.rows;
    if (is_first && (!push || (mine.total <= config_.inline_bytes))) {
        pump(push, config_.slot_bytes);
    }
    return UCS_INPROGRESS;
}

ucs_status_t host_stage::submit_inline(uint64_t dst, const void *bytes, size_t size_bytes,
                                       const op_end &end) noexcept
{
    if ((room() == 0) || (free_ == nullptr) || push_.is_full() || (waiting(true) != nullptr)) {
        return UCS_ERR_NO_RESOURCE;
    }
    return submit(true, copy_box{dst, reinterpret_cast<uint64_t>(bytes), size_bytes, 1, 0, 0}, end);
}

ucs_status_t host_stage::submit_marker(const op_end &end) noexcept
{
    if (room() == 0) {
        return UCS_ERR_NO_RESOURCE;
    }
    op &mine = at(++posted_);
    mine     = op();
    mine.end = end;
    return UCS_INPROGRESS;
}

// Takes one slot for the operation's next bytes; false if that is not possible now.
bool host_stage::start_slot(op *which) noexcept
{
    lane &way = which->push ? push_ : pull_;
    if ((free_ == nullptr) || way.is_full()) {
        return false;
    }
    slot           *mine         = free_;
    const copy_box &box          = which->box;
    size_t          size         = std::min(config_.slot_bytes, box.row_bytes - which->column_at);
    uint64_t        src          = box.src + which->row_at * box.src_step + which->column_at;
    uint64_t        dst          = box.dst + which->row_at * box.dst_step + which->column_at;
    auto            slot_address = reinterpret_cast<uint64_t>(mine->bytes);
    copy_piece      piece;
    if (which->push) {
        std::memcpy(mine->bytes, reinterpret_cast<const void *>(src), size);
        piece = copy_piece{dst, slot_address, size};
    } else {
        mine->user = reinterpret_cast<uint8_t *>(dst);
        piece      = copy_piece{slot_address, src, size};
    }

    mine->owner         = which;
    mine->size_bytes    = size;
    mine->done.count    = 1;
    mine->done.status   = UCS_OK;
    free_               = mine->next;
    ucs_status_t status = way.submit(&piece, 1, op_end{&mine->done, nullptr});
    if (status != UCS_INPROGRESS) {
        mine->next = free_;
        free_      = mine;
        if (status == UCS_ERR_NO_RESOURCE) {
            return false;
        }
        which->status  = status;
        which->started = which->total; // no more of it
        return true;
    }

    ++which->in_flight;
    which->started += size;
    which->column_at += size;
    if (which->column_at == box.row_bytes) {
        which->column_at = 0;
        ++which->row_at;
    }
    return true;
}

void host_stage::slot_done(uct_completion_t *done) noexcept
{
    auto       *mine  = reinterpret_cast<slot *>(done);
    host_stage *self  = mine->self;
    op         *owner = mine->owner;
    if (done->status != UCS_OK) {
        owner->status  = done->status;
        owner->started = owner->total;
    } else if (!owner->push) {
        std::memcpy(mine->user, mine->bytes, mine->size_bytes);
    }
    --owner->in_flight;
    mine->next  = self->free_;
    self->free_ = mine;
}

// The first operation of a direction that still wants slots, or null.
host_stage::op *host_stage::waiting(bool push) noexcept
{
    uint32_t &next = next_[push];
    if (static_cast<int32_t>(next - finished_) <= 0) {
        next = finished_ + 1;
    }
    for (; next != posted_ + 1; ++next) {
        op &one = at(next);
        if ((one.push == push) && (one.started < one.total)) {
            return &one;
        }
    }
    return nullptr;
}

// Starts slots for the operations of one direction, in order, until `budget` bytes
// are on their way.
void host_stage::pump(bool push, size_t budget) noexcept
{
    op *mine = waiting(push);
    while ((mine != nullptr) && (budget != 0)) {
        size_t before = mine->started;
        if (!start_slot(mine)) {
            return;
        }
        budget -= std::min(budget, mine->started - before);
        mine = waiting(push);
    }
}

unsigned host_stage::poll() noexcept
{
    if (is_idle()) {
        return 0;
    }
    pump(true, config_.slot_bytes);
    pump(false, 4 * config_.slot_bytes); // no bytes are touched for these

    unsigned count = 0;
    while (finished_ != posted_) {
        op &oldest = at(finished_ + 1);
        if ((oldest.in_flight != 0) || (oldest.started < oldest.total)) {
            break;
        }
        // By value: the completion may post, and so take this place again.
        op_end       end    = oldest.end;
        ucs_status_t status = oldest.status;
        ++finished_;
        op_finish(end, status);
        ++count;
    }
    return count;
}

bool host_stage::has_work() noexcept
{
    if (is_idle()) {
        return false;
    }
    const op &oldest = at(finished_ + 1);
    if ((oldest.in_flight == 0) && (oldest.started >= oldest.total)) {
        return true; // to be finished
    }
    // Without a free slot, the end of one is awaited.
    return (free_ != nullptr) && (((waiting(true) != nullptr) && !push_.is_full()) ||
                                  ((waiting(false) != nullptr) && !pull_.is_full()));
}

} // namespace nvl
