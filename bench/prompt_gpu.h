// SPDX-License-Identifier: BSD-3-Clause
//
// A driver table whose calls return at once and a GPU that finishes when it is told to, in the same
// thread: what remains is the processor's own work. For ops_bench; one at a time.
#ifndef NVLINK_BENCH_PROMPT_GPU_H
#define NVLINK_BENCH_PROMPT_GPU_H

#include <cstdint>

#include "driver/cuda.h"

namespace nvl {

class prompt_gpu {
public:
    prompt_gpu();
    ~prompt_gpu();
    prompt_gpu(const prompt_gpu &)            = delete;
    prompt_gpu &operator=(const prompt_gpu &) = delete;

    const cuda_api &cuda() const
    {
        return cuda_;
    }

    // Everything in the ring is done.
    void finish_ring();

    // Driver calls since the last question.
    uint64_t take_calls();

private:
    void fill_set_up();
    void fill_data_path();

    cuda_api cuda_;
};

} // namespace nvl

#endif
