// SPDX-License-Identifier: BSD-3-Clause
//
// What the warps of the lingering kernel do, step by step: one poller that
// reads the host's orders, and workers that wait for it on device memory. The
// same source is compiled for the GPU (ring_kernel.cu) and for threads of the
// processor (tests), where every step may be delayed and a race is reported.
// Calls nothing but the `warp` it is given.
//
// The protocol in short. The host writes a descriptor, then the tail. The
// poller reads the next descriptor and the orders in one go. A lone small copy
// it does itself and marks for the workers to skip; anything else it publishes
// in device memory, and each worker fetches its own descriptors (every
// `workers`-th) from the host. A done word is written after the copy's last
// byte; the host takes them in order.
//
// Leaving is one decision of one side: the poller stops at a number of its
// choice and says so (`left`). Whatever is posted from that number on, before
// or after, was not taken, and the host sends it another way. Not having
// started is the other one: the kernel says hello, full fence, looks whether
// it is cancelled; the host cancels, full fence, looks for the hello. At least
// one of the two sees the other. A kernel that sees the cancellation takes
// nothing and says so; a host that sees no hello knows that it will. Hello is
// said for the whole kernel: an application's kernel may hold the SMs that some
// of its blocks wait for, and their share of the work would wait along.
#ifndef NVLINK_ENGINE_RING_RING_PROTOCOL_H
#define NVLINK_ENGINE_RING_RING_PROTOCOL_H

#include "engine/ring/ring.h"
#include "engine/ring/ring_phase.h"

#if defined(__CUDACC__)
#define NVL_RING_STEP __device__ __forceinline__
#else
#define NVL_RING_STEP inline
#endif

namespace nvl {

// What the poller sees in one read.
struct ring_view {
    ring_descriptor slot;
    ring_orders     orders;
};

// What a worker fetches in one go.
struct ring_fetch {
    ring_descriptor slot;
    uint32_t        skipped; // how many of this worker's next numbers the poller has done
};

NVL_RING_STEP bool ring_is(const ring_descriptor &slot, uint32_t number)
{
    return (slot.sequence == number) && (slot.sequence_again == number);
}

// Is the slot in use for a later number already? Then `number` is done.
NVL_RING_STEP bool ring_is_past(const ring_descriptor &slot, uint32_t number)
{
    return (slot.sequence != number) && ring_reached(slot.sequence, number);
}

// Serves until it is time to go; returns the first number that is not taken.
template<typename warp>
NVL_RING_STEP uint32_t ring_serve(warp &self, const ring_launch &launch, uint32_t first)
{
    // The clock costs a good part of a lone operation's time: it is read when
    // there is nothing to do, and in between after so many turns with work.
    constexpr uint32_t turns_per_look = 64;

    const uint32_t generation = launch.generation;
    const uint64_t start_ns   = self.now_ns();
    uint64_t       work_ns    = start_ns; // when there was work last
    uint32_t       next       = first;
    uint32_t       published  = first - 1;
    uint32_t       turns      = 0; // with work, since the clock was read
    ring_phase     phase;
    uint32_t       looks     = 0;     // since the end of a lone operation
    uint32_t       end_ticks = 0;     // when that was
    bool           is_lone   = false; // the last operation was one

    for (;;) {
        ring_view view = self.look(next);
        bool      work = ring_reached(view.orders.tail, next);
        ++looks;
        if (work && (view.orders.leave_now != generation) && (turns != turns_per_look)) {
            if ((view.orders.tail == next) && (view.slot.size_bytes <= launch.alone_bytes) &&
                ring_is(view.slot, next)) {
                const uint32_t found_ticks = self.ticks();
                self.copy_alone(view.slot);
                self.finish(view.slot);
                if (is_lone) {
                    phase.found(looks, found_ticks - end_ticks);
                }
                is_lone   = true;
                looks     = 0;
                end_ticks = self.pause(phase.delay());
                // Told to the workers with the next publication: they need not
                // wake for it.
                self.mark_skip(generation, next);
                ++next;
            } else {
                if (published != next - 1) {
                    self.fence_device(); // the marks before the number that leads to them
                }
                published = view.orders.tail;
                self.publish_tail(generation, published);
                next    = published + 1;
                is_lone = false;
            }
            ++turns;
            continue;
        }

        uint64_t now_ns = self.now_ns();
        if (turns != 0) {
            work_ns = now_ns;
            turns   = 0;
        }
        if ((view.orders.leave_now == generation) || (now_ns - start_ns > launch.stay_ns) ||
            (!work &&
             ((view.orders.leave_drained == generation) || (now_ns - work_ns > launch.idle_ns)))) {
            break;
        }
    }

    if (published != next - 1) {
        self.fence_device();
        self.publish_tail(generation, next - 1);
    }
    return next;
}

// Waits for the kernel's other blocks; false if it is not to wait any longer.
template<typename warp> NVL_RING_STEP bool ring_gather(warp &self, const ring_launch &launch)
{
    const uint64_t start_ns = self.now_ns();
    while (!ring_reached(self.arrived(), launch.arrivals)) {
        if (self.is_cancelled(launch.generation) || (self.now_ns() - start_ns > launch.stay_ns)) {
            return false;
        }
    }
    return true;
}

template<typename warp>
NVL_RING_STEP void ring_poll(warp &self, const ring_launch &launch, uint32_t first)
{
    uint32_t next = first;

    if (ring_gather(self, launch)) {
        self.say_hello(launch.generation);
        self.fence_system(); // partner: the fence in ring_engine::cancel
        if (!self.is_cancelled(launch.generation)) {
            next = ring_serve(self, launch, first);
        }
    }
    self.publish_leave(launch.generation, next);
    self.say_left(launch.generation, next);
}

template<typename warp>
NVL_RING_STEP void ring_work(warp &self, const ring_launch &launch, uint32_t first, uint32_t index,
                             uint32_t workers)
{
    for (uint32_t want = first + index;;) {
        ring_published seen = self.published();
        if ((seen.tail_generation != launch.generation) || !ring_reached(seen.tail, want)) {
            if ((seen.leave_generation == launch.generation) && ring_reached(want, seen.leave_at)) {
                return;
            }
            continue;
        }

        ring_fetch fetch = self.fetch(launch.generation, want, workers);
        if (fetch.skipped != 0) {
            want += fetch.skipped * workers;
        } else if (ring_is(fetch.slot, want)) {
            self.copy(fetch.slot);
            self.finish(fetch.slot);
            want += workers;
        } else if (ring_is_past(fetch.slot, want)) {
            want += workers;
        }
        // Else the descriptor's bytes are still on their way: read it again.
    }
}

// What warp number `index` of the kernel's `warps` does; the first `blocks` of
// them are in different blocks.
template<typename warp>
NVL_RING_STEP void ring_run(warp &self, const ring_launch &launch, uint32_t index, uint32_t warps)
{
    uint32_t first = (launch.follow != 0) ? self.left_at(launch.generation - 1) : launch.first;

    if (index < launch.blocks) {
        self.arrive();
    }
    if (index == 0) {
        ring_poll(self, launch, first);
    } else {
        ring_work(self, launch, first, index - 1, warps - 1);
    }
}

} // namespace nvl

#endif
