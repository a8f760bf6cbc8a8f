// SPDX-License-Identifier: BSD-3-Clause
//
// How the host reads and writes the words that it shares with the kernel.
// Called by both halves of ring_engine; calls nothing.
#ifndef NVLINK_ENGINE_RING_RING_WORDS_H
#define NVLINK_ENGINE_RING_RING_WORDS_H

namespace nvl {

// A word that the GPU writes. acquire: what was written before it is there.
template<typename word> inline word seen(const word &at) noexcept
{
    return __atomic_load_n(&at, __ATOMIC_ACQUIRE);
}

// A word that the GPU reads. release: what was written before it goes first.
template<typename word> inline void tell(word &at, word value) noexcept
{
    __atomic_store_n(&at, value, __ATOMIC_RELEASE);
}

} // namespace nvl

#endif
