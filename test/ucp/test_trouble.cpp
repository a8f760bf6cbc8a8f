// SPDX-License-Identifier: BSD-3-Clause
//
// Stock UCP where the machine or its settings are not as they should be: the bytes are right all the same, one line says
// what is wrong, and what has nothing to do with it goes on.
#include "ucp/job.h"

#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl::test {

namespace {

#define NVL_NEEDS(_how)                                   \
    do {                                                  \
        if (runner(_how).empty()) {                       \
            GTEST_SKIP() << "this machine has no " #_how; \
        }                                                 \
    } while (0)

size_t count_of(const std::string &text, const std::string &part)
{
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
        ++count;
    }
    return count;
}

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

std::string check_command(const std::string &arguments)
{
    const char *program = std::getenv("NVL_UCP_CHECK");
    return fmt::format("{} {}", program == nullptr ? "" : program, arguments);
}

} // namespace

// ---- a driver that does not start ----------------------------------------------------------------------------------

namespace {

struct failed_start {
    int         code;
    const char *says; // "": a machine without GPUs is nothing to talk about
};

} // namespace

class driver_that_does_not_start : public testing::TestWithParam<failed_start> {};

TEST_P(driver_that_does_not_start, takes_nothing_else_along)
{
    NVL_NEEDS(run_as::with_plugin);
    std::string fault = fmt::format("NVL_EMU_FAULTS=cuInit={}", GetParam().code);
    job         info(run_as::with_plugin, "ucx_info -d", fault);
    ASSERT_EQ(info.wait(), 0) << info.output();
    EXPECT_FALSE(has(info.output(), "Transport: nvlink")) << info.output();
    EXPECT_TRUE(has(info.output(), "Transport: tcp")) << info.output();
    bool speaks = GetParam().says[0] != '\0';
    EXPECT_EQ(count_of(info.output(), "no nvlink transport"), speaks ? 1u : 0u) << info.output();
    EXPECT_TRUE(has(info.output(), GetParam().says)) << info.output();

    perftest_result host =
        perftest(run_as::with_plugin, "-t tag_bw -m host -s 100003 -n 10 -w 2", fault);
    EXPECT_EQ(host.status, 0) << host.output;
    EXPECT_EQ(host.server_status, 0) << host.server_output;
    EXPECT_EQ(count_of(host.output, "no nvlink transport"), speaks ? 1u : 0u) << host.output;
}

INSTANTIATE_TEST_SUITE_P(codes, driver_that_does_not_start,
                         testing::Values(failed_start{100, ""},
                                         failed_start{802, "is nvidia-fabricmanager running"},
                                         failed_start{803, "of different versions"},
                                         failed_start{999, "cuInit failed: CUDA_ERROR_UNKNOWN"}),
                         [](const auto &one) { return std::to_string(one.param.code); });

// ---- memory of a peer that the driver does not open ----------------------------------------------------------------

// A GPU that only one of two containers has, a peer that IPC is blocked for in a virtual machine: found out when the
// memory is opened.
class memory_that_cannot_be_opened : public testing::TestWithParam<int> {};

TEST_P(memory_that_cannot_be_opened, takes_another_path_with_one_line)
{
    NVL_NEEDS(run_as::with_plugin);
    // cuda_ipc opens by the same call.
    job check(run_as::with_plugin,
              check_command("--max-size 300000 --arena 2000000 --rounds 6 --kinds put,get,tag,am"),
              fmt::format("NVL_EMU_FAULTS=cuIpcOpenMemHandle_v2={} UCX_TLS=^cuda_ipc", GetParam()));
    EXPECT_EQ(check.wait(300), 0) << check.output();
    EXPECT_TRUE(has(check.output(), " 0 wrong")) << check.output();
    // Two processes.
    EXPECT_EQ(count_of(check.output(), "cannot open memory"), 2u) << check.output();
    EXPECT_EQ(count_of(check.output(), " ERROR "), 0u) << check.output();
}

INSTANTIATE_TEST_SUITE_P(codes, memory_that_cannot_be_opened,
                         testing::Values(101, 201, 217, 304, 801, 999),
                         [](const auto &one) { return std::to_string(one.param); });

// ---- UCX_TLS with GPU transports alone -------------------------------------------------------------------------------

namespace {

struct named {
    const char *tls, *name;
    const char *missing[2]; // what it says, without and with error handling; null: it works
};

const char *const no_messages = "no active messages transport";

} // namespace

class transports_named : public testing::TestWithParam<named> {};

TEST_P(transports_named, work_or_say_what_is_missing)
{
    NVL_NEEDS(run_as::with_plugin);
    for (bool error_handling : {false, true}) {
        perftest_result got =
            perftest(run_as::with_plugin,
                     std::string("-t ucp_put_bw -m cuda -s 1000003 -n 8 -w 2") +
                         (error_handling ? " -e" : ""),
                     fmt::format("UCX_PROTO_INFO=y 'UCX_TLS={}'", GetParam().tls));
        const char *missing = GetParam().missing[error_handling];
        std::string all     = got.output + got.server_output;
        if (missing == nullptr) {
            EXPECT_EQ(got.status, 0) << error_handling << "\n" << all;
            std::string config = config_of_large(protocol_tables(got.output),
                                                 {"intra-node", "ucp_put", "from cuda"});
            EXPECT_TRUE(has(config, "nvlink/cuda")) << all;
        } else {
            EXPECT_NE(got.status, 0) << error_handling;
            EXPECT_LT(got.status, 1000) << "ended by a signal:\n" << all;
            EXPECT_TRUE(has(all, missing)) << error_handling << "\n" << all;
        }
    }
}

// ucx_perftest allocates through UCP, which cannot without cuda_copy: see endpoint_of_gpu_transports.
INSTANTIATE_TEST_SUITE_P(
    lists, transports_named,
    testing::Values(named{"nvlink,cuda_copy", "nvlink_cuda_copy", {no_messages, no_messages}},
                    named{"nvlink,cuda_copy,tcp", "nvlink_cuda_copy_tcp", {nullptr, nullptr}},
                    named{"nvlink,cuda_copy,sm", "nvlink_cuda_copy_sm", {nullptr, no_messages}},
                    named{
                        "nvlink,cuda_copy,sm,tcp", "nvlink_cuda_copy_sm_tcp", {nullptr, nullptr}}),
    [](const auto &one) { return std::string(one.param.name); });

TEST(endpoint_of_gpu_transports, is_refused_with_the_part_that_is_missing)
{
    NVL_NEEDS(run_as::with_plugin);
    for (const char *tls : {"nvlink", "nvlink,cuda_copy", "nvlink,cuda"}) {
        job info(run_as::with_plugin, "ucx_info -e -u t -P intra", fmt::format("UCX_TLS={}", tls));
        (void)info.wait();
        EXPECT_TRUE(has(info.output(), no_messages)) << tls << "\n" << info.output();
    }
}

// ---- managed memory, instances -----------------------------------------------------------------------------------------

// Its bytes are compared in rooted_collective. (ucx_perftest does not say of a managed source that it is one, and UCP
// takes it for host memory, with the plugin and without.)
class managed_memory : public testing::TestWithParam<const char *> {};

TEST_P(managed_memory, goes_through_gpu_fragments_over_nvlink)
{
    NVL_NEEDS(run_as::with_plugin);
    perftest_result got = perftest(run_as::with_plugin,
                                   fmt::format("-t tag_bw -m {} -s 5000003 -n 4 -w 1", GetParam()),
                                   "UCX_PROTO_INFO=y");
    ASSERT_EQ(got.status, 0) << got.output;
    std::string config;
    for (const protocol_table &table : protocol_tables(got.output + got.server_output)) {
        if (has(table.title, "intra-node") && has(table.title, "rendezvous data") &&
            has(table.title, "cuda-managed")) {
            config += table.title + ": " + table.rows.back().description + " " +
                      table.rows.back().config + "\n";
        }
    }
    EXPECT_TRUE(has(config, "frag cuda nvlink/cuda")) << config << got.output << got.server_output;
}

INSTANTIATE_TEST_SUITE_P(sides, managed_memory,
                         testing::Values("cuda-managed", "cuda,cuda-managed"), [](const auto &one) {
                             std::string name = one.param;
                             for (char &letter : name) {
                                 letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter
                                                                                           : '_';
                             }
                             return name;
                         });

TEST(mig_instances, start_without_a_warning)
{
    NVL_NEEDS(run_as::with_plugin);
    job info(run_as::with_plugin,
             fmt::format("{}/h100-mig.machine ucx_info -d", NVL_TEST_MACHINES));
    ASSERT_EQ(info.wait(), 0) << info.output();
    EXPECT_FALSE(has(info.output(), " WARN ")) << info.output();
    EXPECT_FALSE(has(info.output(), " ERROR ")) << info.output();
}

} // namespace nvl::test
