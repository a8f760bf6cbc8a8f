// SPDX-License-Identifier: BSD-3-Clause
//
// What takes a few bytes of the host, through stock UCP: small puts and atomic operations on a peer's GPU memory. Who
// carries them, that results and contents are right, and that nothing changes for host memory.
#include "ucp/job.h"

#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl::test {

namespace {

std::string from_environment(const char *name)
{
    const char *value = std::getenv(name);
    return (value != nullptr) ? value : "";
}

// The copy kernel on emulated GPUs: a warp is a thread there and starts late.
std::string with_kernel()
{
    return fmt::format(
        "NVL_EMU_KERNELS={} UCX_NVLINK_HELLO=1s UCX_NVLINK_GAP=1s UCX_NVLINK_KERNEL=y "
        "UCX_NVLINK_BLOCKS=1 UCX_NVLINK_WARPS=2 UCX_NVLINK_IDLE=20ms UCX_NVLINK_STAY=500ms",
        from_environment("NVL_RING_HOST"));
}

#define NVL_NEEDS_PROGRAM(_program)                                   \
    const std::string _program = from_environment("NVL_UCP_SHORT");   \
    if (runner(run_as::with_plugin).empty() || _program.empty()) {    \
        GTEST_SKIP() << "this machine has no GPUs, emulated or real"; \
    }

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

// "8 short nvlink/cuda" of every table whose title has all parts: the row that `size` is in.
std::vector<std::string> rows_at(const std::string &output, const std::vector<std::string> &parts,
                                 unsigned long size)
{
    std::vector<std::string> found;
    for (const protocol_table &table : protocol_tables(output)) {
        bool fits = true;
        for (const std::string &part : parts) {
            fits = fits && has(table.title, part);
        }
        for (const protocol_row &row : table.rows) {
            unsigned long first = std::strtoul(row.range.c_str(), nullptr, 10);
            size_t        dots  = row.range.find("..");
            unsigned long last  = first;
            if (dots != std::string::npos) {
                last = has(row.range, "inf")
                           ? ~0ul
                           : std::strtoul(row.range.c_str() + dots + 2, nullptr, 10);
            }
            if (fits && (size >= first) && (size <= last)) {
                found.push_back(row.description + " " + row.config);
            }
        }
    }
    return found;
}

void expect_rows(const std::string &output, const std::vector<std::string> &parts,
                 unsigned long size, const std::string &expected)
{
    std::vector<std::string> rows = rows_at(output, parts, size);
    EXPECT_FALSE(rows.empty()) << expected << "\n" << output;
    for (const std::string &row : rows) {
        EXPECT_EQ(row, expected) << output;
    }
}

} // namespace

TEST(short_operations, of_stock_ucp_go_over_nvlink_and_are_right)
{
    NVL_NEEDS_PROGRAM(program);
    for (const char *tls : {"all", "^cuda_ipc", "nvlink,cuda_copy,sm", "nvlink,cuda_copy,tcp"}) {
        job both(run_as::with_plugin, program,
                 fmt::format("{} UCX_PROTO_INFO=y 'UCX_TLS={}'", with_kernel(), tls));
        ASSERT_EQ(both.wait(200), 0) << tls << "\n" << both.output();
        const std::string said = both.output();
        EXPECT_TRUE(has(said, "all right"));
        expect_rows(said, {"intra-node", "ucp_put", "from host", "to cuda"}, 8,
                    "short nvlink/cuda");
        expect_rows(said, {"intra-node", "ucp_put", "from host", "to cuda"}, 130,
                    "zero-copy nvlink/cuda");
        for (unsigned long width : {4, 8}) {
            expect_rows(said, {"intra-node", "posted atomic", "cuda"}, width,
                        "atomic post nvlink/cuda");
            expect_rows(said, {"intra-node", "fetching atomic", "cuda"}, width,
                        "atomic fetch nvlink/cuda");
            expect_rows(said, {"intra-node", "compare-and-swap", "cuda"}, width,
                        "atomic cswap nvlink/cuda");
        }
    }
}

TEST(short_operations, put_the_right_bytes_without_the_kernel)
{
    NVL_NEEDS_PROGRAM(program);
    job both(run_as::with_plugin, program + " --puts-only", "UCX_NVLINK_KERNEL=n UCX_PROTO_INFO=y");
    ASSERT_EQ(both.wait(200), 0) << both.output();
    expect_rows(both.output(), {"intra-node", "ucp_put", "from host", "to cuda"}, 8,
                "short nvlink/cuda");
}

// As cudaDeviceReset at the end of a program. UCX's own cuda_copy keeps streams and events in the context, too, and is
// not there where their use counts.
TEST(gpu_that_is_reset_before_cleanup, leaves_ucp_to_close)
{
    NVL_NEEDS_PROGRAM(program);
    const std::string counted = "NVL_EMU_LEAKS=- NVL_EMU_LEAKS_FATAL=own UCX_TLS=nvlink,tcp";
    for (const std::string &variables :
         {with_kernel() + " " + counted, "UCX_NVLINK_KERNEL=n " + counted,
          with_kernel() + " UCX_TLS=all"}) {
        job both(run_as::with_plugin, program + " --puts-only --reset", variables);
        EXPECT_EQ(both.wait(200), 0) << variables << "\n" << both.output();
        EXPECT_TRUE(has(both.output(), "all right")) << both.output();
        EXPECT_FALSE(has(both.output(), "went with its context")) << both.output();
    }
}

// Between host memories, in a job that asks for atomic operations, with the kernel at hand.
TEST(atomic_operations, on_host_memory_are_chosen_as_without_the_plugin)
{
    if (runner(run_as::without_plugin).empty()) {
        GTEST_SKIP() << "this machine has no run without the plugin";
    }
    for (const char *test : {"ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"}) {
        for (const char *tls : {"all", "nvlink,cuda_copy,sm", "nvlink,cuda_copy,tcp"}) {
            std::string arguments = fmt::format("-t {} -m host -s 8 -n 20 -w 1", test);
            std::string text[2];
            for (bool plugin : {false, true}) {
                perftest_result got = perftest(
                    plugin ? run_as::with_plugin : run_as::without_plugin, arguments,
                    fmt::format("{} UCX_PROTO_INFO=y UCX_WARN_UNUSED_ENV_VARS=n 'UCX_TLS={}'",
                                plugin ? with_kernel() : "", tls));
                ASSERT_EQ(got.status, 0) << got.output << got.server_output;
                for (const protocol_table &table :
                     protocol_tables(got.output + got.server_output)) {
                    for (const protocol_row &row : table.rows) {
                        if (!has(table.title, "cuda")) {
                            text[plugin] += table.title + " " + row.range + " " + row.description +
                                            " " + row.config + "\n";
                        }
                    }
                }
            }
            EXPECT_TRUE(has(text[1], "atomic")) << text[1];
            EXPECT_EQ(text[0], text[1]) << test << " " << tls;
        }
    }
}

} // namespace nvl::test
