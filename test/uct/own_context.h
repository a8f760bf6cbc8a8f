// SPDX-License-Identifier: BSD-3-Clause
//
// A context of the application's own, destroyed at the end or before.
#ifndef NVLINK_TEST_UCT_OWN_CONTEXT_H
#define NVLINK_TEST_UCT_OWN_CONTEXT_H

#include "uct/driver.h"

namespace nvl::test {

class own_context {
public:
    explicit own_context(int gpu)
    {
        CUcontext popped = nullptr;
        NVL_MUST(cuCtxCreate_v2, (&context_, 0, device_of(gpu)));
        NVL_MUST(cuCtxPopCurrent_v2, (&popped));
    }

    ~own_context()
    {
        destroy();
    }

    own_context(const own_context &)            = delete;
    own_context &operator=(const own_context &) = delete;

    void destroy()
    {
        if (context_ != nullptr) {
            NVL_MUST(cuCtxDestroy_v2, (context_));
            context_ = nullptr;
        }
    }

    CUcontext get() const
    {
        return context_;
    }

private:
    CUcontext context_ = nullptr;
};

} // namespace nvl::test

#endif
