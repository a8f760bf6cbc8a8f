// SPDX-License-Identifier: BSD-3-Clause
//
// What host and GPU share of the lingering copy kernel: descriptors and words
// in host memory, the kernel's own words in device memory, and its launch
// argument. Plain structs, for nvcc and for the host's compiler alike. Called
// by ring_engine, ring_protocol and the kernel; calls nothing.
//
// Sequence numbers count descriptors from the opening of the ring and wrap;
// they are compared by their distance. Generations count launches. Who takes
// descriptor q is decided by one word: the kernel of a generation takes
// everything from its `first` until the `left` that it reports.
#ifndef NVLINK_ENGINE_RING_RING_H
#define NVLINK_ENGINE_RING_RING_H

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define NVL_RING_CODE   __host__ __device__ inline
#define NVL_RING_MEMBER __host__ __device__
#else
#define NVL_RING_CODE inline
#define NVL_RING_MEMBER
#endif

namespace nvl {

constexpr uint32_t ring_slots        = 8192; // descriptors, a power of two
constexpr uint32_t ring_inline_bytes = 64;   // host data that a descriptor can bring along

// What a descriptor asks for, in the low byte of its flags.
enum ring_kind : uint32_t {
    ring_kind_copy      = 0, // size_bytes from src to dst
    ring_kind_immediate = 1, // the first size_bytes (at most 8) of the field src itself to dst
    ring_kind_nothing   = 2, // done at once: a marker in the order of the ring
    ring_kind_atomic    = 3, // one atomic operation on the 4 or 8 bytes (size_bytes) at dst
};

constexpr uint32_t ring_kind_mask = 0xff;

// What an atomic operation does, in the third byte of its flags; the operand is the field src itself.
enum ring_atomic : uint32_t {
    ring_atomic_add          = 0,
    ring_atomic_and          = 1,
    ring_atomic_or           = 2,
    ring_atomic_xor          = 3,
    ring_atomic_swap         = 4,
    ring_atomic_compare_swap = 5,
};

constexpr uint32_t ring_atomic_shift = 16;

// What else an atomic operation needs, in the inline data of its slot.
struct ring_atomic_words {
    uint64_t compare; // from the host, for compare_swap
    uint64_t before;  // from the kernel: what was there
};

// The target is in the memory of the GPU that copies, where all that may look for it
// meet: the done word need not wait until the whole system has seen the bytes.
constexpr uint32_t ring_flag_near = 0x200;

// For the host alone: this continues the piece of the descriptor before it. Two
// pieces may be neighbours and yet belong to different allocations.
constexpr uint32_t ring_flag_more = 0x100;

// Two halves of 16 bytes, each read by the GPU in one go and each with the
// sequence number, so that neither can be taken for another lap's.
struct alignas(32) ring_descriptor {
    uint64_t dst;
    uint32_t size_bytes;
    uint32_t sequence;
    uint64_t src;
    uint32_t sequence_again;
    uint32_t flags;
};

// Host to kernel; one read of 16 bytes.
struct alignas(16) ring_orders {
    uint32_t tail;          // last sequence number posted
    uint32_t leave_now;     // generation that is to leave with what it has taken
    uint32_t leave_drained; // generation that is to leave once nothing is posted
    uint32_t cancel;        // generation that is to leave at its start, without taking anything
};

struct ring_shared {
    ring_descriptor slots[ring_slots]; // by ring_slot()
    uint32_t        done[ring_slots];  // the sequence number that is done in each slot
    alignas(64) uint8_t inline_data[ring_slots][ring_inline_bytes];
    alignas(128) ring_orders orders; // written by the host
    alignas(128) uint32_t hello;     // written by the kernel: generation that has started
    alignas(128) uint64_t left; // written by the kernel: ring_word(generation, first not taken)
    uint32_t narrowed; // written by the kernel: generation that is no larger than a small one
};

// What the poller tells the workers; one read of 16 bytes, written in halves.
struct alignas(16) ring_published {
    uint32_t tail;     // last sequence number that is the workers' to fetch
    uint32_t tag;      // ring_tag() of that
    uint32_t leave_at; // first sequence number that is not taken
    uint32_t leave_generation;
};

// In a stream the poller lets the workers look for numbers that are not posted yet, `granted`
// ahead, and takes that back when the stream ends: see ring_protocol.h. No more than the lanes
// of a warp, in which it hears the answers.
constexpr uint32_t ring_granted_max = 32;
constexpr uint32_t ring_workers_max = 2048; // warps of the largest launch

// Of a generation, and of how often in it the workers' limit has gone up ahead of the
// posts (odd: it is) or back (even). Other tags cannot come again before every word with
// them is long overwritten.
constexpr uint32_t ring_tag_bits  = 10;
constexpr uint32_t ring_turns_max = (1u << ring_tag_bits) - 4;

// The turn of a kernel that has narrowed: the workers have other numbers from then on.
constexpr uint32_t ring_turn_narrow = (1u << ring_tag_bits) - 2;

NVL_RING_CODE uint32_t ring_tag(uint32_t generation, uint32_t turn)
{
    return (generation << ring_tag_bits | turn) & 0x7fffffffu;
}

NVL_RING_CODE bool ring_is_ahead(uint32_t tag)
{
    return (tag & 1) != 0;
}

NVL_RING_CODE bool ring_is_narrow(uint32_t tag)
{
    return (tag & ((1u << ring_tag_bits) - 1)) == ring_turn_narrow;
}

// A worker's answer in the high word: it has taken the number.
constexpr uint32_t ring_taken_bit = 0x80000000u;

// The kernel's own words in device memory. Nothing is cleared between two
// kernels: each word carries the generation that it is from.
struct ring_state {
    alignas(128) ring_published published;
    alignas(128) uint64_t revoked;                   // ring_word(tag, first number that is)
    alignas(128) uint64_t answers[ring_workers_max]; // of each worker: ring_word(tag, number)
    alignas(128) uint32_t left_at[2];  // of generation g in [g % 2]: where its successor starts
    alignas(128) uint32_t arrived;     // blocks that have started, of all launches so far
    alignas(128) uint32_t narrow_from; // first number that a narrowed kernel's workers share
    alignas(
        128) uint64_t skip[ring_slots]; // ring_word(generation, number): done by the poller itself
};

// The kernel's only argument.
struct ring_launch {
    uint64_t shared; // ring_shared, as the GPU addresses it
    uint64_t state;  // ring_state
    uint64_t idle_ns;
    uint64_t stay_ns;
    uint64_t narrow_ns; // without work for so long, it narrows
    uint32_t generation;
    uint32_t first;       // first sequence number to take
    uint32_t follow;      // not 0: start where the generation before this one left instead
    uint32_t alone_bytes; // a lone operation up to this size is done by the poller
    uint32_t blocks;
    uint32_t arrivals;     // what `arrived` is once all of this launch's blocks have started
    uint32_t granted;      // numbers ahead of the posts that workers look for in a stream; 0: none
    uint32_t narrow_warps; // of the first block that remain when it narrows; 0: it does not
};

static_assert(sizeof(ring_descriptor) == 32, "two descriptors in a cache line");
static_assert(sizeof(ring_launch) == 72, "no padding: host and GPU agree");
static_assert(sizeof(ring_atomic_words) <= ring_inline_bytes, "in one slot's inline data");
static_assert(offsetof(ring_shared, done) == ring_slots * sizeof(ring_descriptor), "");

NVL_RING_CODE uint64_t ring_word(uint32_t generation, uint32_t number)
{
    return (static_cast<uint64_t>(generation) << 32) | number;
}

// Where the descriptor of `number` lies: any 32 numbers in a row are in 32 different lines of
// 128 bytes. Reads of one line by several warps of a GPU are answered one after another, a
// microsecond each (bench/raw_limits, gpu_reads_host "same" and "apart").
NVL_RING_CODE uint32_t ring_slot(uint32_t number)
{
    return (number & (ring_slots - 1) & ~127u) | ((number & 31) << 2) | ((number >> 5) & 3);
}

// Is `number` at or beyond `mark`? Right for distances up to 2^31.
NVL_RING_CODE bool ring_reached(uint32_t number, uint32_t mark)
{
    return static_cast<int32_t>(number - mark) >= 0;
}

} // namespace nvl

#endif
