// SPDX-License-Identifier: BSD-3-Clause
//
// The fat binary of beside_kernels.cu, which src/plugin/embed writes; empty in
// a build without nvcc.
#ifndef NVLINK_BENCH_BESIDE_IMAGE_H
#define NVLINK_BENCH_BESIDE_IMAGE_H

#include <cstddef>

namespace nvl {

extern const unsigned char beside_image[];
extern const std::size_t   beside_image_size_bytes;

} // namespace nvl

#endif
