// SPDX-License-Identifier: BSD-3-Clause
//
// A libcuda.so.1 that is wrong in one way, chosen when it is compiled: FAKE_OLD has no cuGetProcAddress_v2,
// FAKE_LACKS="name" has all functions but that one.
#include <cuda.h>

#include <cstring>

namespace {

[[maybe_unused]] CUresult anything()
{
    return CUDA_SUCCESS;
}

} // namespace

extern "C" {

#ifndef FAKE_OLD
__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char *name, void **function, int, cuuint64_t, CUdriverProcAddressQueryResult *)
{
    *function = std::strcmp(name, FAKE_LACKS) == 0 ? nullptr : reinterpret_cast<void *>(anything);
    return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
#else
extern __attribute__((visibility("default"))) const int nothing_here;
const int                                               nothing_here = 0;
#endif
}
