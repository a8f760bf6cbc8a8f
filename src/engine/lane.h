// SPDX-License-Identifier: BSD-3-Clause
//
// A lane: one CUDA stream of a copy engine and its operations, in order. It
// submits copies and finds out what has completed. One lane serves one
// direction between one GPU and one peer. Called by uct through device.h and
// by the ring (for what it hands back); calls the driver.
//
// How a completion is seen: an event is recorded and queried, or the stream
// writes the operation's number into a word of host memory after its copies. On
// an H200 recording costs 0.2 us and the stream write 1.0 us, and the write
// stalls the copy engine: a stream of pushes of 64 KiB takes 3.9 us each with
// events and 5.8 with words, of pulls 6.3 and 17. So events are the default; the
// word polls without a driver call.
#ifndef NVLINK_ENGINE_LANE_H
#define NVLINK_ENGINE_LANE_H

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "driver/pinned_block.h"
#include "engine/op.h"

namespace nvl {

enum class lane_completion { by_word, by_event };

struct lane_config {
    unsigned        depth      = 256; // operations in flight, a power of two
    lane_completion completion = lane_completion::by_event;
    int             priority   = 0; // of the stream, CUDA's numbering
};

// Owned by one interface; used under its worker's lock, so by one thread at a
// time.
class lane {
public:
    // Creates the stream in `context`, which lives (made current for the call).
    // Errors are logged.
    static result<std::unique_ptr<lane>> create(const cuda_api &cuda, CUcontext context,
                                                const lane_config &config) noexcept;

    // Waits for what is in flight, without reporting it. Of a context that is gone
    // nothing is in flight any more, and nothing is touched.
    ~lane();

    // Submits `count` copies as one operation. UCS_INPROGRESS: `end` is finished
    // by poll(). UCS_ERR_NO_RESOURCE: the lane is full, nothing was submitted,
    // `end` is untouched. Any other error: likewise untouched; after the context's
    // end it is UCS_ERR_IO_ERROR.
    ucs_status_t submit(const copy_piece *pieces, size_t count, const op_end &end) noexcept;

    // The same for a box, as one copy. UCS_ERR_UNSUPPORTED, and `end` untouched:
    // the driver has no such copy, or not of these steps.
    ucs_status_t submit_box(const copy_box &box, const op_end &end) noexcept;

    // An operation without bytes: finished once all before it are. No driver call.
    ucs_status_t submit_marker(const op_end &end) noexcept;

    // Finishes what has completed, at most `max` operations; returns how many.
    // A failed stream finishes all its operations with the error.
    unsigned poll(unsigned max) noexcept;

    bool is_full() const noexcept
    {
        return (posted_ - finished_) >= config_.depth;
    }

    uint32_t in_flight() const noexcept
    {
        return posted_ - finished_;
    }

    CUstream stream_ref() const noexcept
    {
        return stream_.get();
    }

    const context_life &life() const noexcept
    {
        return *life_;
    }

private:
    struct slot {
        op_end end;
        bool   is_marker; // has no signal of its own
    };

    lane(const cuda_api &cuda, const life_ref &life, const lane_config &config) noexcept;

    ucs_status_t open_word() noexcept;
    ucs_status_t open_events() noexcept;
    void         take_slot(const op_end &end, bool is_marker) noexcept;
    bool         is_next_complete(uint32_t signalled) const noexcept;
    ucs_status_t open() noexcept;
    ucs_status_t record(const op_end &end) noexcept;
    void         keep_until_done(op_use *use) noexcept;
    void         settle() noexcept;
    CUresult     signal(uint32_t number) noexcept;
    uint32_t     completed() noexcept;
    uint32_t     completed_by_events() noexcept;
    CUresult     copy(const copy_piece &piece) noexcept;
    CUresult     copy(const copy_box &box) noexcept;
    bool         is_cut_off() noexcept;
    ucs_status_t check_stall() noexcept;
    unsigned     fail_all(ucs_status_t status) noexcept;

    const cuda_api          &cuda_;
    life_ref                 life_;
    lane_config              config_;
    stream                   stream_;
    pinned_block             word_block_;
    volatile uint32_t       *word_ = nullptr; // number of the last completed operation
    std::unique_ptr<event[]> events_;
    std::unique_ptr<slot[]>  slots_;
    uint32_t                 posted_      = 0; // number of the last submitted operation
    uint32_t                 finished_    = 0; // number of the last finished one
    uint64_t                 stall_since_ = 0; // ticks; 0 while there is progress
    ucs_status_t             broken_      = UCS_OK;
};

} // namespace nvl

#endif
