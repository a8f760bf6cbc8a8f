// SPDX-License-Identifier: BSD-3-Clause
//
// Stock UCP on top of the plugin: which transport it picks, whether the bytes arrive, what a dead peer does, and that
// those who use no GPU notice nothing.
#include "ucp/job.h"

#include "emulator/host_files.h"

#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl::test {

namespace {

const char *required(const char *variable)
{
    const char *value = std::getenv(variable);
    return value == nullptr ? "" : value;
}

#define NVL_NEEDS(_how)                                   \
    do {                                                  \
        if (runner(_how).empty()) {                       \
            GTEST_SKIP() << "this machine has no " #_how; \
        }                                                 \
    } while (0)

// An operation, as ucx_perftest calls it and as UCX's tables do.
struct operation {
    const char              *name, *test;
    std::vector<std::string> title;
    bool                     in_one_copy; // UCP can do it without help
};

const operation operations[] = {
    {"put", "ucp_put_bw", {"intra-node", "ucp_put", "from cuda"}, true},
    {"get", "ucp_get", {"intra-node", "ucp_get", "into cuda"}, true},
    {"tag", "tag_bw", {"intra-node", "ucp_tag_send", "from cuda"}, true},
    {"am", "ucp_am_bw", {"intra-node", "ucp_am_send", "from cuda"}, true},
    // UCP's streams have no rendezvous: they are copied through the host, whatever the transport.
    {"stream", "stream_bw", {"intra-node", "ucp_stream_send", "from cuda"}, false},
};

// As issued by users, "" is UCX's default.
const char *const transports[] = {"all", "^cuda_ipc", "nvlink,cuda_copy,sm",
                                  "nvlink,cuda_copy,tcp"};

std::string perftest_arguments(const operation &what)
{
    return fmt::format("-t {} -m cuda -s 1000003 -n 8 -w 2", what.test);
}

} // namespace

class lane : public testing::TestWithParam<std::tuple<const char *, operation>> {};

TEST_P(lane, is_nvlink_where_ucp_moves_gpu_memory)
{
    NVL_NEEDS(run_as::with_plugin);
    const auto &[tls, what] = GetParam();
    perftest_result got     = perftest(run_as::with_plugin, perftest_arguments(what),
                                       fmt::format("UCX_PROTO_INFO=y 'UCX_TLS={}'", tls));
    ASSERT_EQ(got.status, 0) << got.output;
    EXPECT_EQ(got.server_status, 0);
    std::string config = config_of_large(protocol_tables(got.output), what.title);
    ASSERT_NE(config, "") << "no such table in:\n" << got.output;
    if (what.in_one_copy) {
        EXPECT_NE(config.find("nvlink/cuda"), std::string::npos) << config;
    }
}

class lane_without_plugin : public testing::TestWithParam<std::tuple<const char *, operation>> {};

TEST_P(lane_without_plugin, is_one_of_ucx)
{
    NVL_NEEDS(run_as::without_plugin);
    const auto &[tls, what] = GetParam();
    perftest_result got     = perftest(run_as::without_plugin, perftest_arguments(what),
                                       fmt::format("UCX_PROTO_INFO=y 'UCX_TLS={}'", tls));
    ASSERT_EQ(got.status, 0) << got.output;
    EXPECT_EQ(got.output.find("nvlink"), std::string::npos) << got.output;
    std::string config = config_of_large(protocol_tables(got.output), what.title);
    if (config.empty() && got.output.find("cma/") == std::string::npos) {
        GTEST_SKIP() << "UCX has no cma here, and no table for this without it";
    }
    EXPECT_NE(config, "");
}

namespace {

std::string name_of_lane(const testing::TestParamInfo<lane::ParamType> &one)
{
    std::string name = fmt::format("{}_{}", std::get<1>(one.param).name, std::get<0>(one.param));
    for (char &letter : name) {
        letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
    }
    return name;
}

} // namespace

INSTANTIATE_TEST_SUITE_P(transports, lane,
                         testing::Combine(testing::ValuesIn(transports),
                                          testing::ValuesIn(operations)),
                         name_of_lane);
INSTANTIATE_TEST_SUITE_P(transports, lane_without_plugin,
                         testing::Combine(testing::Values("all", "^cuda_ipc"),
                                          testing::ValuesIn(operations)),
                         name_of_lane);

TEST(lane_with_error_handling, is_nvlink_too)
{
    NVL_NEEDS(run_as::with_plugin);
    for (int i = 0; i < 3; ++i) {
        const operation &what = operations[i];
        perftest_result  got =
            perftest(run_as::with_plugin, perftest_arguments(what) + " -e", "UCX_PROTO_INFO=y");
        ASSERT_EQ(got.status, 0) << got.output;
        std::string config = config_of_large(protocol_tables(got.output), what.title);
        EXPECT_NE(config.find("nvlink/cuda"), std::string::npos) << what.name << ": " << config;
    }
}

TEST(lane_of_mixed_memory, works_from_host_to_gpu_and_back)
{
    NVL_NEEDS(run_as::with_plugin);
    for (const char *memory : {"host,cuda", "cuda,host"}) {
        for (const operation &what : operations) {
            perftest_result got =
                perftest(run_as::with_plugin,
                         fmt::format("-t {} -m {} -s 100003 -n 5 -w 1", what.test, memory), "");
            EXPECT_EQ(got.status, 0) << what.name << " " << memory << "\n" << got.output;
        }
    }
}

// Every byte, in both directions, all operations, awkward sizes and offsets.
class contents : public testing::TestWithParam<const char *> {};

TEST_P(contents, are_right)
{
    NVL_NEEDS(run_as::with_plugin);
    job check(run_as::with_plugin,
              fmt::format(
                  "{} --max-size 1000000 --arena 4000000 --rounds 40 --kinds put,get,tag,am,stream",
                  required("NVL_UCP_CHECK")),
              fmt::format("'UCX_TLS={}'", GetParam()));
    int status = check.wait(300);
    EXPECT_EQ(status, 0) << check.output();
    EXPECT_NE(check.output().find(" 0 wrong"), std::string::npos) << check.output();
}

// New allocations at the addresses of freed ones, for which old keys and open handles may be about.
TEST_P(contents, are_right_in_fresh_memory)
{
    NVL_NEEDS(run_as::with_plugin);
    job check(run_as::with_plugin,
              fmt::format(
                  "{} --no-sweep --soak 60 --max-size 100000 --arena 4000000 --rounds 25 --fresh 1 "
                  "--kinds put,get,tag,am,stream",
                  required("NVL_UCP_CHECK")),
              fmt::format("'UCX_TLS={}'", GetParam()));
    int status = check.wait(300);
    EXPECT_EQ(status, 0) << check.output();
    EXPECT_NE(check.output().find(" 0 wrong"), std::string::npos) << check.output();
}

INSTANTIATE_TEST_SUITE_P(transports, contents, testing::ValuesIn(transports),
                         [](const testing::TestParamInfo<const char *> &one) {
                             std::string name = one.param;
                             for (char &letter : name) {
                                 letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter
                                                                                           : '_';
                             }
                             return name;
                         });

// Another allocator under the same program: the bytes are right and the path stays; memory that CUDA cannot share is
// moved all the same, and one line says why.
class contents_of : public testing::TestWithParam<const char *> {};

TEST_P(contents_of, are_right_whoever_allocated)
{
    NVL_NEEDS(run_as::with_plugin);
    job  check(run_as::with_plugin,
               fmt::format("{} --memory {} --max-size 1000000 --arena 4000000 --rounds 40 "
                            "--kinds put,get,tag,am",
                           required("NVL_UCP_CHECK"), GetParam()),
               "UCX_PROTO_INFO=y");
    int  status = check.wait(300);
    bool shared = std::string(GetParam()).find("none") == std::string::npos;
    EXPECT_EQ(status, 0) << check.output();
    EXPECT_NE(check.output().find(" 0 wrong"), std::string::npos) << check.output();
    EXPECT_NE(check.output().find("nvlink/cuda"), std::string::npos) << check.output();
    EXPECT_EQ(check.output().find("cannot be shared") == std::string::npos, shared)
        << check.output();
}

INSTANTIATE_TEST_SUITE_P(memory, contents_of,
                         testing::Values("vmm", "vmm_chunks", "vmm_none", "pool", "pool_none"));

// Two hosts of one fabric: what has a fabric handle goes over NVLink, all else another way.
class contents_between_hosts : public testing::TestWithParam<const char *> {};

TEST_P(contents_between_hosts, are_right)
{
    NVL_NEEDS(run_as::with_plugin);
    char                        name[] = "/tmp/nvl-hosts-XXXXXX";
    const std::filesystem::path folder = mkdtemp(name);
    make_host_files(folder / "0", 1);
    make_host_files(folder / "1", 2);
    job check(
        run_as::with_plugin,
        fmt::format("{}/gb200-host-a.machine {} --memory {} --max-size 1000000 "
                    "--arena 4000000 --rounds 40 --fresh 8 --kinds put,get,tag,am",
                    NVL_TEST_MACHINES, required("NVL_UCP_CHECK"), GetParam()),
        fmt::format("UCX_PROTO_INFO=y NVL_EMU_FILES={0}/0 'NVL_SECOND_ENV=NVL_EMU_FILES={0}/1 "
                    "NVL_EMU_MACHINE={1}/gb200-host-b.machine'",
                    folder.string(), NVL_TEST_MACHINES));
    int  status = check.wait(300);
    bool opened = std::string(GetParam()).find("fabric") != std::string::npos;
    std::filesystem::remove_all(folder);
    EXPECT_EQ(status, 0) << check.output();
    EXPECT_NE(check.output().find(" 0 wrong"), std::string::npos) << check.output();
    EXPECT_NE(check.output().find("nvlink/cuda"), std::string::npos) << check.output();
    EXPECT_EQ(check.output().find("GPU memory of another host") == std::string::npos, opened)
        << check.output();
}

INSTANTIATE_TEST_SUITE_P(memory, contents_between_hosts,
                         testing::Values("vmm_fabric", "pool_fabric", "vmm_chunks", "alloc"));

TEST(contents_check, notices_a_wrong_byte)
{
    NVL_NEEDS(run_as::with_plugin);
    job check(run_as::with_plugin,
              fmt::format("{} --spoil --max-size 10000 --arena 400000 --rounds 3 --kinds put,get",
                          required("NVL_UCP_CHECK")));
    EXPECT_NE(check.wait(300), 0);
}

// ---- a peer that dies ----------------------------------------------------------------------------------------------

class dead_peer : public testing::TestWithParam<operation> {};

TEST_P(dead_peer, ends_the_other_with_an_error_and_no_signal)
{
    NVL_NEEDS(run_as::with_plugin);
    int         port   = free_port();
    std::string common = fmt::format("ucx_perftest -p {}", port);
    std::string what =
        fmt::format("-t {} -m cuda -s 1000000 -n 1000000000 -w 1 -e", GetParam().test);
    std::string quickly = "UCX_KEEPALIVE_INTERVAL=1s";
    job         server(run_as::with_plugin, common + " " + what, quickly);
    ASSERT_TRUE(wait_for_listener(port, &server)) << server.output();
    job client(run_as::with_plugin, common + " 127.0.0.1 " + what, quickly);
    // It prints a line for each second of traffic.
    ASSERT_TRUE(client.says("[thread 0]")) << client.output();
    server.kill();
    int status = client.wait(30);
    EXPECT_NE(status, -1) << "hangs:\n" << client.output();
    EXPECT_LT(status, 1000) << "ended by a signal:\n" << client.output();
    EXPECT_EQ(client.output().find("Assertion"), std::string::npos) << client.output();
}

INSTANTIATE_TEST_SUITE_P(operations, dead_peer,
                         testing::Values(operations[0], operations[1], operations[2]),
                         [](const testing::TestParamInfo<operation> &one) {
                             return one.param.name;
                         });

// ---- those who use no GPU ------------------------------------------------------------------------------------------

namespace {

// All tables as one text, in the order in which they came.
std::string tables_text(const std::string &output)
{
    std::string text;
    for (const protocol_table &table : protocol_tables(output)) {
        text += table.title + "\n";
        for (const protocol_row &row : table.rows) {
            text += "  " + row.range + " | " + row.description + " | " + row.config + "\n";
        }
    }
    return text;
}

} // namespace

class host_job : public testing::TestWithParam<operation> {};

TEST_P(host_job, on_a_machine_without_gpus_is_the_same_with_the_plugin)
{
    NVL_NEEDS(run_as::host_with_plugin);
    std::string     arguments = fmt::format("-t {} -m host -s 100003 -n 10 -w 2", GetParam().test);
    perftest_result with      = perftest(run_as::host_with_plugin, arguments, "UCX_PROTO_INFO=y");
    perftest_result without = perftest(run_as::host_without_plugin, arguments, "UCX_PROTO_INFO=y");
    EXPECT_EQ(without.status, 0) << without.output;
    EXPECT_EQ(with.status, without.status) << with.output;
    EXPECT_EQ(with.server_status, without.server_status);
    EXPECT_EQ(tables_text(with.output), tables_text(without.output));
    EXPECT_NE(tables_text(with.output), "");
    EXPECT_EQ(with.output.find("nvlink"), std::string::npos) << with.output;
}

TEST_P(host_job, beside_gpus_goes_the_same_way_with_the_plugin)
{
    NVL_NEEDS(run_as::without_plugin);
    std::string     arguments = fmt::format("-t {} -m host -s 100003 -n 10 -w 2", GetParam().test);
    perftest_result with      = perftest(run_as::with_plugin, arguments, "UCX_PROTO_INFO=y");
    perftest_result without   = perftest(run_as::without_plugin, arguments, "UCX_PROTO_INFO=y");
    EXPECT_EQ(without.status, 0) << without.output;
    EXPECT_EQ(with.status, without.status) << with.output;
    EXPECT_EQ(with.output.find("nvlink/cuda"), std::string::npos) << with.output;
}

// Codes of a driver that is there and does not start. UCX's own CUDA transports are silent about it.
TEST(host_job_beside_a_broken_driver, runs_and_is_told_of_the_service_that_is_missing)
{
    NVL_NEEDS(run_as::with_plugin);
    for (int code : {100, 802, 803, 999}) {
        std::string     broken = fmt::format("NVL_EMU_FAULTS=cuInit={}", code);
        perftest_result got =
            perftest(run_as::with_plugin, "-t tag_bw -m host -s 100003 -n 10 -w 2", broken);
        EXPECT_EQ(got.status, 0) << code << "\n" << got.output;
        EXPECT_EQ(got.server_status, 0) << code << "\n" << got.server_output;
        EXPECT_EQ(got.output.find("nvidia-fabricmanager") != std::string::npos, code == 802)
            << code << "\n"
            << got.output;
        job info(run_as::with_plugin, "ucx_info -d", broken);
        EXPECT_EQ(info.wait(), 0) << code << "\n" << info.output();
        EXPECT_EQ(info.output().find("Transport: nvlink"), std::string::npos) << code;
    }
}

INSTANTIATE_TEST_SUITE_P(operations, host_job, testing::ValuesIn(operations),
                         [](const testing::TestParamInfo<operation> &one) {
                             return one.param.name;
                         });

// ---- what ucx_info shows -------------------------------------------------------------------------------------------

TEST(ucx_info, shows_the_transport)
{
    NVL_NEEDS(run_as::with_plugin);
    job info(run_as::with_plugin, "ucx_info -d");
    ASSERT_EQ(info.wait(), 0) << info.output();
    EXPECT_NE(info.output().find("Memory domain: nvlink"), std::string::npos) << info.output();
    EXPECT_NE(info.output().find("Transport: nvlink"), std::string::npos);
    EXPECT_EQ(info.output().find("failed to"), std::string::npos) << info.output();
}

TEST(ucx_info, shows_the_settings_with_help)
{
    NVL_NEEDS(run_as::with_plugin);
    job info(run_as::with_plugin, "ucx_info -c -f");
    ASSERT_EQ(info.wait(), 0);
    std::string text = info.output();
    for (const char *name : {"UCX_NVLINK_KERNEL=", "UCX_NVLINK_DEPTH=", "UCX_NVLINK_BW=",
                             "UCX_NVLINK_IMPORT_CACHE_COUNT="}) {
        EXPECT_NE(text.find(name), std::string::npos) << name;
    }
}

TEST(ucx_info, shows_nothing_where_the_transport_is_excluded)
{
    NVL_NEEDS(run_as::with_plugin);
    job ping(run_as::with_plugin, "ucx_info -e -u t -P intra", "UCX_TLS=^nvlink");
    EXPECT_EQ(ping.wait(), 0) << ping.output();
    EXPECT_EQ(ping.output().find("nvlink"), std::string::npos) << ping.output();
}

} // namespace nvl::test
