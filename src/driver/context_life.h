// SPDX-License-Identifier: BSD-3-Clause
//
// Whether a CUDA context still lives. An application may destroy a context of its
// own, or reset the primary one (cudaDeviceReset), while handles in it are kept
// here: streams, events, modules. The driver does not check such handles, nor that
// of a destroyed context: it follows them into memory that it has freed (580). What
// can be asked safely is an address: so a few bytes are allocated in the context,
// which go with it, and the driver's id of that allocation, which is never given
// again, tells. Called by handles, engine and mem; calls cuda.h.
#ifndef NVLINK_DRIVER_CONTEXT_LIFE_H
#define NVLINK_DRIVER_CONTEXT_LIFE_H

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "driver/cuda.h"

namespace nvl {

class context_life;

// When the driver last said that a context lives. For paths that are walked often such an
// answer is good for so long, since no context goes in less. Any thread.
class recent_answer {
public:
    static constexpr double good_for_ns = 100e3;

    // One read of the clock.
    bool is_good() const noexcept
    {
        return clock_ticks() - asked_.load(std::memory_order_relaxed) <= good_for_ticks_;
    }

    // `asked`: clock_ticks() before the question, as the answer is of then or later.
    void keep(uint64_t asked) noexcept
    {
        asked_.store(asked, std::memory_order_relaxed);
    }

private:
    uint64_t              good_for_ticks_ = clock_from_ns(good_for_ns);
    std::atomic<uint64_t> asked_{0};
};

// Whoever keeps a handle of a context keeps one of these.
using life_ref = std::shared_ptr<const context_life>;

class context_life {
public:
    // The life of `context`, shared by all who ask while it lasts. The caller knows
    // that the context lives, or has retained it (a primary one). Allocates in it;
    // errors are logged. Any thread.
    static result<life_ref> of(const cuda_api &cuda, CUcontext context) noexcept;

    // What the last of() gave, if somebody still keeps it; it may be over, and another
    // context have begun there. Else null.
    static life_ref known(const cuda_api &cuda, CUcontext context) noexcept;

    ~context_life();
    context_life(const context_life &)            = delete;
    context_life &operator=(const context_life &) = delete;

    CUcontext context() const noexcept
    {
        return context_;
    }

    // True once the context is gone: its handles and its memory are to be forgotten,
    // not destroyed. Asks the driver about an address, and no more once it is over.
    bool is_over() const noexcept;

    // The same for paths that are walked often, see recent_answer.
    bool is_over_lately() const noexcept
    {
        return __builtin_expect(sound_.is_good(), 1) ? over_.load(std::memory_order_relaxed)
                                                     : is_over();
    }

private:
    context_life(const cuda_api &cuda, CUcontext context) noexcept;
    ucs_status_t open() noexcept;

    const cuda_api           &cuda_;
    CUcontext                 context_;
    CUdeviceptr               witness_    = 0;
    bool                      is_of_host_ = false; // the witness
    unsigned long long        id_         = 0;     // of the witness
    mutable std::atomic<bool> over_{false};
    mutable recent_answer     sound_;
};

// True while the allocation at `address` is the one that had this id
// (CU_POINTER_ATTRIBUTE_BUFFER_ID). Needs no context.
bool is_same_allocation(const cuda_api &cuda, CUdeviceptr address, unsigned long long id) noexcept;

} // namespace nvl

#endif
