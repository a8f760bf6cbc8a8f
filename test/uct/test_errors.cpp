// SPDX-License-Identifier: BSD-3-Clause
//
// Which calls of the driver an operation makes, and what happens when any of them fails.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include <set>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

long live_things()
{
    long sum = 0;
    for (const char *kind : {"stream", "event", "mapping", "module", "registration"}) {
        sum += emulator()->live_count(kind);
    }
    return sum;
}

// Everything from the first call to the last one, with a driver that may refuse; the operations that were accepted
// must end. Returns the first error.
ucs_status_t whole_life(uint64_t local, side *far_side, uint64_t remote, const bytes &key,
                        const addresses &to)
{
    (void)far_side;
    ucs_status_t worst = UCS_OK;
    try {
        entity     here;
        registered reg(here, local, size);
        (void)reg.key();
        unpacked  rkey(key);
        endpoint  ep(here, to);
        uct_iov_t iov{reinterpret_cast<void *>(local), size, reg.memh(), 0, 1};
        for (int i = 0; i < 6; ++i) {
            completion   done;
            auto         post   = i % 2 == 0 ? uct_ep_put_zcopy : uct_ep_get_zcopy;
            ucs_status_t status = post(ep.get(), &iov, 1, remote, rkey.rkey(), &done.super);
            auto         end    = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            while (status == UCS_INPROGRESS && done.called == 0) {
                here.progress();
                if (std::chrono::steady_clock::now() > end) {
                    ADD_FAILURE() << "an operation never ends";
                    return UCS_ERR_TIMED_OUT;
                }
            }
            status = status == UCS_INPROGRESS ? done.status : status;
            worst  = worst == UCS_OK ? status : worst;
        }
    } catch (const set_up_failed &) {
        worst = UCS_ERR_LAST;
    }
    return worst;
}

// Calls that wait for work on the device, or may: of the memory and of the modules of a context, and all that say so.
void expect_none_that_wait()
{
    for (const char *name : {"cuCtxSynchronize",
                             "cuStreamSynchronize",
                             "cuEventSynchronize",
                             "cuMemAlloc_v2",
                             "cuMemAllocAsync",
                             "cuMemAllocFromPoolAsync",
                             "cuMemFree_v2",
                             "cuMemFreeAsync",
                             "cuMemHostAlloc",
                             "cuMemFreeHost",
                             "cuMemHostRegister_v2",
                             "cuMemHostUnregister",
                             "cuMemCreate",
                             "cuMemRelease",
                             "cuMemMap",
                             "cuMemUnmap",
                             "cuMemSetAccess",
                             "cuMemAddressReserve",
                             "cuMemAddressFree",
                             "cuMemImportFromShareableHandle",
                             "cuMemPoolImportFromShareableHandle",
                             "cuMemPoolImportPointer",
                             "cuIpcOpenMemHandle_v2",
                             "cuIpcCloseMemHandle",
                             "cuIpcOpenEventHandle",
                             "cuIpcGetEventHandle",
                             "cuCtxCreate_v2",
                             "cuCtxDestroy_v2",
                             "cuCtxEnablePeerAccess",
                             "cuDevicePrimaryCtxRetain",
                             "cuDevicePrimaryCtxRelease_v2",
                             "cuModuleLoadData",
                             "cuModuleUnload",
                             "cuFuncLoad",
                             "cuStreamDestroy_v2",
                             "cuMemcpy",
                             "cuMemcpyDtoD_v2",
                             "cuMemcpyHtoD_v2",
                             "cuMemcpyDtoH_v2",
                             "cuMemsetD8_v2",
                             "cuMemsetD8Async"}) {
        EXPECT_EQ(emulator()->call_count(name), 0) << name;
    }
}

} // namespace

TEST(driver_calls, of_a_put_that_hits_the_caches_are_submission_and_completion)
{
    NVL_NEEDS_EMULATOR();
    constexpr int count = 200;
    connection    c(far_kind::other_process, 0, 1, size, {{"KERNEL", "n"}});
    ASSERT_EQ(c.put(0, 0, 64, nullptr), UCS_INPROGRESS);
    ASSERT_EQ(c.get(128, 128, 64, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());

    const std::set<std::string> submission       = {"cuMemcpyAsync", "cuEventRecord"};
    const std::set<std::string> completion_calls = {
        "cuEventQuery", "cuThreadExchangeStreamCaptureMode", "cuPointerGetAttribute"};
    for (int attempt = 0; attempt < 20; ++attempt) {
        emulator()->reset_counts();
        auto       begin = std::chrono::steady_clock::now();
        completion done(count);
        for (int i = 0; i < count; ++i) {
            ASSERT_EQ(c.put(0, 0, 64, &done), UCS_INPROGRESS);
            c.here.progress();
        }
        ASSERT_TRUE(c.wait(done));
        auto made = calls_made();
        // Now and then: is the context still there?
        auto took = std::chrono::steady_clock::now() - begin;
        EXPECT_LE(emulator()->call_count("cuPointerGetAttribute"),
                  1 + took / std::chrono::microseconds(100));
        // A millisecond without progress, on a busy machine: the lane looks whether the stream is well.
        if (emulator()->call_count("cuStreamQuery") > 0) {
            continue;
        }
        for (const auto &[name, calls] : made) {
            EXPECT_TRUE(submission.count(name) + completion_calls.count(name) > 0)
                << name << " was called " << calls << " times for " << count << " puts";
        }
        EXPECT_EQ(emulator()->call_count("cuMemcpyAsync"), count);
        EXPECT_EQ(emulator()->call_count("cuEventRecord"), count);
        return;
    }
    GTEST_SKIP() << "this machine is too busy for 200 puts without a pause";
}

TEST(driver_calls, that_wait_for_the_device_are_not_made_by_post_and_progress)
{
    NVL_NEEDS_EMULATOR();
    // Gets have memory of their own, so that no two operations meet in one place.
    connection c(far_kind::other_process, 0, 1, 2 * size);
    ASSERT_EQ(c.put(0, 0, 64, nullptr), UCS_INPROGRESS);
    ASSERT_EQ(c.get(size, size, 64, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
    emulator()->reset_counts();
    for (int i = 0; i < 500; ++i) {
        ucs_status_t status = (i % 2 == 0)
                                  ? c.put(0, 0, 1 + static_cast<size_t>(i) * 100, nullptr)
                                  : c.get(size, size, 1 + static_cast<size_t>(i) * 100, nullptr);
        ASSERT_TRUE(status == UCS_INPROGRESS || status == UCS_ERR_NO_RESOURCE);
        c.here.progress();
    }
    ASSERT_TRUE(c.drain());
    expect_none_that_wait();
}

// What an application has queued on the GPU may wait for this very transfer.
TEST(driver_calls, that_wait_for_the_device_are_made_before_the_first_post)
{
    NVL_NEEDS_EMULATOR();
    for (far_kind kind : {far_kind::other_worker, far_kind::other_process}) {
        connection c(kind, 0, 1, 2 * size);
        emulator()->reset_counts();
        ASSERT_EQ(c.put(0, 0, 64, nullptr), UCS_INPROGRESS);
        ASSERT_EQ(c.get(size, size, size, nullptr), UCS_INPROGRESS);
        ASSERT_TRUE(c.drain());
        expect_none_that_wait();
    }
}

// ---- the application records a graph -------------------------------------------------------------------------------

namespace {

// While it lives most calls of the driver are forbidden to every thread, and would spoil the recording.
class recording {
public:
    recording() : scope_(primary_context(0))
    {
        NVL_MUST(cuStreamCreate, (&stream_, CU_STREAM_NON_BLOCKING));
        NVL_MUST(cuStreamBeginCapture_v2, (stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
    }

    ~recording()
    {
        CUgraph graph = nullptr;
        EXPECT_EQ(cu().cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS) << "it was spoilt";
        if (graph != nullptr) {
            NVL_MUST(cuGraphDestroy, (graph));
        }
        NVL_MUST(cuStreamDestroy_v2, (stream_));
    }

    recording(const recording &)            = delete;
    recording &operator=(const recording &) = delete;

private:
    current_context scope_;
    CUstream        stream_ = nullptr;
};

} // namespace

class recording_of_a_graph : public testing::TestWithParam<far_kind> {};

TEST_P(recording_of_a_graph, is_left_alone_by_every_call)
{
    std::unique_ptr<side> far;
    if (GetParam() == far_kind::other_process) {
        far = std::make_unique<peer_side>();
    } else {
        far = std::make_unique<local_side>();
    }
    uint64_t   remote = far->allocate(1, size);
    bytes      key    = far->key(remote);
    addresses  to     = far->address();
    gpu_memory local(0, size);
    bytes      source = random_bytes(size, 1), host = random_bytes(size, 2);
    local.write(0, source);
    far->write(remote, 0, bytes(size, 0));
    {
        recording  graph;
        entity     here;
        registered reg(here, local.address(), size);
        (void)reg.key();
        unpacked rkey(key);
        endpoint ep(here, to);
        auto     ends = [&](completion &done) {
            auto end = std::chrono::steady_clock::now() + connection::patience();
            while (done.called == 0 && std::chrono::steady_clock::now() < end) {
                here.progress();
                (void)ucx().uct_iface_event_arm(here.iface(), UCT_EVENT_SEND_COMP);
            }
            EXPECT_EQ(done.status, UCS_OK);
            return done.called == 1;
        };
        // From host memory, to it, and the last one between the GPUs.
        for (int i = 0; i < 12; ++i) {
            completion done;
            uct_iov_t  iov{reinterpret_cast<void *>(local.address()), size, reg.memh(), 0, 1};
            if (i < 4) {
                iov = {host.data(), size, nullptr, 0, 1};
            }
            auto post = i % 2 == 0 ? uct_ep_put_zcopy : uct_ep_get_zcopy;
            ASSERT_EQ(post(ep.get(), &iov, 1, remote, rkey.rkey(), &done.super), UCS_INPROGRESS);
            ASSERT_TRUE(ends(done)) << i;
            if (i == 3) {
                uct_iov_t  own{reinterpret_cast<void *>(local.address()), size, reg.memh(), 0, 1};
                completion first;
                ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &own, 1, remote, rkey.rkey(), &first.super),
                          UCS_INPROGRESS);
                ASSERT_TRUE(ends(first));
            }
        }
    }
    EXPECT_EQ(difference(source, far->read(remote, 0, size)), "");
    EXPECT_EQ(difference(source, local.read(0, size)), "");
    EXPECT_EQ(difference(random_bytes(size, 2), host), "");
}

INSTANTIATE_TEST_SUITE_P(sides, recording_of_a_graph,
                         testing::Values(far_kind::other_worker, far_kind::other_process),
                         [](const auto &one) { return std::string(to_text(one.param)); });

// ---- faults --------------------------------------------------------------------------------------------------------

namespace {

struct fault_case {
    const char *function;
    int         code;
};

class any_fault : public testing::TestWithParam<fault_case> {};

std::string name_of_fault(const testing::TestParamInfo<fault_case> &info)
{
    return std::string(info.param.function) + "_answers_" + std::to_string(info.param.code);
}

} // namespace

TEST_P(any_fault, ends_operations_and_leaks_nothing)
{
    NVL_NEEDS_EMULATOR();
    expect_log(""); // whatever it says
    peer_side  peer;
    uint64_t   remote = peer.allocate(1, size);
    addresses  to     = peer.address();
    gpu_memory local(0, size);
    long       before = live_things();
    for (int nth = 1; nth <= 6; ++nth) {
        // A new key each time, so that opening is tried each time.
        peer.release(remote);
        remote    = peer.allocate(1, size);
        bytes key = peer.key(remote);
        {
            planned_faults faults(std::string(GetParam().function) + ":" + std::to_string(nth) +
                                  "=" + std::to_string(GetParam().code));
            (void)whole_life(local.address(), &peer, remote, key, to);
        }
        ASSERT_EQ(live_things(), before) << "left behind after call " << nth << " failed";
        ASSERT_EQ(whole_life(local.address(), &peer, remote, key, to), UCS_OK)
            << "nothing works any more after call " << nth << " has failed once";
    }
}

TEST_P(any_fault, that_lasts_ends_operations_too)
{
    NVL_NEEDS_EMULATOR();
    expect_log("");
    peer_side  peer;
    uint64_t   remote = peer.allocate(1, size);
    addresses  to     = peer.address();
    bytes      key    = peer.key(remote);
    gpu_memory local(0, size);
    {
        planned_faults faults(std::string(GetParam().function) + "=" +
                              std::to_string(GetParam().code));
        (void)whole_life(local.address(), &peer, remote, key, to);
    }
    EXPECT_EQ(whole_life(local.address(), &peer, remote, key, to), UCS_OK);
}

INSTANTIATE_TEST_SUITE_P(
    calls, any_fault,
    testing::Values(fault_case{"cuMemcpyAsync", CUDA_ERROR_LAUNCH_FAILED},
                    fault_case{"cuMemcpyAsync", CUDA_ERROR_INVALID_CONTEXT},
                    fault_case{"cuEventRecord", CUDA_ERROR_LAUNCH_FAILED},
                    fault_case{"cuEventQuery", CUDA_ERROR_LAUNCH_FAILED},
                    fault_case{"cuStreamQuery", CUDA_ERROR_LAUNCH_FAILED},
                    fault_case{"cuStreamCreateWithPriority", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuIpcOpenMemHandle_v2", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuIpcOpenMemHandle_v2", CUDA_ERROR_INVALID_DEVICE},
                    fault_case{"cuIpcGetMemHandle", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuPointerGetAttributes", CUDA_ERROR_INVALID_VALUE},
                    fault_case{"cuPointerGetAttribute", CUDA_ERROR_INVALID_VALUE},
                    fault_case{"cuCtxGetCurrent", CUDA_ERROR_DEINITIALIZED},
                    fault_case{"cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU},
                    fault_case{"cuModuleGetFunction", CUDA_ERROR_NOT_FOUND},
                    fault_case{"cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES},
                    fault_case{"cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuMemHostRegister_v2", CUDA_ERROR_OUT_OF_MEMORY},
                    fault_case{"cuMemHostGetDevicePointer_v2", CUDA_ERROR_INVALID_VALUE},
                    fault_case{"cuThreadExchangeStreamCaptureMode", CUDA_ERROR_INVALID_VALUE},
                    fault_case{"cuMemGetHandleForAddressRange", CUDA_ERROR_NOT_SUPPORTED}),
    name_of_fault);

// The copies themselves fail, as an uncorrectable memory error would make them.
TEST(copy_fault, is_reported_by_the_completion)
{
    NVL_NEEDS_EMULATOR();
    expect_log("");
    connection c(far_kind::other_worker, 0, 1, size, {{"KERNEL", "n"}});
    completion done(10);
    {
        planned_faults faults("cuEventQuery:5+=719");
        int            posted = 0;
        for (; posted < 10; ++posted) {
            if (c.put(0, 0, size, &done) != UCS_INPROGRESS) {
                break;
            }
        }
        done.super.count -= 10 - posted;
        ASSERT_TRUE(c.wait(done));
    }
    EXPECT_EQ(done.called, 1);
    EXPECT_EQ(done.status, UCS_ERR_IO_ERROR);
}

} // namespace nvl::test
