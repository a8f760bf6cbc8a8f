// SPDX-License-Identifier: BSD-3-Clause
//
// A warp of the ring's kernel as one thread of the processor: takes the steps
// of ring_protocol.h with C++ atomics. Used by the emulated driver's kernel
// (ring_host.cpp) and by the protocol's tests, which delay every step. Calls
// only the `world` it is given:
//     void *map(uint64_t address, size_t size_bytes)  null: the GPU may not touch it
//     void move(void *to, const void *from, size_t size_bytes)
//     void fault(uint64_t address)       may throw, to end the warp
//     void step()                        before each step; may delay the thread, or throw
//     void between_halves()              the same, between two words that a GPU reads in one go
//     void served(uint32_t number)       a descriptor is about to be done
//     bool is_cancelled(bool cancelled)  what to believe about a cancellation
//     uint32_t left_at(uint32_t next)    what to report when leaving
//     uint32_t answer(uint32_t tag)      what to answer about a number of a stream
//     uint32_t narrow_from(uint32_t from)  what a worker believes when the kernel narrows
//     void said_hello(), narrowed()      the kernel has
#ifndef NVLINK_TEST_EMULATOR_KERNELS_HOST_WARP_H
#define NVLINK_TEST_EMULATOR_KERNELS_HOST_WARP_H

#include <atomic>
#include <chrono>

#include "engine/ring/ring_protocol.h"

namespace nvl {

// A full fence as the thread sanitizer knows them: two threads that pass it are
// ordered, whoever comes second sees what was before the first.
inline void host_fence() noexcept
{
    static std::atomic<uint32_t> turnstile{0};
    turnstile.fetch_add(1, std::memory_order_seq_cst);
}

template<typename world> class host_warp {
public:
    host_warp(world &around, const ring_launch &launch) noexcept
        : world_(around),
          shared_(static_cast<ring_shared *>(around.map(launch.shared, sizeof(ring_shared)))),
          state_(static_cast<ring_state *>(around.map(launch.state, sizeof(ring_state))))
    {
    }

    bool is_mapped() const noexcept
    {
        return (shared_ != nullptr) && (state_ != nullptr);
    }

    uint64_t now_ns() const noexcept
    {
        using namespace std::chrono;
        return static_cast<uint64_t>(
            duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
    }

    bool look(uint32_t number, uint32_t generation, ring_view *view)
    {
        in_one_go([&] { view->slot = read_slot(number); }, [&] { view->orders = read_orders(); });
        return ring_is_news(view->orders, number, generation);
    }

    bool look_at_orders(uint32_t number, uint32_t generation, ring_orders *orders)
    {
        world_.step();
        *orders = read_orders();
        return ring_is_news(*orders, number, generation);
    }

    void copy_alone(const ring_descriptor &slot)
    {
        copy(slot);
    }

    void copy(const ring_descriptor &slot)
    {
        world_.step();
        world_.served(slot.sequence);
        uint32_t kind = slot.flags & ring_kind_mask;
        if (kind == ring_kind_nothing) {
            return;
        }
        if (kind == ring_kind_copy) {
            move(slot.dst, slot.src, slot.size_bytes);
        } else if (kind == ring_kind_atomic) {
            do_atomic(slot);
        } else if (void *dst = world_.map(slot.dst, slot.size_bytes)) {
            world_.move(dst, &slot.src, slot.size_bytes);
        } else {
            world_.fault(slot.dst);
        }
    }

    void finish(const ring_descriptor &slot)
    {
        world_.step();
        store(shared_->done[slot.sequence % ring_slots], slot.sequence);
    }

    bool is_done(uint32_t number)
    {
        world_.step();
        return load(shared_->done[number % ring_slots]) == number;
    }

    uint32_t ticks() const noexcept
    {
        return static_cast<uint32_t>(2 * now_ns());
    }

    // Threads of the processor take longer for a look than a GPU waits for one.
    uint32_t pause(uint32_t) const noexcept
    {
        return ticks();
    }

    void mark_skip(uint32_t generation, uint32_t number)
    {
        world_.step();
        store(state_->skip[number % ring_slots], ring_word(generation, number));
    }

    // The stores of this class are releases; a GPU's need it.
    void fence_device()
    {
        world_.step();
    }

    void publish_tail(uint32_t tag, uint32_t tail)
    {
        world_.step();
        store(*tail_word(), ring_word(tag, tail));
    }

    void revoke(uint32_t tag, uint32_t first)
    {
        world_.step();
        store(state_->revoked, ring_word(tag, first));
    }

    void answer(uint32_t worker, uint32_t tag, uint32_t number)
    {
        world_.step();
        store(state_->answers[worker], ring_word(world_.answer(tag), number));
    }

    uint32_t hear(uint32_t tag, uint32_t first, uint32_t count, uint32_t index, uint32_t workers)
    {
        uint32_t behind = first;
        for (uint32_t i = 0; i < count; ++i) {
            uint64_t word;
            do {
                world_.step();
                word = load(state_->answers[(index + i) % workers]);
            } while ((word & ~(uint64_t(ring_taken_bit) << 32)) != ring_word(tag, first + i));
            if ((word >> 63) != 0) {
                behind = first + i + 1;
            }
        }
        return behind;
    }

    void set_narrow_from(uint32_t next)
    {
        world_.step();
        store(state_->narrow_from, next);
    }

    uint32_t narrow_from()
    {
        world_.step();
        return world_.narrow_from(load(state_->narrow_from));
    }

    void say_narrowed(uint32_t generation)
    {
        world_.step();
        store(shared_->narrowed, generation);
        world_.narrowed();
    }

    void rest()
    {
        world_.step();
    }

    void publish_leave(uint32_t generation, uint32_t next)
    {
        world_.step();
        store(state_->left_at[generation % 2], next);
        store(*leave_word(), ring_word(generation, next));
    }

    uint32_t left_at(uint32_t generation)
    {
        return load(state_->left_at[generation % 2]);
    }

    ring_published published()
    {
        uint64_t tail  = 0;
        uint64_t leave = 0;
        in_one_go([&] { tail = load(*tail_word()); }, [&] { leave = load(*leave_word()); });
        ring_published seen;
        seen.tail             = static_cast<uint32_t>(tail);
        seen.tag              = static_cast<uint32_t>(tail >> 32);
        seen.leave_at         = static_cast<uint32_t>(leave);
        seen.leave_generation = static_cast<uint32_t>(leave >> 32);
        return seen;
    }

    ring_fetch fetch(uint32_t generation, uint32_t want, uint32_t workers)
    {
        world_.step();
        ring_fetch fetch;
        fetch.slot    = read_slot(want);
        fetch.skipped = 0;
        for (uint32_t lane = 0; lane < 32; ++lane) {
            uint32_t mine = want + lane * workers;
            uint64_t mark = load(state_->skip[mine % ring_slots]);
            if ((static_cast<uint32_t>(mark >> 32) != generation) ||
                !ring_reached(static_cast<uint32_t>(mark), mine)) {
                break;
            }
            ++fetch.skipped;
        }
        return fetch;
    }

    ring_wait look_again(uint32_t want)
    {
        ring_wait wait;
        in_one_go([&] { wait.slot = read_slot(want); },
                  [&] { wait.revoked = load(state_->revoked); });
        return wait;
    }

    void arrive()
    {
        world_.step();
        __atomic_fetch_add(&state_->arrived, 1, __ATOMIC_RELAXED);
    }

    uint32_t arrived()
    {
        world_.step();
        return __atomic_load_n(&state_->arrived, __ATOMIC_RELAXED);
    }

    void say_hello(uint32_t generation)
    {
        world_.step();
        store(shared_->hello, generation);
        world_.said_hello();
        world_.step();
    }

    void fence_system()
    {
        host_fence();
        world_.step();
    }

    bool is_cancelled(uint32_t generation)
    {
        return world_.is_cancelled(load(shared_->orders.cancel) == generation);
    }

    void say_left(uint32_t generation, uint32_t next)
    {
        world_.step();
        store(shared_->left, ring_word(generation, world_.left_at(next)));
    }

private:
    // A GPU reads both in one go, in no order; here sometimes the one first,
    // sometimes the other.
    template<typename F, typename G> void in_one_go(F read_one, G read_other)
    {
        world_.step();
        bool one_first = (++looks_ % 2) != 0;
        if (one_first) {
            read_one();
            world_.between_halves();
        }
        read_other();
        if (!one_first) {
            world_.between_halves();
            read_one();
        }
    }

    template<typename word> static word load(const word &at) noexcept
    {
        return __atomic_load_n(&at, __ATOMIC_ACQUIRE);
    }

    template<typename word> static void store(word &at, word value) noexcept
    {
        __atomic_store_n(&at, value, __ATOMIC_RELEASE);
    }

    void do_atomic(const ring_descriptor &slot)
    {
        auto *words =
            reinterpret_cast<ring_atomic_words *>(shared_->inline_data[slot.sequence % ring_slots]);
        uint32_t what = (slot.flags >> ring_atomic_shift) & 0xff;
        void    *at   = world_.map(slot.dst, slot.size_bytes);
        if (at == nullptr) {
            world_.fault(slot.dst);
        } else if (slot.size_bytes == sizeof(uint32_t)) {
            words->before =
                atomic_step(static_cast<uint32_t *>(at), what, static_cast<uint32_t>(slot.src),
                            static_cast<uint32_t>(words->compare));
        } else {
            words->before =
                atomic_step(static_cast<uint64_t *>(at), what, slot.src, words->compare);
        }
    }

    // Atomic between the processes that share the memory, as between GPUs.
    template<typename word>
    static word atomic_step(word *at, uint32_t what, word operand, word compare) noexcept
    {
        switch (what) {
        case ring_atomic_add:
            return __atomic_fetch_add(at, operand, __ATOMIC_RELAXED);
        case ring_atomic_and:
            return __atomic_fetch_and(at, operand, __ATOMIC_RELAXED);
        case ring_atomic_or:
            return __atomic_fetch_or(at, operand, __ATOMIC_RELAXED);
        case ring_atomic_xor:
            return __atomic_fetch_xor(at, operand, __ATOMIC_RELAXED);
        case ring_atomic_swap:
            return __atomic_exchange_n(at, operand, __ATOMIC_RELAXED);
        default:
            __atomic_compare_exchange_n(at, &compare, operand, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED);
            return compare; // what was there, in either case
        }
    }

    // Neighbours for the GPU may lie apart here: chunks of one range.
    void move(uint64_t dst, uint64_t src, uint32_t size_bytes)
    {
        void       *to   = world_.map(dst, size_bytes);
        const void *from = world_.map(src, size_bytes);
        if ((to != nullptr) && (from != nullptr)) {
            world_.move(to, from, size_bytes);
        } else if (size_bytes > 1) {
            uint32_t half = size_bytes / 2;
            move(dst, src, half);
            move(dst + half, src + half, size_bytes - half);
        } else {
            world_.fault((to == nullptr) ? dst : src);
        }
    }

    // Two neighbours that are written by one store.
    uint64_t *tail_word() const noexcept
    {
        return static_cast<uint64_t *>(static_cast<void *>(&state_->published.tail));
    }

    uint64_t *leave_word() const noexcept
    {
        return static_cast<uint64_t *>(static_cast<void *>(&state_->published.leave_at));
    }

    ring_orders read_orders() const noexcept
    {
        ring_orders orders;
        orders.leave_now     = load(shared_->orders.leave_now);
        orders.leave_drained = load(shared_->orders.leave_drained);
        orders.tail          = load(shared_->orders.tail);
        orders.cancel        = 0;
        return orders;
    }

    // The numbers first: where they fit, the host no longer writes the rest.
    ring_descriptor read_slot(uint32_t number) const noexcept
    {
        const ring_descriptor &at = shared_->slots[ring_slot(number)];
        ring_descriptor        slot;
        slot.sequence       = load(at.sequence);
        slot.sequence_again = load(at.sequence_again);
        slot.dst            = __atomic_load_n(&at.dst, __ATOMIC_RELAXED);
        slot.src            = __atomic_load_n(&at.src, __ATOMIC_RELAXED);
        slot.size_bytes     = __atomic_load_n(&at.size_bytes, __ATOMIC_RELAXED);
        slot.flags          = __atomic_load_n(&at.flags, __ATOMIC_RELAXED);
        return slot;
    }

    world       &world_;
    ring_shared *shared_;
    ring_state  *state_;
    unsigned     looks_ = 0;
};

} // namespace nvl

#endif
