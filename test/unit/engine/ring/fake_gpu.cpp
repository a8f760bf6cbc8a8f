// SPDX-License-Identifier: BSD-3-Clause
//
// The driver table of fake_gpu.h.
#include "engine/ring/fake_gpu.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "emulator_kernels/host_warp.h"

namespace nvl {

namespace {

fake_gpu *gpu_g = nullptr;

uint64_t mixed(uint64_t &state)
{
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z          = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

} // namespace

class fake_gpu::work_stream {
public:
    work_stream() : thread_([this] { run(); })
    {
    }

    ~work_stream()
    {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            closing_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void push(std::function<void()> work)
    {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            queue_.push_back(std::move(work));
        }
        changed_.notify_all();
    }

    bool is_idle()
    {
        std::lock_guard<std::mutex> guard(mutex_);
        return queue_.empty();
    }

    void wait_idle()
    {
        std::unique_lock<std::mutex> guard(mutex_);
        changed_.wait(guard, [this] { return queue_.empty(); });
    }

private:
    void run()
    {
        std::unique_lock<std::mutex> guard(mutex_);
        for (;;) {
            changed_.wait(guard, [this] { return closing_ || !queue_.empty(); });
            if (queue_.empty()) {
                return;
            }
            std::function<void()> work = queue_.front();
            guard.unlock();
            work();
            guard.lock();
            queue_.pop_front();
            changed_.notify_all();
        }
    }

    std::mutex                        mutex_;
    std::condition_variable           changed_;
    std::deque<std::function<void()>> queue_; // the front one is running
    bool                              closing_ = false;
    std::thread                       thread_;
};

// What surrounds a warp: identity mapping, random delays, and the bookkeeping
// of what was served.
struct fake_gpu::world {
    fake_gpu &gpu;
    uint64_t  random;
    unsigned  warp;

    struct vanished {};

    void *map(uint64_t address, size_t) noexcept
    {
        return reinterpret_cast<void *>(address);
    }

    void move(void *to, const void *from, size_t size_bytes) noexcept
    {
        memmove(to, from, size_bytes);
    }

    void fault(uint64_t)
    {
        abort();
    }

    void step()
    {
        uint64_t r = mixed(random);
        if (r % 4 == 0) {
            sched_yield();
        }
        if ((r >> 8) % 512 == 0) {
            for (unsigned i = 0; i < (r >> 20) % 20000; ++i) {
                asm volatile("");
            }
        }
        if ((r >> 8) % 16384 == 1) {
            usleep((r >> 24) % 200);
        }
    }

    void between_halves()
    {
        step();
        if ((gpu.how_.torn_us != 0) && (mixed(random) % 16 == 0)) {
            usleep(gpu.how_.torn_us);
        }
    }

    void served(uint32_t number) noexcept
    {
        gpu.served_.fetch_add(1, std::memory_order_relaxed);
        uint32_t before =
            gpu.last_served_[number % ring_slots].exchange(number, std::memory_order_relaxed);
        if (before == number) {
            gpu.twice_.fetch_add(1, std::memory_order_relaxed);
        }
        while (gpu.copies_held_.load()) {
            sched_yield();
        }
    }

    bool is_cancelled(bool cancelled) noexcept
    {
        return cancelled && (gpu.how_.bug != planted::ignores_cancel);
    }

    uint32_t answer(uint32_t tag) const noexcept
    {
        return (gpu.how_.bug == planted::denies_what_it_takes) ? tag & ~ring_taken_bit : tag;
    }

    uint32_t narrow_from(uint32_t from) const noexcept
    {
        // One that remains; several would share out all numbers among them.
        const bool is_stubborn = (gpu.how_.bug == planted::keeps_its_numbers) && (warp == 3);
        return is_stubborn ? from + 1000000 : from;
    }

    void said_hello() noexcept
    {
        gpu.hellos_.fetch_add(1);
    }

    void narrowed() noexcept
    {
        gpu.narrowed_.fetch_add(1);
    }

    uint32_t left_at(uint32_t next)
    {
        if (gpu.how_.bug == planted::never_says_left) {
            throw vanished();
        }
        return (gpu.how_.bug == planted::reports_one_too_many) ? next + 1 : next;
    }
};

void fake_gpu::run_kernel(unsigned blocks, unsigned warps, const void *argument)
{
    ring_launch launch;
    memcpy(&launch, argument, sizeof(launch));
    uint64_t seed = how_.seed * 0x10001 + launches_.fetch_add(1);
    most_blocks_.store(std::max(most_blocks_.load(), blocks));

    uint64_t r = mixed(seed);
    if ((how_.late_launch != 0) && (r % how_.late_launch == 0)) {
        usleep(static_cast<unsigned>((r >> 32) % how_.late_us));
    }
    while (held_.load() && !broken_.load()) {
        usleep(50);
    }
    if (broken_.load()) {
        return;
    }

    std::vector<std::thread> threads;
    for (unsigned i = 0; i < warps; ++i) {
        threads.emplace_back([=] {
            world            around{*this, seed + 77 * i, i};
            host_warp<world> self(around, launch);
            while ((i % blocks != 0) && others_held_.load()) {
                usleep(50);
            }
            if ((how_.late_launch != 0) && (r % how_.late_launch == 1) && (i % blocks != 0)) {
                usleep(static_cast<unsigned>((r >> 16) % how_.late_us));
            }
            try {
                ring_run(self, launch, i, warps);
            } catch (const world::vanished &) {
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

fake_gpu::fake_gpu(const settings &how)
    : how_(how), last_served_(new std::atomic<uint32_t>[ring_slots])
{
    for (uint32_t i = 0; i < ring_slots; ++i) {
        last_served_[i].store(i + 1); // never served there: its remainder is another
    }
    gpu_g = this;
    fill_table();
}

fake_gpu::~fake_gpu()
{
    streams_.clear();
    for (uint64_t block : blocks_) {
        free(reinterpret_cast<void *>(block));
    }
    gpu_g = nullptr;
}

fake_gpu::work_stream *fake_gpu::stream_of(CUstream handle)
{
    stale_ += gone_.load() ? 1 : 0;
    return reinterpret_cast<work_stream *>(handle);
}

void fake_gpu::forget(CUstream handle)
{
    work_stream *gone = stream_of(handle);
    streams_.erase(std::find_if(streams_.begin(), streams_.end(),
                                [&](const auto &one) { return one.get() == gone; }));
}

#define NVL_FAKE(_name, ...) cuda_._name = [](__VA_ARGS__) -> CUresult { \
        ++gpu_g->calls_;
#define NVL_FAKE_END         }

void fake_gpu::fill_table()
{
    cuda_.cuGetErrorName = [](CUresult, const char **text) -> CUresult {
        *text = "CUDA_ERROR_FAKE";
        return CUDA_SUCCESS;
    };
    cuda_.cuGetErrorString = [](CUresult, const char **text) -> CUresult {
        *text = "fake";
        return CUDA_SUCCESS;
    };
    NVL_FAKE(cuDeviceGetAttribute, int *value, CUdevice_attribute what, CUdevice)
    *value = (what == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) ? gpu_g->how_.sms : 1;
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuCtxPushCurrent, CUcontext)
    gpu_g->stale_ += gpu_g->gone_.load() ? 1 : 0;
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuCtxPopCurrent, CUcontext *)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuStreamCreateWithPriority, CUstream * stream_p, unsigned, int)
    gpu_g->streams_.push_back(std::make_unique<work_stream>());
    *stream_p = reinterpret_cast<CUstream>(gpu_g->streams_.back().get());
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuStreamDestroy, CUstream stream)
    gpu_g->forget(stream);
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuStreamSynchronize, CUstream stream)
    gpu_g->stream_of(stream)->wait_idle();
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuStreamQuery, CUstream stream)
    if (gpu_g->broken_.load()) {
        // A dead context has stopped its kernels.
        gpu_g->stream_of(stream)->wait_idle();
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return gpu_g->stream_of(stream)->is_idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    NVL_FAKE_END;
    NVL_FAKE(cuCtxGetDevice, CUdevice * device)
    *device = 0;
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuDevicePrimaryCtxRetain, CUcontext * context, CUdevice)
    *context = nullptr;
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuDevicePrimaryCtxRelease, CUdevice)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemHostRegister, void *, size_t, unsigned)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemHostUnregister, void *)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuPointerGetAttribute, void *value, CUpointer_attribute, CUdeviceptr)
    *static_cast<unsigned long long *>(value) = 1;
    return gpu_g->gone_.load() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemHostGetDevicePointer, CUdeviceptr * address, void *block, unsigned)
    *address = reinterpret_cast<CUdeviceptr>(block);
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemAlloc, CUdeviceptr * address, size_t size_bytes)
    *address =
        reinterpret_cast<CUdeviceptr>(aligned_alloc(4096, (size_bytes + 4095) / 4096 * 4096));
    gpu_g->blocks_.push_back(*address);
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemFree, CUdeviceptr address)
    gpu_g->stale_ += gpu_g->gone_.load() ? 1 : 0;
    gpu_g->blocks_.erase(std::find(gpu_g->blocks_.begin(), gpu_g->blocks_.end(), address));
    free(reinterpret_cast<void *>(address));
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemsetD8Async, CUdeviceptr address, unsigned char value, size_t size_bytes,
             CUstream stream)
    gpu_g->stream_of(stream)->push(
        [=] { memset(reinterpret_cast<void *>(address), value, size_bytes); });
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuMemcpyAsync, CUdeviceptr dst, CUdeviceptr src, size_t size_bytes, CUstream stream)
    gpu_g->stream_of(stream)->push([=] {
        memmove(reinterpret_cast<void *>(dst), reinterpret_cast<const void *>(src), size_bytes);
    });
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuStreamWriteValue32, CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned)
    gpu_g->stream_of(stream)->push(
        [=] { __atomic_store_n(reinterpret_cast<uint32_t *>(address), value, __ATOMIC_RELEASE); });
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuLaunchHostFunc, CUstream stream, CUhostFn fn, void *arg)
    gpu_g->stream_of(stream)->push([=] { fn(arg); });
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuModuleLoadData, CUmodule * module_p, const void *)
    *module_p = reinterpret_cast<CUmodule>(gpu_g);
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuModuleUnload, CUmodule)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuModuleGetFunction, CUfunction * function_p, CUmodule, const char *)
    *function_p = reinterpret_cast<CUfunction>(gpu_g);
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int)
    return CUDA_SUCCESS;
    NVL_FAKE_END;
    NVL_FAKE(cuLaunchKernel, CUfunction, unsigned blocks, unsigned, unsigned, unsigned threads,
             unsigned, unsigned, unsigned, CUstream stream, void **arguments, void **)
    if (gpu_g->launch_fails_.load()) {
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    ring_launch launch;
    memcpy(&launch, arguments[0], sizeof(launch));
    gpu_g->narrow_times_ns_.push_back(launch.narrow_ns);
    gpu_g->stream_of(stream)->push(
        [=] { gpu_g->run_kernel(blocks, blocks * threads / 32, &launch); });
    return CUDA_SUCCESS;
    NVL_FAKE_END;
}

} // namespace nvl
