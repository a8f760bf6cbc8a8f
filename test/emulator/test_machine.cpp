// SPDX-License-Identifier: BSD-3-Clause
//
// What the driver says follows the machine file. Each group is for one machine: test_machine.test
// runs them with run_emulated -m.
#include "test_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>

namespace {

std::string uuid_of(CUdevice device)
{
    CUuuid uuid{};
    EXPECT_EQ(CU(cuDeviceGetUuid_v2)(&uuid, device), CUDA_SUCCESS);
    return std::string(uuid.bytes, sizeof(uuid.bytes));
}

class machine_test : public testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuDeviceGetCount)(&count), CUDA_SUCCESS);
    }
    static CUcontext context_on(CUdevice device)
    {
        CUcontext ctx = nullptr;
        EXPECT_EQ(CU(cuDevicePrimaryCtxRetain)(&ctx, device), CUDA_SUCCESS);
        return ctx;
    }
    int count = 0;
};

using peer_limit = machine_test;

TEST_F(peer_limit, ninth_peer_is_refused)
{
    ASSERT_EQ(count, 10);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(0)), CUDA_SUCCESS);
    for (int i = 1; i <= 8; i++)
        EXPECT_EQ(CU(cuCtxEnablePeerAccess)(context_on(i), 0), CUDA_SUCCESS) << i;
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(context_on(9), 0), CUDA_ERROR_TOO_MANY_PEERS);
    ASSERT_EQ(CU(cuCtxDisablePeerAccess)(context_on(1)), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(context_on(9), 0), CUDA_SUCCESS);
}

using peers_taken = machine_test; // NVL_EMU_PEERS_TAKEN=8

TEST_F(peers_taken, first_peer_is_refused)
{
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(0)), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(context_on(1), 0), CUDA_ERROR_TOO_MANY_PEERS);
}

using slow_copies = machine_test; // NVL_EMU_TIMING=1, with a tenth of a second for each push

TEST_F(slow_copies, time_counts_from_the_beginning_of_the_copy)
{
    using std::chrono::steady_clock;
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(1)), CUDA_SUCCESS);
    CUdeviceptr theirs = test::allocate(8u << 20);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(0)), CUDA_SUCCESS);
    CUdeviceptr mine = test::allocate(8u << 20), other = test::allocate(8u << 20);
    CUstream    s       = test::make_stream();
    const auto  seconds = [&](CUdeviceptr to, size_t rows) {
        CUDA_MEMCPY2D copy{};
        copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice                          = mine;
        copy.dstDevice                          = to;
        copy.srcPitch = copy.dstPitch = 8;
        copy.WidthInBytes             = 4;
        copy.Height                   = rows;
        const auto begin              = steady_clock::now();
        EXPECT_EQ(CU(cuMemcpy2DAsync_v2)(&copy, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        return std::chrono::duration<double>(steady_clock::now() - begin).count();
    };
    // As many rows as need half of that time.
    constexpr double latency = 0.1;
    size_t           rows    = 1000;
    while (rows < 1000000 && seconds(other, rows) < latency / 2)
        rows += rows / 2;
    const double own = seconds(other, rows);
    EXPECT_GE(seconds(theirs, 1), latency);
    double least = 10;
    for (int i = 0; i < 20 && least > latency + own / 2; i++) // a busy machine needs longer
        least = std::min(least, seconds(theirs, rows));
    EXPECT_GE(least, latency);
    EXPECT_LE(least, latency + own / 2);
}

using no_peers = machine_test;

TEST_F(no_peers, access_is_unsupported_and_copies_are_staged)
{
    int can = 7;
    ASSERT_EQ(CU(cuDeviceCanAccessPeer)(&can, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(can, 0);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(1)), CUDA_SUCCESS);
    CUdeviceptr theirs = test::allocate(4096);
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(0)), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(context_on(1), 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    CUdeviceptr mine = test::allocate(4096);
    test::fill_pattern(mine, 4096, 5);
    ASSERT_EQ(CU(cuMemcpyDtoD_v2)(theirs, mine, 4096), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    std::vector<char> seen(4096);
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), theirs, 4096), CUDA_SUCCESS);
    EXPECT_EQ(seen, test::pattern(4096, 5));
}

using instance = machine_test;

TEST_F(instance, has_its_own_uuid_and_no_legacy_handle)
{
    CUuuid whole{};
    ASSERT_EQ(CU(cuDeviceGetUuid)(&whole, 0), CUDA_SUCCESS); // the GPU's
    EXPECT_NE(uuid_of(0), std::string(whole.bytes, sizeof(whole.bytes)));
    ASSERT_EQ(CU(cuCtxSetCurrent)(context_on(0)), CUDA_SUCCESS);
    CUipcMemHandle handle;
    EXPECT_EQ(CU(cuIpcGetMemHandle)(&handle, test::allocate(4096)), CUDA_ERROR_NOT_SUPPORTED);
}

using older_driver = machine_test; // of CUDA 12.2

TEST_F(older_driver, has_no_later_function)
{
    void                          *found = nullptr;
    CUdriverProcAddressQueryResult status;
    EXPECT_EQ(CU(cuGetProcAddress_v2)("cuMemAlloc", &found, 13000, 0, &status),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuGetProcAddress_v2)("cuMemcpyBatchAsync", &found, 12020, 0, &status),
              CUDA_SUCCESS);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(CU(cuGetProcAddress_v2)("cuMemAlloc", &found, 12020, 0, &status), CUDA_SUCCESS);
}

using newer_driver = machine_test; // of CUDA 13.0

TEST_F(newer_driver, gives_both_forms_of_the_batch)
{
    void *nine = nullptr, *eight = nullptr;
    ASSERT_EQ(CU(cuGetProcAddress_v2)("cuMemcpyBatchAsync", &nine, 12080, 0, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(CU(cuGetProcAddress_v2)("cuMemcpyBatchAsync", &eight, 13000, 0, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(nine, test::symbol("cuMemcpyBatchAsync"));
    EXPECT_EQ(eight, test::symbol("cuMemcpyBatchAsync_v2"));
}

using one_visible = machine_test; // CUDA_VISIBLE_DEVICES=1

TEST_F(one_visible, is_the_second_gpu)
{
    ASSERT_EQ(count, 1);
    char pci[32] = "";
    ASSERT_EQ(CU(cuDeviceGetPCIBusId)(pci, sizeof(pci), 0), CUDA_SUCCESS);
    EXPECT_STREQ(pci, "0000:00:07.0");
}

using none_visible = testing::Test; // CUDA_VISIBLE_DEVICES=

TEST_F(none_visible, means_no_device)
{
    EXPECT_EQ(CU(cuInit)(0), CUDA_ERROR_NO_DEVICE);
}

using failing_init = testing::Test; // NVL_EMU_FAULTS=cuInit:1=802

TEST_F(failing_init, may_work_later)
{
    EXPECT_EQ(CU(cuInit)(0), CUDA_ERROR_SYSTEM_NOT_READY);
    EXPECT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
}

using killed = machine_test; // NVL_EMU_FAULTS=cuDeviceGetName:2=kill

TEST_F(killed, at_the_chosen_call)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    char name[64];
    EXPECT_EXIT(
        {
            CU(cuInit)(0);
            CU(cuDeviceGetName)(name, sizeof(name), 0);
            fputs("first call\n", stderr);
            CU(cuDeviceGetName)(name, sizeof(name), 0);
            fputs("second call\n", stderr);
        },
        testing::KilledBySignal(SIGKILL), "^first call\n$");
}

} // namespace
