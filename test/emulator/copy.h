// SPDX-License-Identifier: BSD-3-Clause
//
// A copy or a fill, from the check at submission to the bytes at execution. Used by the API files
// copy.cpp (linear), copy_box.cpp (2D, 3D) and batch copies.
#ifndef NVLINK_EMULATOR_COPY_H
#define NVLINK_EMULATOR_COPY_H

#include "driver.h"

namespace emu {

enum class side { any, gpu, host }; // what the call says about an address

// Equal rows at equal steps, in up to two dimensions of steps.
struct copy_shape {
    uint64_t dst = 0, src = 0;
    size_t   row  = 0; // bytes
    size_t   rows = 1, dst_pitch = 0, src_pitch = 0;
    size_t   planes = 1, dst_plane = 0, src_plane = 0;
    side     dst_side = side::any, src_side = side::any;
};

enum class when {
    submitted, // an ...Async call: return as soon as the work is in the stream
    finished,  // a call without stream
};

// When the source is read.
enum class reading {
    usual,    // in the order of the stream; pageable memory at once, where the call does not wait
    in_order, // in the order of the stream, pageable memory too
    at_once,  // before the call returns, whatever the stream still has to do
};

CUresult submit_copy(CUstream handle, const copy_shape &shape, when until,
                     reading how = reading::usual);

struct fill_shape {
    uint64_t dst        = 0;
    uint32_t value      = 0;
    unsigned value_size = 1; // 1, 2, 4
    size_t   count = 0, rows = 1, pitch = 0;
};
CUresult submit_fill(CUstream handle, const fill_shape &shape, when until);

} // namespace emu

#endif
