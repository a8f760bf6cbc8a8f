// SPDX-License-Identifier: BSD-3-Clause
//
// The life of the ring's kernel, as its host sees it: opening, launching,
// finding out that it came or went, and taking back what it left behind. The
// slow half of ring_engine, split off so that the data path can be read alone.
#include "engine/ring/ring_engine.h"

#include "build_config.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "engine/ring/ring_image.h"
#include "engine/ring/ring_words.h"

namespace nvl {

namespace {

// How long closing waits for a kernel that does not leave: an application's
// kernel may be in front of it. After that its memory is leaked.
constexpr double close_timeout_ns = 5e9;

int attribute(const cuda_api &cuda, CUdevice device, CUdevice_attribute which) noexcept
{
    int value = 0;
    (void)cuda.cuDeviceGetAttribute(&value, which, device);
    return value;
}

} // namespace

// ---- opening and closing ----------------------------------------------------

// Machine code runs on later GPUs of the same generation, PTX on all later ones.
bool ring_engine::has_code_for(const cuda_api &cuda, CUdevice device) noexcept
{
    constexpr int archs[] = RING_KERNEL_ARCHS;
    constexpr int last    = sizeof(archs) / sizeof(archs[0]) - 1;
    int           major   = attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    int           minor   = attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    int           mine    = 10 * major + minor;
    for (int arch : archs) {
        if ((arch / 10 == major) && (arch <= mine)) {
            return true;
        }
    }
    return archs[last] <= mine;
}

const char *ring_engine::why_not(const cuda_api &cuda, CUdevice device) noexcept
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    if ((blocking != nullptr) && (strcmp(blocking, "1") == 0)) {
        return "CUDA_LAUNCH_BLOCKING=1 makes every launch wait for its end";
    }
    if (ring_kernel_image_size_bytes == 0) {
        return "this build has no copy kernel";
    }
    if ((cuda.cuModuleLoadData == nullptr) || (cuda.cuModuleUnload == nullptr) ||
        (cuda.cuModuleGetFunction == nullptr) || (cuda.cuFuncSetAttribute == nullptr) ||
        (cuda.cuLaunchKernel == nullptr)) {
        return "the driver cannot launch kernels";
    }
    if (attribute(cuda, device, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0) {
        return "it cannot map host memory";
    }
    return nullptr;
}

result<std::unique_ptr<ring_engine>> ring_engine::create(const cuda_api &cuda, CUcontext context,
                                                         CUdevice device, lane &fallback,
                                                         const ring_config &config) noexcept
{
    if (const char *reason = why_not(cuda, device)) {
        NVL_DEBUG("no copy kernel on device %d: %s", device, reason);
        return UCS_ERR_UNSUPPORTED;
    }
    if ((config.small_blocks * config.small_warps < 2) || (config.small_warps > 8) ||
        (config.large_warps < 2) || (config.large_warps > 16) ||
        (config.large_blocks < config.small_blocks) || (config.alone_bytes == 0) ||
        (config.chunk_small_bytes == 0) || (config.chunk_large_bytes == 0) ||
        (config.chunk_stream_bytes == 0)) {
        return UCS_ERR_INVALID_PARAM;
    }

    result<life_ref> life = context_life::of(cuda, context);
    if (!life.ok()) {
        return life.status();
    }
    std::unique_ptr<ring_engine> self(new (std::nothrow)
                                          ring_engine(cuda, life.value(), fallback, config));
    if (!self) {
        return UCS_ERR_NO_MEMORY;
    }
    context_guard guard(cuda, context);
    if (!guard.ok()) {
        return cuda_failed(cuda, guard.code(), "cuCtxPushCurrent", 1);
    }
    relaxed_capture relaxed(cuda);
    ucs_status_t    status = self->open(device);
    if (status != UCS_OK) {
        return status;
    }
    return self;
}

ucs_status_t ring_engine::open(CUdevice device) noexcept
{
    // Blocks that cannot all be there at once would wait for each other.
    int sms = attribute(cuda_, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    config_.large_blocks =
        std::max(config_.small_blocks, std::min(config_.large_blocks, static_cast<unsigned>(sms)));
    // A worker answers for one number at a time.
    config_.granted = std::min(
        {config_.granted, ring_granted_max, config_.large_blocks * config_.large_warps - 1});
    (void)clock_rate(); // takes its time once, not in the first post

    ucs_status_t status = load_kernels();
    if (status != UCS_OK) {
        NVL_DEBUG("no copy kernel on device %d: it cannot be loaded", device);
        return status;
    }
    return allocate();
}

ucs_status_t ring_engine::load_kernels() noexcept
{
    CUmodule raw  = nullptr;
    CUresult code = cuda_.cuModuleLoadData(&raw, ring_kernel_image);
    if (code != CUDA_SUCCESS) {
        (void)cuda_failed(cuda_, code, "cuModuleLoadData", 5);
        return UCS_ERR_UNSUPPORTED;
    }
    module_ = module(cuda_, life_, raw);

    ucs_status_t status = load_kernel(config_.small_kernel, &small_kernel_);
    return (status == UCS_OK) ? load_kernel(config_.large_kernel, &large_kernel_) : status;
}

ucs_status_t ring_engine::load_kernel(const char *name, CUfunction *kernel) noexcept
{
    CUresult code = cuda_.cuModuleGetFunction(kernel, module_.get(), name);
    if (code != CUDA_SUCCESS) {
        (void)cuda_failed(cuda_, code, "cuModuleGetFunction", 5);
        return UCS_ERR_UNSUPPORTED;
    }
    // A lazily loaded kernel would be loaded by its first launch, and that can
    // wait for the whole device.
    if (cuda_.cuFuncLoad != nullptr) {
        (void)cuda_.cuFuncLoad(*kernel);
    }
    // The division of the SM that a lingering block keeps: with all of it
    // shared memory, a large block of the application fits beside.
    (void)cuda_.cuFuncSetAttribute(*kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                   CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    return UCS_OK;
}

ucs_status_t ring_engine::allocate() noexcept
{
    ends_.reset(new (std::nothrow) op_end[ring_slots]);
    batch_.reset(new (std::nothrow) batch);
    waiters_.reset(new (std::nothrow) waiter[config_.atomic_depth]);
    if (!ends_ || !batch_ || !waiters_) {
        return UCS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < config_.atomic_depth; ++i) {
        free_waiter(&waiters_[i]);
    }

    int lowest = 0, greatest = 0;
    if (cuda_.cuCtxGetStreamPriorityRange != nullptr) {
        (void)cuda_.cuCtxGetStreamPriorityRange(&lowest, &greatest);
    }
    CUstream     raw = nullptr;
    ucs_status_t status =
        NVL_CUDA_CALL(cuda_, cuStreamCreateWithPriority, &raw, CU_STREAM_NON_BLOCKING, greatest);
    if (status != UCS_OK) {
        return status;
    }
    stream_ = stream(cuda_, life_, raw);

    status = allocate_shared();
    if (status != UCS_OK) {
        return status;
    }

    CUdeviceptr address = 0;
    status              = NVL_CUDA_CALL(cuda_, cuMemAlloc, &address, sizeof(ring_state));
    if (status != UCS_OK) {
        return status;
    }
    state_block_ = device_block(cuda_, life_, address);
    clear_ring();
    // Generation 0 is nobody's, so that a zero is never taken for a word.
    status = NVL_CUDA_CALL(cuda_, cuMemsetD8Async, address, 0, sizeof(ring_state), stream_.get());
    return (status == UCS_OK) ? NVL_CUDA_CALL(cuda_, cuStreamSynchronize, stream_.get()) : status;
}

ucs_status_t ring_engine::allocate_shared() noexcept
{
    CUresult             code = CUDA_SUCCESS;
    result<pinned_block> made = pinned_block::make(cuda_, life_, sizeof(ring_shared), &code);
    if (!made.ok()) {
        return cuda_failed(cuda_, code, "page-locked memory of the copy kernel", 1);
    }
    shared_block_  = std::move(made.value());
    shared_        = static_cast<ring_shared *>(shared_block_.get());
    shared_device_ = shared_block_.on_gpu();
    return UCS_OK;
}

// As if every slot had just gone through its last lap.
void ring_engine::clear_ring() noexcept
{
    memset(static_cast<void *>(shared_), 0, sizeof(ring_shared));
    for (uint32_t i = 0; i < ring_slots; ++i) {
        uint32_t         past = config_.first_number + i - ring_slots;
        ring_descriptor &slot = shared_->slots[ring_slot(past)];
        slot.sequence = slot.sequence_again = past;
        shared_->done[past % ring_slots]    = past;
    }
    shared_->orders.tail = posted_;
}

// What it took back is in the lane: waits for that, or leaves it to the lane.
void ring_engine::end_batch(bool may_wait) noexcept
{
    if (batch_out_ && may_wait) {
        if (!life_->is_over()) {
            (void)cuda_.cuStreamSynchronize(fallback_.stream_ref());
        }
        (void)fallback_.poll(fallback_.in_flight());
    }
    if (batch_out_) {
        batch_->self = nullptr;
        (void)batch_.release();
    }
}

ring_engine::~ring_engine()
{
    drop_waiting();
    if (!stream_ || process_is_exiting()) {
        end_batch(false);
        return;
    }
    if (shared_ != nullptr) {
        tell(shared_->orders.cancel, newest_);
        tell(shared_->orders.leave_now, generation_);
    }
    context_guard   guard(cuda_, *life_); // refused: no kernel is there any more
    relaxed_capture relaxed(cuda_);
    uint64_t        start = clock_ticks();
    while (guard.ok() && (cuda_.cuStreamQuery(stream_.get()) == CUDA_ERROR_NOT_READY)) {
        // One that follows may have come without anybody looking, or come now.
        if ((shared_ != nullptr) && (seen(shared_->hello) == newest_)) {
            tell(shared_->orders.leave_now, newest_);
        }
        if (clock_ticks() - start > clock_from_ns(close_timeout_ns)) {
            NVL_WARN("the copy kernel does not leave: its memory is not freed");
            (void)new (std::nothrow) pinned_block(std::move(shared_block_));
            (void)new (std::nothrow) device_block(std::move(state_block_));
            (void)new (std::nothrow) module(std::move(module_));
            end_batch(false);
            return;
        }
    }
    end_batch(true);
    release_uses();
}

// ---- launching --------------------------------------------------------------

bool ring_engine::launch(bool large, bool follow) noexcept
{
    ring_launch argument = {};
    argument.shared      = shared_device_;
    argument.state       = state_block_.get();
    argument.idle_ns     = static_cast<uint64_t>(config_.idle_ns);
    argument.stay_ns     = static_cast<uint64_t>(config_.stay_ns);
    argument.narrow_ns   = static_cast<uint64_t>(narrow_ns_);
    argument.generation  = newest_ + 1;
    argument.first       = first_;
    argument.follow      = follow ? 1 : 0;
    argument.alone_bytes = config_.alone_bytes;
    argument.blocks      = large ? config_.large_blocks : config_.small_blocks;
    argument.arrivals    = arrivals_ + argument.blocks;
    argument.granted = large ? config_.granted : 0; // the few warps of a small one have no stream
    argument.narrow_warps = large ? narrow_warps() : 0;
    void *arguments[]     = {&argument};

    if (life_->is_over()) {
        refused_ = refused_max;
        broken_  = cuda_failed(cuda_, CUDA_ERROR_CONTEXT_IS_DESTROYED, "copy kernel", 1);
        return false;
    }
    context_guard   guard(cuda_, life_->context());
    relaxed_capture relaxed(cuda_);
    CUresult        code = guard.code();
    if (guard.ok()) {
        unsigned warps = large ? config_.large_warps : config_.small_warps;
        code = cuda_.cuLaunchKernel(large ? large_kernel_ : small_kernel_, argument.blocks, 1, 1,
                                    32 * warps, 1, 1, 0, stream_.get(), arguments, nullptr);
    }
    if (code != CUDA_SUCCESS) {
        back_off();
        if (++refused_ == refused_max) {
            (void)cuda_failed(cuda_, code, "launch of the copy kernel", 2);
        }
        return false;
    }
    refused_  = 0;
    arrivals_ = argument.arrivals;
    ++counts_.launches;
    ++newest_;
    large_          = large;
    for_waiting_    = false;
    launched_ticks_ = clock_ticks();
    return true;
}

// Of a large kernel's first block; 0 where that is all it has.
unsigned ring_engine::narrow_warps() const noexcept
{
    const unsigned warps =
        std::min(config_.large_warps, config_.small_blocks * config_.small_warps);
    return (warps < config_.large_blocks * config_.large_warps) ? warps : 0;
}

// Launches behind the kernel that is running.
void ring_engine::hand_over(bool large) noexcept
{
    if ((refused_ < refused_max) && launch(large, true)) {
        ++counts_.handovers;
    }
}

void ring_engine::consider_growth(size_t size_bytes) noexcept
{
    if ((size_bytes <= config_.alone_bytes) && (in_flight() <= config_.growth_descriptors)) {
        return;
    }
    want_large_ = true;
    if ((state_ == state::running) && (generation_ != newest_)) {
        (void)refresh(); // the one behind it may have come meanwhile
    }
    if ((state_ != state::running) || (generation_ != newest_) || (refused_ >= refused_max)) {
        return;
    }
    uint32_t     leaving   = generation_;
    const bool   is_narrow = large_;
    const double before_ns = narrow_ns_;
    if (is_narrow) { // the one that comes is to wait longer
        narrow_ns_ = std::min(2 * narrow_ns_, std::max(config_.narrow_most_ns, config_.narrow_ns));
    }
    if (!launch(true, true)) {
        narrow_ns_ = before_ns;
    } else {
        ++counts_.handovers;
        counts_.widened += is_narrow ? 1 : 0;
        tell(shared_->orders.leave_now, leaving);
    }
}

void ring_engine::summon_kernel(size_t size_bytes) noexcept
{
    uint64_t now = clock_ticks();
    bool     is_burst =
        (summoned_ticks_ != 0) && (now - summoned_ticks_ < clock_from_ns(config_.burst_gap_ns));
    summon_now(size_bytes, is_burst);
}

bool ring_engine::await(size_t size_bytes, double most_ns) noexcept
{
    if (__builtin_expect(ready() && is_large(), 1)) {
        return true;
    }
    // A list keeps many workers busy, however small its pieces are.
    summon_now(std::max<size_t>(size_bytes, config_.alone_bytes + 1), true);
    uint64_t start = clock_ticks();
    while (!ready() && (state_ == state::launched) &&
           (clock_ticks() - start < clock_from_ns(most_ns))) {
    }
    return ready();
}

void ring_engine::summon_now(size_t size_bytes, bool is_burst) noexcept
{
    if ((broken_ != UCS_OK) || backing_ || (refused_ >= refused_max)) {
        return;
    }
    uint64_t now    = clock_ticks();
    summoned_ticks_ = now;
    want_large_     = want_large_ || (size_bytes > config_.alone_bytes);

    if (state_ == state::launched) {
        // What only a kernel can do has no other engine.
        bool may_cancel = !for_waiting_ && (waiting_ == nullptr);
        if (may_cancel && (now - launched_ticks_ > clock_from_ns(config_.patience_ns))) {
            cancel();
        }
    } else if ((state_ == state::running) && !is_large()) {
        consider_growth(size_bytes);
    } else if ((state_ == state::idle) && (first_ == posted_ + 1) && is_burst &&
               (static_cast<int64_t>(now - not_before_) >= 0)) {
        if (launch(want_large_, false)) {
            generation_    = newest_;
            state_         = state::launched;
            waiting_ticks_ = 0;
        }
    }
}

void ring_engine::back_off() noexcept
{
    uint64_t least = clock_from_ns(config_.backoff_min_ns);
    uint64_t most  = clock_from_ns(config_.backoff_max_ns);
    backoff_ticks_ = std::min(most, std::max(least, 2 * backoff_ticks_));
    not_before_    = clock_ticks() + backoff_ticks_;
}

// ---- coming and going -------------------------------------------------------

// Reads the kernel's words; true if a kernel takes from the ring.
bool ring_engine::refresh() noexcept
{
    if ((state_ == state::idle) || (broken_ != UCS_OK)) {
        return false;
    }
    uint64_t left = seen(shared_->left);
    uint32_t gone = static_cast<uint32_t>(left >> 32);
    if (gone == newest_) {
        kernel_gone(static_cast<uint32_t>(left));
        return false;
    }
    if (state_ == state::cancelled) {
        return false;
    }

    bool is_new = (state_ == state::launched) || (generation_ != newest_);
    if (is_new && (seen(shared_->hello) == newest_)) {
        generation_    = newest_;
        state_         = state::running;
        hello_ticks_   = clock_ticks();
        waiting_ticks_ = 0;
    } else if ((state_ == state::running) && (gone == generation_)) {
        // The one behind it has not reported in yet.
        first_         = static_cast<uint32_t>(left);
        generation_    = newest_;
        state_         = state::launched;
        waiting_ticks_ = 0;
    }
    return state_ == state::running;
}

void ring_engine::kernel_gone(uint32_t left_at) noexcept
{
    bool was_cancelled = (state_ == state::cancelled);
    state_             = state::idle;
    if (was_cancelled) {
        return; // it took nothing, and all that it could have was taken back
    }
    if (large_ && !is_large()) { // and no stream asked for more
        narrow_ns_ = std::max(narrow_ns_ / 2, config_.narrow_ns);
    }
    if (!ring_reached(posted_ + 1, left_at)) {
        left_at = posted_ + 1; // no kernel takes what was not posted
    }
    note_service(left_at - first_);
    first_           = left_at;
    uint32_t pending = posted_ + 1 - first_;
    if (pending == 0) {
        return;
    }
    if ((pending > config_.take_back_max) && !backing_ && (refused_ < refused_max) &&
        launch(want_large_, false)) {
        generation_    = newest_;
        state_         = state::launched;
        waiting_ticks_ = 0;
        return;
    }
    take_back();
}

// Does launching pay? Not if kernel after kernel finds nothing to do.
void ring_engine::note_service(uint32_t taken) noexcept
{
    if ((taken >= config_.barren_ops) || for_waiting_) {
        barren_        = 0;
        backoff_ticks_ = 0;
    } else {
        ++counts_.barren;
        if (++barren_ >= config_.barren_max) {
            back_off();
        }
    }
    want_large_ = want_large_ && (taken > config_.stream_descriptors);
}

// Takes back what waits for a kernel that has not reported in.
void ring_engine::cancel() noexcept
{
    // Exchange and load are sequentially consistent: a full fence between.
    // Partner: the fence behind the hello in ring_poll.
    (void)__atomic_exchange_n(&shared_->orders.cancel, newest_, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared_->hello, __ATOMIC_SEQ_CST) == newest_) {
        (void)refresh(); // it is there: it takes what waits, or says that it left
        return;
    }
    ++counts_.cancelled;
    state_ = state::cancelled;
    back_off();
    if (first_ != posted_ + 1) {
        take_back();
    }
}

// Its stream is done, its last word is missing: something outside the protocol
// ended it. What is not done is copied again, which a put or get may be; an atomic
// operation may not, and fails.
void ring_engine::kernel_lost() noexcept
{
    NVL_ERROR("the copy kernel ended without a word: the copy engine does its work from here");
    refused_ = refused_max;
    state_   = state::idle;
    first_   = finished_ + 1;
    reclaim_atomics(true);
    if (first_ != posted_ + 1) {
        take_back();
    }
}

bool ring_engine::quiet() noexcept
{
    (void)refresh();
    return !is_busy() && (state_ == state::idle);
}

void ring_engine::request_leave() noexcept
{
    if (state_ != state::idle) {
        tell(shared_->orders.leave_drained, newest_);
    }
}

ucs_status_t ring_engine::arm(CUhostFn fn, void *arg) noexcept
{
    if ((broken_ != UCS_OK) && is_busy()) {
        return UCS_ERR_BUSY;
    }
    // Whoever sleeps would not post it when the kernel is there.
    if (waiting_ != nullptr) {
        return UCS_ERR_BUSY;
    }
    if ((finished_ != posted_) && is_done(finished_ + 1)) {
        return UCS_ERR_BUSY;
    }
    (void)refresh();
    if (backing_ && !batch_out_) {
        return UCS_ERR_BUSY;
    }
    // A kernel that has not reported in may wait for the application's: whoever
    // sleeps would not cancel it. Bounded: by its hello, or by that cancelling.
    bool is_awaited = (state_ == state::launched) || (generation_ != newest_);
    if ((finished_ != posted_) &&
        (is_awaited || ((state_ == state::idle) && (first_ != posted_ + 1)))) {
        return UCS_ERR_BUSY;
    }
    if ((state_ == state::idle) && ((finished_ == posted_) || backing_)) {
        return UCS_OK;
    }
    // With the poller gone, its workers may still copy: the stream is behind them.
    request_leave();
    context_guard guard(cuda_, *life_);
    if (!guard.ok()) {
        return UCS_ERR_BUSY; // poll() ends what is in flight
    }
    relaxed_capture relaxed(cuda_);
    CUresult        code = cuda_.cuLaunchHostFunc(stream_.get(), fn, arg);
    return (code == CUDA_SUCCESS) ? UCS_OK : cuda_failed(cuda_, code, "cuLaunchHostFunc", 1);
}

// ---- taking back ------------------------------------------------------------

// Everything from first_ on is the host's now.
void ring_engine::take_back() noexcept
{
    reclaim_atomics(false);
    if (broken_ != UCS_OK) {
        return; // everything ends with it
    }
    if (!backing_) {
        back_next_ = first_;
        backing_   = true;
    }
    counts_.taken_back += posted_ + 1 - first_;
    back_last_ = posted_;
    first_     = posted_ + 1;
    take_back_next();
}

// Hands the next few to the copy engine, neighbours in memory as one piece.
void ring_engine::take_back_next() noexcept
{
    constexpr unsigned batch_pieces = 16;

    while (backing_ && !batch_out_) {
        if (back_next_ == back_last_ + 1) {
            backing_ = false;
            return;
        }
        copy_piece pieces[batch_pieces];
        unsigned   count = 0;
        uint32_t   until = gather(pieces, batch_pieces, &count);
        if (count == 0) {
            mark_done(back_next_, until - 1);
            back_next_ = until;
            continue;
        }
        batch_->comp        = {};
        batch_->comp.func   = taken_back;
        batch_->comp.count  = 1;
        batch_->self        = this;
        ucs_status_t status = fallback_.submit(pieces, count, op_end{&batch_->comp, nullptr});
        if (status == UCS_ERR_NO_RESOURCE) {
            return; // the lane is full: with a later poll
        }
        if (status != UCS_INPROGRESS) {
            broken_ = status;
            return;
        }
        batch_out_   = true;
        batch_first_ = back_next_;
        batch_last_  = until - 1;
        back_next_   = until;
    }
}

// Pieces for the numbers from back_next_ on; returns the first that is not in.
uint32_t ring_engine::gather(copy_piece *pieces, unsigned max, unsigned *count_p) noexcept
{
    uint32_t number = back_next_;
    unsigned count  = 0;
    for (; number != back_last_ + 1; ++number) {
        const ring_descriptor &slot = shared_->slots[ring_slot(number)];
        uint32_t               kind = slot.flags & ring_kind_mask;
        // An atomic operation that is still here is done.
        if ((kind == ring_kind_nothing) || (kind == ring_kind_atomic) || (slot.size_bytes == 0)) {
            continue;
        }
        uint64_t src = slot.src;
        if (kind == ring_kind_immediate) {
            memcpy(shared_->inline_data[number % ring_slots], &slot.src, sizeof(slot.src));
            src = inline_address(number % ring_slots);
        }
        copy_piece *last = pieces + count - 1;
        if ((count != 0) && ((slot.flags & ring_flag_more) != 0) &&
            (last->dst + last->size_bytes == slot.dst) && (last->src + last->size_bytes == src)) {
            last->size_bytes += slot.size_bytes;
        } else if (count == max) {
            break;
        } else {
            pieces[count++] = copy_piece{slot.dst, src, slot.size_bytes};
        }
    }
    *count_p = count;
    return number;
}

void ring_engine::mark_done(uint32_t first, uint32_t last) noexcept
{
    for (uint32_t number = first; number != last + 1; ++number) {
        tell(shared_->done[number % ring_slots], number);
    }
}

void ring_engine::taken_back(uct_completion_t *comp) noexcept
{
    ring_engine *self = reinterpret_cast<batch *>(comp)->self;
    if (self == nullptr) {
        delete reinterpret_cast<batch *>(comp); // the ring is closed
        return;
    }
    self->batch_out_ = false;
    if (comp->status != UCS_OK) {
        self->broken_ = comp->status;
    } else {
        self->mark_done(self->batch_first_, self->batch_last_);
        self->backing_ = (self->back_next_ != self->back_last_ + 1);
    }
}

} // namespace nvl
