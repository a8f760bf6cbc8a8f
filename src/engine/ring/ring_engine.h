// SPDX-License-Identifier: BSD-3-Clause
//
// Host side of the lingering copy kernel: posts copies into a ring that a few
// warps of the GPU take from, sees them done, launches the kernel while there
// is work and takes back what it left behind. Called by uct through the GPU's
// engines; calls the driver only to launch, and the copy engine's lane for
// what it takes back.
#ifndef NVLINK_ENGINE_RING_RING_ENGINE_H
#define NVLINK_ENGINE_RING_RING_ENGINE_H

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "driver/pinned_block.h"
#include "engine/lane.h"
#include "engine/op.h"
#include "engine/ring/ring.h"

namespace nvl {

struct ring_config {
    // The two sizes of a launch. Small: lone small operations, with few threads,
    // so that an SM has room for the application's blocks beside it; its kernel
    // has 16 loads a lane in flight. Large: streams; its kernel needs fewer
    // registers, since there are more threads of it.
    unsigned small_blocks = 1;
    unsigned small_warps  = 4;
    unsigned large_blocks = 32;
    unsigned large_warps  = 16;
    // With more descriptors in flight than this a small kernel is replaced by a
    // large one: its few workers would take turns.
    uint32_t growth_descriptors = 8;
    // The poller does a lone operation up to this size itself.
    uint32_t alone_bytes = 8192;
    // A large operation is cut: up to chunk_limit_bytes into chunks of
    // chunk_small_bytes, above it of chunk_large_bytes. In a stream (more than
    // stream_descriptors in flight) into chunks of chunk_stream_bytes; but those of
    // a larger operation into stream_pieces of chunk_large_bytes at least, so that
    // more are in flight than there are warps, and of twice chunk_stream_bytes at most.
    uint32_t chunk_small_bytes  = 4096;
    uint32_t chunk_large_bytes  = 8192;
    uint32_t chunk_stream_bytes = 16384;
    size_t   chunk_limit_bytes  = 65536;
    uint32_t stream_descriptors = 32;
    uint32_t stream_pieces      = 32;
    // In a stream so many workers look for the next descriptors themselves, at most
    // ring_granted_max; 0: each waits until the poller has seen its own.
    uint32_t granted = ring_granted_max;
    // The kernel leaves after idle_ns without work, at the latest after stay_ns.
    double idle_ns = 50e3;
    double stay_ns = 2e6;
    // Before that a large one narrows to as many warps as a small one has, after narrow_ns
    // without work; up to narrow_most_ns where streams follow each other later than that.
    double narrow_ns      = 10e3;
    double narrow_most_ns = 50e3;
    // With work in the ring, a kernel that was launched has this long to report
    // in; without, patience_ns.
    double hello_timeout_ns = 50e3;
    double patience_ns      = 1e6;
    // A launch follows a call of summon() only if the one before it was at most
    // this long ago: a single operation does not pay for a kernel.
    double burst_gap_ns = 200e3;
    // Pause before the next launch after a cancelled one, or after several
    // kernels that had nothing to do; doubles up to backoff_max_ns.
    double   backoff_min_ns = 200e3;
    double   backoff_max_ns = 100e6;
    uint32_t barren_ops     = 2; // a kernel that took fewer had nothing to do
    unsigned barren_max     = 4; // so many of them in a row are several
    // So many descriptors left behind go to the copy engine; more get a kernel.
    uint32_t take_back_max = 16;
    // Atomic operations and markers that may wait for a kernel; 0: there are none.
    uint32_t    atomic_depth = 512;
    uint32_t    first_number = 1; // sequence number of the first descriptor
    const char *small_kernel = "nvl_ring_kernel";
    const char *large_kernel = "nvl_ring_kernel_lean";
};

struct ring_counts {
    uint64_t launches   = 0;
    uint64_t handovers  = 0; // launches behind a kernel that was still there
    uint64_t cancelled  = 0;
    uint64_t taken_back = 0; // descriptors
    uint64_t barren     = 0;
    uint64_t widened    = 0; // launches of a large kernel behind one that had narrowed
};

// An atomic operation on 4 or 8 bytes that the GPU reaches at `dst`, a multiple of
// that. `result`: host memory for what was there before, or null.
struct atomic_request {
    uint64_t    dst;
    uint64_t    operand;
    uint64_t    compare; // of compare_swap
    void       *result;
    uint32_t    size_bytes;
    ring_atomic what;
};

// Owned by one interface; used under its worker's lock, so by one thread at a
// time.
class ring_engine {
public:
    // Everything that may block is done here: the module is loaded, memory
    // allocated, the kernel resolved. UCS_ERR_UNSUPPORTED with a debug line
    // where the kernel cannot run. `fallback` must outlive the engine and
    // belongs to the same thread.
    static result<std::unique_ptr<ring_engine>> create(const cuda_api &cuda, CUcontext context,
                                                       CUdevice device, lane &fallback,
                                                       const ring_config &config) noexcept;

    // Was the kernel compiled for a GPU?
    static bool has_code_for(const cuda_api &cuda, CUdevice device) noexcept;

    // Why no kernel can run on a GPU, as far as that can be known before there is a
    // context and a module is loaded; null: it can.
    static const char *why_not(const cuda_api &cuda, CUdevice device) noexcept;

    // Has the kernel leave, waits for it (bounded), frees. What is in flight
    // is not reported; what it used is released.
    ~ring_engine();

    ring_engine(const ring_engine &)            = delete;
    ring_engine &operator=(const ring_engine &) = delete;

    // Does a kernel take from the ring? One load in the common case.
    bool ready() noexcept
    {
        return __builtin_expect((state_ == state::running) && !has_left(), 1) || refresh();
    }

    // Says that there is work of `size_bytes` an operation that the ring could
    // do: launches the kernel where that pays and none is there, or a larger
    // one. Never waits; next to nothing while the right one is there.
    void summon(size_t size_bytes) noexcept
    {
        bool is_right = (state_ == state::running) && !has_left() &&
                        (is_large() || (size_bytes <= config_.alone_bytes));
        if (__builtin_expect(!is_right, 0)) {
            summon_kernel(size_bytes);
        }
    }

    // For work that is worth a kernel by itself, a list: launches at once, and
    // waits for the kernel to report in, but at most `most_ns`. True if it did.
    bool await(size_t size_bytes, double most_ns) noexcept;

    // Posts `count` copies as one operation. `is_near`: all targets are in the memory
    // of this engine's GPU. UCS_INPROGRESS: `end` is finished by poll().
    // UCS_ERR_NO_RESOURCE: no kernel or no room, nothing was posted.
    // UCS_ERR_EXCEEDS_LIMIT: more than the ring could ever hold.
    ucs_status_t submit(const copy_piece *pieces, size_t count, const op_end &end,
                        bool is_near = false) noexcept;

    // The same with bytes of the host, at most ring_inline_bytes, which are
    // copied before it returns.
    ucs_status_t submit_inline(uint64_t dst, const void *bytes, uint32_t size_bytes,
                               const op_end &end) noexcept;

    // Done exactly once, by a kernel alone: where none is there it waits for one,
    // which is launched. UCS_INPROGRESS, or UCS_ERR_NO_RESOURCE: too many are in
    // flight, or another error: no kernel will ever come.
    ucs_status_t submit_atomic(const atomic_request &request, const op_end &end) noexcept;

    // An operation without bytes, finished once all before it are. Needs no
    // kernel; UCS_ERR_NO_RESOURCE if the ring is full.
    ucs_status_t submit_marker(const op_end &end) noexcept;

    bool has_marker_room() const noexcept
    {
        return (room() != 0) && ((waiting_ == nullptr) || (free_waiters_ != nullptr));
    }

    // Finishes what is done, in the order of posting, at most `max` operations;
    // returns how many.
    unsigned poll(unsigned max) noexcept;

    // Descriptors in flight.
    uint32_t in_flight() const noexcept
    {
        return posted_ - finished_;
    }

    // Something is in flight, or waits for a kernel.
    bool is_busy() const noexcept
    {
        return (finished_ != posted_) || (waiting_ != nullptr);
    }

    // Nothing in flight and no kernel there or on its way.
    bool quiet() noexcept;

    // Asks the kernel to leave once it has taken all that is posted.
    void request_leave() noexcept;

    // For blocking progress: asks the kernel to leave and calls fn(arg) on the
    // stream behind it. UCS_ERR_BUSY: poll() has something to do now, nothing
    // was armed.
    ucs_status_t arm(CUhostFn fn, void *arg) noexcept;

    bool is_broken() const noexcept
    {
        return broken_ != UCS_OK;
    }

    const ring_counts &counts() const noexcept
    {
        return counts_;
    }

    ring_engine(const cuda_api &cuda, const life_ref &life, lane &fallback,
                const ring_config &config) noexcept;

private:
    // idle: no kernel. launched: not reported in yet. running: reported in.
    // cancelled: will take nothing when it starts, what it had is taken back.
    enum class state { idle, launched, running, cancelled };

    // So often in a row may the driver refuse a launch.
    static constexpr unsigned refused_max = 3;

    // What the lane tells when a batch is copied; may outlive the engine.
    struct batch {
        uct_completion_t comp;
        ring_engine     *self;
    };

    // An atomic operation, in the ring or waiting for a kernel, or a marker behind
    // one that waits. In the ring it is the operation's `use`: its end comes here.
    struct waiter : op_use {
        waiter() noexcept : op_use(&ring_engine::atomic_ended)
        {
        }

        waiter        *next = nullptr; // free, or waiting
        ring_engine   *self = nullptr;
        op_end         end{};
        atomic_request request{};
        uint32_t       slot      = 0;
        bool           is_marker = false;
        bool           is_extra  = false; // not of the pool
    };

    // So many of the pool are left to markers.
    static constexpr uint32_t marker_reserve = 32;

    ucs_status_t open(CUdevice device) noexcept;
    ucs_status_t load_kernels() noexcept;
    ucs_status_t load_kernel(const char *name, CUfunction *kernel) noexcept;
    ucs_status_t allocate() noexcept;
    ucs_status_t allocate_shared() noexcept;
    void         clear_ring() noexcept;

    // acquire: what the kernel wrote before it left is there.
    bool has_left() const noexcept
    {
        return static_cast<uint32_t>(__atomic_load_n(&shared_->left, __ATOMIC_ACQUIRE) >> 32) ==
               newest_;
    }
    // Is the newest kernel a large one, which has not narrowed?
    bool is_large() const noexcept
    {
        return large_ && (__atomic_load_n(&shared_->narrowed, __ATOMIC_RELAXED) != newest_);
    }
    void     summon_kernel(size_t size_bytes) noexcept;
    bool     refresh() noexcept;
    void     kernel_gone(uint32_t left_at) noexcept;
    void     note_service(uint32_t taken) noexcept;
    void     summon_now(size_t size_bytes, bool is_burst) noexcept;
    void     back_off() noexcept;
    bool     launch(bool large, bool follow) noexcept;
    unsigned narrow_warps() const noexcept;
    void     hand_over(bool large) noexcept;
    void     consider_growth(size_t size_bytes) noexcept;
    void     cancel() noexcept;
    unsigned attend() noexcept;
    void     attend_waiting(uint64_t now) noexcept;
    void     check_stall(uint64_t now) noexcept;
    void     kernel_lost() noexcept;
    unsigned fail_all(ucs_status_t status) noexcept;
    void     release_uses() noexcept;

    ucs_status_t submit_cut(const copy_piece *pieces, size_t count, const op_end &end,
                            uint32_t flags) noexcept;
    uint32_t     chunk_bytes(size_t size_bytes, uint32_t load) const noexcept;
    uint64_t     inline_address(uint32_t slot) const noexcept
    {
        return shared_device_ + offsetof(ring_shared, inline_data) + slot * ring_inline_bytes;
    }
    bool     is_done(uint32_t number) const noexcept;
    bool     is_worth_a_look() noexcept;
    bool     is_turn_to_attend() noexcept;
    void     write_slot(uint64_t dst, uint64_t src, uint32_t size_bytes, uint32_t flags) noexcept;
    void     write_copy(const copy_piece &piece, uint32_t chunk, uint32_t flags) noexcept;
    void     post(const op_end &end) noexcept;
    uint32_t room() const noexcept
    {
        return ring_slots - in_flight();
    }

    waiter      *take_waiter(const op_end &end) noexcept;
    void         free_waiter(waiter *one) noexcept;
    void         wait_for_kernel(waiter *one) noexcept;
    ucs_status_t wait_marker(const op_end &end) noexcept;
    void         post_atomic(waiter *one) noexcept;
    void         post_marker(const op_end &end) noexcept;
    void         call_kernel() noexcept;
    void         post_waiting() noexcept;
    unsigned     serve_waiting() noexcept;
    unsigned     fail_waiting(ucs_status_t status) noexcept;
    void         reclaim_atomics(bool is_lost) noexcept;
    waiter      *pull_out(uint32_t number) noexcept;
    void         drop_waiting() noexcept;
    bool         has_end(uint32_t number) const noexcept;
    void         forget_end(uint32_t number) noexcept;
    static void  atomic_ended(op_use *use) noexcept;

    ring_atomic_words &words_at(uint32_t slot) const noexcept
    {
        return *reinterpret_cast<ring_atomic_words *>(shared_->inline_data[slot]);
    }

    void        take_back() noexcept;
    void        take_back_next() noexcept;
    void        end_batch(bool may_wait) noexcept;
    void        mark_done(uint32_t first, uint32_t last) noexcept;
    uint32_t    gather(copy_piece *pieces, unsigned max, unsigned *count_p) noexcept;
    static void taken_back(uct_completion_t *comp) noexcept;

    // ---- read by every post and poll
    ring_shared              *shared_ = nullptr;
    std::unique_ptr<op_end[]> ends_;
    uint32_t                  posted_      = 0; // last number that is written
    uint32_t                  finished_    = 0; // last number that is reported
    state                     state_       = state::idle;
    uint32_t                  generation_  = 0;     // of the kernel that state_ is about
    uint32_t                  newest_      = 0;     // of the last launch
    bool                      large_       = false; // what the last launch was
    ucs_status_t              broken_      = UCS_OK;
    uint32_t                  polls_       = 0;
    uint32_t                  polled_      = 0; // posted_ at the last poll
    uint32_t                  hesitations_ = 0;
    uint32_t                  turns_       = 0;
    waiter                   *waiting_     = nullptr; // the first that waits for a kernel

    // ---- out of line
    const cuda_api &cuda_;
    life_ref        life_;
    lane           &fallback_;
    ring_config     config_;
    module          module_;
    CUfunction      small_kernel_ = nullptr;
    CUfunction      large_kernel_ = nullptr;
    stream          stream_;
    pinned_block    shared_block_;
    device_block    state_block_;
    uint64_t        shared_device_ = 0;

    uint32_t first_          = 0; // first number that the current or next kernel takes
    uint64_t launched_ticks_ = 0;
    uint64_t hello_ticks_    = 0;
    uint64_t waiting_ticks_  = 0; // since when work waits for a hello; 0: none does
    uint64_t summoned_ticks_ = 0;
    uint64_t not_before_     = 0; // no launch before these ticks
    uint64_t backoff_ticks_  = 0;
    double   narrow_ns_      = 0; // what the next large kernel is told
    uint64_t stall_ticks_    = 0;
    bool     want_large_     = false; // what was seen since the last launch asks for it
    unsigned barren_         = 0;
    unsigned refused_        = 0; // launches in a row that the driver refused
    uint32_t arrivals_       = 0; // blocks of all launches so far

    std::unique_ptr<waiter[]> waiters_;
    waiter                   *free_waiters_ = nullptr;
    waiter                   *last_waiting_ = nullptr;
    uint32_t                  num_free_     = 0;
    uint32_t                  atomics_      = 0;     // in the ring
    bool                      for_waiting_  = false; // the last launch was

    // What is taken back: the numbers back_next_ to back_last_ are still to be
    // handed to the lane, batch_first_ to batch_last_ are with it.
    uint32_t               back_next_   = 0;
    uint32_t               back_last_   = 0;
    uint32_t               batch_first_ = 0;
    uint32_t               batch_last_  = 0;
    bool                   backing_     = false;
    bool                   batch_out_   = false;
    std::unique_ptr<batch> batch_;

    ring_counts counts_;
};

} // namespace nvl

#endif
