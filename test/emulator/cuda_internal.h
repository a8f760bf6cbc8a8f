// SPDX-License-Identifier: BSD-3-Clause
//
// cuda.h with every versioned function under its own name (cuMemAlloc and cuMemAlloc_v2), as the
// driver exports them. Only for the emulated driver's own sources.
#ifndef NVLINK_EMULATOR_CUDA_INTERNAL_H
#define NVLINK_EMULATOR_CUDA_INTERNAL_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#include "cuda_newer.h"

#endif
