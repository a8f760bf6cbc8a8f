// SPDX-License-Identifier: BSD-3-Clause
//
// A memory pool, as the files that allocate from it or ask about it see it.
#ifndef NVLINK_EMULATOR_POOL_H
#define NVLINK_EMULATOR_POOL_H

#include "driver.h"

namespace emu {

struct pool {
    CUmemoryPool                 handle       = nullptr;
    int                          device       = -1; // -1: host memory
    unsigned                     handle_types = 0;
    bool                         imported     = false;
    bool                         is_default   = false;
    size_t                       max_size     = 0;
    std::mutex                   mutex;
    std::map<int, unsigned char> access; // of other devices than its own
    uint64_t                     release_threshold = 0;
    int                          reuse[3]          = {1, 1, 1};
    uint64_t                     used = 0, used_high = 0;
    std::shared_ptr<backing>     identity; // what a descriptor of a shared pool refers to
};

// An allocation of a pool is gone.
void note_pool_free(range &r);

} // namespace emu

#endif
