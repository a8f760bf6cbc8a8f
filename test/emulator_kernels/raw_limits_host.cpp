// SPDX-License-Identifier: BSD-3-Clause
//
// The kernels of bench/raw_limits for the emulated driver: a shared library named by NVL_EMU_KERNELS,
// with one thread a warp. Takes and answers orders as raw_limits_kernels.cu does; what it measures
// means nothing. Called by the emulator; calls it back for memory.
#include <sched.h>

#include <chrono>
#include <cstring>

#include "emulator/emu_kernel.h"
#include "raw_limits_words.h"

namespace {

using nvl::raw_slot;

uint64_t ns_now() noexcept
{
    using namespace std::chrono;
    return static_cast<uint64_t>(
        duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

template<typename word> word load(const word *at) noexcept
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

template<typename word> word *mapped(const emu_warp &warp, uint64_t address, uint32_t count = 1)
{
    return static_cast<word *>(warp.map(address, count * sizeof(word)));
}

// One launch as one of its warps sees it; a cycle is a nanosecond.
class ring {
public:
    ring(const emu_warp &warp, const nvl::raw_ring_launch &launch) noexcept
        : warp_(warp),
          launch_(launch),
          slots_(mapped<raw_slot>(warp, launch.slots + warp.warp * launch.apart_bytes,
                                  nvl::raw_slots)),
          done_(mapped<uint32_t>(warp, launch.done, nvl::raw_slots)),
          tail_(mapped<uint32_t>(warp, launch.tail)),
          published_(mapped<uint32_t>(warp, launch.published))
    {
    }

    bool is_mapped() const noexcept
    {
        return (slots_ != nullptr) && (done_ != nullptr) && (tail_ != nullptr) &&
               (published_ != nullptr);
    }

    // Every warp polls all numbers: the first `taken` that counts up to one has it.
    void poll(uint32_t *taken) noexcept
    {
        for (uint32_t want = launch_.first; nvl::raw_reached(launch_.last, want);) {
            if (!is_posted(want)) {
                if (!may_wait()) {
                    return;
                }
                continue;
            }
            uint32_t before = want - 1;
            if (__atomic_compare_exchange_n(taken, &before, want, false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE)) {
                serve(want);
            }
            ++want;
        }
    }

    void stream() noexcept
    {
        const uint32_t index   = warp_.block + warp_.blocks * warp_.warp;
        const uint32_t workers = warp_.blocks * warp_.warps_per_block - 1;
        if (index == 0) {
            do {
                __atomic_store_n(published_, load(tail_), __ATOMIC_RELEASE);
            } while ((load(published_) != launch_.last) && may_wait());
            return;
        }
        for (uint32_t want = launch_.first + index - 1; nvl::raw_reached(launch_.last, want);
             want += workers) {
            while (!nvl::raw_reached(load(published_), want) || !is_posted(want)) {
                if (!may_wait()) {
                    return;
                }
            }
            serve(want);
        }
    }

private:
    bool is_posted(uint32_t number) const noexcept
    {
        const raw_slot &slot = slots_[number % nvl::raw_slots];
        return (load(&slot.number) == number) && (load(&slot.number_again) == number);
    }

    // A machine has fewer processors than a GPU warps: none may keep one.
    bool may_wait() const noexcept
    {
        sched_yield();
        return ns_now() - start_ns_ <= launch_.most_cycles;
    }

    void serve(uint32_t number) noexcept
    {
        const raw_slot &slot = slots_[number % nvl::raw_slots];
        void           *dst  = warp_.map(slot.dst, slot.size_bytes);
        const void     *src  = warp_.map(slot.src, slot.size_bytes);
        if ((dst == nullptr) || (src == nullptr)) {
            warp_.fault((dst == nullptr) ? slot.dst : slot.src);
            return;
        }
        // Streams write the same target over and over, by all warps.
        for (uint32_t at = 0; at < slot.size_bytes; at += sizeof(uint64_t)) {
            uint64_t word = __atomic_load_n(
                reinterpret_cast<const uint64_t *>(static_cast<const char *>(src) + at),
                __ATOMIC_RELAXED);
            __atomic_store_n(reinterpret_cast<uint64_t *>(static_cast<char *>(dst) + at), word,
                             __ATOMIC_RELAXED);
        }
        __atomic_store_n(&done_[number % nvl::raw_slots], number, __ATOMIC_RELEASE);
    }

    const emu_warp             &warp_;
    const nvl::raw_ring_launch &launch_;
    const raw_slot             *slots_;
    uint32_t                   *done_;
    const uint32_t             *tail_;
    uint32_t                   *published_;
    const uint64_t              start_ns_ = ns_now();
};

void run_poll(const emu_warp *warp, void **args)
{
    const auto &launch = *static_cast<const nvl::raw_ring_launch *>(args[0]);
    ring        self(*warp, launch);
    // In the place of shared memory; a launch goes on where the one before ended.
    auto *taken = mapped<uint32_t>(*warp, launch.published);
    if (!self.is_mapped()) {
        warp->fault(launch.slots);
        return;
    }
    self.poll(taken);
}

void run_stream(const emu_warp *warp, void **args)
{
    const auto &launch = *static_cast<const nvl::raw_ring_launch *>(args[0]);
    ring        self(*warp, launch);
    if (!self.is_mapped()) {
        warp->fault(launch.slots);
        return;
    }
    self.stream();
}

void run_cost(const emu_warp *warp, void **args)
{
    const auto &launch = *static_cast<const nvl::raw_cost_launch *>(args[0]);
    auto       *answer = mapped<nvl::raw_answer>(*warp, launch.answer);
    if (answer == nullptr) {
        warp->fault(launch.answer);
    } else if (warp->warp == 0) {
        *answer = {1000ull * launch.count, 1000ull * launch.count, 1, 0};
    }
}

const unsigned ring_sizes[] = {sizeof(nvl::raw_ring_launch)};
const unsigned cost_sizes[] = {sizeof(nvl::raw_cost_launch)};

} // namespace

extern "C" __attribute__((visibility("default"))) const emu_kernel emu_kernels[];

extern "C" const emu_kernel emu_kernels[] = {
    {"nvl_raw_poll", run_poll, 1, ring_sizes},
    {"nvl_raw_poll_several", run_poll, 1, ring_sizes},
    {"nvl_raw_stream", run_stream, 1, ring_sizes},
    {"nvl_raw_read", run_cost, 1, cost_sizes},
    {"nvl_raw_cost", run_cost, 1, cost_sizes},
    {nullptr, nullptr, 0, nullptr},
};
