// SPDX-License-Identifier: BSD-3-Clause
//
// The least that a GPU needs for a copy of its own: what raw_limits measures beside the copy
// engines. Nothing of the product's kernel, so that it can be held against this. Built into a fat
// binary that bench/raw_limits carries.
//
// Every kernel ends by itself: after a count, or after a number of cycles. Words that the host
// writes are read by volatile loads, a done word is a release for the whole system.
#include "raw_limits_words.h"

namespace nvl {

namespace {

constexpr uint32_t all_lanes = 0xffffffffu;

__device__ __forceinline__ uint64_t cycles_now()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
    return t;
}

__device__ __forceinline__ uint64_t ns_now()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ uint4 load_line(uint64_t address)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

__device__ __forceinline__ void store_line(uint64_t address, uint4 v)
{
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :
                 : "l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

__device__ __forceinline__ uint64_t load_word(uint64_t address)
{
    uint64_t v;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(address));
    return v;
}

__device__ __forceinline__ void store_word(uint64_t address, uint64_t v)
{
    asm volatile("st.global.u64 [%0], %1;" : : "l"(address), "l"(v) : "memory");
}

__device__ __forceinline__ void release(uint64_t address, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(address), "r"(value) : "memory");
}

template<typename word> __device__ __forceinline__ word from(word v, uint32_t lane)
{
    return __shfl_sync(all_lanes, v, lane);
}

// Whole words of 8 bytes up to 256 of them, else lines of 16; all loads of a turn before its stores.
template<int depth>
__device__ __forceinline__ void copy(uint64_t dst, uint64_t src, uint32_t size_bytes, uint32_t lane)
{
    if (size_bytes <= 256) {
        if (8 * lane < size_bytes) {
            store_word(dst + 8 * lane, load_word(src + 8 * lane));
        }
        return;
    }
    for (uint32_t at = 16 * lane; at < size_bytes; at += 512 * depth) {
        uint4 v[depth];
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            if (at + 512 * k < size_bytes) {
                v[k] = load_line(src + at + 512 * k);
            }
        }
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            if (at + 512 * k < size_bytes) {
                store_line(dst + at + 512 * k, v[k]);
            }
        }
    }
}

// The half of a slot that lanes 0 and 1 read; the other lanes read nothing.
__device__ __forceinline__ uint4 look(uint64_t slots, uint32_t number, uint32_t lane)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    if (lane < 2) {
        v = load_line(slots + 32 * (number % raw_slots) + 16 * lane);
    }
    return v;
}

__device__ __forceinline__ bool is_number(uint4 v, uint32_t number)
{
    const bool first = from(v.w, 0) == number, second = from(v.z, 1) == number;
    return first && second;
}

template<int depth>
__device__ __forceinline__ void serve(const raw_ring_launch &launch, uint4 v, uint32_t number,
                                      uint32_t lane)
{
    uint64_t dst = (static_cast<uint64_t>(from(v.y, 0)) << 32) | from(v.x, 0);
    uint64_t src = (static_cast<uint64_t>(from(v.y, 1)) << 32) | from(v.x, 1);
    copy<depth>(dst, src, from(v.z, 0), lane);
    __syncwarp();
    if (lane == 0) {
        release(launch.done + 4 * (number % raw_slots), number);
    }
}

// Lets one warp of the block pass each `gap_cycles`, so that reads in flight together stay apart.
__device__ __forceinline__ void wait_turn(uint32_t *passed, uint32_t gap_cycles, uint32_t lane)
{
    if (lane == 0) {
        uint32_t before, now;
        do {
            before = *static_cast<volatile uint32_t *>(passed);
            now    = static_cast<uint32_t>(cycles_now());
        } while ((now - before < gap_cycles) || (atomicCAS(passed, before, now) != before));
    }
    __syncwarp();
}

// Each warp has one poll in flight: loads of one warp share few scoreboards, so that the compiler
// lets a warp wait for all of them. Who finds the number takes it, the others look for the next one.
template<bool several> __device__ __forceinline__ void poll(const raw_ring_launch &launch)
{
    __shared__ uint32_t passed, next;

    const uint32_t lane  = threadIdx.x % 32;
    const uint64_t slots = launch.slots + (threadIdx.x / 32) * launch.apart_bytes;
    const uint64_t start = cycles_now();
    uint32_t       want  = launch.first;
    if (several) {
        if (threadIdx.x == 0) {
            next   = want;
            passed = static_cast<uint32_t>(start) - launch.gap_cycles;
        }
        __syncthreads();
    }
    while ((cycles_now() - start <= launch.most_cycles) && raw_reached(launch.last, want)) {
        if (several) {
            wait_turn(&passed, launch.gap_cycles, lane);
        }
        uint4 v     = look(slots, want, lane);
        bool  found = is_number(v, want);
        if (several) {
            // Before the copy: the others need not wait for it.
            uint32_t before = 0;
            if (lane == 0) {
                before = found ? atomicCAS(&next, want, want + 1)
                               : *static_cast<volatile uint32_t *>(&next);
            }
            before = from(before, 0);
            if (found && (before == want)) {
                serve<16>(launch, v, want, lane);
                ++want;
            } else {
                want = before;
            }
        } else if (found) {
            serve<16>(launch, v, want, lane);
            ++want;
        }
    }
}

// The first warp of all reads the tail from the host and tells it to the others, which fetch every
// `workers`-th slot each.
__device__ __forceinline__ void stream(const raw_ring_launch &launch)
{
    const uint32_t lane    = threadIdx.x % 32;
    const uint32_t index   = blockIdx.x + gridDim.x * (threadIdx.x / 32);
    const uint32_t workers = gridDim.x * (blockDim.x / 32) - 1;
    const uint64_t start   = cycles_now();
    volatile auto *tail    = reinterpret_cast<volatile uint32_t *>(launch.tail);
    volatile auto *told    = reinterpret_cast<volatile uint32_t *>(launch.published);

    if (index == 0) {
        uint32_t known = launch.first - 1;
        while ((known != launch.last) && (cycles_now() - start <= launch.most_cycles)) {
            uint32_t seen = from((lane == 0) ? *tail : 0, 0);
            if ((seen != known) && raw_reached(seen, launch.first)) {
                known = seen;
                if (lane == 0) {
                    *told = known;
                }
            }
        }
        return;
    }
    for (uint32_t want = launch.first + index - 1; raw_reached(launch.last, want);
         want += workers) {
        while (!raw_reached(from((lane == 0) ? *told : 0, 0), want)) {
            if (cycles_now() - start > launch.most_cycles) {
                return;
            }
        }
        uint4 v = look(launch.slots, want, lane);
        while (!is_number(v, want)) {
            if (cycles_now() - start > launch.most_cycles) {
                return;
            }
            v = look(launch.slots, want, lane);
        }
        serve<8>(launch, v, want, lane);
    }
}

// Reads of host memory as poll() does them, as many in flight as the block has warps.
__device__ __forceinline__ void read_host(const raw_cost_launch &launch)
{
    __shared__ uint32_t passed;

    const uint32_t lane = threadIdx.x % 32;
    uint64_t       word = launch.word + (threadIdx.x / 32) * launch.apart_bytes;
    if (threadIdx.x == 0) {
        passed = static_cast<uint32_t>(cycles_now()) - launch.gap_cycles;
    }
    __syncthreads();
    const uint64_t start_ns = ns_now(), start = cycles_now();
    uint32_t       sum = 0;
    for (uint32_t i = 0; i < launch.count; ++i) {
        if (blockDim.x > 32) {
            wait_turn(&passed, launch.gap_cycles, lane);
        }
        uint4 v = look(word + sum, 0, lane);
        // Zeros, which the compiler does not know: the next read waits for this one.
        sum += v.x | v.y | v.z | v.w;
        sum += from(sum, 1);
    }
    const uint64_t end = cycles_now(), end_ns = ns_now();
    __syncthreads();
    if (threadIdx.x == 0) {
        auto *answer   = reinterpret_cast<raw_answer *>(launch.answer);
        answer->cycles = end - start;
        answer->ns     = end_ns - start_ns;
        answer->sum    = sum;
    }
}

// Nothing but the step in the loop: a choice there would be measured along.
template<uint32_t what> __device__ __forceinline__ uint64_t repeat(const raw_cost_launch &launch)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < launch.count; ++i) {
        if ((what == raw_cost_globaltimer) || (what == raw_cost_clock)) {
            uint64_t now = (what == raw_cost_clock) ? cycles_now() : ns_now();
            sum ^= now;
            // Never: but the next read waits until this one can be looked at.
            if (now == ~0ull) {
                break;
            }
        } else if (what == raw_cost_store) {
            *reinterpret_cast<volatile uint32_t *>(launch.word) = i;
        } else {
            if (what == raw_cost_store_release) {
                store_word(launch.data, i);
            }
            release(launch.word, i);
        }
    }
    return sum;
}

__device__ __forceinline__ uint64_t step_of_globaltimer(uint32_t count)
{
    uint64_t least = ~0ull, before = ns_now();
    for (uint32_t i = 0; i < count; ++i) {
        uint64_t now  = ns_now();
        uint64_t step = now - before;
        least         = ((step != 0) && (step < least)) ? step : least;
        before        = now;
    }
    return least;
}

template<uint32_t what> __device__ __forceinline__ void cost(const raw_cost_launch &launch)
{
    auto          *answer   = reinterpret_cast<raw_answer *>(launch.answer);
    const uint64_t start_ns = ns_now(), start = cycles_now();
    const uint64_t sum = repeat<what>(launch);
    answer->cycles     = cycles_now() - start;
    answer->ns         = ns_now() - start_ns;
    answer->sum        = sum;
    answer->step_ns    = (what == raw_cost_globaltimer) ? step_of_globaltimer(launch.count) : 0;
}

} // namespace

} // namespace nvl

extern "C" __global__ void __launch_bounds__(32) nvl_raw_poll(nvl::raw_ring_launch launch)
{
    nvl::poll<false>(launch);
}

extern "C" __global__ void __launch_bounds__(128) nvl_raw_poll_several(nvl::raw_ring_launch launch)
{
    nvl::poll<true>(launch);
}

extern "C" __global__ void __launch_bounds__(128) nvl_raw_read(nvl::raw_cost_launch launch)
{
    nvl::read_host(launch);
}

extern "C" __global__ void __launch_bounds__(32) nvl_raw_cost(nvl::raw_cost_launch launch)
{
    switch (launch.what) {
    case nvl::raw_cost_globaltimer:
        nvl::cost<nvl::raw_cost_globaltimer>(launch);
        break;
    case nvl::raw_cost_clock:
        nvl::cost<nvl::raw_cost_clock>(launch);
        break;
    case nvl::raw_cost_store:
        nvl::cost<nvl::raw_cost_store>(launch);
        break;
    case nvl::raw_cost_release:
        nvl::cost<nvl::raw_cost_release>(launch);
        break;
    case nvl::raw_cost_store_release:
        nvl::cost<nvl::raw_cost_store_release>(launch);
        break;
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) nvl_raw_stream(nvl::raw_ring_launch launch)
{
    nvl::stream(launch);
}
