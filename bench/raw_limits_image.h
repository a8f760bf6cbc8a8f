// SPDX-License-Identifier: BSD-3-Clause
//
// The fat binary of raw_limits_kernels.cu, which src/plugin/embed writes; empty
// in a build without nvcc.
#ifndef NVLINK_BENCH_RAW_LIMITS_IMAGE_H
#define NVLINK_BENCH_RAW_LIMITS_IMAGE_H

#include <cstddef>

namespace nvl {

extern const unsigned char raw_limits_image[];
extern const std::size_t   raw_limits_image_size_bytes;

} // namespace nvl

#endif
