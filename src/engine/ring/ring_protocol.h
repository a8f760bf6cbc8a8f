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
// In a stream that way is long: the poller's look, the publication and the fetch, each
// a microsecond. So the poller then publishes numbers that are not posted yet, and the
// next few workers look for their descriptors in host memory themselves. When the
// stream ends it revokes what nobody has posted, and asks: each worker of a revoked
// number answers that it has taken it, since the host was quicker, or leaves it. What was
// taken is behind the poller then, with all before it, and it looks for the rest itself.
//
// A large kernel that finds nothing to do narrows before it leaves: only a few warps of its
// first block remain, so that the other SMs are the application's. That is a publication
// like any other, with a tag that says it: whoever sees it and has nothing left to do below
// the number that goes with it, leaves, or counts anew from there on.
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

// What a worker sees that looks for a number again.
struct ring_wait {
    ring_descriptor slot;
    uint64_t        revoked; // as in ring_state
};

NVL_RING_STEP bool ring_is(const ring_descriptor &slot, uint32_t number)
{
    return (slot.sequence == number) && (slot.sequence_again == number);
}

// Is there anything for the poller of a generation: `number` is posted, or it is to leave?
NVL_RING_STEP bool ring_is_news(const ring_orders &orders, uint32_t number, uint32_t generation)
{
    return ring_reached(orders.tail, number) || (orders.leave_now == generation) ||
           (orders.leave_drained == generation);
}

// Is the slot in use for a later number already? Then `number` is done.
NVL_RING_STEP bool ring_is_past(const ring_descriptor &slot, uint32_t number)
{
    return (slot.sequence != number) && ring_reached(slot.sequence, number);
}

// How far the workers may go, as the poller decides it.
class ring_limit {
public:
    NVL_RING_MEMBER ring_limit(const ring_launch &launch, uint32_t first, uint32_t workers)
        : generation_(launch.generation),
          granted_(launch.granted),
          first_(first),
          workers_(workers),
          published_(first - 1)
    {
    }

    NVL_RING_MEMBER bool is_ahead() const
    {
        return ring_is_ahead(turn_);
    }

    // The host has posted up to `tail`, and it is a stream or more than the poller's.
    template<typename warp> NVL_RING_STEP void raise(warp &self, uint32_t tail)
    {
        if (!is_ahead() && (granted_ != 0) && (turn_ < ring_turns_max)) {
            ++turn_;
        }
        tell(self, is_ahead() ? tail + granted_ : tail);
    }

    // Nobody looks ahead any more; `next`: the first number that was not posted when the
    // poller looked last. Returns the first that is not taken.
    template<typename warp> NVL_RING_STEP uint32_t lower(warp &self, uint32_t next)
    {
        if (is_ahead()) {
            const uint32_t tag = ring_tag(generation_, turn_);
            self.revoke(tag, next);
            next = self.hear(tag, next, granted_, (next - first_) % workers_, workers_);
            ++turn_;
            tell(self, next - 1);
        } else if (published_ != next - 1) {
            tell(self, next - 1);
        }
        return next;
    }

    // From `next` on the numbers are those of `workers`, and nobody looks ahead again. What
    // is marked below it is marked before.
    template<typename warp> NVL_RING_STEP void narrow(warp &self, uint32_t next, uint32_t workers)
    {
        self.set_narrow_from(next);
        self.fence_device(); // partner: the reading of the tag in ring_work
        granted_ = 0;
        first_   = next;
        workers_ = workers;
        turn_    = ring_turn_narrow;
        tell(self, next - 1);
    }

    template<typename warp> NVL_RING_STEP void tell(warp &self, uint32_t last)
    {
        published_ = last;
        self.publish_tail(ring_tag(generation_, turn_), last);
    }

private:
    uint32_t generation_;
    uint32_t granted_;
    uint32_t first_;
    uint32_t workers_;
    uint32_t published_;
    uint32_t turn_ = 0;
};

// Serves until it is time to go; returns the first number that is not taken.
template<typename warp>
NVL_RING_STEP uint32_t ring_serve(warp &self, const ring_launch &launch, uint32_t first,
                                  uint32_t workers)
{
    // The clock costs a good part of a lone operation's time: it is read when
    // there is nothing to do, and in between after so many turns with work.
    constexpr uint32_t turns_per_look = 64;
    // What the poller does while it waits is taken from the application's warps beside it, 2.6 % of
    // a block's time (bench/beside, one_block_an_sm; 3.5 % with the clock read and every word spread
    // at each look): little, and the clock only now and then.
    constexpr uint32_t quiet_per_look = 4;
    // A stream is over after so many looks in a row, of 1.1 us, that find nothing: more than lie
    // between two lone operations of many pieces; or one of one piece each.
    constexpr uint32_t looks_to_end = 12;
    constexpr uint32_t lone_to_end  = 4;

    const uint32_t generation = launch.generation;
    const uint64_t start_ns   = self.now_ns();
    uint64_t       work_ns    = start_ns; // when there was work last
    uint32_t       next       = first;
    uint32_t       turns      = 0; // with work, since the clock was read
    uint32_t       quiet      = 0; // looks in a row that found nothing
    ring_limit     limit(launch, first, workers);
    ring_phase     phase;
    uint32_t       looks     = 0;     // since the end of a lone operation
    uint32_t       end_ticks = 0;     // when that was
    bool           is_lone   = false; // the last operation was one
    bool           is_marked = false; // some are, since the last publication
    uint32_t       empty     = 0;     // looks of a stream in a row that found nothing
    uint32_t       singles   = 0;     // or one descriptor
    bool           is_narrow = launch.narrow_warps < 2; // or never to be

    for (;;) {
        // In a stream a worker looks at the descriptor, and would have to wait for a second reader.
        ring_view  view;
        const bool is_news = limit.is_ahead() ? self.look_at_orders(next, generation, &view.orders)
                                              : self.look(next, generation, &view);
        const bool work    = is_news && ring_reached(view.orders.tail, next);
        ++looks;
        if (work && (view.orders.leave_now != generation) && (turns != turns_per_look)) {
            quiet                = 0;
            const bool is_single = view.orders.tail == next;
            if (!limit.is_ahead() && is_single && (view.slot.size_bytes <= launch.alone_bytes) &&
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
                is_marked = true;
                ++next;
            } else {
                if (is_marked) {
                    self.fence_device(); // the marks before the number that leads to them
                    is_marked = false;
                }
                limit.raise(self, view.orders.tail);
                next    = view.orders.tail + 1;
                is_lone = false;
                empty   = 0;
                singles = is_single ? singles + 1 : 0;
                if (limit.is_ahead() && (singles == lone_to_end)) {
                    next    = limit.lower(self, next);
                    singles = 0;
                }
            }
            ++turns;
            continue;
        }

        if (limit.is_ahead() && !work && (++empty == looks_to_end)) {
            next = limit.lower(self, next);
            continue;
        }
        if (!is_news && (turns == 0) && (++quiet % quiet_per_look != 0)) {
            continue;
        }
        uint64_t now_ns = self.now_ns();
        if (turns != 0) {
            work_ns = now_ns;
            turns   = 0;
        }
        if ((is_news && (view.orders.leave_now == generation)) ||
            (now_ns - start_ns > launch.stay_ns) ||
            (!work && ((is_news && (view.orders.leave_drained == generation)) ||
                       (now_ns - work_ns > launch.idle_ns)))) {
            break;
        }
        if (!is_narrow && !work && !limit.is_ahead() && (now_ns - work_ns > launch.narrow_ns)) {
            if (!self.is_done(next - 1)) {
                work_ns = now_ns; // workers copy
                continue;
            }
            is_narrow = true;
            is_marked = false;
            limit.narrow(self, next, launch.narrow_warps - 1);
            self.say_narrowed(generation);
        }
    }

    if (is_marked) {
        self.fence_device();
    }
    return limit.lower(self, next);
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
NVL_RING_STEP void ring_poll(warp &self, const ring_launch &launch, uint32_t first,
                             uint32_t workers)
{
    uint32_t next = first;

    // What an earlier generation told is nobody's any more, however the tags come round.
    self.revoke(0, 0);
    self.publish_tail(ring_tag(launch.generation, 0), first - 1);
    if (ring_gather(self, launch)) {
        self.say_hello(launch.generation);
        self.fence_system(); // partner: the fence in ring_engine::cancel
        if (!self.is_cancelled(launch.generation)) {
            next = ring_serve(self, launch, first, workers);
        }
    }
    self.fence_device(); // partner: is_leaving in ring_work
    self.publish_leave(launch.generation, next);
    self.say_left(launch.generation, next);
}

// Does warp number `index` of the kernel stay when it narrows? The poller is the first.
NVL_RING_STEP bool ring_remains(const ring_launch &launch, uint32_t index)
{
    return (index % launch.blocks == 0) && (index / launch.blocks < launch.narrow_warps);
}

template<typename warp>
NVL_RING_STEP void ring_work(warp &self, const ring_launch &launch, uint32_t first, uint32_t index,
                             uint32_t workers)
{
    // Looks in a row that find nothing new, for anybody, until a worker rests.
    constexpr uint32_t looks_to_rest = 16;

    uint32_t looks      = 0;
    uint32_t tail       = first - 1;
    bool     is_wide    = true; // the kernel has not narrowed, or this worker has work from before
    bool     is_leaving = false;

    self.answer(index, 0, 0); // what an earlier generation's worker said
    for (uint32_t want = first + index;;) {
        const ring_published seen = self.published();
        const bool           is_of =
            (seen.tag >> ring_tag_bits) == (ring_tag(launch.generation, 0) >> ring_tag_bits);
        if (is_of && is_wide && ring_is_narrow(seen.tag)) {
            const uint32_t from = self.narrow_from(); // partner: the fence in ring_limit::narrow
            if (ring_reached(want, from)) {
                if (!ring_remains(launch, index + 1)) {
                    return;
                }
                workers = launch.narrow_warps - 1;
                want    = from + (index + 1) / launch.blocks - 1;
                is_wide = false;
            }
        }
        if (!is_of || !ring_reached(seen.tail, want)) {
            if ((seen.leave_generation == launch.generation) && ring_reached(want, seen.leave_at)) {
                if (is_leaving || (launch.narrow_warps == 0)) {
                    return;
                }
                // The two halves of a publication may be of different ages: only with the next
                // look this worker's number is surely that of a kernel that has narrowed.
                is_leaving = true; // partner: the fence before publish_leave in ring_poll
                continue;
            }
            if (seen.tail != tail) {
                tail  = seen.tail;
                looks = 0;
            } else if (++looks > looks_to_rest) {
                self.rest();
            }
            continue;
        }

        ring_fetch fetch = self.fetch(launch.generation, want, workers);
        if (fetch.skipped != 0) {
            want += fetch.skipped * workers;
            continue;
        }
        // Not posted yet, or the descriptor's bytes are still on their way.
        bool is_revoked = false;
        while (!ring_is(fetch.slot, want) && !ring_is_past(fetch.slot, want) && !is_revoked) {
            ring_wait wait = self.look_again(want);
            fetch.slot     = wait.slot;
            is_revoked     = !ring_is(wait.slot, want) &&
                         (static_cast<uint32_t>(wait.revoked >> 32) == seen.tag) &&
                         ring_reached(want, static_cast<uint32_t>(wait.revoked));
        }
        if (is_revoked) {
            self.answer(index, seen.tag, want);
            // The poller waits for all answers, then tells anew.
            while (self.published().tag == seen.tag) {
            }
            continue;
        }
        if (ring_is_ahead(seen.tag)) {
            self.answer(index, seen.tag | ring_taken_bit, want);
        }
        if (ring_is(fetch.slot, want)) {
            self.copy(fetch.slot);
            self.finish(fetch.slot);
        }
        want += workers;
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
        ring_poll(self, launch, first, warps - 1);
    } else {
        ring_work(self, launch, first, index - 1, warps - 1);
    }
}

} // namespace nvl

#endif
