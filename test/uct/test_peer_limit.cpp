// SPDX-License-Identifier: BSD-3-Clause
//
// More peers than the hardware allows: those beyond the limit are refused with a reason, those before go on. Run by
// peer_limit.test, whose GPUs may enable eight peers each.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include <cstring>

namespace nvl::test {

namespace {

constexpr size_t size  = 64 * 1024;
constexpr int    limit = 8;

class peer_limit : public testing::Test {
protected:
    void SetUp() override
    {
        NVL_NEEDS_EMULATOR();
        const char *machine = std::getenv("NVL_EMU_MACHINE");
        if (machine == nullptr || std::strstr(machine, "peer-limit") == nullptr) {
            GTEST_SKIP() << "for peer_limit.test only";
        }
    }

    static void put_reaches(entity &here, side &far, uint64_t remote, uct_rkey_t key, uint64_t seed)
    {
        gpu_memory local(0, size);
        registered registration(here, local.address(), size);
        endpoint   ep(here, far.address());
        bytes      source = random_bytes(size, seed);
        completion done;
        local.write(0, source);
        uct_iov_t iov{reinterpret_cast<void *>(local.address()), size, registration.memh(), 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, key, &done.super), UCS_INPROGRESS);
        while (done.called == 0) {
            here.progress();
        }
        ASSERT_EQ(done.status, UCS_OK);
        EXPECT_EQ(difference(source, far.read(remote, 0, size)), "");
    }

    // GPU 0 with memory on each of the others.
    static void fill(entity &here, side &far)
    {
        current_context                        scope(primary_context(0)); // keys are for it
        std::vector<std::unique_ptr<unpacked>> keys;
        std::vector<uint64_t>                  memory;
        for (int gpu = 1; gpu <= limit; ++gpu) {
            memory.push_back(far.allocate(gpu, size));
            keys.push_back(std::make_unique<unpacked>(far.key(memory.back())));
        }
        expect_log("limit of peers");
        for (int round = 0; round < 3; ++round) {
            uint64_t beyond = far.allocate(limit + 1, size);
            EXPECT_EQ(try_unpack(far.key(beyond)), UCS_ERR_UNREACHABLE);
            far.release(beyond);
        }
        EXPECT_GE(times_logged("limit of peers"), 1u);
        for (size_t i = 0; i < keys.size(); ++i) {
            ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, memory[i], keys[i]->rkey(), i));
        }
        keys.clear();
        for (uint64_t one : memory) {
            far.release(one);
        }
    }
};

} // namespace

// First: what another process's memory has connected stays so for the life of the context.
TEST_F(peer_limit, refuses_a_ninth_peer_of_this_process)
{
    entity     here;
    local_side far(here);
    fill(here, far);
}

TEST_F(peer_limit, refuses_a_ninth_peer_of_another_process)
{
    entity    here;
    peer_side far;
    fill(here, far);
}

} // namespace nvl::test
