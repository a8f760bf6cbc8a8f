// SPDX-License-Identifier: BSD-3-Clause
//
// What UCP asks an interface, a memory domain and an endpoint.
#include "uct/connection.h"
#include "uct/log_watch.h"

#include <cmath>
#include <cstring>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

std::string reason_g; // of the last question

bool reachable(const entity &from, const addresses &to, bool with_sizes = true)
{
    char                            text[256] = "";
    uct_iface_is_reachable_params_t params{};
    params.field_mask =
        UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR | UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR |
        UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING | UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING_LENGTH;
    if (with_sizes) {
        params.field_mask |= UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR_LENGTH |
                             UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH;
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

} // namespace

TEST(resources, are_one_transport_on_one_device)
{
    entity                  here;
    uct_tl_resource_desc_t *list  = nullptr;
    unsigned                count = 0;
    ASSERT_EQ(ucx().uct_md_query_tl_resources(here.md(), &list, &count), UCS_OK);
    ASSERT_EQ(count, 1u);
    EXPECT_STREQ(list[0].tl_name, "nvlink");
    EXPECT_STREQ(list[0].dev_name, "cuda");
    EXPECT_EQ(list[0].dev_type, UCT_DEVICE_TYPE_SHM);
    ucx().uct_release_tl_resource_list(list);
}

TEST(interface, offers_what_it_can_and_no_more)
{
    entity           here;
    uct_iface_attr_t attr = here.attributes();
    const uint64_t   has  = UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_GET_ZCOPY |
                         UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_PENDING;
    const uint64_t has_not = UCT_IFACE_FLAG_AM_SHORT | UCT_IFACE_FLAG_AM_BCOPY |
                             UCT_IFACE_FLAG_AM_ZCOPY | UCT_IFACE_FLAG_CONNECT_TO_EP |
                             UCT_IFACE_FLAG_CONNECT_TO_SOCKADDR |
                             // With it UCP could close cuda_copy, which has it, as the worse one.
                             UCT_IFACE_FLAG_GET_SHORT |
                             // It would switch off the atomic operations of shared memory.
                             UCT_IFACE_FLAG_ATOMIC_DEVICE |
                             // UCP gives lanes of its device API to who has this: cuda_ipc.
                             UCT_IFACE_FLAG_DEVICE_EP;
    EXPECT_EQ(attr.cap.flags & has, has);
    EXPECT_EQ(attr.cap.flags & has_not, 0u);
    EXPECT_EQ(attr.cap.put.min_zcopy, 0u);
    EXPECT_EQ(attr.cap.put.max_zcopy, SIZE_MAX);
    EXPECT_EQ(attr.cap.get.max_zcopy, SIZE_MAX) << "a get of nothing would be a get that is off";
    EXPECT_GE(attr.cap.put.max_iov, 1u);
    EXPECT_GE(attr.cap.get.max_iov, 1u);
    EXPECT_GT(attr.bandwidth.dedicated + attr.bandwidth.shared, 0);
    EXPECT_GT(attr.latency.c, 0);
    EXPECT_GT(attr.overhead, 0);
    EXPECT_GT(attr.device_addr_len, 0u);
    EXPECT_GT(attr.iface_addr_len, 0u);
    EXPECT_EQ(attr.ep_addr_len, 0u);
}

TEST(interface, promises_events_only_with_a_descriptor)
{
    entity           here;
    uct_iface_attr_t attr = here.attributes();
    EXPECT_NE(attr.cap.event_flags & UCT_IFACE_FLAG_EVENT_FD, 0u);
    EXPECT_NE(attr.cap.event_flags & UCT_IFACE_FLAG_EVENT_SEND_COMP, 0u);
    int fd = -1;
    ASSERT_EQ(ucx().uct_iface_event_fd_get(here.iface(), &fd), UCS_OK);
    EXPECT_GE(fd, 0);
    int again = -1;
    ASSERT_EQ(ucx().uct_iface_event_fd_get(here.iface(), &again), UCS_OK);
    EXPECT_EQ(fd, again);
}

TEST(interface, answers_the_second_form_of_the_question)
{
    entity              here;
    uct_iface_attr_v2_t attr{};
    attr.field_mask =
        iface_attr_v2_bits_1_22.max_put_sgl_zcopy_count | iface_attr_v2_bits_1_22.cap_flags;
    attr.max_put_sgl_zcopy_count = 99;
    attr.cap.flags               = ~0ull;
    ASSERT_EQ(ucx().uct_iface_query_v2(here.iface(), &attr), UCS_OK);
    bool offers = (attr.cap.flags & iface_attr_v2_bits_1_22.flag_put_sgl_zcopy) != 0;
    EXPECT_EQ(offers, attr.max_put_sgl_zcopy_count > 0);
    EXPECT_NE(attr.cap.flags, ~0ull);
}

TEST(interface, refuses_a_device_that_it_has_not)
{
    entity              here;
    uct_iface_config_t *config = nullptr;
    ASSERT_EQ(ucx().uct_md_iface_config_read(here.md(), "nvlink", nullptr, nullptr, &config),
              UCS_OK);
    uct_iface_params_t params{};
    params.field_mask           = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE;
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = "nvlink";
    params.mode.device.dev_name = "cuda1";
    uct_iface_h iface           = nullptr;
    expect_log("has one device");
    EXPECT_EQ(ucx().uct_iface_open(here.md(), here.worker(), &params, config, &iface),
              UCS_ERR_NO_DEVICE);
    ucx().uct_config_release(config);
}

TEST(settings, reach_the_interface)
{
    entity slow({{"BW", "5GBs"}, {"LAT", "20us"}, {"OVERHEAD", "7us"}});
    EXPECT_NEAR(slow.attributes().bandwidth.shared + slow.attributes().bandwidth.dedicated, 5e9,
                4e8);
    EXPECT_NEAR(slow.attributes().latency.c, 20e-6, 1e-9);
    EXPECT_NEAR(slow.attributes().overhead, 7e-6, 1e-9);
}

TEST(settings, take_a_time_without_end)
{
    settings ever;
    for (const char *name : {"IDLE", "NARROW", "STAY", "HELLO", "GAP"}) {
        ever.emplace_back(name, "inf");
    }
    connection  c(far_kind::other_worker, 0, 0, size, ever);
    const bytes sent = random_bytes(size, 3);
    c.local.write(0, sent);
    for (int i = 0; i < 3; ++i) {
        c.far->write(c.remote, 0, bytes(size));
        completion   done;
        ucs_status_t status = c.put(0, 0, size, &done);
        EXPECT_EQ(status, UCS_INPROGRESS);
        EXPECT_TRUE(c.wait(done));
        EXPECT_EQ(difference(sent, c.far->read(c.remote, 0, size)), "");
    }
}

TEST(memory_domain, says_what_it_registers)
{
    entity           here;
    uct_md_attr_v2_t attr{};
    attr.field_mask = ~0ull >> (63 - 18);
    ASSERT_EQ(ucx().uct_md_query_v2(here.md(), &attr), UCS_OK);
    const uint64_t cuda = 1ull << UCS_MEMORY_TYPE_CUDA;
    const uint64_t host = 1ull << UCS_MEMORY_TYPE_HOST;
    EXPECT_STREQ(attr.component_name, "nvlink");
    EXPECT_EQ(attr.reg_mem_types & cuda, cuda);
    EXPECT_EQ(attr.access_mem_types & cuda, cuda);
    EXPECT_EQ(attr.access_mem_types & host, host);
    EXPECT_EQ(attr.reg_mem_types & host, 0u) << "host buffers of other transports would pay for it";
    EXPECT_EQ(attr.detect_mem_types & cuda, cuda);
    EXPECT_EQ(attr.alloc_mem_types & ~host, 0u) << "cuda_copy allocates GPU memory";
    const uint64_t flags = UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_RKEY;
    EXPECT_EQ(attr.flags & flags, flags);
    EXPECT_EQ(attr.flags & UCT_MD_FLAG_NEED_MEMH, 0u) << "UCP would take no host memory then";
    EXPECT_EQ((attr.flags & UCT_MD_FLAG_ALLOC) != 0, attr.alloc_mem_types != 0);
    EXPECT_LE(attr.rkey_packed_size, 255u) << "UCP packs the size into one byte";
    EXPECT_GT(attr.reg_cost.c, 0);
    EXPECT_LT(attr.reg_cost.c, 1e-3);
}

TEST(memory_domain, recognises_gpu_memory)
{
    entity     here;
    gpu_memory memory(1, size);
    for (uint64_t offset : {0ull, 1ull, 4096ull, static_cast<unsigned long long>(size - 1)}) {
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV |
                          UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS |
                          UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH;
        ASSERT_EQ(ucx().uct_md_mem_query_v2(
                      here.md(), reinterpret_cast<void *>(memory.address() + offset), 1, &attr),
                  UCS_OK);
        EXPECT_EQ(attr.mem_type, UCS_MEMORY_TYPE_CUDA);
        EXPECT_NE(attr.sys_dev, UCS_SYS_DEVICE_ID_UNKNOWN);
        EXPECT_EQ(reinterpret_cast<uint64_t>(attr.base_address), memory.address());
        EXPECT_EQ(attr.alloc_length, size);
    }
}

TEST(memory_domain, tells_one_gpu_from_another)
{
    NVL_NEEDS_TWO_GPUS();
    entity           here;
    ucs_sys_device_t found[2];
    for (int gpu = 0; gpu < 2; ++gpu) {
        gpu_memory           memory(gpu, size);
        uct_md_mem_attr_v2_t attr{};
        attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV;
        ASSERT_EQ(ucx().uct_md_mem_query_v2(here.md(), reinterpret_cast<void *>(memory.address()),
                                            size, &attr),
                  UCS_OK);
        found[gpu] = attr.sys_dev;
    }
    EXPECT_NE(found[0], found[1]);
}

TEST(memory_domain, leaves_host_memory_alone)
{
    entity            here;
    int               stack = 0;
    std::vector<char> heap(4096);
    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    EXPECT_NE(ucx().uct_md_detect_memory_type(here.md(), &stack, sizeof(stack), &type), UCS_OK);
    EXPECT_NE(ucx().uct_md_detect_memory_type(here.md(), heap.data(), heap.size(), &type), UCS_OK);
    EXPECT_NE(ucx().uct_md_detect_memory_type(here.md(), reinterpret_cast<void *>(0x10), 1, &type),
              UCS_OK);
}

namespace {

struct invalidation {
    uct_completion_t super{};
    int              called = 0;

    invalidation()
    {
        super.count = 1;
        super.func  = [](uct_completion_t *self) {
            ++reinterpret_cast<invalidation *>(self)->called;
        };
    }
};

} // namespace

// UCP asks for it when it gives up an endpoint of a peer that has failed, and waits for the answer.
TEST(memory_domain, says_when_a_key_is_worth_nothing_any_more)
{
    entity       here;
    gpu_memory   memory(1, size);
    uct_mem_h    memh = nullptr;
    invalidation done;
    ASSERT_EQ(
        ucx().uct_md_mem_reg(here.md(), reinterpret_cast<void *>(memory.address()), size, 0, &memh),
        UCS_OK);
    bytes key(256);
    ASSERT_EQ(ucx().uct_md_mkey_pack(here.md(), memh, key.data()), UCS_OK);
    uct_md_mem_dereg_params_t params{};
    params.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH | UCT_MD_MEM_DEREG_FIELD_FLAGS |
                        UCT_MD_MEM_DEREG_FIELD_COMPLETION;
    params.memh  = memh;
    params.flags = UCT_MD_MEM_DEREG_FLAG_INVALIDATE;
    params.comp  = &done.super;
    ASSERT_EQ(ucx().uct_md_mem_dereg_v2(here.md(), &params), UCS_OK);
    EXPECT_EQ(done.called, 1);
}

TEST(estimate, covers_put_and_get_of_gpu_memory)
{
    entity here;
    for (uct_ep_operation_t operation : {UCT_EP_OP_PUT_ZCOPY, UCT_EP_OP_GET_ZCOPY}) {
        uct_perf_attr_t attr;
        std::memset(&attr, 0xff, sizeof(attr)); // doubles become NaN
        attr.field_mask         = 0x1fff;
        attr.operation          = operation;
        attr.local_memory_type  = UCS_MEMORY_TYPE_CUDA;
        attr.remote_memory_type = UCS_MEMORY_TYPE_CUDA;
        attr.local_sys_device   = UCS_SYS_DEVICE_ID_UNKNOWN;
        attr.remote_sys_device  = UCS_SYS_DEVICE_ID_UNKNOWN;
        ASSERT_EQ(ucx().uct_iface_estimate_perf(here.iface(), &attr), UCS_OK);
        EXPECT_GT(attr.bandwidth.shared + attr.bandwidth.dedicated, 50e9);
        EXPECT_LT(attr.bandwidth.shared + attr.bandwidth.dedicated, 5e12);
        EXPECT_GT(attr.path_bandwidth.shared + attr.path_bandwidth.dedicated, 0);
        EXPECT_GT(attr.latency.c, 0);
        EXPECT_LT(attr.latency.c, 1e-4);
        EXPECT_FALSE(std::isnan(attr.latency.m));
        EXPECT_GE(attr.send_pre_overhead, 0);
        EXPECT_GE(attr.send_post_overhead, 0);
        EXPECT_GE(attr.recv_overhead, 0);
        EXPECT_GT(attr.max_inflight_eps, 0u);
        EXPECT_NE(attr.flags, ~0ull);
    }
}

namespace {

// What UCX calls the GPU.
ucs_sys_device_t system_device(const entity &here, int gpu)
{
    gpu_memory           memory(gpu, size);
    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV;
    EXPECT_EQ(ucx().uct_md_mem_query_v2(here.md(), reinterpret_cast<void *>(memory.address()), size,
                                        &attr),
              UCS_OK);
    return attr.sys_dev;
}

uct_perf_attr_t estimate_of(const entity &here, uct_ep_operation_t operation,
                            ucs_sys_device_t local, ucs_sys_device_t remote)
{
    uct_perf_attr_t attr{};
    attr.field_mask = UCT_PERF_ATTR_FIELD_OPERATION | UCT_PERF_ATTR_FIELD_LOCAL_SYS_DEVICE |
                      UCT_PERF_ATTR_FIELD_REMOTE_SYS_DEVICE | UCT_PERF_ATTR_FIELD_BANDWIDTH |
                      UCT_PERF_ATTR_FIELD_LATENCY;
    attr.operation         = operation;
    attr.local_sys_device  = local;
    attr.remote_sys_device = remote;
    EXPECT_EQ(ucx().uct_iface_estimate_perf(here.iface(), &attr), UCS_OK);
    return attr;
}

double estimated(const entity &here, uct_ep_operation_t operation, ucs_sys_device_t local,
                 ucs_sys_device_t remote)
{
    uct_perf_attr_t attr = estimate_of(here, operation, local, remote);
    return attr.bandwidth.shared + attr.bandwidth.dedicated;
}

} // namespace

TEST(estimate, is_true_for_a_pair_that_is_named_and_a_bid_for_others)
{
    NVL_NEEDS_TWO_GPUS();
    entity           here;
    ucs_sys_device_t from = system_device(here, 0), to = system_device(here, 1);
    constexpr auto   unknown = UCS_SYS_DEVICE_ID_UNKNOWN;

    double push = estimated(here, UCT_EP_OP_PUT_ZCOPY, from, to);
    double pull = estimated(here, UCT_EP_OP_GET_ZCOPY, from, to);
    double bid  = estimated(here, UCT_EP_OP_PUT_ZCOPY, unknown, unknown);
    EXPECT_LE(pull, push) << "a pull is never taken for the faster one";
    EXPECT_GT(push, 300e9);
    EXPECT_LT(push, 400e9) << "393 GB/s were measured";
    // Whatever the machine: four times as much as a card of 800 Gb/s, since UCP gives bytes to lanes beyond a quarter.
    EXPECT_GT(bid, 4 * 100e9);
    EXPECT_GE(bid, push);
    EXPECT_GT(estimated(here, UCT_EP_OP_GET_ZCOPY, unknown, unknown), 4 * 100e9);
    EXPECT_NEAR(estimated(here, UCT_EP_OP_GET_ZCOPY, unknown, unknown) / bid, pull / push, 0.01);
    EXPECT_DOUBLE_EQ(bid, here.attributes().bandwidth.shared);
}

// A pull crosses PCIe twice, a push once: here a swap of the two would be seen. The rates are one.
TEST(pcie_estimate, has_a_push_that_is_sooner_done_than_a_pull)
{
    NVL_NEEDS_EMULATOR();
    const char *machine = std::getenv("NVL_EMU_MACHINE");
    if (machine == nullptr || std::strstr(machine, "l40s-pcie-x4") == nullptr) {
        GTEST_SKIP() << "for pair_check.test only";
    }
    entity           here;
    ucs_sys_device_t from = system_device(here, 0), to = system_device(here, 1);
    constexpr auto   unknown = UCS_SYS_DEVICE_ID_UNKNOWN;

    double nvlink = estimate_of(here, UCT_EP_OP_PUT_ZCOPY, unknown, unknown).latency.c;
    double push   = estimate_of(here, UCT_EP_OP_PUT_ZCOPY, from, to).latency.c;
    double pull   = estimate_of(here, UCT_EP_OP_GET_ZCOPY, from, to).latency.c;
    EXPECT_NEAR(push - nvlink, 1.5e-6, 1e-9);
    EXPECT_NEAR(pull - nvlink, 3.0e-6, 1e-9);
}

TEST(estimate, claims_nothing_for_host_memory)
{
    entity          here;
    uct_perf_attr_t attr{};
    attr.field_mask = UCT_PERF_ATTR_FIELD_OPERATION | UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE |
                      UCT_PERF_ATTR_FIELD_BANDWIDTH;
    attr.operation         = UCT_EP_OP_PUT_ZCOPY;
    attr.local_memory_type = UCS_MEMORY_TYPE_HOST;
    ucs_status_t status    = ucx().uct_iface_estimate_perf(here.iface(), &attr);
    EXPECT_TRUE(status != UCS_OK || attr.bandwidth.shared + attr.bandwidth.dedicated == 0);
}

TEST(estimate, writes_only_what_was_asked_for)
{
    entity          here;
    uct_perf_attr_t attr;
    std::memset(&attr, 0x5a, sizeof(attr));
    uct_perf_attr_t before = attr;
    attr.field_mask = before.field_mask = UCT_PERF_ATTR_FIELD_LATENCY;
    ASSERT_EQ(ucx().uct_iface_estimate_perf(here.iface(), &attr), UCS_OK);
    before.latency = attr.latency;
    EXPECT_EQ(std::memcmp(&attr, &before, sizeof(attr)), 0);
}

// ---- who is reached ------------------------------------------------------------------------------------------------

TEST(reachability, holds_for_this_process_and_another_one)
{
    entity    here, other;
    peer_side peer;
    EXPECT_TRUE(reachable(here, here.address())) << reason_g;
    EXPECT_TRUE(reachable(here, other.address())) << reason_g;
    EXPECT_TRUE(reachable(here, peer.address())) << reason_g;
    EXPECT_TRUE(reachable(here, peer.address(), false))
        << "the lengths are the caller's to leave out";
}

TEST(reachability, ends_at_the_host_with_a_reason)
{
    entity    here;
    addresses other = here.address();
    other.device[4] ^= 0xff; // of the host's id
    EXPECT_FALSE(reachable(here, other));
    EXPECT_NE(reason_g.find("another host"), std::string::npos) << reason_g;
}

TEST(reachability, is_denied_to_an_address_of_unknown_form)
{
    entity    here;
    addresses none  = here.address();
    addresses cut   = none;
    addresses newer = none;
    none.device[0]  = 0;
    cut.device.resize(cut.device.size() - 1);
    EXPECT_FALSE(reachable(here, none));
    EXPECT_NE(reason_g.find("unknown form"), std::string::npos) << reason_g;
    EXPECT_FALSE(reachable(here, cut));
    EXPECT_FALSE(reason_g.empty());
    // A later release begins as this one does and has more behind it.
    newer.device[0] = 3;
    newer.device.resize(newer.device.size() + 16);
    EXPECT_TRUE(reachable(here, newer)) << reason_g;
}

// ---- endpoints -----------------------------------------------------------------------------------------------------

TEST(endpoint, knows_whom_it_is_connected_to)
{
    entity                       here;
    peer_side                    first, second;
    addresses                    to = first.address(), not_to = second.address();
    endpoint                     ep(here, to);
    uct_ep_is_connected_params_t params{};
    params.field_mask =
        UCT_EP_IS_CONNECTED_FIELD_DEVICE_ADDR | UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR;
    params.device_addr = reinterpret_cast<const uct_device_addr_t *>(to.device.data());
    params.iface_addr  = reinterpret_cast<const uct_iface_addr_t *>(to.iface.data());
    EXPECT_NE(ucx().uct_ep_is_connected(ep.get(), &params), 0);
    params.device_addr = reinterpret_cast<const uct_device_addr_t *>(not_to.device.data());
    params.iface_addr  = reinterpret_cast<const uct_iface_addr_t *>(not_to.iface.data());
    EXPECT_EQ(ucx().uct_ep_is_connected(ep.get(), &params), 0);
}

TEST(endpoint, notices_that_its_peer_is_dead)
{
    connection c(far_kind::other_process, 0, 1, size);
    ASSERT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(ucx().uct_ep_check(c.ep.get(), 0, nullptr), UCS_OK);
    c.here.progress();
    EXPECT_TRUE(c.here.errors.empty()) << "a living peer was reported";

    static_cast<peer_side &>(*c.far).kill();
    (void)ucx().uct_ep_check(c.ep.get(), 0, nullptr);
    ASSERT_TRUE(c.wait([&] { return !c.here.errors.empty(); }));
    ASSERT_EQ(c.here.errors.size(), 1u);
    EXPECT_EQ(c.here.errors[0].first, c.ep.get());
    EXPECT_NE(c.here.errors[0].second, UCS_OK);
    // Once.
    c.here.progress();
    EXPECT_EQ(c.here.errors.size(), 1u);
}

TEST(endpoint, finishes_what_is_under_way_when_the_peer_dies)
{
    connection c(far_kind::other_process, 0, 1, 1u << 20);
    completion done(50);
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(c.put(0, 0, 1u << 20, &done), UCS_INPROGRESS);
    }
    static_cast<peer_side &>(*c.far).kill();
    EXPECT_TRUE(c.wait(done)) << "a dead peer must not hang the survivor";
    EXPECT_TRUE(c.drain());
}

// kill -9 of the owner, at each stage of what others do with its memory; NVL_TEST_ROUNDS times.
namespace {

enum class stage { before_the_key, with_a_key, posting, in_flight, idle, closing };

std::string name_of_stage(const testing::TestParamInfo<stage> &info)
{
    const char *const names[] = {"before_the_key", "with_a_key", "posting",
                                 "in_flight",      "idle",       "closing"};
    return names[static_cast<int>(info.param)];
}

class owner_that_dies : public testing::TestWithParam<stage> {
protected:
    // From the key to the end; whatever fails says so, and all that was begun ends.
    static void one_life()
    {
        constexpr size_t length = 256u << 10;
        entity           here;
        gpu_memory       local(0, length);
        registered       reg(here, local.address(), length);
        auto             far     = std::make_unique<peer_side>();
        uint64_t         remote  = far->allocate(1, length);
        bytes            packed  = far->key(remote);
        addresses        to      = far->address();
        auto             dies_at = [&](stage now) {
            if (GetParam() == now) {
                far->kill();
            }
        };

        auto ep = std::make_unique<endpoint>(here, to);
        dies_at(stage::before_the_key);
        if (GetParam() == stage::before_the_key) {
            EXPECT_EQ(try_unpack(packed), UCS_ERR_UNREACHABLE);
            return;
        }
        auto key = std::make_unique<unpacked>(packed);
        dies_at(stage::with_a_key);

        constexpr int count = 32;
        completion    done(count);
        uct_iov_t     iov{reinterpret_cast<void *>(local.address()), length, reg.memh(), 0, 1};
        for (int i = 0; i < count; ++i) {
            auto         post   = i % 2 == 0 ? uct_ep_put_zcopy : uct_ep_get_zcopy;
            ucs_status_t status = post(ep->get(), &iov, 1, remote, key->rkey(), &done.super);
            done.super.count -= status == UCS_INPROGRESS ? 0 : 1;
            if (i == count / 2) {
                dies_at(stage::posting);
            }
        }
        dies_at(stage::in_flight);
        auto end  = std::chrono::steady_clock::now() + connection::patience();
        auto ends = [&](auto finished) {
            while (!finished()) {
                here.progress();
                if (std::chrono::steady_clock::now() > end) {
                    return false;
                }
            }
            return true;
        };
        ASSERT_TRUE(ends([&] { return done.called == 1 || done.super.count == 0; })) << "it hangs";
        ASSERT_TRUE(ends([&] { return uct_iface_flush(here.iface(), 0, nullptr) == UCS_OK; }))
            << "a flush hangs";

        dies_at(stage::idle);
        if (GetParam() == stage::closing) {
            dies_at(stage::closing);
            key.reset();
            ep.reset();
            here.close_iface();
            return;
        }
        (void)ucx().uct_ep_check(ep->get(), 0, nullptr);
        ASSERT_TRUE(ends([&] { return !here.errors.empty(); })) << "nobody is told";
        here.progress();
        EXPECT_EQ(here.errors.size(), 1u) << "told once";
    }
};

} // namespace

TEST_P(owner_that_dies, leaves_the_others_alive)
{
    NVL_NEEDS_EMULATOR();
    const char *asked  = std::getenv("NVL_TEST_ROUNDS");
    const int   rounds = asked != nullptr ? std::atoi(asked) : 3;
    expect_log("cannot open memory");
    for (int round = 0; round < rounds; ++round) {
        ASSERT_NO_FATAL_FAILURE(one_life()) << "round " << round;
    }
}

INSTANTIATE_TEST_SUITE_P(stages, owner_that_dies,
                         testing::Values(stage::before_the_key, stage::with_a_key, stage::posting,
                                         stage::in_flight, stage::idle, stage::closing),
                         name_of_stage);

TEST(rkey_pointer, leads_to_the_memory_of_this_process)
{
    entity            here;
    local_side        mine(here);
    uint64_t          allocation = mine.allocate(0, size);
    bytes             key        = mine.key(allocation);
    uct_rkey_bundle_t bundle{};
    ASSERT_EQ(ucx().uct_rkey_unpack(nvlink_component(), key.data(), &bundle), UCS_OK);
    void *local = nullptr;
    EXPECT_EQ(ucx().uct_rkey_ptr(nvlink_component(), &bundle, allocation + 100, &local), UCS_OK);
    EXPECT_EQ(reinterpret_cast<uint64_t>(local), allocation + 100);
    EXPECT_NE(ucx().uct_rkey_ptr(nvlink_component(), &bundle, allocation + size, &local), UCS_OK);
    ucx().uct_rkey_release(nvlink_component(), &bundle);
}

TEST(rkey_pointer, leads_to_the_memory_of_another_process)
{
    NVL_NEEDS_EMULATOR();
    entity            here;
    peer_side         far;
    uint64_t          allocation = far.allocate(1, size);
    bytes             source = random_bytes(size, 3), key = far.key(allocation);
    uct_rkey_bundle_t bundle{};
    void             *local = nullptr;
    far.write(allocation, 0, source);
    ASSERT_EQ(ucx().uct_rkey_unpack(nvlink_component(), key.data(), &bundle), UCS_OK);
    ASSERT_EQ(ucx().uct_rkey_ptr(nvlink_component(), &bundle, allocation + 100, &local), UCS_OK);
    const auto *seen = static_cast<const uint8_t *>(
        emulator()->peek(reinterpret_cast<uint64_t>(local), size - 100));
    ASSERT_NE(seen, nullptr);
    EXPECT_EQ(difference(bytes(source.begin() + 100, source.end()), bytes(seen, seen + size - 100)),
              "");
    EXPECT_NE(ucx().uct_rkey_ptr(nvlink_component(), &bundle, allocation + size, &local), UCS_OK);
    ucx().uct_rkey_release(nvlink_component(), &bundle);
}

TEST(rkey_compare, tells_keys_apart)
{
    entity     here;
    local_side mine(here);
    bytes      first = mine.key(mine.allocate(0, size)), second = mine.key(mine.allocate(0, size));
    unpacked   a(first), again(first), b(second);
    uct_rkey_compare_params_t params{};
    int                       result = -1;
    ASSERT_EQ(ucx().uct_rkey_compare(nvlink_component(), a.rkey(), again.rkey(), &params, &result),
              UCS_OK);
    EXPECT_EQ(result, 0);
    ASSERT_EQ(ucx().uct_rkey_compare(nvlink_component(), a.rkey(), b.rkey(), &params, &result),
              UCS_OK);
    EXPECT_NE(result, 0);
}

} // namespace nvl::test
