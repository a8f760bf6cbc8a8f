// SPDX-License-Identifier: BSD-3-Clause
//
// The witnesses, and what the driver's answer about one means.
#include "driver/context_life.h"

#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "driver/handles.h"

namespace nvl {

namespace {

using context_name = std::pair<const cuda_api *, CUcontext>;

// Those that somebody keeps, and a few that are over. Never destroyed: handles may
// go while the process ends.
struct known_lives {
    std::mutex                                                mutex;
    std::map<context_name, std::weak_ptr<const context_life>> all;
};

known_lives &lives()
{
    static auto *const only = new known_lives;
    return *only;
}

life_ref find(const context_name &name)
{
    std::lock_guard<std::mutex> guard(lives().mutex);
    auto                        found = lives().all.find(name);
    return (found != lives().all.end()) ? found->second.lock() : nullptr;
}

void remember(const context_name &name, const life_ref &life)
{
    std::lock_guard<std::mutex> guard(lives().mutex);
    for (auto i = lives().all.begin(); i != lives().all.end();) {
        i = i->second.expired() ? lives().all.erase(i) : std::next(i);
    }
    lives().all[name] = life;
}

} // namespace

namespace {

bool seems_same(const cuda_api &cuda, CUdeviceptr address, unsigned long long id) noexcept
{
    unsigned long long now = 0;
    switch (cuda.cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_BUFFER_ID, address)) {
    case CUDA_SUCCESS:
        return now == id;
    case CUDA_ERROR_INVALID_VALUE:        // nothing is there
    case CUDA_ERROR_INVALID_CONTEXT:      // of the thread's own context: then nothing is known,
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: // and a leak is better than a handle that leads nowhere
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
        return false;
    default:
        return true; // an error of work that went wrong earlier
    }
}

} // namespace

// What is gone is gone when asked again: one wrong answer is not to cost a leak.
bool is_same_allocation(const cuda_api &cuda, CUdeviceptr address, unsigned long long id) noexcept
{
    bool is_same = seems_same(cuda, address, id);
    return is_same ? is_same : seems_same(cuda, address, id);
}

context_life::context_life(const cuda_api &cuda, CUcontext context) noexcept
    : cuda_(cuda), context_(context)
{
}

result<life_ref> context_life::of(const cuda_api &cuda, CUcontext context) noexcept
try {
    context_name name{&cuda, context};
    life_ref     shared = find(name);
    if (shared && !shared->is_over()) {
        return shared;
    }
    // Another thread may do the same: two witnesses are as good as one.
    std::shared_ptr<context_life> made(new context_life(cuda, context));
    ucs_status_t                  status = made->open();
    if (status != UCS_OK) {
        return status;
    }
    remember(name, made);
    return life_ref(std::move(made));
} catch (const std::bad_alloc &) {
    return UCS_ERR_NO_MEMORY;
}

life_ref context_life::known(const cuda_api &cuda, CUcontext context) noexcept
{
    return find({&cuda, context});
}

ucs_status_t context_life::open() noexcept
{
    context_guard guard(cuda_, context_);
    if (!guard.ok()) {
        return cuda_failed(cuda_, guard.code(), "cuCtxPushCurrent", 1);
    }
    relaxed_capture relaxed(cuda_);
    CUresult        code = cuda_.cuMemAlloc(&witness_, 1);
    if (code != CUDA_SUCCESS) {
        // The GPU may be full; what does not work either is the error that is told.
        void *host  = nullptr;
        code        = cuda_.cuMemHostAlloc(&host, 1, 0);
        witness_    = reinterpret_cast<CUdeviceptr>(host);
        is_of_host_ = true;
    }
    if (code == CUDA_SUCCESS) {
        code = cuda_.cuPointerGetAttribute(&id_, CU_POINTER_ATTRIBUTE_BUFFER_ID, witness_);
    }
    if (code != CUDA_SUCCESS) {
        over_.store(witness_ == 0);
        return cuda_failed(cuda_, code, "an allocation in a context", 1);
    }
    return UCS_OK;
}

context_life::~context_life()
{
    if ((witness_ == 0) || process_is_exiting() || ((id_ != 0) && is_over())) {
        return;
    }
    context_guard   guard(cuda_, context_);
    relaxed_capture relaxed(cuda_);
    (void)(is_of_host_ ? cuda_.cuMemFreeHost(reinterpret_cast<void *>(witness_))
                       : cuda_.cuMemFree(witness_));
}

bool context_life::is_over() const noexcept
{
    if (over_.load(std::memory_order_relaxed)) {
        return true;
    }
    uint64_t now = clock_ticks();
    if (!is_same_allocation(cuda_, witness_, id_)) {
        over_.store(true, std::memory_order_relaxed);
        return true;
    }
    sound_.keep(now);
    return false;
}

} // namespace nvl
