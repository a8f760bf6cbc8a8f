// SPDX-License-Identifier: BSD-3-Clause
//
// What an application may run beside the copy kernel: one kernel for each thing that it could be
// slowed down in. Built into a fat binary that bench/beside carries.
#include <cstdint>

// The GPU's memory: every byte read once and written once.
extern "C" __global__ void nvl_beside_memory(uint4 *dst, const uint4 *src, uint64_t lines)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < lines;
         i += step) {
        dst[i] = src[i];
    }
}

// Room: launched with so much shared memory that an SM holds one block, one block an SM. A block
// that has to wait for another to end doubles the time.
extern "C" __global__ void nvl_beside_block(uint32_t *out, uint32_t turns)
{
    extern __shared__ uint32_t shared[];
    uint32_t                   x = threadIdx.x;
    for (uint32_t i = 0; i < turns; ++i) {
        x = x * 1664525u + 1013904223u;
    }
    shared[threadIdx.x] = x;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// Holds all SMs until the host writes to *release, at most `most_ns`.
extern "C" __global__ void nvl_beside_hold(const volatile uint32_t *release,
                                           volatile uint32_t *started, uint64_t most_ns)
{
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    if (threadIdx.x == 0) {
        atomicAdd_system(const_cast<uint32_t *>(started), 1u);
    }
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*release == 0 && now - start < most_ns);
}
