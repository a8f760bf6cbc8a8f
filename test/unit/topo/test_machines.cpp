// SPDX-License-Identifier: BSD-3-Clause
//
// Every machine of test/machines against its golden pairs. UPDATE_GOLDEN=1 writes them anew:
// read the difference before you commit it.

#include "topo/graph.h"

#include "topo/machine_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl {

namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path &path)
{
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// "nvlink 2 links, push 48.0 GB/s 7.7 us, pull ...: reason"
std::string path_text(const pair_path &path)
{
    if (!path.reachable()) {
        return fmt::format("none: {}", path.reason);
    }
    return fmt::format("{}{}, push {:.1f} GB/s {:.1f} us, pull {:.1f} GB/s {:.1f} us{}{}: {}",
                       to_text(path.kind), path.links > 0 ? fmt::format(" x{}", path.links) : "",
                       path.push_bytes_s / 1e9, path.push_latency_s * 1e6, path.pull_bytes_s / 1e9,
                       path.pull_latency_s * 1e6, path.native_atomics ? ", atomics" : "",
                       path.degraded ? ", DEGRADED" : "", path.reason);
}

// A line for each group of targets that a GPU sees alike.
std::string pairs_text(const graph &pairs)
{
    std::string text;

    for (size_t a = 0; a < pairs.size(); ++a) {
        std::vector<std::pair<std::string, std::string>> groups; // path, targets
        for (size_t b = 0; b < pairs.size(); ++b) {
            if (a == b) {
                continue;
            }
            const std::string path  = path_text(pairs.path(a, b));
            const auto        known = std::find_if(groups.begin(), groups.end(),
                                                   [&](const auto &g) { return g.first == path; });
            if (known == groups.end()) {
                groups.emplace_back(path, fmt::format("{}", b));
            } else {
                known->second += fmt::format(",{}", b);
            }
        }
        for (const auto &group : groups) {
            text += fmt::format("{} -> {}  {}\n", a, group.second, group.first);
        }
    }
    text += fmt::format("best  {}\n", path_text(pairs.best()));
    return text;
}

graph load(const std::string &name)
{
    return graph(machine_named(name));
}

class machine : public testing::TestWithParam<std::string> {};

} // namespace

TEST_P(machine, has_the_pairs_that_are_written_down)
{
    const auto        golden = fs::path(NVL_TEST_MACHINES) / (GetParam() + ".pairs");
    const std::string text   = pairs_text(load(GetParam()));
    const char       *update = std::getenv("UPDATE_GOLDEN");

    if (update != nullptr && *update == '1') {
        std::ofstream(golden) << text;
    }
    ASSERT_TRUE(fs::exists(golden)) << "no golden pairs: run with UPDATE_GOLDEN=1 and look at them";
    EXPECT_EQ(text, file_text(golden));
}

TEST_P(machine, is_printed_and_read_back_unchanged)
{
    const std::string text = facts_print(load(GetParam()).facts());
    machine_facts     facts;
    std::string       error;

    ASSERT_EQ(facts_parse(text, &facts, &error), facts_result::ok) << error;
    EXPECT_EQ(facts_print(facts), text);
}

// Whatever is reported of a machine, no pair may come out with nonsense.
TEST_P(machine, gives_every_reachable_pair_a_rate_and_every_pair_a_reason)
{
    const graph pairs = load(GetParam());

    for (size_t a = 0; a < pairs.size(); ++a) {
        for (size_t b = 0; b < pairs.size(); ++b) {
            const pair_path &path = pairs.path(a, b);
            EXPECT_FALSE(path.reason.empty());
            if (path.reachable()) {
                EXPECT_GT(path.push_bytes_s, 1e9);
                EXPECT_GT(path.pull_bytes_s, 1e9);
                EXPECT_GT(path.push_latency_s, 1e-6);
                EXPECT_LT(path.pull_latency_s, 1e-4);
            }
        }
    }
}

// The NVLink rates that the machine files carry were measured or published: the estimates must be
// near them.
TEST_P(machine, is_estimated_within_a_tenth_of_its_known_nvlink_rates)
{
    const graph pairs = load(GetParam());

    for (size_t a = 0; a < pairs.size(); ++a) {
        for (size_t b = 0; b < pairs.size(); ++b) {
            const pair_facts &known = pairs.facts().pair(a, b);
            const pair_path  &path  = pairs.path(a, b);
            if (a != b && path.over_nvlink() && known.push.rate_gb_s > 0) {
                EXPECT_NEAR(path.push_bytes_s / 1e9, known.push.rate_gb_s,
                            known.push.rate_gb_s / 10)
                    << a << " -> " << b;
                EXPECT_NEAR(path.pull_bytes_s / 1e9, known.pull.rate_gb_s,
                            known.pull.rate_gb_s / 10)
                    << a << " -> " << b;
            }
        }
    }
}

// Boards and bridges of one kind: what is assumed where NVML is not there is what it would have said.
TEST(machines, are_estimated_alike_without_nvml)
{
    for (const char *name :
         {"h100-nvl-bridged-x4", "a6000-bridged-x4", "dgx2-v100", "dgx-a100", "dgx-h100"}) {
        const graph   with = load(name);
        machine_facts bare = with.facts();
        bare.nvml          = nvml_state::missing;
        for (gpu_facts &gpu : bare.gpus) {
            gpu.links.clear();
        }
        for (pair_facts &pair : bare.pairs) {
            pair.nvml_read = pair.nvml_write = pair.nvml_nvlink = pair.nvml_atomics =
                p2p_status::unknown;
        }
        const graph without(bare);
        for (size_t a = 0; a < with.size(); ++a) {
            for (size_t b = 0; b < with.size(); ++b) {
                if (a != b && with.path(a, b).over_nvlink()) {
                    EXPECT_NEAR(without.path(a, b).push_bytes_s, with.path(a, b).push_bytes_s,
                                with.path(a, b).push_bytes_s / 20)
                        << name << " " << a << " -> " << b;
                }
            }
        }
    }
}

TEST(machines, there_are_at_least_twelve_and_each_golden_has_its_machine)
{
    EXPECT_GE(all_machine_names().size(), 12u);
    for (const auto &entry : fs::directory_iterator(NVL_TEST_MACHINES)) {
        if (entry.path().extension() == ".pairs") {
            EXPECT_TRUE(fs::exists(fs::path(entry.path()).replace_extension(".machine")))
                << entry.path();
        }
    }
}

INSTANTIATE_TEST_SUITE_P(all, machine, testing::ValuesIn(all_machine_names()),
                         [](const auto &name) { return test_name(name.param); });

// UCP is told for a process whether there are atomic operations: one pair without them, and there are none.
TEST(atomic_operations, are_there_where_every_pair_has_them)
{
    for (const char *name :
         {"h200-vm-x2", "h200-vm-x8", "dgx-h100", "dgx-a100", "dgx1-v100", "dgx2-v100"}) {
        EXPECT_TRUE(load(name).atomics_everywhere()) << name;
    }
    for (const char *name :
         {"l40s-pcie-x4", "a6000-bridged-x4", "a40-pcie-x10-peer-limit", "h100-mig"}) {
        EXPECT_FALSE(load(name).atomics_everywhere()) << name;
    }
}

} // namespace nvl
