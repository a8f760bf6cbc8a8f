// SPDX-License-Identifier: BSD-3-Clause
//
// One operation in flight, as every engine keeps it: which bytes go where, and
// what is told and released when they have arrived. Called by the engines and
// by uct; calls nothing but the completion that UCP handed in.
#ifndef NVLINK_ENGINE_OP_H
#define NVLINK_ENGINE_OP_H

#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <uct/api/uct.h>
}

namespace nvl {

// A contiguous copy between two addresses that the copying GPU may touch.
struct copy_piece {
    uint64_t dst;
    uint64_t src;
    size_t   size_bytes;
};

// Rows of equal length at equal distances on either side, as one copy. A step is
// from the begin of a row to that of the next.
struct copy_box {
    uint64_t dst;
    uint64_t src;
    size_t   row_bytes;
    size_t   rows;
    size_t   dst_step;
    size_t   src_step;
};

// Can a copy engine do it as one? Rows that do not overlap, at pitches that every GPU
// takes (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
inline bool is_pitched(const copy_box &box) noexcept
{
    constexpr size_t pitch_max = 0x7fffffff;
    return (box.dst_step >= box.row_bytes) && (box.src_step >= box.row_bytes) &&
           (box.dst_step <= pitch_max) && (box.src_step <= pitch_max);
}

// Counts who still needs something (a mapping of the peer's memory): its owner
// and every operation in flight. Whoever posts acquires; the end of the
// operation releases; the last one out calls `last_out`. Any thread.
struct op_use {
    explicit op_use(void (*last)(op_use *)) noexcept : last_out(last)
    {
    }

    void acquire() noexcept
    {
        count.fetch_add(1, std::memory_order_relaxed);
    }

    void release() noexcept
    {
        // acq_rel: what the others did with the thing is done before it goes.
        if (count.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            last_out(this);
        }
    }

    std::atomic<uint32_t> count{1}; // 1: the owner
    void (*last_out)(op_use *);
};

// What ends an operation. 16 bytes, kept by value in the engines' slots.
struct op_end {
    uct_completion_t *comp; // may be null
    op_use           *use;  // may be null
};

// Ends the operation with `status`: releases what it used, then reports.
inline void op_finish(const op_end &end, ucs_status_t status) noexcept
{
    if (end.use != nullptr) {
        end.use->release();
    }
    if (end.comp != nullptr) {
        if ((status != UCS_OK) && (end.comp->status == UCS_OK)) {
            end.comp->status = status;
        }
        if (--end.comp->count == 0) {
            end.comp->func(end.comp);
        }
    }
}

} // namespace nvl

#endif
