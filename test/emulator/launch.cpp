// SPDX-License-Identifier: BSD-3-Clause
//
// Kernel launches: a thread for each warp, all at once, when the stream comes to them. A warp sees
// memory only through map(), which knows what its GPU may touch.
#include "module.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <pthread.h>
#include <unistd.h>

namespace emu {
namespace {

// Counts the warps of a launch that run. A GPU starts a kernel within microseconds, the threads of
// a busy machine start within milliseconds: a launch into an idle stream waits for them a little,
// or a program would take most kernels for late.
class kernel_start {
public:
    explicit kernel_start(unsigned warps) : missing_(warps)
    {
    }

    void one_runs()
    {
        std::lock_guard lock(mutex_);
        if (missing_ > 0 && --missing_ == 0)
            all_.notify_all();
    }

    void wait()
    {
        constexpr std::chrono::milliseconds longest(20); // work of other streams may be held
        std::unique_lock                    lock(mutex_);
        all_.wait_for(lock, longest, [&] { return missing_ == 0; });
    }

private:
    std::mutex              mutex_;
    std::condition_variable all_;
    unsigned                missing_;
};

// One launch while it runs; its warps find it through their thread.
struct running_kernel {
    std::shared_ptr<context> ctx;
    kernel_start            *start = nullptr;
};

struct warp_memory {
    running_kernel *kernel = nullptr;
    // What this warp has mapped stays mapped until it ends, even if it is freed meanwhile.
    std::vector<std::shared_ptr<range>> held;
};
thread_local warp_memory *current_warp = nullptr;

bool holds(const warp_memory &warp, const std::shared_ptr<range> &r)
{
    for (auto &held : warp.held) {
        if (held == r)
            return true;
    }
    return false;
}

void *map_for_warp(unsigned long long address, size_t length)
{
    warp_memory *warp = current_warp;
    if (warp == nullptr)
        return nullptr;
    std::shared_ptr<range> r = drv().memory.find(address);
    if (r == nullptr || length > r->size - (address - r->base))
        return nullptr;
    const context &ctx = *warp->kernel->ctx;
    if (!may_touch(*ctx.dev, &ctx, *r, true))
        return nullptr;
    if (!holds(*warp, r))
        warp->held.push_back(r);
    return r->bytes + (address - r->base);
}

void fault_of_warp(unsigned long long)
{
    if (current_warp != nullptr)
        set_fault(current_warp->kernel->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
}

void wrote_by_warp(unsigned long long address, size_t length)
{
    copy_fault fault = next_kernel_fault();
    if (fault.hang)
        hang_for_ever();
    if (fault.delay_us > 0)
        usleep(static_cast<useconds_t>(fault.delay_us));
    auto *bytes = static_cast<char *>(fault.garble ? map_for_warp(address, length) : nullptr);
    if (bytes != nullptr && length > 0)
        bytes[length / 2] = static_cast<char>(bytes[length / 2] ^ 0x5a);
}

struct launch_shape {
    unsigned blocks = 0, threads = 0;
    unsigned warps() const
    {
        return (threads + 31) / 32;
    }
};

// The arguments, copied when the kernel is launched.
struct kernel_arguments {
    std::vector<std::vector<char>> bytes;
    std::vector<void *>            pointers;
};

std::shared_ptr<kernel_arguments> copy_arguments(const emu_kernel &kernel, void **params)
{
    auto copy = std::make_shared<kernel_arguments>();
    for (unsigned i = 0; i < kernel.arg_count; i++) {
        auto *from = static_cast<const char *>(params[i]);
        copy->bytes.emplace_back(from, from + kernel.arg_sizes[i]);
    }
    for (auto &bytes : copy->bytes)
        copy->pointers.push_back(bytes.data());
    return copy;
}

void run_warp(running_kernel *running, const emu_kernel *kernel, launch_shape shape, unsigned index,
              void **args)
{
    warp_memory memory;
    memory.kernel = running;
    current_warp  = &memory;
    emu_warp warp{};
    warp.block             = index / shape.warps();
    warp.blocks            = shape.blocks;
    warp.warp              = index % shape.warps();
    warp.warps_per_block   = shape.warps();
    warp.threads_per_block = shape.threads;
    warp.map               = map_for_warp;
    warp.fault             = fault_of_warp;
    warp.wrote             = wrote_by_warp;
    running->start->one_runs();
    kernel->run(&warp, args);
    current_warp = nullptr;
}

void run_kernel(const std::weak_ptr<context> &owner, const emu_kernel *kernel, launch_shape shape,
                const std::shared_ptr<kernel_arguments> &args, kernel_start *start)
{
    running_kernel running;
    running.ctx   = owner.lock();
    running.start = start;
    if (running.ctx == nullptr || running.ctx->fault.load() != CUDA_SUCCESS)
        return;
    std::vector<std::thread> warps;
    for (unsigned i = 0; i < shape.blocks * shape.warps(); i++)
        warps.emplace_back(run_warp, &running, kernel, shape, i, args->pointers.data());
    for (auto &warp : warps)
        warp.join();
}

CUresult check_shape(const unsigned grid[3], const unsigned block[3], size_t shared)
{
    EMU_REQUIRE(grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && block[0] > 0 && block[1] > 0 &&
                    block[2] > 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(grid[1] <= 65535 && grid[2] <= 65535 && block[0] <= 1024 && block[1] <= 1024 &&
                    block[2] <= 64,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(static_cast<size_t>(block[0]) * block[1] * block[2] <= 1024,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(shared <= 232448, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult launch(CUfunction handle, const unsigned grid[3], const unsigned block[3], unsigned shared,
                CUstream stream_handle, void **params, void **extra)
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    auto                     f = function_of(handle);
    EMU_REQUIRE(f != nullptr, CUDA_ERROR_INVALID_HANDLE);
    EMU_TRY(stream_of(stream_handle, &s, &ctx));
    // A function belongs to the context of its module; a kernel of a library to any.
    EMU_REQUIRE(f->library != nullptr || f->context_id == ctx->id, CUDA_ERROR_INVALID_HANDLE);
    EMU_TRY(check_shape(grid, block, shared));
    EMU_REQUIRE(extra == nullptr, CUDA_ERROR_NOT_SUPPORTED);
    EMU_REQUIRE(f->kernel->arg_count == 0 || params != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto         args = copy_arguments(*f->kernel, params);
    launch_shape shape;
    shape.blocks                   = grid[0] * grid[1] * grid[2];
    shape.threads                  = block[0] * block[1] * block[2];
    std::weak_ptr<context> owner   = ctx;
    auto                   start   = std::make_shared<kernel_start>(shape.blocks * shape.warps());
    bool                   is_idle = s->last().done() && !s->is_capturing() && !streams_are_held();
    submit_ordered(*ctx, *s, [owner, f, shape, args, start] {
        run_kernel(owner, f->kernel, shape, args, start.get());
    });
    if (is_idle)
        start->wait();
    return CUDA_SUCCESS;
}

} // namespace
} // namespace emu

using namespace emu;

EMU_API(cuLaunchKernel,
        (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
         unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
         CUstream stream, void **params, void **extra),
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params,
         extra))
{
    const unsigned grid[3]  = {grid_x, grid_y, grid_z};
    const unsigned block[3] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared, stream, params, extra);
}

EMU_API(cuLaunchCooperativeKernel,
        (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
         unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
         CUstream stream, void **params),
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params))
{
    const unsigned grid[3]  = {grid_x, grid_y, grid_z};
    const unsigned block[3] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared, stream, params, nullptr);
}

EMU_API(cuLaunchKernelEx,
        (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
        (config, function, params, extra))
{
    EMU_REQUIRE(config != nullptr, CUDA_ERROR_INVALID_VALUE);
    const unsigned grid[3]  = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch(function, grid, block, config->sharedMemBytes, config->hStream, params, extra);
}
