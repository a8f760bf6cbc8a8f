// SPDX-License-Identifier: BSD-3-Clause
//
// The copy kernel's fat binary, which src/plugin/embed writes into the
// library; empty in a build without nvcc. Read by ring_life.
#ifndef NVLINK_ENGINE_RING_RING_IMAGE_H
#define NVLINK_ENGINE_RING_RING_IMAGE_H

#include <cstddef>

namespace nvl {

extern const unsigned char ring_kernel_image[];
extern const std::size_t   ring_kernel_image_size_bytes;

} // namespace nvl

#endif
