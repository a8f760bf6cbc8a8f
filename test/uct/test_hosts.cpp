// SPDX-License-Identifier: BSD-3-Clause
//
// Two hosts of one NVLink fabric: who reaches whom, which memory is opened there, and what is left when its owner frees
// it, whom nobody can ask. Run by hosts.test as a process of gb200-host-a with files of its own; the far side is a
// process of another machine.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include "emulator/host_files.h"

#include <cstring>
#include <unistd.h>

namespace nvl::test {

namespace {

constexpr size_t size = 2u << 20;

std::string reason_g; // of the last question

bool reachable(const entity &from, const addresses &to, bool asks_for_host = false)
{
    char                            text[256] = "";
    uct_iface_is_reachable_params_t params{};
    params.field_mask =
        UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR | UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR |
        UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING | UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING_LENGTH |
        UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR_LENGTH |
        UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH;
    if (asks_for_host) {
        params.field_mask |= UCT_IFACE_IS_REACHABLE_FIELD_SCOPE;
        params.scope = UCT_IFACE_REACHABILITY_SCOPE_DEVICE;
    }
    params.device_addr        = reinterpret_cast<const uct_device_addr_t *>(to.device.data());
    params.iface_addr         = reinterpret_cast<const uct_iface_addr_t *>(to.iface.data());
    params.device_addr_length = to.device.size();
    params.iface_addr_length  = to.iface.size();
    params.info_string        = text;
    params.info_string_length = sizeof(text);
    bool answer               = ucx().uct_iface_is_reachable_v2(from.iface(), &params) != 0;
    reason_g                  = text;
    return answer;
}

long live_imports()
{
    const emulator_functions *emu = emulator();
    return emu->live_count("import") + emu->live_count("mapping") + emu->live_count("reservation") +
           emu->live_count("pool") + emu->live_count("physical");
}

bool comes_true(long wanted)
{
    for (int i = 0; (i < 500) && (live_imports() != wanted); ++i) {
        usleep(10000);
    }
    return live_imports() == wanted;
}

class hosts : public testing::Test {
protected:
    void SetUp() override
    {
        NVL_NEEDS_EMULATOR();
        if (std::getenv("NVL_EMU_FILES") == nullptr) {
            GTEST_SKIP() << "for hosts.test only";
        }
        char name[] = "/tmp/nvlink-host-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        folder_ = name;
        make_host_files(folder_, 2);
    }

    ~hosts() override
    {
        if (!folder_.empty()) {
            std::filesystem::remove_all(folder_);
        }
    }

    // The variables of a process on another host, of this machine file.
    std::vector<std::string> on(const std::string &name) const
    {
        std::filesystem::path machine = std::getenv("NVL_EMU_MACHINE");
        machine.replace_filename(name + ".machine");
        return {"NVL_EMU_MACHINE=" + machine.string(), "NVL_EMU_FILES=" + folder_.string()};
    }

    // Both directions between `remote` and memory of GPU 0 here, compared.
    static void copies(entity &here, side &far, uint64_t remote, const unpacked &key, uint64_t seed)
    {
        gpu_memory local(0, size);
        registered registration(here, local.address(), size);
        endpoint   ep(here, far.address());
        uct_iov_t  iov{reinterpret_cast<void *>(local.address()), size, registration.memh(), 0, 1};
        bytes      there = random_bytes(size, seed), back = random_bytes(size, seed + 1);
        for (bool push : {true, false}) {
            completion done;
            local.write(0, push ? there : bytes(size));
            if (!push) {
                far.write(remote, 0, back);
            }
            auto post = push ? uct_ep_put_zcopy : uct_ep_get_zcopy;
            ASSERT_EQ(post(ep.get(), &iov, 1, remote, key.rkey(), &done.super), UCS_INPROGRESS);
            while (done.called == 0) {
                here.progress();
            }
            ASSERT_EQ(done.status, UCS_OK);
            EXPECT_EQ(push ? difference(there, far.read(remote, 0, size))
                           : difference(back, local.read(0, size)),
                      "");
        }
    }

    std::filesystem::path folder_;
};

} // namespace

TEST_F(hosts, of_one_clique_reach_each_other)
{
    entity    here;
    peer_side far(on("gb200-host-b"));
    EXPECT_TRUE(reachable(here, far.address())) << reason_g;
    EXPECT_NE(here.attributes().cap.flags & UCT_IFACE_FLAG_INTER_NODE, 0u)
        << "else UCP takes the peer to be on this host";
}

TEST_F(hosts, of_another_clique_do_not)
{
    entity    here;
    peer_side far(on("gb200-other-clique"));
    EXPECT_FALSE(reachable(here, far.address()));
    EXPECT_NE(reason_g.find("another clique of the fabric"), std::string::npos) << reason_g;
}

TEST_F(hosts, without_an_imex_channel_do_not)
{
    entity here;
    std::filesystem::remove_all(folder_ / "dev");
    std::filesystem::create_directories(folder_ / "dev/nvidia-caps-imex-channels");
    peer_side far(on("gb200-host-b"));
    EXPECT_FALSE(reachable(here, far.address()));
    EXPECT_NE(reason_g.find("IMEX channel"), std::string::npos) << reason_g;
}

// UCP asks so where a lane could be of either, and names its endpoint by the answer.
TEST_F(hosts, are_told_apart_whatever_gpus_a_process_sees)
{
    entity    here;
    peer_side far(on("gb200-host-b"));
    EXPECT_FALSE(reachable(here, far.address(), true));
    EXPECT_NE(reason_g.find("another host"), std::string::npos) << reason_g;
    peer_side near({"CUDA_VISIBLE_DEVICES=1"});
    EXPECT_TRUE(reachable(here, near.address(), true)) << reason_g;
}

TEST_F(hosts, keep_fabric_handles_in_the_key)
{
    entity here;
    for (memory_kind kind :
         {memory_kind::vmm_fabric, memory_kind::vmm_both, memory_kind::pool_fabric}) {
        for (int gpu : {0, 1}) {
            peer_side far(on("gb200-host-b"));
            uint64_t  remote = far.allocate_kind(kind, gpu, size);
            unpacked  key(far.key(remote));
            ASSERT_NO_FATAL_FAILURE(
                copies(here, far, remote, key, static_cast<uint64_t>(kind) * 10))
                << to_text(kind);
        }
    }
}

TEST_F(hosts, open_nothing_else_and_say_why)
{
    entity    here;
    peer_side far(on("gb200-host-b"));
    for (memory_kind kind : {memory_kind::alloc, memory_kind::vmm_fd, memory_kind::vmm_chunks,
                             memory_kind::vmm_mixed, memory_kind::pool_fd}) {
        uint64_t remote = far.allocate_kind(kind, 1, 2 * size);
        expect_log("another path");
        EXPECT_EQ(try_unpack(far.key(remote)), UCS_ERR_UNREACHABLE) << to_text(kind);
        far.release(remote);
    }
    // The warning once, all else for who looks for it.
    EXPECT_EQ(times_logged("GPU memory of another host"), 1u);
    EXPECT_EQ(live_imports(), 0);
}

// A key that came by a way around is_reachable.
TEST_F(hosts, of_another_fabric_are_refused_by_their_key)
{
    entity    here;
    peer_side far(on("gb200-other-clique"));
    expect_log("another clique of the fabric");
    EXPECT_EQ(try_unpack(far.key(far.allocate_kind(memory_kind::vmm_fabric, 1, size))),
              UCS_ERR_UNREACHABLE);
    EXPECT_GE(times_logged("another clique of the fabric"), 1u);
}

// The mapping is of the old memory, which lives as long as it is open; the new one at its address has another key.
TEST_F(hosts, do_not_reach_new_memory_by_the_key_of_freed_memory)
{
    entity here;
    for (memory_kind kind : {memory_kind::vmm_fabric, memory_kind::pool_fabric}) {
        peer_side far(on("gb200-host-b"));
        uint64_t  remote = far.allocate_kind(kind, 1, size);
        bytes     old    = far.key(remote);
        {
            unpacked key(old);
            ASSERT_NO_FATAL_FAILURE(copies(here, far, remote, key, 1));
        }
        far.release(remote);
        uint64_t again = far.allocate_kind(kind, 1, size);
        bytes    mine  = random_bytes(size, 7);
        far.write(again, 0, mine);
        expect_log("cannot open memory");
        if (try_unpack(old) == UCS_OK) { // still open here
            unpacked   key(old);
            gpu_memory local(0, size);
            registered registration(here, local.address(), size);
            endpoint   ep(here, far.address());
            completion done;
            uct_iov_t  iov{reinterpret_cast<void *>(local.address()), size, registration.memh(), 0,
                          1};
            ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, key.rkey(), &done.super),
                      UCS_INPROGRESS);
            while (done.called == 0) {
                here.progress();
            }
        }
        EXPECT_EQ(difference(mine, far.read(again, 0, size)), "") << to_text(kind);
        unpacked key(far.key(again));
        ASSERT_NO_FATAL_FAILURE(copies(here, far, again, key, 3));
    }
}

// Nobody tells of a far owner's frees, so its memory is not kept for long.
TEST_F(hosts, give_memory_back_soon_after_its_last_use)
{
    entity    here;
    peer_side far(on("gb200-host-b"));
    for (memory_kind kind : {memory_kind::vmm_fabric, memory_kind::pool_fabric}) {
        bytes packed = far.key(far.allocate_kind(kind, 1, size));
        {
            unpacked key(packed);
            usleep(1500000);
            EXPECT_GT(live_imports(), 0) << "in use";
        }
        emulator()->reset_counts();
        EXPECT_EQ(try_unpack(packed), UCS_OK);
        EXPECT_EQ(emulator()->call_count("cuMemImportFromShareableHandle") +
                      emulator()->call_count("cuMemPoolImportPointer"),
                  0)
            << "kept for the next key";
        EXPECT_TRUE(comes_true(0)) << to_text(kind) << " " << live_imports();
    }
}

TEST_F(hosts, let_go_of_what_a_dead_one_had)
{
    entity here;
    bytes  packed;
    {
        peer_side far(on("gb200-host-b"));
        packed = far.key(far.allocate_kind(memory_kind::vmm_fabric, 1, size));
        EXPECT_EQ(try_unpack(packed), UCS_OK);
        far.kill();
    }
    EXPECT_TRUE(comes_true(0));
    expect_log("cannot open memory");
    EXPECT_EQ(try_unpack(packed), UCS_ERR_UNREACHABLE);
}

// The first PID namespaces of all hosts have one number, and a process here may have, or lack, that of the peer.
TEST_F(hosts, are_not_asked_whether_a_process_of_another_one_lives)
{
    entity    here;
    peer_side far(on("gb200-host-b")), near;
    endpoint  to_far(here, far.address()), to_near(here, near.address());
    far.kill();
    EXPECT_EQ(ucx().uct_ep_check(to_far.get(), 0, nullptr), UCS_OK);
    for (int i = 0; i < 100; ++i) {
        here.progress();
    }
    EXPECT_TRUE(here.errors.empty()) << "not known from here";
    near.kill();
    (void)ucx().uct_ep_check(to_near.get(), 0, nullptr);
    for (int i = 0; (i < 500) && here.errors.empty(); ++i) {
        here.progress();
        usleep(1000);
    }
    ASSERT_EQ(here.errors.size(), 1u);
    EXPECT_EQ(here.errors[0].first, to_near.get());
}

} // namespace nvl::test
