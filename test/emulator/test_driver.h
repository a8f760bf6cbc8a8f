// SPDX-License-Identifier: BSD-3-Clause
//
// How the tests of the emulated driver reach it: by dlsym, as every client does; and small helpers.
#ifndef NVLINK_EMULATOR_TEST_DRIVER_H
#define NVLINK_EMULATOR_TEST_DRIVER_H

#include "cuda_internal.h"
#include "emu.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <vector>

namespace test {

inline void *symbol(const char *name)
{
    static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void        *address = library == nullptr ? nullptr : dlsym(library, name);
    if (address == nullptr) {
        fprintf(stderr, "no %s: run this under run_emulated\n", name);
        abort();
    }
    return address;
}

#define CU(name)  reinterpret_cast<decltype(&::name)>(test::symbol(#name))
#define EMU(name) reinterpret_cast<decltype(&::name)>(test::symbol(#name))

inline CUdeviceptr allocate(size_t size)
{
    CUdeviceptr pointer = 0;
    if (CU(cuMemAlloc_v2)(&pointer, size) != CUDA_SUCCESS)
        abort();
    return pointer;
}

inline CUstream make_stream()
{
    CUstream stream = nullptr;
    if (CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        abort();
    return stream;
}

inline std::vector<char> pattern(size_t size, int seed)
{
    std::vector<char> bytes(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = static_cast<char>(i * 31 + i / 256 + static_cast<size_t>(seed));
    return bytes;
}

inline void fill_pattern(CUdeviceptr to, size_t size, int seed)
{
    std::vector<char> bytes = pattern(size, seed);
    if (CU(cuMemcpyHtoD_v2)(to, bytes.data(), size) != CUDA_SUCCESS)
        abort();
}

} // namespace test

#endif
