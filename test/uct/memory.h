// SPDX-License-Identifier: BSD-3-Clause
//
// GPU memory of a test.
#ifndef NVLINK_TEST_UCT_MEMORY_H
#define NVLINK_TEST_UCT_MEMORY_H

#include "uct/bytes.h"
#include "uct/driver.h"

namespace nvl::test {

class gpu_memory {
public:
    gpu_memory(int gpu, size_t size) : gpu_memory(primary_context(gpu), size)
    {
    }

    gpu_memory(CUcontext context, size_t size) : context_(context), size_(size)
    {
        current_context scope(context_);
        NVL_MUST(cuMemAlloc_v2, (&address_, size));
    }

    ~gpu_memory()
    {
        if (address_ != 0) {
            current_context scope(context_);
            NVL_MUST(cuMemFree_v2, (address_));
        }
    }

    gpu_memory(const gpu_memory &)            = delete;
    gpu_memory &operator=(const gpu_memory &) = delete;

    uint64_t address() const
    {
        return address_;
    }

    size_t size() const
    {
        return size_;
    }

    // The context has gone, and the memory with it.
    void forget()
    {
        address_ = 0;
    }

    void write(size_t offset, const bytes &from)
    {
        current_context scope(context_);
        NVL_MUST(cuMemcpyHtoD_v2, (address_ + offset, from.data(), from.size()));
        NVL_MUST(cuStreamSynchronize, (nullptr));
    }

    bytes read(size_t offset, size_t size) const
    {
        bytes           found(size);
        current_context scope(context_);
        NVL_MUST(cuMemcpyDtoH_v2, (found.data(), address_ + offset, size));
        return found;
    }

private:
    CUcontext   context_;
    CUdeviceptr address_ = 0;
    size_t      size_;
};

} // namespace nvl::test

#endif
