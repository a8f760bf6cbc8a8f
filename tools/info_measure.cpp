// SPDX-License-Identifier: BSD-3-Clause
//
// nvlink_info --measure: the true push and pull of each pair, by copies of the driver API in the
// primary contexts. A push is a copy in a stream of the source's GPU, a pull one of the target's.

#include "info.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include <fmt/format.h>

namespace nvl {

namespace {

using steady = std::chrono::steady_clock;

constexpr size_t smallest_buffer = 16ull << 20;
constexpr size_t small_copy      = 16;
constexpr int    small_copies    = 200;
constexpr double seconds_a_pair  = 0.15; // of copies, each way

struct driver_error {
    std::string text;
};

// One GPU: its primary context with a stream and a buffer.
class gpu_side {
public:
    gpu_side(const cuda_api &cuda, int ordinal, size_t bytes) : cuda_(cuda)
    {
        try {
            check(cuda_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
            check(cuda_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
            enter();
            check(cuda_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                  "cuStreamCreateWithPriority");
            allocate(bytes);
            leave();
        } catch (...) {
            release();
            throw;
        }
    }

    ~gpu_side()
    {
        release();
    }

    gpu_side(const gpu_side &)            = delete;
    gpu_side &operator=(const gpu_side &) = delete;

    void check(CUresult code, const char *call) const
    {
        if (code != CUDA_SUCCESS) {
            throw driver_error{fmt::format("{}: {}", call, cuda_.error_text(code))};
        }
    }

    void enter()
    {
        check(cuda_.cuCtxPushCurrent(context_), "cuCtxPushCurrent");
    }

    void leave() noexcept
    {
        CUcontext popped;
        (void)cuda_.cuCtxPopCurrent(&popped);
    }

    void enable(const gpu_side &peer)
    {
        const CUresult code = cuda_.cuCtxEnablePeerAccess(peer.context_, 0);
        if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            check(code, "cuCtxEnablePeerAccess");
        }
    }

    void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
    {
        check(cuda_.cuMemcpyAsync(to, from, bytes, stream_), "cuMemcpyAsync");
    }

    void wait()
    {
        check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    }

    CUdeviceptr buffer() const
    {
        return buffer_;
    }
    size_t bytes() const
    {
        return bytes_;
    }

private:
    void allocate(size_t bytes)
    {
        for (bytes_ = bytes; bytes_ >= std::min(bytes, smallest_buffer); bytes_ /= 2) {
            const CUresult code = cuda_.cuMemAlloc(&buffer_, bytes_);
            if (code == CUDA_SUCCESS) {
                return;
            }
            buffer_ = 0;
            if (code != CUDA_ERROR_OUT_OF_MEMORY) {
                check(code, "cuMemAlloc");
            }
        }
        throw driver_error{"no GPU memory is free for the measurement"};
    }

    void release() noexcept
    {
        if (context_ != nullptr && cuda_.cuCtxPushCurrent(context_) == CUDA_SUCCESS) {
            if (buffer_ != 0) {
                (void)cuda_.cuMemFree(buffer_);
            }
            if (stream_ != nullptr) {
                (void)cuda_.cuStreamDestroy(stream_);
            }
            leave();
        }
        if (context_ != nullptr) {
            (void)cuda_.cuDevicePrimaryCtxRelease(device_);
        }
    }

    const cuda_api &cuda_;
    CUdevice        device_  = 0;
    CUcontext       context_ = nullptr;
    CUstream        stream_  = nullptr;
    CUdeviceptr     buffer_  = 0;
    size_t          bytes_   = 0;
};

double seconds_since(steady::time_point start)
{
    return std::chrono::duration<double>(steady::now() - start).count();
}

// Large copies, one after the other in a stream.
double rate_of(gpu_side &runner, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    runner.copy(to, from, bytes);
    runner.wait();
    auto start = steady::now();
    runner.copy(to, from, bytes);
    runner.wait();
    const double one   = std::max(seconds_since(start), 1e-9);
    const int    count = static_cast<int>(std::clamp(seconds_a_pair / one, 2.0, 100.0));

    start = steady::now();
    for (int i = 0; i < count; ++i) {
        runner.copy(to, from, bytes);
    }
    runner.wait();
    return static_cast<double>(bytes) * count / seconds_since(start);
}

// The median of small copies, each waited for.
double latency_of(gpu_side &runner, CUdeviceptr to, CUdeviceptr from)
{
    std::vector<double> times;

    for (int i = 0; i < small_copies; ++i) {
        const auto start = steady::now();
        runner.copy(to, from, small_copy);
        runner.wait();
        times.push_back(seconds_since(start));
    }
    std::nth_element(times.begin(), times.begin() + small_copies / 2, times.end());
    return times[small_copies / 2];
}

void measure_pair(gpu_side &a, gpu_side &b, measurement &out)
{
    const size_t bytes = std::min(a.bytes(), b.bytes());

    a.enter();
    try {
        a.enable(b);
        out.push_bytes_s   = rate_of(a, b.buffer(), a.buffer(), bytes);
        out.pull_bytes_s   = rate_of(a, a.buffer(), b.buffer(), bytes);
        out.push_latency_s = latency_of(a, b.buffer(), a.buffer());
        out.pull_latency_s = latency_of(a, a.buffer(), b.buffer());
    } catch (const driver_error &error) {
        out.error = error.text;
    }
    a.leave();
}

} // namespace

std::vector<measurement> measure_pairs(const cuda_api &cuda, const graph &pairs, size_t bytes)
{
    std::vector<measurement>                    all;
    std::map<size_t, std::unique_ptr<gpu_side>> sides;
    std::map<size_t, std::string>               broken;

    for (size_t i = 0; i < pairs.size(); ++i) {
        if (pairs.facts().gpus[i].cuda >= 0) {
            try {
                sides[i] = std::make_unique<gpu_side>(cuda, pairs.facts().gpus[i].cuda, bytes);
            } catch (const driver_error &error) {
                broken[i] = error.text;
            }
        }
    }
    for (size_t a = 0; a < pairs.size(); ++a) {
        for (size_t b = 0; b < pairs.size(); ++b) {
            const bool ours = pairs.facts().gpus[a].cuda >= 0 && pairs.facts().gpus[b].cuda >= 0;
            if (a == b || !ours || !pairs.path(a, b).reachable()) {
                continue;
            }
            measurement one;
            one.from = a;
            one.to   = b;
            if (broken.count(a) + broken.count(b) > 0) {
                one.error = broken.count(a) > 0 ? broken[a] : broken[b];
            } else {
                measure_pair(*sides[a], *sides[b], one);
            }
            all.push_back(one);
        }
    }
    return all;
}

} // namespace nvl
