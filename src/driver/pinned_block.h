// SPDX-License-Identifier: BSD-3-Clause
//
// Page-locked memory of the process's own: the driver locks it and gives it an
// address on the GPU, and whatever becomes of the context, the processor may read
// and write it as long as this lives. (What the driver allocates itself goes with
// the context, under the feet of whoever polls a word there.) Called by engine;
// calls the driver.
#ifndef NVLINK_DRIVER_PINNED_BLOCK_H
#define NVLINK_DRIVER_PINNED_BLOCK_H

#include <cstddef>

#include "driver/handles.h"

namespace nvl {

class pinned_block {
public:
    pinned_block() = default;

    // Zeros, page-locked in the context of `life` for all contexts, and not
    // inherited by a forked child. *code: what the driver said; UCS_ERR_NO_MEMORY
    // without a question to it.
    static result<pinned_block> make(const cuda_api &cuda, const life_ref &life, size_t size_bytes,
                                     CUresult *code) noexcept;

    pinned_block(pinned_block &&other) noexcept;
    pinned_block &operator=(pinned_block &&other) noexcept;
    ~pinned_block();

    void *get() const noexcept
    {
        return bytes_;
    }

private:
    pinned_block(const cuda_api &cuda, void *bytes, size_t size_bytes) noexcept
        : cuda_(&cuda), bytes_(bytes), size_bytes_(size_bytes)
    {
    }

    const cuda_api *cuda_ = nullptr;
    life_ref        life_; // null: not locked
    void           *bytes_      = nullptr;
    size_t          size_bytes_ = 0;
};

} // namespace nvl

#endif
