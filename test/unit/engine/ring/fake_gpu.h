// SPDX-License-Identifier: BSD-3-Clause
//
// A GPU for the tests of the ring: a driver table whose streams are threads and
// whose kernel is the ring's protocol, one thread a warp, every step delayed at
// random. A device address is a host address. One at a time.
#ifndef NVLINK_TEST_UNIT_ENGINE_RING_FAKE_GPU_H
#define NVLINK_TEST_UNIT_ENGINE_RING_FAKE_GPU_H

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "driver/cuda.h"

namespace nvl {

// What a test may break, to see that it notices.
enum class planted {
    nothing,
    ignores_cancel,
    reports_one_too_many,
    never_says_left,
    denies_what_it_takes,
    keeps_its_numbers // a worker of a kernel that narrows
};

class fake_gpu {
public:
    struct settings {
        uint64_t seed = 1;
        planted  bug  = planted::nothing;
        // One launch in so many starts late, and one with one block only; 0: none.
        unsigned late_launch = 0;
        unsigned late_us     = 300;
        int      sms         = 132;
        // So long now and then between two words that a GPU reads in one go.
        unsigned torn_us = 0;
    };

    explicit fake_gpu(const settings &how);
    ~fake_gpu();

    const cuda_api &cuda() const
    {
        return cuda_;
    }

    // While held, a launched kernel does not start.
    void hold(bool on)
    {
        held_.store(on);
    }

    // While held, only the first block of a launched kernel starts.
    void hold_other_blocks(bool on)
    {
        others_held_.store(on);
    }

    // While held, what a warp copies takes until then.
    void hold_copies(bool on)
    {
        copies_held_.store(on);
    }

    // The next calls of the stream query say that the context is dead.
    void break_context()
    {
        broken_.store(true);
    }

    // The application destroys the context: its kernels end, its streams and its memory
    // are no more.
    void destroy_context()
    {
        broken_.store(true);
        gone_.store(true);
    }

    // Calls since with what went along.
    uint64_t stale_calls() const
    {
        return stale_.load();
    }

    void fail_launches(bool on)
    {
        launch_fails_.store(on);
    }

    // Driver calls so far, all of them.
    uint64_t calls() const
    {
        return calls_.load();
    }

    // Descriptors that the kernel did more than once.
    uint64_t served_twice() const
    {
        return twice_.load();
    }

    uint64_t served() const
    {
        return served_.load();
    }

    // Kernels that have narrowed.
    uint64_t narrowed() const
    {
        return narrowed_.load();
    }

    // Kernels that have reported in.
    uint64_t hellos() const
    {
        return hellos_.load();
    }

    // What each launch was told, for the thread that launches.
    const std::vector<uint64_t> &narrow_times_ns() const
    {
        return narrow_times_ns_;
    }

    // Of the largest launch so far.
    unsigned most_blocks() const
    {
        return most_blocks_.load();
    }

    class work_stream;
    struct world;

private:
    void         fill_table();
    work_stream *stream_of(CUstream handle);
    void         forget(CUstream handle);
    void         run_kernel(unsigned blocks, unsigned warps, const void *argument);

    cuda_api                                  cuda_;
    settings                                  how_;
    std::atomic<bool>                         held_{false};
    std::atomic<bool>                         others_held_{false};
    std::atomic<bool>                         copies_held_{false};
    std::atomic<bool>                         broken_{false};
    std::atomic<bool>                         gone_{false};
    std::atomic<uint64_t>                     stale_{0};
    std::vector<std::unique_ptr<work_stream>> streams_; // that nobody has destroyed
    std::vector<uint64_t>                     blocks_;
    std::atomic<bool>                         launch_fails_{false};
    std::atomic<uint64_t>                     calls_{0};
    std::atomic<uint64_t>                     twice_{0};
    std::atomic<uint64_t>                     served_{0};
    std::atomic<uint64_t>                     launches_{0};
    std::atomic<uint64_t>                     narrowed_{0};
    std::atomic<uint64_t>                     hellos_{0};
    std::vector<uint64_t>                     narrow_times_ns_;
    std::atomic<unsigned>                     most_blocks_{0};
    std::unique_ptr<std::atomic<uint32_t>[]>  last_served_; // for each slot
};

} // namespace nvl

#endif
