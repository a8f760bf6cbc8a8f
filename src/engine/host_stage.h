// SPDX-License-Identifier: BSD-3-Clause
//
// Copies between ordinary (pageable) host memory and what a GPU reaches. A copy
// engine given such memory would hold its caller until the bytes are through, so
// they pass through page-locked slots of our own: the processor fills or empties a
// slot, the engine's lane does the rest, and large operations overlap the two.
// Called by route/gpu_engine, in post and in progress; calls two lanes.
#ifndef NVLINK_ENGINE_HOST_STAGE_H
#define NVLINK_ENGINE_HOST_STAGE_H

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "driver/handles.h"
#include "engine/lane.h"
#include "engine/op.h"

namespace nvl {

struct host_stage_config {
    size_t total_bytes = 4u << 20;   // of all slots
    size_t slot_bytes  = 256u << 10; // the processor copies at most two of them in one poll
    // Up to here a put's bytes are copied in the post itself: at 10 GB/s it takes
    // no longer than the submission that follows.
    size_t   inline_bytes = 16u << 10;
    unsigned depth        = 64; // operations
};

// Owned by one interface; used under its worker's lock, so by one thread at a
// time. Operations end in the order in which they were posted.
class host_stage {
public:
    // Allocates the slots, page-locked in the context of `life`, the lanes' one, where
    // the driver lets it. `push` and `pull` must be gone before the stage is.
    static result<std::unique_ptr<host_stage>> create(const cuda_api &cuda, const life_ref &life,
                                                      lane &push, lane &pull,
                                                      const host_stage_config &config) noexcept;

    ~host_stage();
    host_stage(const host_stage &)            = delete;
    host_stage &operator=(const host_stage &) = delete;

    // As lane::submit(). `push`: box.src is the host memory, otherwise box.dst is.
    ucs_status_t submit(bool push, const copy_box &box, const op_end &end) noexcept;

    // A put whose bytes, at most inline_bytes, are copied before it returns, or
    // UCS_ERR_NO_RESOURCE.
    ucs_status_t submit_inline(uint64_t dst, const void *bytes, size_t size_bytes,
                               const op_end &end) noexcept;

    // An operation without bytes: finished once all before it are.
    ucs_status_t submit_marker(const op_end &end) noexcept;

    // Moves on with what is posted; finishes what is through. The lanes are to be
    // polled before. Returns how many operations it finished.
    unsigned poll() noexcept;

    unsigned room() const noexcept
    {
        return config_.depth - (posted_ - finished_);
    }

    bool is_idle() const noexcept
    {
        return posted_ == finished_;
    }

    // True if poll() has something to do that no lane's end will tell of.
    bool has_work() noexcept;

private:
    struct op {
        op_end       end{};
        copy_box     box{};
        bool         push      = true;
        size_t       total     = 0;
        size_t       started   = 0; // bytes that slots were taken for
        size_t       row_at    = 0; // where the next slot's bytes begin
        size_t       column_at = 0;
        unsigned     in_flight = 0; // slots
        ucs_status_t status    = UCS_OK;
    };

    struct slot {
        uct_completion_t done; // first: told by the lane
        host_stage      *self;
        op              *owner;
        uint8_t         *bytes;
        uint8_t         *user;
        size_t           size_bytes;
        slot            *next; // free ones
    };

    host_stage(const cuda_api &cuda, lane &push, lane &pull,
               const host_stage_config &config) noexcept;
    ucs_status_t open(const life_ref &life) noexcept;
    op          *waiting(bool push) noexcept;
    void         pump(bool push, size_t budget) noexcept;
    bool         start_slot(op *which) noexcept;
    static void  slot_done(uct_completion_t *done) noexcept;
    op          &at(uint32_t number) noexcept
    {
        return ops_[number % config_.depth];
    }

    const cuda_api            &cuda_;
    lane                      &push_;
    lane                      &pull_;
    host_stage_config          config_;
    pinned_block               pinned_;
    std::unique_ptr<uint8_t[]> ordinary_; // where nothing could be page-locked
    std::unique_ptr<slot[]>    slots_;
    std::unique_ptr<op[]>      ops_;
    slot                      *free_     = nullptr;
    uint32_t                   posted_   = 0;      // number of the last posted operation
    uint32_t                   finished_ = 0;      // number of the last finished one
    uint32_t                   next_[2]  = {1, 1}; // [push]: the first that may need slots
};

} // namespace nvl

#endif
