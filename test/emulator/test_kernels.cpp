// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels for test_launch.cpp, as a library that NVL_EMU_KERNELS names.
#include "emu_kernel.h"

#include <cstdint>
#include <cstring>
#include <sched.h>

namespace {

// Each warp adds its share of count words: (dst, src, count).
void add_words(const emu_warp *warp, void **args)
{
    auto  dst   = *static_cast<uint64_t *>(args[0]);
    auto  src   = *static_cast<uint64_t *>(args[1]);
    auto  count = *static_cast<uint32_t *>(args[2]);
    auto *to    = static_cast<uint32_t *>(warp->map(dst, count * sizeof(uint32_t)));
    auto *from  = static_cast<const uint32_t *>(warp->map(src, count * sizeof(uint32_t)));
    if (to == nullptr || from == nullptr) {
        warp->fault(to == nullptr ? dst : src);
        return;
    }
    uint32_t warps = warp->blocks * warp->warps_per_block;
    for (uint32_t i = warp->block * warp->warps_per_block + warp->warp; i < count; i += warps)
        to[i] += from[i];
}

// All warps of the grid meet: only possible when all of them run at once. (counter)
void meet(const emu_warp *warp, void **args)
{
    auto  address = *static_cast<uint64_t *>(args[0]);
    auto *counter = static_cast<uint32_t *>(warp->map(address, sizeof(uint32_t)));
    __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < warp->blocks * warp->warps_per_block)
        sched_yield();
}

const unsigned add_sizes[]  = {8, 8, 4};
const unsigned meet_sizes[] = {8};

} // namespace

extern "C" {
extern __attribute__((visibility("default"))) const emu_kernel emu_kernels[];
extern __attribute__((visibility("default"))) const emu_global emu_globals[];

const emu_kernel emu_kernels[] = {
    {"add_words", add_words, 3, add_sizes},
    {"meet", meet, 1, meet_sizes},
    {nullptr, nullptr, 0, nullptr},
};
const emu_global emu_globals[] = {
    {"table", 4096},
    {nullptr, 0},
};
}
