// SPDX-License-Identifier: BSD-3-Clause
//
// Modules and launches on the emulated driver, with the kernels of test_kernels.cpp.
#include "test_driver.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace {

using test::allocate;
using test::make_stream;

class launch : public testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxCreate_v2)(&other, 0, 1), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 0), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuModuleLoadData)(&module, "any image"), CUDA_SUCCESS);
    }

    void TearDown() override
    {
        CU(cuCtxDestroy_v2)(own);
        CU(cuCtxDestroy_v2)(other);
        EXPECT_EQ(EMU(emu_live_count)("module"), 0);
    }

    CUfunction function(const char *name)
    {
        CUfunction found = nullptr;
        EXPECT_EQ(CU(cuModuleGetFunction)(&found, module, name), CUDA_SUCCESS);
        return found;
    }

    CUresult add(CUdeviceptr dst, CUdeviceptr src, uint32_t count, CUstream stream)
    {
        void *args[] = {&dst, &src, &count};
        return CU(cuLaunchKernel)(function("add_words"), 4, 1, 1, 64, 1, 1, 0, stream, args,
                                  nullptr);
    }

    CUcontext own = nullptr, other = nullptr;
    CUmodule  module = nullptr;
};

TEST_F(launch, kernel_runs_after_the_work_before_it)
{
    constexpr uint32_t count = 1000;
    CUdeviceptr        a = allocate(count * 4), b = allocate(count * 4);
    CUstream           s = make_stream();
    ASSERT_EQ(CU(cuMemsetD32Async)(a, 5, count, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD32Async)(b, 7, count, s), CUDA_SUCCESS);
    ASSERT_EQ(add(a, b, count, s), CUDA_SUCCESS);
    ASSERT_EQ(add(a, b, count, s), CUDA_SUCCESS);
    std::vector<uint32_t> seen(count);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), a, count * 4), CUDA_SUCCESS);
    EXPECT_EQ(seen, std::vector<uint32_t>(count, 19));
}

TEST_F(launch, all_warps_run_at_once)
{
    CUdeviceptr counter = allocate(64);
    CUstream    s       = make_stream();
    ASSERT_EQ(CU(cuMemsetD8Async)(counter, 0, 64, s), CUDA_SUCCESS);
    void *args[] = {&counter};
    ASSERT_EQ(CU(cuLaunchKernel)(function("meet"), 5, 1, 1, 96, 1, 1, 0, s, args, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
}

TEST_F(launch, peer_memory_needs_access)
{
    ASSERT_EQ(CU(cuCtxPushCurrent_v2)(other), CUDA_SUCCESS);
    CUdeviceptr theirs = allocate(4096);
    ASSERT_EQ(CU(cuCtxPopCurrent_v2)(nullptr), CUDA_SUCCESS);
    CUdeviceptr mine = allocate(4096);
    CUstream    s    = make_stream();
    ASSERT_EQ(CU(cuCtxEnablePeerAccess)(other, 0), CUDA_SUCCESS);
    ASSERT_EQ(add(theirs, mine, 100, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxDisablePeerAccess)(other), CUDA_SUCCESS);
    ASSERT_EQ(add(theirs, mine, 100, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(launch, access_to_one_context_is_none_to_another_of_its_device)
{
    CUcontext second = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2)(&second, 0, 1), CUDA_SUCCESS);
    CUdeviceptr theirs = allocate(4096);
    ASSERT_EQ(CU(cuCtxPopCurrent_v2)(nullptr), CUDA_SUCCESS);
    CUdeviceptr mine = allocate(4096);
    CUstream    s    = make_stream();
    ASSERT_EQ(CU(cuCtxEnablePeerAccess)(second, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxEnablePeerAccess)(other, 0), CUDA_SUCCESS);
    ASSERT_EQ(add(theirs, mine, 100, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxDisablePeerAccess)(second), CUDA_SUCCESS);
    ASSERT_EQ(add(theirs, mine, 100, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(CU(cuCtxDestroy_v2)(second), CUDA_SUCCESS);
}

TEST_F(launch, pageable_memory_is_out_of_reach)
{
    std::vector<uint32_t> words(100);
    CUstream              s = make_stream();
    ASSERT_EQ(add(allocate(4096), reinterpret_cast<CUdeviceptr>(words.data()), 100, s),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(launch, function_of_another_context_is_refused)
{
    CUdeviceptr counter = allocate(64);
    void       *args[]  = {&counter};
    CUfunction  meet    = function("meet");
    ASSERT_EQ(CU(cuCtxPushCurrent_v2)(other), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuLaunchKernel)(meet, 1, 1, 1, 32, 1, 1, 0, nullptr, args, nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    ASSERT_EQ(CU(cuCtxPopCurrent_v2)(nullptr), CUDA_SUCCESS);
}

TEST_F(launch, variable_is_one_for_a_module)
{
    CUdeviceptr first = 0, second = 0;
    size_t      size = 0;
    ASSERT_EQ(CU(cuModuleGetGlobal_v2)(&first, &size, module, "table"), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuModuleGetGlobal_v2)(&second, nullptr, module, "table"), CUDA_SUCCESS);
    EXPECT_EQ(first, second);
    EXPECT_EQ(size, 4096u);
    EXPECT_EQ(CU(cuModuleGetGlobal_v2)(&first, &size, module, "none"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(launch, unknown_function_is_not_found)
{
    CUfunction found = nullptr;
    EXPECT_EQ(CU(cuModuleGetFunction)(&found, module, "none"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(launch, library_gives_a_function_for_each_context)
{
    CUlibrary  library = nullptr;
    CUkernel   kernel  = nullptr;
    CUfunction here = nullptr, there = nullptr;
    ASSERT_EQ(CU(cuLibraryLoadData)(&library, "x", nullptr, nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(CU(cuLibraryGetKernel)(&kernel, library, "meet"), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuKernelGetFunction)(&here, kernel), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxPushCurrent_v2)(other), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuKernelGetFunction)(&there, kernel), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxPopCurrent_v2)(nullptr), CUDA_SUCCESS);
    EXPECT_NE(here, there);
    EXPECT_EQ(CU(cuLibraryUnload)(library), CUDA_SUCCESS);
}

} // namespace
