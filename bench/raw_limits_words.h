// SPDX-License-Identifier: BSD-3-Clause
//
// What raw_limits and its kernels share: descriptors and words in host memory, the kernels' arguments.
// Plain structs, for nvcc and for the host's compiler alike; calls nothing.
#ifndef NVLINK_BENCH_RAW_LIMITS_WORDS_H
#define NVLINK_BENCH_RAW_LIMITS_WORDS_H

#include <cstdint>

#if defined(__CUDACC__)
#define NVL_RAW_CODE __host__ __device__ inline
#else
#define NVL_RAW_CODE inline
#endif

namespace nvl {

constexpr uint32_t raw_slots = 8192; // a power of two
constexpr uint32_t raw_polls = 4;    // most in flight at a time

// One operation. Two halves of 16 bytes, each read by the GPU in one go and each with the number.
struct alignas(32) raw_slot {
    uint64_t dst;
    uint32_t size_bytes;
    uint32_t number;
    uint64_t src;
    uint32_t number_again;
    uint32_t unused;
};

// For the kernels that copy. They serve the numbers `first` to `last` and leave, or leave after
// `most_cycles`, whatever is posted.
struct raw_ring_launch {
    uint64_t slots;     // raw_slot[raw_slots], once for each poll where apart_bytes is not 0
    uint64_t done;      // uint32_t[raw_slots], in host memory: the number that is done
    uint64_t tail;      // uint32_t, in host memory: the last number posted
    uint64_t published; // uint32_t, in GPU memory: the tail, as the poller has seen it
    uint64_t most_cycles;
    uint32_t first;
    uint32_t last;
    uint32_t gap_cycles;  // from one poll to the next, at least
    uint32_t apart_bytes; // from the slots of one poll to those of the next; 0: all read the same
};

enum raw_cost : uint32_t {
    raw_cost_globaltimer,
    raw_cost_clock,
    raw_cost_store,         // to `word`
    raw_cost_release,       // the same as a release
    raw_cost_store_release, // 8 bytes to `data`, then a release to `word`
};

// For the kernels that measure themselves.
struct raw_cost_launch {
    uint64_t word;   // host memory; of zeros where it is read
    uint64_t data;   // 8 bytes of a GPU
    uint64_t answer; // raw_answer, in host memory
    uint32_t what;   // raw_cost
    uint32_t count;
    uint32_t gap_cycles;
    uint32_t apart_bytes;
};

struct raw_answer {
    uint64_t cycles;
    uint64_t ns;
    uint64_t step_ns; // of globaltimer, where that is measured
    uint64_t sum;     // keeps what was read alive
};

static_assert(sizeof(raw_slot) == 32, "two in a cache line");
static_assert(sizeof(raw_ring_launch) == 56, "no padding: host and GPU agree");
static_assert(sizeof(raw_cost_launch) == 40, "no padding: host and GPU agree");

// Is `number` at or beyond `mark`? Right for distances up to 2^31.
NVL_RAW_CODE bool raw_reached(uint32_t number, uint32_t mark)
{
    return static_cast<int32_t>(number - mark) >= 0;
}

} // namespace nvl

#endif
