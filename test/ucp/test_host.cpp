// SPDX-License-Identifier: BSD-3-Clause
//
// Host memory through stock UCP: one hop between it and a peer's GPU, nothing changed between host memories, and the
// right bytes where the sides' memories are of different kinds.
#include "ucp/job.h"

#include <cstdlib>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace nvl::test {

namespace {

#define NVL_NEEDS(_how)                                   \
    do {                                                  \
        if (runner(_how).empty()) {                       \
            GTEST_SKIP() << "this machine has no " #_how; \
        }                                                 \
    } while (0)

struct way {
    const char              *name, *test, *memory; // of ucx_perftest: sender's, receiver's
    std::vector<std::string> title;
    const char              *description; // of the row for large sizes
};

const way ways[] = {
    {"put",
     "ucp_put_bw",
     "host,cuda",
     {"intra-node", "ucp_put", "from host", "to cuda"},
     "zero-copy"},
    {"get",
     "ucp_get",
     "host,cuda",
     {"intra-node", "ucp_get", "into host", "from cuda"},
     "zero-copy"},
    {"tag_to_gpu",
     "tag_bw",
     "host,cuda",
     {"intra-node", "data fetch", "into cuda", "from host"},
     "zero-copy flushed write to remote"},
    {"tag_from_gpu",
     "tag_bw",
     "cuda,host",
     {"intra-node", "data fetch", "into host", "from cuda"},
     "zero-copy read from remote"},
};

// The last row of the last table with such a title, of either side.
protocol_row row_of_large(const perftest_result &got, const std::vector<std::string> &title)
{
    protocol_row found;
    for (const protocol_table &table : protocol_tables(got.output + got.server_output)) {
        bool fits = !table.rows.empty();
        for (const std::string &part : title) {
            fits = fits && table.title.find(part) != std::string::npos;
        }
        if (fits) {
            found = table.rows.back();
        }
    }
    return found;
}

// What UCP chose between host memories, in a job that has GPU memory too.
std::string between_host_memories(const perftest_result &got)
{
    std::string text;
    for (const protocol_table &table : protocol_tables(got.output + got.server_output)) {
        bool mentions_gpu = table.title.find("cuda") != std::string::npos;
        for (const protocol_row &row : table.rows) {
            if (!mentions_gpu) {
                text +=
                    table.title + " " + row.range + " " + row.description + " " + row.config + "\n";
            }
        }
    }
    return text;
}

// Calls of each function of the emulated driver, by all processes of a job.
std::map<std::string, long> driver_calls(run_as how, const std::string &arguments)
{
    std::string                 path = fmt::format("{}/calls.{}", testing::TempDir(), getpid());
    std::map<std::string, long> calls;
    perftest_result got = perftest(how, arguments, fmt::format("NVL_EMU_COUNTERS={}.%p", path));
    EXPECT_EQ(got.status, 0) << got.output;
    FILE *all = popen(fmt::format("cat {0}.*; rm -f {0}.*", path).c_str(), "r");
    char  name[128];
    long  count = 0;
    while (fscanf(all, "%127s %ld", name, &count) == 2) {
        if (std::string(name).rfind("cu", 0) == 0) {
            calls[name] += count;
        }
    }
    pclose(all);
    return calls;
}

} // namespace

class one_hop : public testing::TestWithParam<way> {};

TEST_P(one_hop, is_what_ucp_takes_between_host_memory_and_a_gpu)
{
    NVL_NEEDS(run_as::with_plugin);
    for (const char *tls : {"all", "^cuda_ipc", "nvlink,cuda_copy,sm", "nvlink,cuda_copy,tcp"}) {
        perftest_result got = perftest(
            run_as::with_plugin,
            fmt::format("-t {} -m {} -s 5000003 -n 4 -w 1", GetParam().test, GetParam().memory),
            fmt::format("UCX_PROTO_INFO=y 'UCX_TLS={}'", tls));
        ASSERT_EQ(got.status, 0) << got.output;
        protocol_row row = row_of_large(got, GetParam().title);
        EXPECT_EQ(row.config, "nvlink/cuda") << tls << "\n" << got.output << got.server_output;
        EXPECT_NE(row.description.find(GetParam().description), std::string::npos)
            << tls << ": " << row.description;
    }
}

INSTANTIATE_TEST_SUITE_P(ways, one_hop, testing::ValuesIn(ways),
                         [](const testing::TestParamInfo<way> &one) { return one.param.name; });

TEST(between_host_memories, ucp_chooses_as_without_the_plugin_beside_gpu_memory_too)
{
    NVL_NEEDS(run_as::without_plugin);
    for (const char *memory : {"host", "cuda", "host,cuda"}) {
        for (const char *test : {"tag_bw", "ucp_put_bw", "ucp_get", "ucp_am_bw"}) {
            std::string arguments = fmt::format("-t {} -m {} -s 100003 -n 5 -w 1", test, memory);
            perftest_result with  = perftest(run_as::with_plugin, arguments, "UCX_PROTO_INFO=y");
            perftest_result without =
                perftest(run_as::without_plugin, arguments, "UCX_PROTO_INFO=y");
            ASSERT_EQ(with.status, 0) << with.output;
            // The plugin's figures for host memory stand below those of cma.
            if (test == std::string("tag_bw") &&
                between_host_memories(without).find("cma/memory") == std::string::npos) {
                GTEST_SKIP() << "UCX has no cma here";
            }
            EXPECT_EQ(between_host_memories(with), between_host_memories(without))
                << test << " " << memory;
        }
    }
}

TEST(between_host_memories, an_operation_asks_of_the_driver_what_it_asks_without_the_plugin)
{
    NVL_NEEDS(run_as::without_plugin);
    for (const char *test : {"tag_bw", "ucp_put_bw", "ucp_get"}) {
        std::map<std::string, long> calls[2][2];
        for (bool plugin : {false, true}) {
            for (bool many : {false, true}) {
                calls[plugin][many] = driver_calls(
                    plugin ? run_as::with_plugin : run_as::without_plugin,
                    fmt::format("-t {} -m host -s 1000003 -n {} -w 1", test, many ? 200 : 5));
            }
        }
        for (const auto &[name, count] : calls[1][1]) {
            // UCX cannot hook the emulated driver, so its cache of memory types is off there and
            // every transport that detects memory is asked.
            if (name != "cuPointerGetAttributes") {
                EXPECT_EQ(count - calls[1][0][name], calls[0][1][name] - calls[0][0][name])
                    << name << " in " << test;
            }
        }
    }
}

TEST(between_host_memories, nothing_is_registered_with_the_driver_on_our_account)
{
    NVL_NEEDS(run_as::without_plugin);
    for (const char *test : {"tag_bw", "ucp_put_bw", "ucp_get"}) {
        std::string arguments            = fmt::format("-t {} -m host -s 1000003 -n 20 -w 1", test);
        std::map<std::string, long> with = driver_calls(run_as::with_plugin, arguments);
        std::map<std::string, long> without = driver_calls(run_as::without_plugin, arguments);
        for (const char *name : {"cuMemHostRegister_v2", "cuMemHostAlloc", "cuMemcpyAsync",
                                 "cuDevicePrimaryCtxRetain", "cuCtxCreate_v2"}) {
            EXPECT_EQ(with[name], without[name]) << name << " in " << test;
        }
    }
}

TEST(rooted_collective, of_different_kinds_of_memory_brings_the_right_bytes)
{
    NVL_NEEDS(run_as::with_plugin);
    const char *program = std::getenv("NVL_UCP_ROOTED");
    ASSERT_NE(program, nullptr);
    for (const char *tls : {"all", "nvlink,cuda_copy,tcp"}) {
        job all(run_as::with_plugin, program, fmt::format("'UCX_TLS={}'", tls));
        EXPECT_EQ(all.wait(400), 0) << tls << "\n" << all.output();
        EXPECT_NE(all.output().find("0 wrong"), std::string::npos) << all.output();
    }
}

} // namespace nvl::test
