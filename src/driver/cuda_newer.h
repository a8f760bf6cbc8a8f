// SPDX-License-Identifier: BSD-3-Clause
//
// What toolkits from 12.0 on lack of the driver API that is used: by the values and layouts of the
// later ones, so that the plugin is the same whatever toolkit built it. What a driver has is asked
// of the driver. Included by cuda.h.
#ifndef NVLINK_DRIVER_CUDA_NEWER_H
#define NVLINK_DRIVER_CUDA_NEWER_H

#include <cuda.h>

#if CUDA_VERSION < 12030
constexpr CUmemAllocationHandleType CU_MEM_HANDLE_TYPE_FABRIC =
    static_cast<CUmemAllocationHandleType>(8);
struct CUmemFabricHandle {
    unsigned char data[64];
};
#endif

#endif
