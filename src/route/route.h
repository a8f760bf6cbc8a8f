// SPDX-License-Identifier: BSD-3-Clause
//
// Which engine does an operation: the lingering copy kernel's ring or the copy
// engine. Pure: figures in, a choice out; no CUDA, no state. Called by
// route/gpu_engine for each operation.
//
// Every limit below was measured on two H200 (bench/results).
#ifndef NVLINK_ROUTE_ROUTE_H
#define NVLINK_ROUTE_ROUTE_H

#include <cstddef>
#include <cstdint>

namespace nvl {

enum class direction : unsigned { push = 0, pull = 1 };

enum class engine_choice : unsigned { copy_engine, ring };

// Sizes in bytes of one piece, [0] for push and [1] for pull.
struct route_limits {
    // An operation that finds nothing in flight: up to here the ring ends it
    // sooner than the copy engine.
    size_t alone[2] = {512u << 10, 1u << 20};
    // An operation in a stream of them: up to here the ring moves more bytes a
    // second, since the copy engine pauses between two operations.
    size_t stream[2] = {8u << 20, 32u << 20};
};

struct route_question {
    direction way;
    size_t    piece_bytes; // the largest piece
    size_t    pieces;
    bool      in_stream; // others are in flight on this GPU
};

// True if the ring would be the better engine, whether or not it is there.
inline bool ring_is_better(const route_limits &limits, const route_question &q) noexcept
{
    const size_t *limit = (q.in_stream || (q.pieces > 1)) ? limits.stream : limits.alone;
    return q.piece_bytes <= limit[static_cast<unsigned>(q.way)];
}

} // namespace nvl

#endif
