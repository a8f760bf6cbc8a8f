// SPDX-License-Identifier: BSD-3-Clause
//
// How one warp copies bytes: any size, any alignment of either side. Device
// code only; called by ring_kernel.cu.
//
// Loads are volatile: the kernel outlives writes of the application to the
// source, and a plain load may be answered by a line that L1 kept from before.
// No load leaves the 16-byte lines in which the source lies.
#ifndef NVLINK_ENGINE_RING_RING_COPY_H
#define NVLINK_ENGINE_RING_RING_COPY_H

#include "engine/ring/ring.h"

namespace nvl {

constexpr uint32_t all_lanes = 0xffffffffu;

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
    *reinterpret_cast<uint4 *>(address) = v;
}

// The `depth` loads of a lane are all in flight before its first store. One
// address a side and constant offsets: the registers are for the data.
template<int depth>
__device__ __forceinline__ void copy_lines(uint64_t dst, uint64_t src, uint32_t lines,
                                           uint32_t lane)
{
    uint32_t left = (lines > lane) ? lines - lane : 0; // from this lane's line on
    src += 16 * lane;
    dst += 16 * lane;

    for (; left > 32 * (depth - 1); src += 512 * depth, dst += 512 * depth) {
        uint4 v[depth];
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            v[k] = load_line(src + 512 * k);
        }
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            store_line(dst + 512 * k, v[k]);
        }
        left = (left > 32 * depth) ? left - 32 * depth : 0;
    }
    if (left != 0) {
        uint4 v[depth];
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            if (left > 32 * k) {
                v[k] = load_line(src + 512 * k);
            }
        }
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            if (left > 32 * k) {
                store_line(dst + 512 * k, v[k]);
            }
        }
    }
}

// Bytes shift .. shift + 15 of the 32 bytes in `low` and `high`; shift is 1 to 15.
__device__ __forceinline__ uint4 joined(uint4 low, uint4 high, uint32_t shift)
{
    uint32_t w0 = low.x, w1 = low.y, w2 = low.z, w3 = low.w, w4 = high.x, w5 = high.y, w6 = high.z;
    if ((shift & 8) != 0) {
        w0 = w2;
        w1 = w3;
        w2 = w4;
        w3 = w5;
        w4 = w6;
        w5 = high.w;
    }
    if ((shift & 4) != 0) {
        w0 = w1;
        w1 = w2;
        w2 = w3;
        w3 = w4;
        w4 = w5;
    }
    // The hardware takes the count modulo 32, so a whole word's shift is none.
    uint32_t bits = 8 * (shift & 3);
    return make_uint4(__funnelshift_r(w0, w1, bits), __funnelshift_r(w1, w2, bits),
                      __funnelshift_r(w2, w3, bits), __funnelshift_r(w3, w4, bits));
}

// `src` is not a multiple of 16, `dst` is: reads the lines that hold the source
// and stores what lies across two of them. The neighbour's line comes from the
// neighbouring lane; only one line in 32 * depth is read twice.
template<int depth>
__device__ __forceinline__ void copy_shifted(uint64_t dst, uint64_t src, uint32_t lines,
                                             uint32_t lane)
{
    uint32_t shift = src & 15;
    src += 16 * lane;
    src -= shift; // not in one expression of 32 bits, which would wrap in lane 0
    dst += 16 * lane;

    for (int32_t left = static_cast<int32_t>(lines - lane); left > -static_cast<int32_t>(lane);
         left -= 32 * depth, src += 512 * depth, dst += 512 * depth) {
        uint4 v[depth + 1];
#pragma unroll
        for (int k = 0; k <= depth; ++k) {
            v[k] = make_uint4(0, 0, 0, 0);
            // Line number `lines` holds the last `shift` bytes of the source.
            if ((left >= 32 * k) && ((k < depth) || (lane == 0))) {
                v[k] = load_line(src + 512 * k);
            }
        }
#pragma unroll
        for (int k = 0; k < depth; ++k) {
            // Nobody but lane 31 asks lane 0, and it wants the next row's line.
            uint4    mine  = (lane == 0) ? v[k + 1] : v[k];
            uint32_t right = (lane + 1) & 31;
            uint4    high;
            high.x = __shfl_sync(all_lanes, mine.x, right);
            high.y = __shfl_sync(all_lanes, mine.y, right);
            high.z = __shfl_sync(all_lanes, mine.z, right);
            high.w = __shfl_sync(all_lanes, mine.w, right);
            if (left > 32 * k) {
                store_line(dst + 512 * k, joined(v[k], high, shift));
            }
        }
    }
}

template<typename unit>
__device__ __forceinline__ void copy_unit(uint64_t dst, uint64_t src, uint32_t units, uint32_t lane)
{
    if (lane < units) {
        unit v = *reinterpret_cast<const volatile unit *>(src + lane * sizeof(unit));
        *reinterpret_cast<unit *>(dst + lane * sizeof(unit)) = v;
    }
}

// Everything, whole words where both sides allow it, so that a flag of 4 or 8
// bytes is written by one store.
template<int depth>
__device__ __forceinline__ void copy_any(uint64_t dst, uint64_t src, uint32_t size_bytes,
                                         uint32_t lane)
{
    uint32_t bits = static_cast<uint32_t>(dst | src) | size_bytes;
    if (((bits & 7) == 0) && (size_bytes <= 32 * 8)) {
        copy_unit<uint64_t>(dst, src, size_bytes / 8, lane);
        return;
    }
    if (((bits & 3) == 0) && (size_bytes <= 32 * 4)) {
        copy_unit<uint32_t>(dst, src, size_bytes / 4, lane);
        return;
    }
    if (size_bytes <= 32) {
        copy_unit<uint8_t>(dst, src, size_bytes, lane);
        return;
    }

    // Head: up to the first line of the target (lanes 0 to 14). Tail: behind
    // its last (lanes 16 to 30). Both are loaded before the body's stores.
    uint32_t head    = static_cast<uint32_t>(-dst) & 15;
    uint32_t tail    = (size_bytes - head) & 15;
    uint32_t lines   = (size_bytes - head) / 16;
    bool     is_tail = lane >= 16;
    uint32_t k       = lane & 15;
    bool     has     = k < (is_tail ? tail : head);
    uint32_t offset  = is_tail ? size_bytes - tail + k : k;
    uint8_t  edge    = 0;
    if (has) {
        edge = *reinterpret_cast<const volatile uint8_t *>(src + offset);
    }
    if (((src + head) & 15) == 0) {
        copy_lines<depth>(dst + head, src + head, lines, lane);
    } else {
        copy_shifted<4>(dst + head, src + head, lines, lane);
    }
    if (has) {
        *reinterpret_cast<uint8_t *>(dst + offset) = edge;
    }
}

// Up to 8 bytes that came in the descriptor.
__device__ __forceinline__ void store_immediate(uint64_t dst, uint64_t value, uint32_t size_bytes,
                                                uint32_t lane)
{
    if ((size_bytes == 8) && ((dst & 7) == 0)) {
        if (lane == 0) {
            *reinterpret_cast<uint64_t *>(dst) = value;
        }
    } else if ((size_bytes == 4) && ((dst & 3) == 0)) {
        if (lane == 0) {
            *reinterpret_cast<uint32_t *>(dst) = static_cast<uint32_t>(value);
        }
    } else if (lane < size_bytes) {
        *reinterpret_cast<uint8_t *>(dst + lane) = static_cast<uint8_t>(value >> (8 * (lane & 7)));
    }
}

} // namespace nvl

#endif
