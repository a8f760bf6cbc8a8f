// SPDX-License-Identifier: BSD-3-Clause
//
// Device side of the lingering copy kernel: how a warp of the GPU takes the
// steps of ring_protocol.h. Built into a fat binary that the library carries
// and that ring_engine loads through the driver API; uses no CUDA runtime.
//
// Words that the host or another warp writes are read by volatile loads: they
// go to the memory and stay in the order in which they are issued.
#include "engine/ring/ring_atomic.h"
#include "engine/ring/ring_copy.h"
#include "engine/ring/ring_protocol.h"

namespace nvl {

namespace {

// All members are called by the whole warp and return the same to each lane.
template<int alone_depth, int worker_depth> class gpu_warp {
public:
    __device__ explicit gpu_warp(const ring_launch &launch)
        : shared_(reinterpret_cast<ring_shared *>(launch.shared)),
          state_(reinterpret_cast<ring_state *>(launch.state)),
          lane_(threadIdx.x % 32)
    {
    }

    __device__ __forceinline__ uint64_t now_ns() const
    {
        uint64_t t;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
        return from(t, 0);
    }

    // False, and nothing is read: `number` is not posted, and the generation is not to leave.
    __device__ __forceinline__ bool look(uint32_t number, uint32_t generation,
                                         ring_view *view) const
    {
        uint64_t at = (lane_ < 2) ? slot_half(number) : address(&shared_->orders);
        uint4    v  = make_uint4(0, 0, 0, 0);
        if (lane_ < 3) {
            v = load_line(at);
        }
        if (!is_news(v, 2, number, generation)) {
            return false;
        }
        view->slot   = slot_of(v);
        view->orders = orders_of(v, 2);
        return true;
    }

    __device__ __forceinline__ bool look_at_orders(uint32_t number, uint32_t generation,
                                                   ring_orders *orders) const
    {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (lane_ == 0) {
            v = load_line(address(&shared_->orders));
        }
        if (!is_news(v, 0, number, generation)) {
            return false;
        }
        *orders = orders_of(v, 0);
        return true;
    }

    __device__ __forceinline__ void copy_alone(const ring_descriptor &slot) const
    {
        copy_slot<alone_depth>(slot);
    }

    __device__ __forceinline__ void copy(const ring_descriptor &slot) const
    {
        copy_slot<worker_depth>(slot);
    }

    // The warp meets, then one lane releases for all: whoever hears of the number
    // from the host finds every byte at its place. Bytes in this GPU's own memory
    // are there once they are in its L2, through which SMs, copy engines, peers and
    // the host all go; waiting for the whole system takes 0.3 us longer (two H200).
    __device__ __forceinline__ void finish(const ring_descriptor &slot) const
    {
        __syncwarp();
        if (lane_ == 0) {
            uint32_t *done = &shared_->done[slot.sequence % ring_slots];
            if ((slot.flags & ring_flag_near) != 0) {
                asm volatile("st.release.gpu.global.u32 [%0], %1;"
                             :
                             : "l"(done), "r"(slot.sequence)
                             : "memory");
            } else {
                asm volatile("st.release.sys.global.u32 [%0], %1;"
                             :
                             : "l"(done), "r"(slot.sequence)
                             : "memory");
            }
        }
    }

    __device__ __forceinline__ bool is_done(uint32_t number) const
    {
        uint32_t v = 0;
        if (lane_ == 0) {
            v = *static_cast<const volatile uint32_t *>(&shared_->done[number % ring_slots]);
        }
        return from(v, 0) == number;
    }

    // Of the SM's clock.
    __device__ __forceinline__ uint32_t ticks() const
    {
        uint32_t t;
        asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
        return from(t, 0);
    }

    // Returns when it began.
    __device__ __forceinline__ uint32_t pause(uint32_t for_ticks) const
    {
        const uint32_t start = ticks();
        while ((for_ticks != 0) && (ticks() - start < for_ticks)) {
        }
        return start;
    }

    __device__ __forceinline__ void mark_skip(uint32_t generation, uint32_t number) const
    {
        store_state(&state_->skip[number % ring_slots], ring_word(generation, number));
    }

    __device__ __forceinline__ void fence_device() const
    {
        __threadfence();
    }

    __device__ __forceinline__ void publish_tail(uint32_t tag, uint32_t tail) const
    {
        store_state(&state_->published.tail, ring_word(tag, tail));
    }

    __device__ __forceinline__ void revoke(uint32_t tag, uint32_t first) const
    {
        store_state(&state_->revoked, ring_word(tag, first));
    }

    __device__ __forceinline__ void answer(uint32_t worker, uint32_t tag, uint32_t number) const
    {
        store_state(&state_->answers[worker], ring_word(tag, number));
    }

    // Waits until the workers of `count` numbers from `first` on, which is worker `index`'s,
    // have answered; returns the number behind the last that is taken, or `first`.
    __device__ __forceinline__ uint32_t hear(uint32_t tag, uint32_t first, uint32_t count,
                                             uint32_t index, uint32_t workers) const
    {
        const uint64_t *at    = &state_->answers[(index + lane_) % workers];
        const uint64_t  want  = ring_word(tag, first + lane_);
        const uint64_t  taken = static_cast<uint64_t>(ring_taken_bit) << 32;
        uint64_t        word;
        bool            is_answer;
        do {
            word      = *static_cast<const volatile uint64_t *>(at);
            is_answer = (lane_ >= count) || ((word & ~taken) == want);
        } while (__ballot_sync(all_lanes, is_answer) != all_lanes);
        const uint32_t all = __ballot_sync(all_lanes, (lane_ < count) && ((word & taken) != 0));
        return first + 32 - __clz(static_cast<int>(all));
    }

    __device__ __forceinline__ void set_narrow_from(uint32_t next) const
    {
        if (lane_ == 0) {
            *static_cast<volatile uint32_t *>(&state_->narrow_from) = next;
        }
    }

    __device__ __forceinline__ uint32_t narrow_from() const
    {
        uint32_t v = 0;
        if (lane_ == 0) {
            v = *static_cast<const volatile uint32_t *>(&state_->narrow_from);
        }
        return from(v, 0);
    }

    __device__ __forceinline__ void say_narrowed(uint32_t generation) const
    {
        if (lane_ == 0) {
            *static_cast<volatile uint32_t *>(&shared_->narrowed) = generation;
        }
    }

    // Warps that look all the time take part in what a block on their SM has to issue: 12 % of its
    // time beside 15, 3 % beside 3 (bench/beside, one_block_an_sm, one H200).
    __device__ __forceinline__ void rest() const
    {
#if __CUDA_ARCH__ >= 700
        __nanosleep(1000);
#else
        pause(1000);
#endif
    }

    __device__ __forceinline__ void publish_leave(uint32_t generation, uint32_t next) const
    {
        if (lane_ == 0) {
            state_->left_at[generation % 2] = next;
        }
        store_state(&state_->published.leave_at, ring_word(generation, next));
    }

    __device__ __forceinline__ uint32_t left_at(uint32_t generation) const
    {
        return state_->left_at[generation % 2];
    }

    __device__ __forceinline__ ring_published published() const
    {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (lane_ == 0) {
            v = load_line(address(&state_->published));
        }
        ring_published seen;
        seen.tail             = from(v.x, 0);
        seen.tag              = from(v.y, 0);
        seen.leave_at         = from(v.z, 0);
        seen.leave_generation = from(v.w, 0);
        return seen;
    }

    // Lanes 0 and 1 read the descriptor, all of them the marks of this
    // worker's next 32 numbers. A slot marked for a later number was freed by
    // the host, so what it held before is done too.
    __device__ __forceinline__ ring_fetch fetch(uint32_t generation, uint32_t want,
                                                uint32_t workers) const
    {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (lane_ < 2) {
            v = load_line(slot_half(want));
        }
        uint32_t mine = want + lane_ * workers;
        uint64_t mark = *static_cast<const volatile uint64_t *>(&state_->skip[mine % ring_slots]);
        bool     skip = (static_cast<uint32_t>(mark >> 32) == generation) &&
                    ring_reached(static_cast<uint32_t>(mark), mine);
        uint32_t busy = ~__ballot_sync(all_lanes, skip);

        ring_fetch fetch;
        fetch.slot    = slot_of(v);
        fetch.skipped = (busy == 0) ? 32 : __ffs(busy) - 1;
        return fetch;
    }

    __device__ __forceinline__ ring_wait look_again(uint32_t want) const
    {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (lane_ < 3) {
            v = load_line((lane_ < 2) ? slot_half(want) : address(&state_->revoked));
        }
        ring_wait wait;
        wait.slot    = slot_of(v);
        wait.revoked = ring_word(from(v.y, 2), from(v.x, 2));
        return wait;
    }

    __device__ __forceinline__ void arrive() const
    {
        if (lane_ == 0) {
            atomicAdd(&state_->arrived, 1u);
        }
    }

    __device__ __forceinline__ uint32_t arrived() const
    {
        uint32_t v = 0;
        if (lane_ == 0) {
            v = *static_cast<const volatile uint32_t *>(&state_->arrived);
        }
        return from(v, 0);
    }

    __device__ __forceinline__ void say_hello(uint32_t generation) const
    {
        if (lane_ == 0) {
            *static_cast<volatile uint32_t *>(&shared_->hello) = generation;
        }
    }

    __device__ __forceinline__ void fence_system() const
    {
        __threadfence_system();
    }

    __device__ __forceinline__ bool is_cancelled(uint32_t generation) const
    {
        uint32_t v = 0;
        if (lane_ == 0) {
            v = *static_cast<const volatile uint32_t *>(&shared_->orders.cancel);
        }
        return from(v, 0) == generation;
    }

    __device__ __forceinline__ void say_left(uint32_t generation, uint32_t next) const
    {
        if (lane_ == 0) {
            asm volatile("st.release.sys.global.u64 [%0], %1;"
                         :
                         : "l"(&shared_->left), "l"(ring_word(generation, next))
                         : "memory");
        }
    }

private:
    template<typename word> __device__ __forceinline__ static word from(word v, uint32_t lane)
    {
        return __shfl_sync(all_lanes, v, lane);
    }

    __device__ __forceinline__ static uint64_t address(const void *p)
    {
        return reinterpret_cast<uint64_t>(p);
    }

    __device__ __forceinline__ uint64_t slot_half(uint32_t number) const
    {
        return address(&shared_->slots[ring_slot(number)]) + 16 * lane_;
    }

    // Of orders that `lane` holds.
    __device__ __forceinline__ bool is_news(uint4 v, uint32_t lane, uint32_t number,
                                            uint32_t generation) const
    {
        const ring_orders orders = {v.x, v.y, v.z, 0};
        return __any_sync(all_lanes, (lane_ == lane) && ring_is_news(orders, number, generation)) !=
               0;
    }

    __device__ __forceinline__ static ring_orders orders_of(uint4 v, uint32_t lane)
    {
        return {from(v.x, lane), from(v.y, lane), from(v.z, lane), 0};
    }

    // From the halves that lanes 0 and 1 hold.
    __device__ __forceinline__ static ring_descriptor slot_of(uint4 v)
    {
        ring_descriptor slot;
        slot.dst            = ring_word(from(v.y, 0), from(v.x, 0));
        slot.size_bytes     = from(v.z, 0);
        slot.sequence       = from(v.w, 0);
        slot.src            = ring_word(from(v.y, 1), from(v.x, 1));
        slot.sequence_again = from(v.z, 1);
        slot.flags          = from(v.w, 1);
        return slot;
    }

    template<int depth> __device__ __forceinline__ void copy_slot(const ring_descriptor &slot) const
    {
        uint32_t kind = slot.flags & ring_kind_mask;
        if (kind == ring_kind_atomic) {
            if (lane_ == 0) {
                do_atomic(slot, reinterpret_cast<ring_atomic_words *>(
                                    shared_->inline_data[slot.sequence % ring_slots]));
            }
        } else if (kind == ring_kind_copy) {
            copy_any<depth>(slot.dst, slot.src, slot.size_bytes, lane_);
        } else if (kind == ring_kind_immediate) {
            store_immediate(slot.dst, slot.src, slot.size_bytes, lane_);
        }
    }

    // `at` is the first of two words that are written by one store.
    __device__ __forceinline__ void store_state(void *at, uint64_t value) const
    {
        if (lane_ == 0) {
            *static_cast<volatile uint64_t *>(at) = value;
        }
    }

    ring_shared *shared_;
    ring_state  *state_;
    uint32_t     lane_;
};

// Consecutive numbers go to different SMs.
template<int alone_depth, int worker_depth>
__device__ __forceinline__ void run(const ring_launch &launch)
{
    gpu_warp<alone_depth, worker_depth> self(launch);
    ring_run(self, launch, blockIdx.x + gridDim.x * (threadIdx.x / 32),
             gridDim.x * (blockDim.x / 32));
}

} // namespace

} // namespace nvl

// For the small launch: few threads, each with as many registers as 16 loads in
// flight want.
extern "C" __global__ void __launch_bounds__(256) nvl_ring_kernel(nvl::ring_launch launch)
{
    nvl::run<16, 8>(launch);
}

// For the large launch: fewer registers a thread, so that an SM keeps some for
// the application; a lone copy above 4 KiB takes a second round trip.
extern "C" __global__ void __launch_bounds__(512, 1) nvl_ring_kernel_lean(nvl::ring_launch launch)
{
    nvl::run<8, 8>(launch);
}
