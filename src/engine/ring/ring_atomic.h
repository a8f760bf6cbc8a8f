// SPDX-License-Identifier: BSD-3-Clause
//
// How one lane of a warp does an atomic operation on memory of its own GPU or of a
// peer's. Device code only; called by ring_kernel.cu.
//
// Each operation is one hardware atomic of system scope: atomic towards every GPU
// that reaches the memory. It is relaxed. Order between operations is the host's: a
// fence holds a post back until all before it are done, and done is said by the
// release in finish(), whose partner is the acquire of the host's poll.
#ifndef NVLINK_ENGINE_RING_RING_ATOMIC_H
#define NVLINK_ENGINE_RING_RING_ATOMIC_H

#include "engine/ring/ring.h"

namespace nvl {

#define NVL_ATOM(_what, _bits, _reg, _at, _operand, _before)             \
    asm volatile("atom.relaxed.sys.global." _what _bits " %0, [%1], %2;" \
                 : "=" _reg(_before)                                     \
                 : "l"(_at), _reg(_operand)                              \
                 : "memory")

#define NVL_ATOM_CAS(_bits, _reg, _at, _compare, _operand, _before)       \
    asm volatile("atom.relaxed.sys.global.cas" _bits " %0, [%1], %2, %3;" \
                 : "=" _reg(_before)                                      \
                 : "l"(_at), _reg(_compare), _reg(_operand)               \
                 : "memory")

// Both return what was there. The address space is named: for a generic address the
// compiler adds a way for shared memory.
__device__ __forceinline__ uint32_t atomic_step(uint64_t at, uint32_t what, uint32_t operand,
                                                uint32_t compare)
{
    uint32_t before;
    switch (what) {
    case ring_atomic_add:
        NVL_ATOM("add", ".u32", "r", at, operand, before);
        break;
    case ring_atomic_and:
        NVL_ATOM("and", ".b32", "r", at, operand, before);
        break;
    case ring_atomic_or:
        NVL_ATOM("or", ".b32", "r", at, operand, before);
        break;
    case ring_atomic_xor:
        NVL_ATOM("xor", ".b32", "r", at, operand, before);
        break;
    case ring_atomic_swap:
        NVL_ATOM("exch", ".b32", "r", at, operand, before);
        break;
    default:
        NVL_ATOM_CAS(".b32", "r", at, compare, operand, before);
        break;
    }
    return before;
}

__device__ __forceinline__ uint64_t atomic_step(uint64_t at, uint32_t what, uint64_t operand,
                                                uint64_t compare)
{
    uint64_t before;
    switch (what) {
    case ring_atomic_add:
        NVL_ATOM("add", ".u64", "l", at, operand, before);
        break;
    case ring_atomic_and:
        NVL_ATOM("and", ".b64", "l", at, operand, before);
        break;
    case ring_atomic_or:
        NVL_ATOM("or", ".b64", "l", at, operand, before);
        break;
    case ring_atomic_xor:
        NVL_ATOM("xor", ".b64", "l", at, operand, before);
        break;
    case ring_atomic_swap:
        NVL_ATOM("exch", ".b64", "l", at, operand, before);
        break;
    default:
        NVL_ATOM_CAS(".b64", "l", at, compare, operand, before);
        break;
    }
    return before;
}

#undef NVL_ATOM
#undef NVL_ATOM_CAS

__device__ __forceinline__ void do_atomic(const ring_descriptor &slot, ring_atomic_words *words)
{
    uint32_t what    = (slot.flags >> ring_atomic_shift) & 0xff;
    uint64_t compare = 0;
    if (what == ring_atomic_compare_swap) {
        compare = *static_cast<const volatile uint64_t *>(&words->compare);
    }
    words->before = (slot.size_bytes == sizeof(uint32_t))
                        ? atomic_step(slot.dst, what, static_cast<uint32_t>(slot.src),
                                      static_cast<uint32_t>(compare))
                        : atomic_step(slot.dst, what, slot.src, compare);
}

} // namespace nvl

#endif
