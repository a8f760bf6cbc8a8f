// SPDX-License-Identifier: BSD-3-Clause
//
// The ring's kernel for the emulated driver: a shared library named by
// NVL_EMU_KERNELS, with one thread a warp. Called by the emulator; calls it
// back for memory.
#include <sched.h>

#include <atomic>

#include "emulator/emu_kernel.h"
#include "emulator/unseen.h"
#include "emulator_kernels/host_warp.h"

namespace {

// A stray access ends all warps of its kernel: the state block of the last one
// that did.
std::atomic<uint64_t> faulted_g{0};

struct kernel_ended {};

class emulated {
public:
    emulated(const emu_warp &warp, const nvl::ring_launch &launch) noexcept
        : warp_(warp), state_(launch.state), shared_(launch.shared)
    {
    }

    void *map(uint64_t address, size_t size_bytes) noexcept
    {
        return warp_.map(address, size_bytes);
    }

    void move(void *to, const void *from, size_t size_bytes) noexcept
    {
        emu::move_unseen(static_cast<char *>(to), static_cast<const char *>(from), size_bytes);
    }

    void fault(uint64_t address)
    {
        faulted_g.store(state_);
        warp_.fault(address);
        throw kernel_ended();
    }

    // A machine has fewer processors than a GPU warps: none may keep one.
    void step()
    {
        if (faulted_g.load(std::memory_order_relaxed) == state_) {
            throw kernel_ended();
        }
        if (++steps_ % 4 == 0) {
            sched_yield();
        }
        // What a warp reads and writes all the time was mapped once: it may have been taken away.
        if (steps_ % 64 == 0) {
            check(state_);
            check(shared_);
        }
    }

    void between_halves()
    {
        step();
    }

    void served(uint32_t) noexcept
    {
    }

    bool is_cancelled(bool cancelled) noexcept
    {
        return cancelled;
    }

    uint32_t answer(uint32_t tag) noexcept
    {
        return tag;
    }

    uint32_t narrow_from(uint32_t from) noexcept
    {
        return from;
    }

    void said_hello() noexcept
    {
    }

    void narrowed() noexcept
    {
    }

    uint32_t left_at(uint32_t next) noexcept
    {
        return next;
    }

private:
    void check(uint64_t address)
    {
        if (warp_.map(address, 1) == nullptr) {
            fault(address);
        }
    }

    const emu_warp &warp_;
    uint64_t        state_;
    uint64_t        shared_;
    unsigned        steps_ = 0;
};

// Tells the emulated driver what was copied, for its planned faults.
class telling_warp : public nvl::host_warp<emulated> {
public:
    telling_warp(const emu_warp &warp, emulated &around, const nvl::ring_launch &launch) noexcept
        : host_warp(around, launch), warp_(warp)
    {
    }

    void copy_alone(const nvl::ring_descriptor &slot)
    {
        copy(slot);
    }

    void copy(const nvl::ring_descriptor &slot)
    {
        host_warp::copy(slot);
        if ((slot.flags & nvl::ring_kind_mask) != nvl::ring_kind_nothing) {
            warp_.wrote(slot.dst, slot.size_bytes);
        }
    }

private:
    const emu_warp &warp_;
};

void run_ring(const emu_warp *warp, void **args)
{
    const nvl::ring_launch &launch = *static_cast<const nvl::ring_launch *>(args[0]);
    emulated                around(*warp, launch);
    telling_warp            self(*warp, around, launch);

    try {
        if (!self.is_mapped()) {
            around.fault(launch.shared);
        }
        nvl::ring_run(self, launch, warp->block + warp->blocks * warp->warp,
                      warp->blocks * warp->warps_per_block);
    } catch (const kernel_ended &) {
    }
}

const unsigned arg_sizes[] = {sizeof(nvl::ring_launch)};

} // namespace

extern "C" __attribute__((visibility("default"))) const emu_kernel emu_kernels[];

extern "C" const emu_kernel emu_kernels[] = {
    {"nvl_ring_kernel", run_ring, 1, arg_sizes},
    {"nvl_ring_kernel_lean", run_ring, 1, arg_sizes},
    {nullptr, nullptr, 0, nullptr},
};
