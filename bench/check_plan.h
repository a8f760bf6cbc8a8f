// SPDX-License-Identifier: BSD-3-Clause
//
// What ucp_check does: rounds of operations, drawn from a seed, so that both processes know the
// whole plan without talking. Pure: no GPU, no UCX.
#ifndef NVLINK_BENCH_CHECK_PLAN_H
#define NVLINK_BENCH_CHECK_PLAN_H

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace nvl {

// list: a put of many pieces, UCP's scatter-gather list.
enum class op_kind : uint8_t { put, get, tag, am, stream, list };
constexpr size_t op_kind_count = 6;
const char      *kind_name(op_kind kind);

// Who writes the source before an operation: the processor's copy, a copy within the GPU, a kernel.
enum class writer : uint8_t { copy_in, copy_within, fill };

// How an operation tells UCX about its memory.
enum class hint : uint8_t { none, memory_type, handle };

struct operation {
    op_kind kind;
    uint8_t origin; // the rank that calls UCX first; a get brings bytes to it, all others take
                    // them away
    writer   written_by;
    hint     memory_hint;
    uint8_t  fill_value;
    uint32_t pool_offset; // of the pattern, for the other writers
    uint32_t gap_us;      // idle before it is posted
    bool     gap_makes_progress;
    uint32_t late_us; // the receiver comes later by so much
    uint32_t pieces;  // of a list
    size_t   size;
    size_t   from; // in the arena of sources of the rank that has the bytes
    size_t   to;   // in the arena of targets of the other rank

    int source_rank() const
    {
        return kind == op_kind::get ? 1 - origin : origin;
    }

    int target_rank() const
    {
        return 1 - source_rank();
    }
};

std::string operation_text(const operation &op);

struct round {
    std::vector<operation> operations;
    // One after the other, from one source that is written again before each and spoilt after it.
    bool    serial     = false;
    uint8_t background = 0; // of the targets, before
    size_t  used       = 0; // bytes of the targets' arena
};

// What the plan may use.
struct limits {
    size_t               arena_bytes;
    size_t               max_size;
    size_t               pool_slack; // pool_offset stays below
    std::vector<op_kind> kinds;
};

class planner {
public:
    planner(const limits &bounds, uint64_t seed) : bounds_(bounds), random_(seed)
    {
    }

    // Any mix: sizes 1 B to max_size, directions, gaps around a ring's idle time.
    round draw();
    // Every kind, direction, awkward size and pair of offsets once; empty at the end.
    round sweep();

private:
    uint64_t  below(uint64_t bound);
    bool      chance(unsigned percent);
    size_t    draw_size(size_t max_size);
    operation draw_operation(size_t max_size);
    bool      place(round *r, operation op, size_t from_shift, size_t to_shift);
    void      fill(round *r, size_t count, size_t max_size);
    void      gaps(operation *op);

    limits          bounds_;
    std::mt19937_64 random_;
    size_t          next_sweep_ = 0;
};

} // namespace nvl

#endif
