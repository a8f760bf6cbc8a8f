// SPDX-License-Identifier: BSD-3-Clause
//
// GPUs that PCIe connects, where copies succeed and the bytes do not arrive: a pair is checked before its first use and
// given up if they are wrong. Run by pair_check.test; what was found of a pair is kept for the process, so each test has
// pairs of its own.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include <cstring>
#include <unistd.h>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

class pair_check : public testing::Test {
protected:
    void SetUp() override
    {
        NVL_NEEDS_EMULATOR();
        const char *machine = std::getenv("NVL_EMU_MACHINE");
        if (machine == nullptr || std::strstr(machine, "l40s-pcie-x4") == nullptr) {
            GTEST_SKIP() << "for pair_check.test only";
        }
    }

    // The status of a key of memory on `gpu`, for copies by the GPU `from`.
    static ucs_status_t unpack_from(int from, side &far, int gpu)
    {
        uint64_t        remote = far.allocate(gpu, size);
        current_context scope(primary_context(from));
        ucs_status_t    status = try_unpack(far.key(remote));
        far.release(remote);
        return status;
    }

    static void is_refused(const char *fault, int from, side &far, int gpu)
    {
        planned_faults wrong(fault);
        expect_log("wrong bytes");
        for (int round = 0; round < 3; ++round) {
            EXPECT_EQ(unpack_from(from, far, gpu), UCS_ERR_UNREACHABLE) << fault;
        }
        EXPECT_EQ(times_logged("wrong bytes"), 1u) << fault;
    }
};

} // namespace

TEST_F(pair_check, refuses_a_pair_whose_bytes_are_wrong)
{
    entity    here;
    peer_side far;
    is_refused("peer=garble", 0, far, 1);
}

TEST_F(pair_check, refuses_a_pair_whose_bytes_do_not_arrive)
{
    entity    here;
    peer_side far;
    is_refused("peer=nothing", 0, far, 2);
}

// The first copy between the GPUs reads, the second one writes.
TEST_F(pair_check, refuses_a_pair_that_writes_wrong_bytes)
{
    entity    here;
    peer_side far;
    is_refused("peer:/2=drop", 1, far, 2);
    EXPECT_EQ(times_logged("GPU 1 writes wrong bytes"), 1u);
}

TEST_F(pair_check, refuses_a_pair_within_a_process)
{
    entity     here;
    local_side far(here);
    is_refused("peer=garble", 2, far, 3);
}

TEST_F(pair_check, asks_a_sound_pair_once)
{
    entity    here;
    peer_side far;
    EXPECT_EQ(unpack_from(0, far, 3), UCS_OK);
    emulator()->reset_counts();
    EXPECT_EQ(unpack_from(0, far, 3), UCS_OK);
    EXPECT_EQ(emulator()->call_count("cuMemcpyAsync"), 0);
    // Two processes on one GPU: nothing is between them.
    emulator()->reset_counts();
    EXPECT_EQ(unpack_from(0, far, 0), UCS_OK);
    EXPECT_EQ(emulator()->call_count("cuMemcpyAsync"), 0);
}

// What cannot be asked is taken to be sound: the check's own copy fails, or the owner cannot be seen.
TEST_F(pair_check, trusts_a_pair_that_it_cannot_ask)
{
    entity         here;
    peer_side      far;
    planned_faults fails("cuStreamCreateWithPriority=2");
    EXPECT_EQ(unpack_from(3, far, 1), UCS_OK);
}

// A key that is in use, and known, was connected without an answer: who comes next asks again.
TEST_F(pair_check, asks_again_for_a_known_key_while_it_has_no_answer)
{
    entity          here;
    peer_side       far;
    uint64_t        remote = far.allocate(2, size);
    bytes           key    = far.key(remote);
    current_context scope(primary_context(3));
    auto            first = [&] {
        planned_faults fails("cuStreamCreateWithPriority=2");
        return std::make_unique<unpacked>(key);
    }();
    {
        planned_faults wrong("peer=garble");
        expect_log("wrong bytes");
        EXPECT_EQ(try_unpack(key), UCS_ERR_UNREACHABLE);
    }
    first.reset();
    EXPECT_EQ(try_unpack(key), UCS_ERR_UNREACHABLE) << "the answer stays";
}

// A copy that was given up may still write: what it touches is used no more, and stays where it is.
TEST_F(pair_check, leaves_alone_what_an_unfinished_copy_may_write_to)
{
    entity          here;
    peer_side       first, second;
    current_context scope(primary_context(1));
    {
        held_streams held;
        held.let_through(1); // what goes before the copy between the GPUs
        EXPECT_EQ(try_unpack(first.key(first.allocate(3, size))), UCS_OK) << "not checked";
        first.kill();
        usleep(300000); // some times what it takes until all of its memory is let go of
        EXPECT_GE(emulator()->live_count("import"), 1) << "the pattern's is in use";
        // Now it runs, beside the next check.
        emulator()->reset_counts();
        held.let_go();
        EXPECT_EQ(try_unpack(second.key(second.allocate(3, size))), UCS_OK);
        EXPECT_EQ(emulator()->call_count("cuMemAlloc_v2"), 1) << "in a block of its own";
    }
    NVL_MUST(cuCtxSynchronize, ()); // the copy has ended
}

// The owner's memory for checks went with its context: peers are given another one.
TEST_F(pair_check, is_made_with_new_memory_after_its_owner_has_reset_the_gpu)
{
    entity         here;
    const CUdevice device = device_of(2);
    {
        gpu_memory before(2, size);
        registered registration(here, before.address(), size);
        (void)registration.key();
        before.forget();
        NVL_MUST(cuDevicePrimaryCtxReset_v2, (device));
    }
    CUcontext same = nullptr;
    NVL_MUST(cuDevicePrimaryCtxRetain, (&same, device));
    gpu_memory mine(2, size);
    registered registration(here, mine.address(), size);
    bytes      key = registration.key();
    peer_side  far({"NVL_EMU_FAULTS=peer=garble"});
    uint64_t   theirs = far.allocate(0, size);
    EXPECT_NE(far.put(theirs, size, here.address(), mine.address(), key), UCS_OK)
        << "the far process could not check the pair";
}

} // namespace nvl::test
