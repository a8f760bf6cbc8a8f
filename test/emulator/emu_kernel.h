/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How a kernel runs on the emulated driver: as its host build, one thread for each warp.
 *
 * A shared library named by NVL_EMU_KERNELS exports, with C linkage,
 *     const struct emu_kernel emu_kernels[];   ended by a row whose name is NULL
 *     const struct emu_global emu_globals[];   optional, ended in the same way
 * cuModuleGetFunction and cuModuleGetGlobal find their names there, whatever the module image. */
#ifndef NVLINK_EMULATOR_EMU_KERNEL_H
#define NVLINK_EMULATOR_EMU_KERNEL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emu_warp {
    unsigned block;  /* of the grid, x + gridDim.x * (y + gridDim.y * z) */
    unsigned blocks; /* in the grid */
    unsigned warp;   /* of the block */
    unsigned warps_per_block;
    unsigned threads_per_block;

    /* Where the processor finds memory that this kernel's GPU may touch: its own, a peer's with
     * access enabled, mapped host memory. NULL: the GPU may not touch it, the kernel would fault
     * (emu_warp_fault says so to the driver). Any thread may call it, and often. */
    void *(*map)(unsigned long long address, size_t length);

    /* Ends the kernel's context with CUDA_ERROR_ILLEGAL_ADDRESS, as a stray access does. The
     * warp should return after it. */
    void (*fault)(unsigned long long address);

    /* Says that the warp has written these bytes, before it tells anybody: here planned faults of
     * a "kernel" have their way. A kernel that need not be tested so never calls it. */
    void (*wrote)(unsigned long long address, size_t length);
};

struct emu_kernel {
    const char *name;
    void (*run)(const struct emu_warp *warp, void **args); /* called once for each warp */
    unsigned        arg_count;
    const unsigned *arg_sizes; /* arg_count of them, in bytes */
};

struct emu_global {
    const char *name;
    size_t      size;
};

#ifdef __cplusplus
}
#endif

#endif
