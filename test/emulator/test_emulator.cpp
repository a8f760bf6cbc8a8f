// SPDX-License-Identifier: BSD-3-Clause
//
// What the emulated driver promises beyond the codes that driver_calls compares: that bytes really
// move, later than they were asked to; order between streams; faults, counts and leaks; kernels.
// Runs under run_emulated. Opens libcuda.so.1 as any client does.
#include "cuda_internal.h"
#include "emu.h"
#include "test_driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using test::allocate;
using test::fill_pattern;
using test::make_stream;
using test::pattern;

// A primary context of each of two GPUs, the first one current.
class emulator : public testing::Test {
protected:
    void SetUp() override
    {
        EMU(emu_clear_faults)();
        EMU(emu_hold)(0);
        ASSERT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
        for (int i = 0; i < 2; i++)
            ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&ctx[i], i), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxSetCurrent)(ctx[0]), CUDA_SUCCESS);
    }

    void TearDown() override
    {
        EMU(emu_clear_faults)();
        EMU(emu_hold)(0);
        while (EMU(emu_context_depth)() > 0)
            CU(cuCtxPopCurrent_v2)(nullptr);
        for (int i = 0; i < 2; i++)
            CU(cuDevicePrimaryCtxRelease_v2)(i);
        EXPECT_EQ(EMU(emu_device_bytes)(0), 0);
        EXPECT_EQ(EMU(emu_live_count)("stream"), 0);
        EXPECT_EQ(EMU(emu_live_count)("event"), 0);
    }

    CUcontext ctx[2] = {};
};

TEST_F(emulator, copy_between_gpus_moves_the_bytes)
{
    CUdeviceptr a = allocate(100000);
    ASSERT_EQ(CU(cuCtxSetCurrent)(ctx[1]), CUDA_SUCCESS);
    CUdeviceptr b = allocate(100000);
    ASSERT_EQ(CU(cuCtxSetCurrent)(ctx[0]), CUDA_SUCCESS);
    fill_pattern(a, 100000, 7);
    CUstream s = make_stream();
    ASSERT_EQ(CU(cuMemcpyAsync)(b + 1, a + 3, 99990, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    std::vector<char> seen(99990), all = pattern(100000, 7);
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b + 1, seen.size()), CUDA_SUCCESS);
    EXPECT_EQ(memcmp(seen.data(), all.data() + 3, seen.size()), 0);
}

TEST_F(emulator, completion_waits_for_the_release_of_held_work)
{
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    CUstream    s = make_stream();
    CUevent     e = nullptr;
    ASSERT_EQ(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EMU(emu_hold)(1);
    ASSERT_EQ(CU(cuMemcpyAsync)(a, b, 4096, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord)(e, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
    EMU(emu_release)(2);
    EXPECT_EQ(CU(cuEventSynchronize)(e), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_SUCCESS);
}

TEST_F(emulator, legacy_stream_waits_for_blocking_streams)
{
    CUstream blocking = nullptr;
    ASSERT_EQ(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    CUdeviceptr flag = allocate(4096), data = allocate(4096);
    ASSERT_EQ(CU(cuMemsetD8_v2)(flag, 0, 4096), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    CUstream free_one = make_stream();
    // The blocking stream waits for a flag; the legacy stream must wait with it.
    ASSERT_EQ(CU(cuStreamWaitValue32_v2)(blocking, flag, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD8Async)(data, 1, 4096, nullptr), CUDA_SUCCESS);
    CUevent legacy = nullptr;
    ASSERT_EQ(CU(cuEventCreate)(&legacy, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord)(legacy, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(legacy), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(CU(cuStreamWriteValue32_v2)(free_one, flag, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventSynchronize)(legacy), CUDA_SUCCESS);
}

TEST_F(emulator, stream_waits_for_an_event_of_another)
{
    CUstream    first = make_stream(), second = make_stream(), third = make_stream();
    CUdeviceptr flag = allocate(4096);
    CUevent     e = nullptr, end = nullptr;
    ASSERT_EQ(CU(cuMemsetD8_v2)(flag, 0, 4096), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventCreate)(&e, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventCreate)(&end, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitValue32_v2)(first, flag, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord)(e, first), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitEvent)(second, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord)(end, second), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(end), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(CU(cuStreamWriteValue32_v2)(third, flag, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventSynchronize)(end), CUDA_SUCCESS);
}

TEST_F(emulator, host_functions_run_in_order_on_another_thread)
{
    static std::vector<int> order;
    static std::thread::id  where;
    order.clear();
    CUstream s = make_stream();
    for (long i = 0; i < 10; i++) {
        ASSERT_EQ(CU(cuLaunchHostFunc)(
                      s,
                      [](void *argument) {
                          order.push_back(static_cast<int>(reinterpret_cast<long>(argument)));
                          where = std::this_thread::get_id();
                      },
                      reinterpret_cast<void *>(i)),
                  CUDA_SUCCESS);
    }
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_NE(where, std::this_thread::get_id());
}

using emulator_death = emulator;

TEST_F(emulator_death, processor_faults_on_device_memory)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            CU(cuInit)(0);
            CUcontext own = nullptr;
            CU(cuDevicePrimaryCtxRetain)(&own, 0);
            CU(cuCtxSetCurrent)(own);
            signal(SIGSEGV, SIG_DFL);
            *reinterpret_cast<volatile char *>(allocate(4096)) = 1;
        },
        testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(emulator_death, function_that_nobody_wrote_says_its_name)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(reinterpret_cast<void (*)()>(test::symbol("cuTexRefCreate"))(),
                testing::KilledBySignal(SIGABRT), "cuTexRefCreate is not implemented");
    EXPECT_EXIT(reinterpret_cast<void (*)()>(test::symbol("cuGetExportTable"))(),
                testing::KilledBySignal(SIGABRT), "cuGetExportTable is not implemented");
}

TEST_F(emulator, managed_memory_is_the_processors_too)
{
    CUdeviceptr p = 0, d = allocate(4096);
    ASSERT_EQ(CU(cuMemAllocManaged)(&p, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    memset(reinterpret_cast<void *>(p), 0x33, 4096);
    ASSERT_EQ(CU(cuMemcpyDtoD_v2)(d, p, 4096), CUDA_SUCCESS);
    char seen = 0;
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(&seen, d + 4095, 1), CUDA_SUCCESS);
    EXPECT_EQ(seen, 0x33);
    ASSERT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
}

TEST_F(emulator, freed_address_comes_back_with_another_buffer_id)
{
    unsigned long long first = 0, second = 0;
    CUdeviceptr        p = allocate(4 << 20);
    ASSERT_EQ(CU(cuPointerGetAttribute)(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, p), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
    CUdeviceptr q = allocate(2 << 20);
    ASSERT_EQ(CU(cuPointerGetAttribute)(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, q), CUDA_SUCCESS);
    EXPECT_EQ(p, q);
    EXPECT_NE(first, second);
}

TEST_F(emulator, small_allocations_share_a_granule_and_know_their_own_range)
{
    constexpr size_t granule = 2u << 20;
    CUdeviceptr      a = allocate(1000), b = allocate(1000), large = allocate(granule);
    EXPECT_EQ(a / granule, b / granule);
    EXPECT_EQ(b, a + 1024);
    EXPECT_EQ(large % granule, 0u);
    CUdeviceptr base = 0;
    size_t      size = 0;
    ASSERT_EQ(CU(cuMemGetAddressRange_v2)(&base, &size, b + 999), CUDA_SUCCESS);
    EXPECT_EQ(base, b);
    EXPECT_EQ(size, 1000u);
    EXPECT_EQ(CU(cuMemGetAddressRange_v2)(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
    ASSERT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(allocate(500), a); // first fit
    fill_pattern(b, 1000, 3);
    for (CUdeviceptr p : {a, b, large})
        EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
    EXPECT_EQ(allocate(granule), a); // the granule is one again
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
}

TEST_F(emulator, large_memory_costs_nothing_until_it_is_touched)
{
    CUdeviceptr p = allocate(64ull << 30);
    EXPECT_EQ(EMU(emu_device_bytes)(0), 64ll << 30);
    EXPECT_EQ(CU(cuMemsetD8_v2)(p + (63ull << 30), 1, 4096), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
}

TEST_F(emulator, memory_runs_out_where_the_machine_says)
{
    size_t      total = 0;
    CUdeviceptr p     = 0;
    ASSERT_EQ(CU(cuDeviceTotalMem_v2)(&total, 0), CUDA_SUCCESS);
    allocate(total / 4 * 3);
    EXPECT_EQ(CU(cuMemAlloc_v2)(&p, total / 2), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(emulator, fault_hits_the_planned_call_only)
{
    CUdeviceptr p = 0;
    ASSERT_EQ(EMU(emu_add_faults)("cuMemGetInfo_v2:2=46"), 0);
    EMU(emu_reset_counts)();
    EXPECT_EQ(CU(cuMemGetInfo_v2)(nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemGetInfo_v2)(nullptr, nullptr), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(CU(cuMemGetInfo_v2)(nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_call_count)("cuMemGetInfo_v2"), 3);
    EXPECT_EQ(CU(cuMemAlloc_v2)(&p, 16), CUDA_SUCCESS);
}

TEST_F(emulator, fault_of_a_thread_counts_its_own_calls)
{
    ASSERT_EQ(EMU(emu_add_faults)("cuDeviceGetName:t1=46"), 0);
    char     name[64];
    CUresult here = CU(cuDeviceGetName)(name, sizeof(name), 0), there = CUDA_SUCCESS;
    std::thread([&] { there = CU(cuDeviceGetName)(name, sizeof(name), 0); }).join();
    EXPECT_EQ(here, CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(there, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_F(emulator, nonsense_is_no_fault_rule)
{
    for (const char *rules : {"cuNoSuchFunction=1",
                              "cuMemcpyAsync",
                              "copy:x=1",
                              "cuInit=drop",
                              "cuMemFree_v2=lost",
                              "cuInit=astray",
                              "copy=skip",
                              "*=skip",
                              "kernel=drop",
                              "copy=late",
                              "cuInit:99999999999999999999=5",
                              "cuInit=sleep99999999999999999999",
                              "cuInit=3000000000",
                              "cuMemAlloc_v2=skip",
                              "cuMemGetInfo_v2=skip",
                              "cuDeviceGetUuid=skip",
                              "cuPointerGetAttribute=skip",
                              "cuInit:0=5",
                              "cuInit:3-2=5",
                              "cuInit:=5",
                              "cuInit:t=5",
                              "cuInit:/0=5"})
        EXPECT_EQ(EMU(emu_add_faults)(rules), -1) << rules;
}

TEST_F(emulator, a_call_that_gives_nothing_back_can_be_skipped)
{
    for (const char *rule : {"cuMemFree_v2=skip", "cuLaunchKernel=skip", "cuCtxPopCurrent_v2=skip",
                             "cuMemcpyDtoH_v2=skip", "cuStreamSynchronize=skip"})
        EXPECT_EQ(EMU(emu_add_faults)(rule), 0) << rule;
    EMU(emu_clear_faults)();
}

bool is_asleep(long thread)
{
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string   line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    return name_end != std::string::npos && line.compare(name_end, 3, ") S") == 0;
}

// Its work is waited for by whoever waits for its context. The work is held until the call waits, or
// has come back too early; and the bytes are looked at without a stream, which would wait for them.
TEST_F(emulator, work_of_a_destroyed_stream_is_waited_for)
{
    const std::vector<char> wanted = pattern(4096, 1);
    CUdeviceptr             a = allocate(4096), b = allocate(4096);
    const void             *seen = EMU(emu_peek)(b, 4096);
    ASSERT_NE(seen, nullptr);
    fill_pattern(a, 4096, 1);
    for (const char *call : {"cuCtxSynchronize", "cuMemFree_v2"}) {
        CUdeviceptr more = allocate(4096);
        CUstream    s    = nullptr;
        ASSERT_EQ(CU(cuStreamCreate)(&s, CU_STREAM_DEFAULT), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuMemsetD8_v2)(b, 0xee, 4096), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
        EMU(emu_hold)(1);
        ASSERT_EQ(CU(cuMemcpyDtoDAsync_v2)(more, a, 4096, s), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuMemcpyDtoDAsync_v2)(b, more, 4096, s), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuStreamDestroy_v2)(s), CUDA_SUCCESS);

        EMU(emu_reset_counts)();
        const bool        frees = strcmp(call, "cuMemFree_v2") == 0;
        std::atomic<long> id{0};
        std::atomic<bool> is_back{false}, is_there{false};
        std::thread       caller([&] {
            EXPECT_EQ(CU(cuCtxSetCurrent)(ctx[0]), CUDA_SUCCESS);
            id = syscall(SYS_gettid);
            EXPECT_EQ(frees ? CU(cuMemFree_v2)(more) : CU(cuCtxSynchronize)(), CUDA_SUCCESS);
            is_there = memcmp(seen, wanted.data(), wanted.size()) == 0;
            is_back  = true;
        });
        while (!is_back && (EMU(emu_call_count)(call) == 0 || !is_asleep(id)))
            std::this_thread::yield();
        EXPECT_FALSE(is_back) << call;
        EMU(emu_hold)(0);
        caller.join();
        EXPECT_TRUE(is_there) << call;
        if (!frees) {
            EXPECT_EQ(CU(cuMemFree_v2)(more), CUDA_SUCCESS);
        }
    }
}

TEST_F(emulator, sizes_beyond_all_addresses_are_refused)
{
    constexpr size_t half = size_t(1) << 63, quarter = half / 2;
    CUdeviceptr      a = allocate(4096), b = allocate(4096), more = 0;
    size_t           pitch = 0;
    EXPECT_EQ(CU(cuMemsetD16_v2)(a, 1, half + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemsetD32_v2)(a, 1, quarter + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemsetD2D8_v2)(a, quarter, 7, 8, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemAllocPitch_v2)(&more, &pitch, half, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(CU(cuMemAllocPitch_v2)(&more, &pitch, ~size_t(0), 4, 4), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(CU(cuMemAllocAsync)(&more, ~size_t(0), nullptr), CUDA_ERROR_OUT_OF_MEMORY);

    CUDA_MEMCPY2D box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice                         = a;
    box.dstDevice                         = b;
    box.WidthInBytes                      = 8;
    box.Height                            = 5;
    box.srcPitch                          = quarter;
    EXPECT_EQ(CU(cuMemcpy2D_v2)(&box), CUDA_ERROR_INVALID_VALUE);
    box.srcPitch = 64;
    box.srcY     = size_t(1) << 58;
    EXPECT_EQ(CU(cuMemcpy2D_v2)(&box), CUDA_ERROR_INVALID_VALUE);

    char byte = 0;
    EXPECT_EQ(CU(cuMemHostRegister_v2)(&byte, ~size_t(0), 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemHostRegister_v2)(reinterpret_cast<void *>(4096), 4096, 0),
              CUDA_ERROR_INVALID_VALUE)
        << "nothing is mapped there";
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(b), CUDA_SUCCESS);
}

TEST_F(emulator, external_events_are_for_streams_that_are_captured)
{
    CUstream s     = make_stream();
    CUevent  e     = nullptr;
    CUgraph  graph = nullptr;
    ASSERT_EQ(CU(cuEventCreate)(&e, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventRecordWithFlags)(e, s, CU_EVENT_RECORD_DEFAULT), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventRecordWithFlags)(e, s, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuStreamWaitEvent)(s, e, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventRecordWithFlags)(e, s, CU_EVENT_RECORD_EXTERNAL), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamWaitEvent)(s, e, CU_EVENT_WAIT_EXTERNAL), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamEndCapture)(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
}

TEST_F(emulator, box_that_its_description_cannot_hold_is_refused)
{
    CUdeviceptr   a = allocate(4096), b = allocate(4096);
    CUDA_MEMCPY3D good{};
    good.srcMemoryType = good.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    good.srcDevice                          = a;
    good.dstDevice                          = b;
    good.srcPitch = good.dstPitch = 16;
    good.srcHeight = good.dstHeight = 4;
    good.srcY                       = 1;
    good.WidthInBytes               = 8;
    good.Height                     = 3;
    good.Depth                      = 2;
    EXPECT_EQ(CU(cuMemcpy3D_v2)(&good), CUDA_SUCCESS);
    const auto refuses = [&](auto &&spoil) {
        CUDA_MEMCPY3D bad = good;
        spoil(bad);
        return CU(cuMemcpy3D_v2)(&bad) == CUDA_ERROR_INVALID_VALUE;
    };
    EXPECT_TRUE(refuses([](auto &box) { box.srcHeight = 3; })) << "rows 1 to 3";
    EXPECT_TRUE(refuses([](auto &box) { box.dstHeight = 2; }));
    EXPECT_TRUE(refuses([](auto &box) { box.srcPitch = 7; }));
    EXPECT_TRUE(refuses([](auto &box) { box.srcLOD = 1; }));
    EXPECT_TRUE(refuses([](auto &box) { box.dstLOD = 1; }));
    EXPECT_TRUE(refuses([](auto &box) { box.reserved0 = &box; }));
    EXPECT_TRUE(refuses([](auto &box) { box.reserved1 = &box; }));
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(b), CUDA_SUCCESS);
}

TEST_F(emulator, fill_of_rows_writes_nothing_between_them)
{
    constexpr size_t   pitch = 64, width = 3, rows = 4;
    CUdeviceptr        a    = allocate(pitch * rows);
    CUstream           s    = make_stream();
    const CUdeviceptr  last = a + (rows - 1) * pitch;
    std::vector<short> seen(pitch * rows / 2), wanted(seen.size(), 0x1111);
    ASSERT_EQ(CU(cuMemsetD8_v2)(a, 0x11, pitch * rows), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemsetD2D16_v2)(a, pitch, 0x2233, width, rows), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemsetD2D32_v2)(a + 16, pitch, 0x44556677, width, rows), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemsetD2D16Async)(last, pitch, 0x5566, 1, 1, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemsetD2D32Async)(last + 16, pitch, 0x778899aa, 1, 1, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < width; i++) {
            wanted[row * pitch / 2 + i]             = 0x2233;
            wanted[row * pitch / 2 + 8 + 2 * i]     = 0x6677;
            wanted[row * pitch / 2 + 8 + 2 * i + 1] = 0x4455;
        }
    }
    wanted[(rows - 1) * pitch / 2]     = 0x5566;
    wanted[(rows - 1) * pitch / 2 + 8] = static_cast<short>(0x99aa);
    wanted[(rows - 1) * pitch / 2 + 9] = 0x7788;
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), a, pitch * rows), CUDA_SUCCESS);
    EXPECT_EQ(seen, wanted);

    EXPECT_EQ(CU(cuMemsetD2D16_v2)(a + 1, pitch, 0, 1, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemsetD2D16_v2)(a, pitch + 1, 0, 1, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemsetD2D32_v2)(a, pitch + 2, 0, 1, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemsetD2D32_v2)(a, pitch + 2, 0, 1, 1), CUDA_SUCCESS) << "one row: no pitch";
    EXPECT_EQ(CU(cuMemsetD2D32_v2)(a, 8, 0, 3, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
}

TEST_F(emulator, library_is_loaded_from_a_file_that_is_there)
{
    CUlibrary       library = nullptr;
    CUlibraryOption option  = CU_LIBRARY_BINARY_IS_PRESERVED;
    void           *value   = nullptr;
    const auto      load    = [&](const char *path, unsigned options) {
        return CU(cuLibraryLoadFromFile)(&library, path, nullptr, nullptr, 0, &option, &value,
                                         options);
    };
    EXPECT_EQ(load("/proc/self/exe", 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuLibraryUnload)(library), CUDA_SUCCESS);
    EXPECT_EQ(load("/proc/self/none", 0), CUDA_ERROR_FILE_NOT_FOUND);
    EXPECT_EQ(load("/proc/self/exe", 1), CUDA_ERROR_INVALID_VALUE) << "for code in memory only";
    EXPECT_EQ(load(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(emulator, stream_keeps_the_attributes_that_streams_have)
{
    CUstream          s = make_stream();
    CUstreamAttrValue value{};
    int               priority = 1;
    ASSERT_EQ(CU(cuStreamGetAttribute)(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value),
              CUDA_SUCCESS);
    EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_AUTO);
    value.syncPolicy = CU_SYNC_POLICY_SPIN;
    ASSERT_EQ(CU(cuStreamSetAttribute)(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value),
              CUDA_SUCCESS);
    value = {};
    ASSERT_EQ(CU(cuStreamGetAttribute)(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value),
              CUDA_SUCCESS);
    EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_SPIN);
    value.priority = -2;
    ASSERT_EQ(CU(cuStreamSetAttribute)(s, CU_STREAM_ATTRIBUTE_PRIORITY, &value), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamGetPriority)(s, &priority), CUDA_SUCCESS);
    EXPECT_EQ(priority, -2);
    ASSERT_EQ(CU(cuStreamGetAttribute_ptsz)(nullptr, CU_STREAM_ATTRIBUTE_PRIORITY, &value),
              CUDA_SUCCESS);
    EXPECT_EQ(value.priority, 0);

    EXPECT_EQ(CU(cuStreamGetAttribute)(s, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value),
              CUDA_ERROR_INVALID_VALUE)
        << "of launches";
    EXPECT_EQ(CU(cuStreamGetAttribute)(s, CU_STREAM_ATTRIBUTE_PRIORITY, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    value.syncPolicy = static_cast<CUsynchronizationPolicy>(0);
    EXPECT_EQ(CU(cuStreamSetAttribute)(s, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value),
              CUDA_ERROR_INVALID_VALUE);
    value                             = {};
    value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_PERSISTING;
    EXPECT_EQ(CU(cuStreamSetAttribute)(s, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value),
              CUDA_ERROR_INVALID_VALUE);
}

CUDA_MEMCPY3D_BATCH_OP box_of(CUdeviceptr to, CUdeviceptr from)
{
    CUDA_MEMCPY3D_BATCH_OP op{};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr         = from;
    op.dst.op.ptr.ptr         = to;
    op.extent.width           = 5;
    op.extent.height          = 3;
    op.extent.depth           = 2;
    op.srcAccessOrder         = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return op;
}

TEST_F(emulator, batch_of_boxes_moves_each_of_them)
{
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    CUstream    s = make_stream();
    fill_pattern(a, 4096, 1);
    ASSERT_EQ(CU(cuMemsetD8_v2)(b, 0, 4096), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    // The first is packed at its end, with gaps at its beginning; the second is the other way round.
    CUDA_MEMCPY3D_BATCH_OP boxes[]  = {box_of(b, a), box_of(b + 1000, a + 1000)};
    boxes[0].src.op.ptr.rowLength   = 10;
    boxes[0].src.op.ptr.layerHeight = 4;
    boxes[1].dst.op.ptr.rowLength   = 10;
    boxes[1].dst.op.ptr.layerHeight = 4;
    std::vector<char>       wanted(4096), seen(4096);
    const std::vector<char> source = pattern(4096, 1);
    for (size_t i = 0; i < 30; i++) {
        const size_t apart   = i / 15 * 40 + i / 5 % 3 * 10 + i % 5;
        wanted[i]            = source[apart];
        wanted[1000 + apart] = source[1000 + i];
    }
    EXPECT_EQ(CU(cuMemcpy3DBatchAsync_v2)(2, boxes, 0, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b, seen.size()), CUDA_SUCCESS);
    EXPECT_EQ(seen, wanted);
    EXPECT_EQ(CU(cuMemcpy3DBatchAsync_v2_ptsz)(2, boxes, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize_ptsz)(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(b), CUDA_SUCCESS);
}

TEST_F(emulator, batch_of_boxes_tells_which_one_is_refused)
{
    CUdeviceptr            a = allocate(4096), b = allocate(4096);
    CUstream               s       = make_stream();
    CUDA_MEMCPY3D_BATCH_OP boxes[] = {box_of(b, a), box_of(b, a)};
    size_t                 failed  = 7;
    EXPECT_EQ(CU(cuMemcpy3DBatchAsync)(2, boxes, &failed, 1, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(failed, ~size_t(0)) << "the flags";
    EXPECT_EQ(CU(cuMemcpy3DBatchAsync)(2, boxes, &failed, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemcpy3DBatchAsync)(0, boxes, &failed, 0, s), CUDA_ERROR_INVALID_VALUE);
    const auto refuses = [&](auto &&spoil) {
        boxes[1] = box_of(b, a);
        spoil(boxes[1]);
        failed = 7;
        return CU(cuMemcpy3DBatchAsync)(2, boxes, &failed, 0, s) == CUDA_ERROR_INVALID_VALUE &&
               failed == 1;
    };
    EXPECT_TRUE(refuses([](auto &box) { box.extent.depth = 0; }));
    EXPECT_TRUE(refuses([](auto &box) { box.src.op.ptr.rowLength = 4; }));
    EXPECT_TRUE(refuses([](auto &box) { box.dst.op.ptr.layerHeight = 2; }));
    EXPECT_TRUE(
        refuses([](auto &box) { box.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID; }));
    EXPECT_TRUE(refuses([](auto &box) { box.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY; }));
    EXPECT_TRUE(refuses([](auto &box) { box.extent.height = 4096; })) << "beyond the memory";
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(b), CUDA_SUCCESS);
}

TEST_F(emulator, prefetch_goes_into_the_threads_own_stream)
{
    CUdeviceptr   p = 0;
    CUmemLocation here{};
    here.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ASSERT_EQ(CU(cuMemAllocManaged)(&p, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    for (bool second_form : {false, true}) {
        EMU(emu_hold)(1);
        EXPECT_EQ(second_form ? CU(cuMemPrefetchAsync_v2_ptsz)(p, 4096, here, 0, nullptr)
                              : CU(cuMemPrefetchAsync_ptsz)(p, 4096, 0, nullptr),
                  CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamQuery_ptsz)(nullptr), CUDA_ERROR_NOT_READY);
        EMU(emu_hold)(0);
        EXPECT_EQ(CU(cuStreamSynchronize_ptsz)(nullptr), CUDA_SUCCESS);
    }
    here.id = 2;
    EXPECT_EQ(CU(cuMemPrefetchAsync_v2_ptsz)(p, 4096, here, 0, nullptr), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
}

// Something of the host's memory, and what the program finds there.
class host_buffer {
public:
    explicit host_buffer(bool pinned) : pageable_(4096), pinned_(pinned)
    {
        void *p = pageable_.data();
        if (pinned) {
            EXPECT_EQ(CU(cuMemAllocHost_v2)(&p, pageable_.size()), CUDA_SUCCESS);
        }
        bytes = static_cast<char *>(p);
    }
    ~host_buffer()
    {
        if (pinned_) {
            EXPECT_EQ(CU(cuMemFreeHost)(bytes), CUDA_SUCCESS);
        }
    }
    host_buffer(const host_buffer &)            = delete;
    host_buffer &operator=(const host_buffer &) = delete;

    void set(int seed)
    {
        memcpy(bytes, pattern(4096, seed).data(), 4096);
    }
    bool is(int seed) const
    {
        return memcmp(bytes, pattern(4096, seed).data(), 4096) == 0;
    }
    CUdeviceptr address() const
    {
        return reinterpret_cast<CUdeviceptr>(bytes);
    }

    char *bytes = nullptr;

private:
    std::vector<char> pageable_;
    bool              pinned_;
};

// Work that takes its time, and then gives this buffer the bytes of seed 2.
void change_later(host_buffer &buffer, CUstream s)
{
    ASSERT_EQ(CU(cuLaunchHostFunc)(
                  s,
                  [](void *argument) {
                      usleep(20000);
                      static_cast<host_buffer *>(argument)->set(2);
                  },
                  &buffer),
              CUDA_SUCCESS);
}

void take_a_while(CUstream s)
{
    ASSERT_EQ(CU(cuLaunchHostFunc)(
                  s, [](void *) { usleep(20000); }, nullptr),
              CUDA_SUCCESS);
}

TEST_F(emulator, copy_within_host_memory_is_done_when_it_returns)
{
    CUstream s = make_stream();
    for (bool to_pinned : {false, true}) {
        for (bool from_pinned : {false, true}) {
            host_buffer to(to_pinned), from(from_pinned);
            from.set(1);
            change_later(from, s);
            ASSERT_EQ(CU(cuMemcpyAsync)(to.address(), from.address(), 4096, s), CUDA_SUCCESS);
            EXPECT_TRUE(to.is(2)) << "to pinned " << to_pinned << " from pinned " << from_pinned;
            ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        }
    }
}

TEST_F(emulator, copy_from_pageable_memory_has_read_it_when_it_returns)
{
    CUstream    s = make_stream();
    CUdeviceptr a = allocate(4096);
    host_buffer from(false), to(false);
    from.set(1);
    EMU(emu_hold)(1);
    ASSERT_EQ(CU(cuMemcpyAsync)(a, from.address(), 4096, s), CUDA_SUCCESS);
    from.set(2);
    EMU(emu_hold)(0);
    ASSERT_EQ(CU(cuMemcpyAsync)(to.address(), a, 4096, s), CUDA_SUCCESS);
    EXPECT_TRUE(to.is(1));
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
}

// The linear form and that of boxes.
CUresult copy_as_batch(bool boxes, CUdeviceptr to, CUdeviceptr from, CUmemcpySrcAccessOrder order,
                       CUstream s)
{
    size_t size = 4096, first = 0;
    if (!boxes) {
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = order;
        return CU(cuMemcpyBatchAsync_v2)(&to, &from, &size, 1, &attributes, &first, 1, s);
    }
    CUDA_MEMCPY3D_BATCH_OP op = box_of(to, from);
    op.extent                 = {64, 8, 8};
    op.srcAccessOrder         = order;
    return CU(cuMemcpy3DBatchAsync_v2)(1, &op, 0, s);
}

TEST_F(emulator, batch_reads_its_source_when_it_says)
{
    CUstream    s = make_stream();
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    void       *of_a = EMU(emu_peek)(a, 4096), *of_b = EMU(emu_peek)(b, 4096);
    const auto b_is = [&](int seed) { return memcmp(of_b, pattern(4096, seed).data(), 4096) == 0; };
    for (bool boxes : {false, true}) {
        for (bool pinned : {false, true}) {
            host_buffer from(pinned);
            from.set(1);
            change_later(from, s);
            EXPECT_EQ(copy_as_batch(boxes, b, from.address(), CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, s),
                      CUDA_SUCCESS);
            ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
            EXPECT_TRUE(b_is(2)) << "boxes " << boxes << " pinned " << pinned;

            from.set(1);
            EMU(emu_hold)(1);
            EXPECT_EQ(copy_as_batch(boxes, b, from.address(),
                                    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, s),
                      CUDA_SUCCESS);
            from.set(3);
            EMU(emu_hold)(0);
            ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
            EXPECT_TRUE(b_is(1)) << "boxes " << boxes << " pinned " << pinned;
        }
        memcpy(of_a, pattern(4096, 4).data(), 4096);
        EMU(emu_hold)(1);
        EXPECT_EQ(copy_as_batch(boxes, b, a, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, s),
                  CUDA_SUCCESS);
        memset(of_a, 0, 4096);
        EMU(emu_hold)(0);
        ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        EXPECT_TRUE(b_is(4)) << "GPU memory, boxes " << boxes;
    }
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(b), CUDA_SUCCESS);
}

TEST_F(emulator, fill_that_the_processor_may_see_is_done_when_it_returns)
{
    CUdeviceptr managed = 0, plain = allocate(4096);
    ASSERT_EQ(CU(cuMemAllocManaged)(&managed, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    host_buffer pinned(true);
    int         on = 1;
    ASSERT_EQ(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain),
              CUDA_SUCCESS);
    for (CUdeviceptr p : {managed, pinned.address(), plain}) {
        const auto *seen = static_cast<const unsigned char *>(EMU(emu_peek)(p, 4096));
        take_a_while(nullptr);
        ASSERT_EQ(CU(cuMemsetD8_v2)(p, 0x11, 4096), CUDA_SUCCESS);
        EXPECT_EQ(seen[4095], 0x11);
        take_a_while(nullptr);
        ASSERT_EQ(CU(cuMemsetD2D32_v2)(p, 1024, 0x22222222, 256, 4), CUDA_SUCCESS);
        EXPECT_EQ(seen[4095], 0x22);
        EMU(emu_hold)(1); // but the other form never waits
        ASSERT_EQ(CU(cuMemsetD8Async)(p, 0x33, 4096, nullptr), CUDA_SUCCESS);
        EXPECT_EQ(seen[4095], 0x22);
        EMU(emu_hold)(0);
        ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    }
    EXPECT_EQ(CU(cuMemFree_v2)(managed), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(plain), CUDA_SUCCESS);
}

TEST_F(emulator, context_may_ask_that_calls_without_a_stream_wait)
{
    CUcontext own = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2)(&own, CU_CTX_SYNC_MEMOPS, 0), CUDA_SUCCESS);
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    const auto *seen = static_cast<const unsigned char *>(EMU(emu_peek)(b, 4096));
    take_a_while(nullptr);
    ASSERT_EQ(CU(cuMemsetD8_v2)(b, 0x11, 4096), CUDA_SUCCESS);
    EXPECT_EQ(seen[4095], 0x11);
    ASSERT_EQ(CU(cuMemsetD8_v2)(a, 0x22, 4096), CUDA_SUCCESS);
    take_a_while(nullptr);
    ASSERT_EQ(CU(cuMemcpyDtoD_v2)(b, a, 4096), CUDA_SUCCESS);
    EXPECT_EQ(seen[4095], 0x22);
    EXPECT_EQ(CU(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
}

TEST_F(emulator, capture_ends_with_its_context)
{
    CUcontext own   = nullptr;
    CUgraph   graph = nullptr;
    for (bool primary : {false, true}) {
        if (primary) {
            ASSERT_EQ(CU(cuCtxSetCurrent)(ctx[1]), CUDA_SUCCESS);
        } else {
            ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 0), CUDA_SUCCESS);
        }
        CUstream s = make_stream();
        ASSERT_EQ(CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        ASSERT_EQ(primary ? CU(cuDevicePrimaryCtxReset_v2)(1) : CU(cuCtxDestroy_v2)(own),
                  CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxSetCurrent)(ctx[0]), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamEndCapture)(s, &graph), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    }
}

TEST_F(emulator, peer_access_is_given_from_context_to_context)
{
    CUcontext first = nullptr, second = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2)(&first, 0, 1), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxCreate_v2)(&second, 0, 1), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(ctx[0]), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(first, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxDisablePeerAccess)(second), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(second, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EXPECT_EQ(CU(cuCtxDisablePeerAccess)(first), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxDisablePeerAccess)(second), CUDA_SUCCESS);

    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(first, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxDestroy_v2)(first), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(second, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxEnablePeerAccess)(ctx[1], 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxDisablePeerAccess)(ctx[1]), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxDestroy_v2)(second), CUDA_SUCCESS);
}

TEST_F(emulator, one_of_two_threads_that_map_the_same_address_succeeds)
{
    constexpr size_t             chunk = 2u << 20;
    CUmemGenericAllocationHandle h     = 0;
    CUdeviceptr                  va    = 0;
    CUmemAllocationProp          prop{};
    prop.type          = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ASSERT_EQ(CU(cuMemCreate)(&h, chunk, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemAddressReserve)(&va, chunk, 0, 0, 0), CUDA_SUCCESS);
    constexpr int    rounds = 3000;
    std::atomic<int> arrived{0}, mapped{0}, wrong{0};
    const auto       meet = [&](int round) {
        arrived++;
        while (arrived < 2 * round)
            std::this_thread::yield();
    };
    const auto race = [&](bool unmaps) {
        for (int i = 0; i < rounds; i++) {
            meet(3 * i + 1);
            mapped += CU(cuMemMap)(va, chunk, 0, h, 0) == CUDA_SUCCESS;
            meet(3 * i + 2);
            if (unmaps) {
                wrong += mapped != 1;
                mapped = 0;
                wrong += CU(cuMemUnmap)(va, chunk) != CUDA_SUCCESS;
            }
            meet(3 * i + 3);
        }
    };
    std::thread other(race, false);
    race(true);
    other.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(CU(cuMemAddressFree)(va, chunk), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
}

TEST_F(emulator, imported_pool_cannot_be_the_one_of_a_device)
{
    CUmemPoolProps props{};
    CUmemoryPool   own = nullptr, imported = nullptr;
    int            fd   = -1;
    props.allocType     = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.handleTypes   = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ASSERT_EQ(CU(cuMemPoolCreate)(&own, &props), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemPoolExportToShareableHandle)(&fd, own, props.handleTypes, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemPoolImportFromShareableHandle)(
                  &imported, reinterpret_cast<void *>(static_cast<long>(fd)), props.handleTypes, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuDeviceSetMemPool)(0, imported), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuDeviceSetMemPool)(0, own), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemPoolDestroy)(imported), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemPoolDestroy)(own), CUDA_SUCCESS);
    close(fd);
}

TEST_F(emulator, second_free_in_a_stream_is_a_violation_and_frees_nobody_elses_memory)
{
    CUstream    s = make_stream(), t = make_stream();
    CUdeviceptr p      = 0;
    const long  before = EMU(emu_violation_count)();
    ASSERT_EQ(CU(cuMemAllocAsync)(&p, 4096, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EMU(emu_hold)(1);
    EXPECT_EQ(CU(cuMemFreeAsync)(p, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFreeAsync)(p, s), CUDA_SUCCESS);
    EMU(emu_release)(1);
    while (EMU(emu_live_count)("allocation") != 0)
        std::this_thread::yield();
    // The address is to be had a moment after the memory is gone.
    std::vector<CUdeviceptr> others;
    while (others.empty() || others.back() != p) {
        ASSERT_LT(others.size(), 1000u);
        others.push_back(0);
        ASSERT_EQ(CU(cuMemAllocAsync)(&others.back(), 4096, t), CUDA_SUCCESS);
    }
    EMU(emu_hold)(0);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_violation_count)(), before + 1);
    EXPECT_EQ(EMU(emu_live_count)("allocation"), static_cast<long>(others.size()));
    EXPECT_EQ(CU(cuMemsetD8Async)(p, 1, 4096, t), CUDA_SUCCESS);
    for (CUdeviceptr one : others)
        EXPECT_EQ(CU(cuMemFreeAsync)(one, t), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(t), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_live_count)("allocation"), 0);
}

TEST_F(emulator, capture_frees_only_what_a_capture_has_allocated)
{
    CUstream    s     = make_stream();
    CUgraph     graph = nullptr;
    CUdeviceptr plain = allocate(4096), pooled = 0, of_graph = 0;
    ASSERT_EQ(CU(cuMemAllocAsync)(&pooled, 4096, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFreeAsync)(plain, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemFreeAsync)(pooled, s), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemAllocAsync)(&of_graph, 4096, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFreeAsync)(of_graph, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamEndCapture)(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
    for (CUdeviceptr p : {plain, pooled, of_graph})
        EXPECT_EQ(CU(cuMemFreeAsync)(p, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
}

TEST_F(emulator, pitch_that_no_device_has_is_refused)
{
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    int         most = 0;
    ASSERT_EQ(CU(cuDeviceGetAttribute)(&most, CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0), CUDA_SUCCESS);
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.srcDevice                          = a;
    rows.dstDevice                          = b;
    rows.WidthInBytes                       = 8;
    rows.Height                             = 1;
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice                         = a;
    box.dstDevice                         = b;
    box.WidthInBytes                      = 8;
    box.Height = box.Depth = 1;
    for (size_t beyond : {size_t(0), size_t(1)}) {
        const CUresult wanted = beyond == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        rows.srcPitch = rows.dstPitch = box.srcPitch = box.dstPitch =
            static_cast<size_t>(most) + beyond;
        for (bool source : {true, false}) {
            EXPECT_EQ(CU(cuMemcpy2D_v2)(&rows), wanted) << source;
            EXPECT_EQ(CU(cuMemcpy2DUnaligned_v2)(&rows), wanted) << source;
            EXPECT_EQ(CU(cuMemcpy2DAsync_v2)(&rows, nullptr), wanted) << source;
            EXPECT_EQ(CU(cuMemcpy3D_v2)(&box), wanted) << source;
            EXPECT_EQ(CU(cuMemcpy3DAsync_v2)(&box, nullptr), wanted) << source;
            rows.srcPitch = box.srcPitch = 8;
        }
    }
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemFree_v2)(b), CUDA_SUCCESS);
}

TEST_F(emulator_death, trace_shows_what_is_copied)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    setenv("NVL_EMU_TRACE", "-", 1); // for the other process
    const auto copies = [] {
        CUDA_MEMCPY3D box{};
        box.srcMemoryType = CU_MEMORYTYPE_HOST;
        box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        box.srcHost       = reinterpret_cast<const void *>(0x1230);
        box.dstDevice     = 0x4560;
        box.srcPitch      = 71;
        box.dstY          = 72;
        box.WidthInBytes  = 73;
        box.Height        = 74;
        box.Depth         = 75;
        CU(cuMemcpy3D_v2)(&box);
        CUdeviceptr places[] = {81, 82, 83, 84, 85};
        size_t      sizes[]  = {91, 92, 93, 94, 95};
        CU(cuMemcpyBatchAsync_v2)(places, places, sizes, 5, nullptr, nullptr, 0, nullptr);
        exit(0);
    };
    EXPECT_EXIT(copies(), testing::ExitedWithCode(0),
                "dst type 2 0x4560 x 0 y 72 pitch 0, src type 1 0x1230 x 0 y 0 pitch 71, width 73 "
                "height 74 depth 75(.|\n)*->.81, 82, 83, 84, ...., "
                "srcs=0x[0-9a-f]*->.81(.|\n)*sizes=0x[0-9a-f]*->.91, 92");
    unsetenv("NVL_EMU_TRACE");
}

TEST_F(emulator, failed_copy_ends_the_context)
{
    CUcontext own = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 0), CUDA_SUCCESS);
    CUdeviceptr a = allocate(4096), b = allocate(4096), c = 0;
    CUstream    s = make_stream();
    ASSERT_EQ(EMU(emu_add_faults)("copy:2=715"), 0);
    EXPECT_EQ(CU(cuMemcpyAsync)(a, b, 4096, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemcpyAsync)(a, b, 4096, s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_ILLEGAL_INSTRUCTION);
    EXPECT_EQ(CU(cuMemAlloc_v2)(&c, 4096), CUDA_ERROR_ILLEGAL_INSTRUCTION);
    EXPECT_EQ(CU(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
}

TEST_F(emulator, garbled_copy_succeeds_with_other_bytes)
{
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    fill_pattern(a, 4096, 1);
    for (const char *rule : {"copy=garble", "copy=drop", "copy=nothing"}) {
        ASSERT_EQ(CU(cuMemsetD8_v2)(b, 0xee, 4096), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
        EMU(emu_clear_faults)();
        ASSERT_EQ(EMU(emu_add_faults)(rule), 0);
        EXPECT_EQ(CU(cuMemcpyDtoD_v2)(b, a, 4096), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
        EMU(emu_clear_faults)();
        std::vector<char> seen(4096);
        ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b, 4096), CUDA_SUCCESS);
        EXPECT_NE(seen, pattern(4096, 1)) << rule;
    }
}

// Or a test that waits for the fault would miss it now and then.
TEST_F(emulator, a_byte_that_is_not_written_differs_even_where_it_was_the_same)
{
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    fill_pattern(a, 4096, 1);
    fill_pattern(b, 4096, 1);
    ASSERT_EQ(EMU(emu_add_faults)("copy:1=drop"), 0);
    EXPECT_EQ(CU(cuMemcpyDtoD_v2)(b, a, 4096), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    std::vector<char> seen(4096);
    ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b, 4096), CUDA_SUCCESS);
    EXPECT_NE(seen, pattern(4096, 1));
}

TEST_F(emulator, late_copy_is_done_before_its_bytes_are_there)
{
    using std::chrono::steady_clock;
    CUdeviceptr       a = allocate(4096), b = allocate(4096);
    CUstream          s = make_stream();
    std::vector<char> seen(4096);
    fill_pattern(a, 4096, 1);
    // A machine that paused meanwhile may have let the bytes come: again, and later.
    for (std::chrono::microseconds late{100000};; late *= 2) {
        fill_pattern(b, 4096, 2);
        EMU(emu_clear_faults)();
        ASSERT_EQ(EMU(emu_add_faults)(("copy:1=late" + std::to_string(late.count())).c_str()), 0);
        const auto begin = steady_clock::now();
        ASSERT_EQ(CU(cuMemcpyAsync)(b, a, 4096, s), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b, 4096), CUDA_SUCCESS);
        if (seen == pattern(4096, 2))
            break;
        ASSERT_GE(steady_clock::now() - begin, late) << "the bytes came at once";
        while (seen != pattern(4096, 1)) // half of them, perhaps
            ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b, 4096), CUDA_SUCCESS);
    }
    while (seen != pattern(4096, 1))
        ASSERT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), b, 4096), CUDA_SUCCESS);
}

TEST_F(emulator, lost_event_is_never_ready_and_the_stream_goes_on)
{
    CUstream s = make_stream();
    CUevent  e = nullptr;
    ASSERT_EQ(CU(cuEventCreate)(&e, 0), CUDA_SUCCESS);
    ASSERT_EQ(EMU(emu_add_faults)("cuEventRecord:1=lost"), 0);
    EMU(emu_reset_counts)();
    ASSERT_EQ(CU(cuEventRecord)(e, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(CU(cuEventRecord)(e, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_SUCCESS);
}

TEST_F(emulator, skipped_call_says_success_and_does_nothing)
{
    CUdeviceptr a = allocate(4096);
    EMU(emu_reset_counts)();
    ASSERT_EQ(EMU(emu_add_faults)("cuMemFree_v2:1=skip"), 0);
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_live_count)("allocation"), 1);
    EXPECT_EQ(CU(cuMemFree_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_live_count)("allocation"), 0);
}

TEST_F(emulator, push_that_goes_astray_makes_another_devices_context_current)
{
    EMU(emu_reset_counts)();
    ASSERT_EQ(EMU(emu_add_faults)("cuCtxPushCurrent_v2:2=astray"), 0);
    CUdevice dev = -1;
    for (CUdevice wanted : {0, 1}) {
        ASSERT_EQ(CU(cuCtxPushCurrent_v2)(ctx[0]), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuCtxGetDevice)(&dev), CUDA_SUCCESS);
        EXPECT_EQ(dev, wanted);
    }
    CU(cuDevicePrimaryCtxRelease_v2)(1); // which the fault retained
}

TEST_F(emulator, range_unmapped_under_a_waiting_copy_ends_the_context)
{
    CUcontext own = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 0), CUDA_SUCCESS);
    CUdeviceptr a = allocate(4096), pooled = 0;
    CUstream    s = make_stream(), t = make_stream();
    ASSERT_EQ(CU(cuMemAllocAsync)(&pooled, 4096, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    CUdeviceptr flag = allocate(4096);
    ASSERT_EQ(CU(cuMemsetD8_v2)(flag, 0, 64), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitValue32_v2)(s, flag, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemcpyAsync)(a, pooled, 4096, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemFreeAsync)(pooled, t), CUDA_SUCCESS); // in another stream: too early
    ASSERT_EQ(CU(cuStreamSynchronize)(t), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWriteValue32_v2)(t, flag, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(CU(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
}

TEST_F(emulator, dying_context_takes_its_things_along)
{
    CUcontext own = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 1), CUDA_SUCCESS);
    allocate(1 << 20);
    make_stream();
    CUevent e = nullptr;
    ASSERT_EQ(CU(cuEventCreate)(&e, 0), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_device_bytes)(1), 1 << 20);
    ASSERT_EQ(CU(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
    EXPECT_EQ(EMU(emu_device_bytes)(1), 0);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(emulator, per_thread_stream_is_not_the_legacy_one)
{
    CUdeviceptr flag = allocate(4096);
    ASSERT_EQ(CU(cuMemsetD8_v2)(flag, 0, 64), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitValue32_v2_ptsz)(nullptr, flag, 1, CU_STREAM_WAIT_VALUE_EQ),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery_ptsz)(nullptr), CUDA_ERROR_NOT_READY);
    CUstream s = make_stream();
    ASSERT_EQ(CU(cuStreamWriteValue32_v2)(s, flag, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize_ptsz)(nullptr), CUDA_SUCCESS);
}

TEST_F(emulator, many_threads_use_it_at_once)
{
    std::vector<std::thread> threads;
    std::atomic<int>         wrong{0};
    for (int t = 0; t < 8; t++) {
        threads.emplace_back([&, t] {
            wrong += CU(cuCtxSetCurrent)(ctx[t % 2]) != CUDA_SUCCESS;
            CUstream s = make_stream();
            for (int i = 0; i < 20; i++) {
                CUdeviceptr a = allocate(5000), b = allocate(5000);
                fill_pattern(a, 5000, t * 100 + i);
                wrong += CU(cuMemcpyAsync)(b, a, 5000, s) != CUDA_SUCCESS;
                wrong += CU(cuStreamSynchronize)(s) != CUDA_SUCCESS;
                std::vector<char> seen(5000);
                wrong += CU(cuMemcpyDtoH_v2)(seen.data(), b, 5000) != CUDA_SUCCESS;
                wrong += seen != pattern(5000, t * 100 + i);
                wrong += CU(cuMemFree_v2)(a) != CUDA_SUCCESS;
                wrong += CU(cuMemFree_v2)(b) != CUDA_SUCCESS;
            }
            wrong += CU(cuStreamDestroy_v2)(s) != CUDA_SUCCESS;
        });
    }
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(wrong, 0);
}

} // namespace
