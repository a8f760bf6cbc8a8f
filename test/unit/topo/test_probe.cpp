// SPDX-License-Identifier: BSD-3-Clause
//
// The probe on the emulated driver: what it finds out about each machine must lead to the pairs
// that the machine's own file leads to, and no failing NVML may take a pair away. Each case is
// an nvlink_info of its own, since a process knows one machine.

#include "topo/graph.h"

#include "topo/machine_file.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl {

namespace {

namespace fs = std::filesystem;

std::string required(const char *variable)
{
    const char *value = std::getenv(variable);
    EXPECT_NE(value, nullptr) << variable << " is set by the Makefile";
    return value == nullptr ? "" : value;
}

struct pipe_closer {
    void operator()(FILE *pipe) const
    {
        pclose(pipe);
    }
};

// What nvlink_info --dump says in this environment, "A=1 B=2".
machine_facts probed(const std::string &machine, const std::string &environment = "")
{
    const std::string command = fmt::format(
        "env LD_LIBRARY_PATH='{}' NVL_EMU_MACHINE='{}/{}.machine' {} '{}' --no-ucx "
        "--dump -",
        required("NVL_EMU_LIB"), NVL_TEST_MACHINES, machine, environment, required("NVLINK_INFO"));
    std::unique_ptr<FILE, pipe_closer> pipe(popen(command.c_str(), "r"));
    std::string                        text;
    std::array<char, 4096>             chunk;
    size_t                             length;

    while ((length = std::fread(chunk.data(), 1, chunk.size(), pipe.get())) > 0) {
        text.append(chunk.data(), length);
    }
    return machine_of(text);
}

std::string id_of(const gpu_facts &gpu)
{
    return gpu.mig == mig_mode::instance ? gpu.mig_uuid : gpu.uuid;
}

// The pairs by the GPUs' UUIDs, as text: a probe counts the GPUs that CUDA shows first.
std::map<std::string, std::string> pairs_by_uuid(const graph &pairs)
{
    std::map<std::string, std::string> text;

    for (size_t a = 0; a < pairs.size(); ++a) {
        for (size_t b = 0; b < pairs.size(); ++b) {
            const gpu_facts &from = pairs.facts().gpus[a];
            const gpu_facts &to   = pairs.facts().gpus[b];
            const pair_path &path = pairs.path(a, b);
            if (a != b && from.cuda >= 0 && to.cuda >= 0) {
                text[id_of(from) + " -> " + id_of(to)] =
                    fmt::format("{} {} {:.0f} {:.0f} {} {} {}", to_text(path.kind), path.links,
                                path.push_bytes_s / 1e6, path.pull_bytes_s / 1e6,
                                path.native_atomics, path.degraded, path.reason);
            }
        }
    }
    return text;
}

void expect_all_over_nvlink(const machine_facts &facts, const std::string &what)
{
    const graph pairs(facts);

    ASSERT_EQ(pairs.size(), 2u) << what;
    for (size_t a = 0; a < 2; ++a) {
        EXPECT_TRUE(pairs.path(a, 1 - a).over_nvlink())
            << what << ": " << pairs.path(a, 1 - a).reason;
        EXPECT_GT(pairs.path(a, 1 - a).pull_bytes_s, 300e9) << what;
    }
}

class probe : public testing::TestWithParam<std::string> {};

} // namespace

TEST_P(probe, finds_the_pairs_of_the_machine_file)
{
    const graph file(machine_named(GetParam())), found(probed(GetParam()));

    EXPECT_EQ(pairs_by_uuid(found), pairs_by_uuid(file));
}

TEST_P(probe, finds_the_gpus_that_cuda_or_nvml_shows)
{
    const auto file = machine_named(GetParam()), found = probed(GetParam());

    std::map<std::string, const gpu_facts *> known;
    for (const auto &gpu : found.gpus) {
        known[id_of(gpu)] = &gpu;
    }
    for (const auto &gpu : file.gpus) {
        const bool by_nvml = gpu.nvml >= 0 && file.nvml == nvml_state::present;
        if (gpu.cuda < 0 && !by_nvml) {
            continue;
        }
        ASSERT_EQ(known.count(id_of(gpu)), 1u) << id_of(gpu);
        const gpu_facts &seen = *known[id_of(gpu)];
        EXPECT_EQ(seen.cuda, gpu.cuda);
        EXPECT_EQ(seen.nvml, by_nvml ? gpu.nvml : facts_unknown);
        EXPECT_EQ(seen.pci, gpu.pci);
        EXPECT_EQ(seen.mig, gpu.mig);
        EXPECT_EQ(seen.links.size(), by_nvml ? gpu.links.size() : 0);
        if (by_nvml && gpu.compute_major >= 9) {
            EXPECT_EQ(seen.fabric.clique, gpu.fabric.clique);
            EXPECT_EQ(seen.fabric.state, gpu.fabric.state);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(machine, probe, testing::ValuesIn(all_machine_names()),
                         [](const auto &name) { return test_name(name.param); });

TEST(probe_nvml, that_is_missing_a_stub_or_failing_takes_no_pair_away)
{
    for (const char *state : {"missing", "stub", "9", "18", "999"}) {
        expect_all_over_nvlink(probed("h200-vm-x2", std::string("NVL_EMU_NVML=") + state), state);
    }
}

// Each function of NVML fails, `when` as in a rule of the emulated driver.
static void expect_no_pair_taken_away_by_failing(const char *when)
{
    const char *functions[] = {
#define NVL_NVML(_need, _name, ...) #_name,
#include "driver/nvml_symbols.def"
#undef NVL_NVML
    };
    for (const char *function : functions) {
        for (const char *code : {"3", "999"}) {
            const std::string rule = std::string(function) + when + "=" + code;
            expect_all_over_nvlink(probed("h200-vm-x2", "NVL_EMU_FAULTS=" + rule), rule);
        }
    }
}

TEST(probe_nvml, whose_single_calls_fail_takes_no_pair_away)
{
    expect_no_pair_taken_away_by_failing("");
}

// The first call alone: one GPU of the two is then unknown to NVML.
TEST(probe_nvml, that_is_silent_about_one_gpu_takes_no_pair_away)
{
    expect_no_pair_taken_away_by_failing(":1");
    const graph dgx(probed("dgx-h100", "NVL_EMU_FAULTS=nvmlDeviceGetHandleByIndex_v2:4=4"));
    for (size_t a = 0; a < dgx.size(); ++a) {
        for (size_t b = 0; b < dgx.size(); ++b) {
            EXPECT_TRUE(a == b || dgx.path(a, b).links == 18) << a << b << dgx.path(a, b).reason;
        }
    }
}

// One GPU a process, as MPI has it: what this process knows of the other's GPU is that there is one.
TEST(probe_nvml, that_is_silent_about_a_gpu_that_cuda_hides_takes_no_pair_away)
{
    const auto peer = graph(machine_named("h200-vm-x2")).identity(1);

    for (const char *function : {"HandleByIndex_v2", "UUID", "PciInfo_v3"}) {
        const graph pairs(probed("h200-vm-x2", fmt::format("CUDA_VISIBLE_DEVICES=0 NVL_EMU_FAULTS="
                                                           "nvmlDeviceGet{}:2=15",
                                                           function)));
        const auto  path = pairs.judge(0, true, peer);
        EXPECT_TRUE(path.over_nvlink()) << function << ": " << path.reason;
        EXPECT_GT(path.push_bytes_s, 390e9) << function;
    }
}

TEST(probe_nvml, that_fails_now_and_then_takes_no_pair_away)
{
    for (const char *rule : {"nvml*:/3=999", "nvmlDeviceGetNvLinkState:5=999",
                             "nvmlDeviceGetNvLinkRemotePciInfo_v2:/2=999"}) {
        expect_all_over_nvlink(probed("h200-vm-x2", std::string("NVL_EMU_FAULTS='") + rule + "'"),
                               rule);
    }
}

TEST(probe_nvml, is_reached_by_the_planned_faults)
{
    EXPECT_EQ(probed("h200-vm-x2").gpus[0].nvml, 0);
    EXPECT_EQ(probed("h200-vm-x2", "NVL_EMU_FAULTS=nvmlDeviceGetUUID=999").gpus[0].nvml,
              facts_unknown);
}

TEST(probe_nvml, that_is_slow_is_given_up_on)
{
    const auto start = std::chrono::steady_clock::now();
    const auto found = probed("h200-vm-x2", "NVL_EMU_FAULTS='nvml*=sleep300000'");
    expect_all_over_nvlink(found, "slow");
    EXPECT_EQ(found.nvml, nvml_state::slow);

    EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    // Two seconds of patience, the calls that are on their way, and the process itself.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// Wherever time is up: in the links of the first GPU, of the second, between the pairs.
TEST(probe_nvml, that_is_slow_takes_no_link_away)
{
    const auto peer = graph(machine_named("h200-vm-x2")).identity(1);

    for (int sleep_us : {16000, 18000, 20000, 23000, 40000, 100000}) {
        const std::string rule  = fmt::format("NVL_EMU_FAULTS='nvml*=sleep{}'", sleep_us);
        const auto        found = probed("h200-vm-x2", rule);
        const graph       pairs(found);
        expect_all_over_nvlink(found, rule);
        EXPECT_EQ(pairs.path(0, 1).links, 18) << rule;
        EXPECT_EQ(pairs.path(1, 0).links, 18) << rule;
        EXPECT_EQ(found.nvml, nvml_state::slow) << rule;

        const graph alone(probed("h200-vm-x2", rule + " CUDA_VISIBLE_DEVICES=0"));
        EXPECT_GT(alone.judge(0, true, peer).push_bytes_s, 390e9)
            << rule << ": " << alone.judge(0, true, peer).reason;
    }
}

TEST(probe_nvml, whose_start_is_slow_is_given_up_on)
{
    const auto found = probed("h200-vm-x2", "NVL_EMU_FAULTS=nvmlInit_v2=sleep2200000");

    expect_all_over_nvlink(found, "slow start");
    EXPECT_EQ(found.nvml, nvml_state::slow);
    EXPECT_EQ(found.gpus[0].nvml, facts_unknown);
}

// Wherever it hangs: at its start, in the middle, at its end.
TEST(probe_nvml, that_hangs_is_left_behind_and_is_as_good_as_missing)
{
    for (const std::string call : {"nvmlInit_v2", "nvmlDeviceGetUUID", "nvmlShutdown"}) {
        const auto start = std::chrono::steady_clock::now();
        const auto found = probed("h200-vm-x2", "NVL_EMU_FAULTS=" + call + "=hang");
        expect_all_over_nvlink(found, call);
        EXPECT_EQ(found.nvml, nvml_state::hanging) << call;
        EXPECT_EQ(found.nvml_call, call);
        EXPECT_EQ(found.gpus[0].nvml, facts_unknown) << call;
        // Five seconds of waiting, and the process itself.
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << call;
    }
}

TEST(probe_cuda, by_index_and_by_uuid_is_the_process_s_order)
{
    const auto file = machine_named("dgx1-v100");

    for (const std::string &list :
         {std::string("3,0"), file.gpus[3].uuid + "," + file.gpus[0].uuid}) {
        const auto found = probed("dgx1-v100", "CUDA_VISIBLE_DEVICES=" + list);
        ASSERT_GE(found.gpus.size(), 2u);
        EXPECT_EQ(found.gpus[0].uuid, file.gpus[3].uuid);
        EXPECT_EQ(found.gpus[1].uuid, file.gpus[0].uuid);
        EXPECT_EQ(found.gpus[0].nvml, 3) << "NVML knows nothing of CUDA_VISIBLE_DEVICES";
        EXPECT_EQ(graph(found).path(0, 1).links, 2);
        EXPECT_EQ(found.gpus.size(), 8u) << "the hidden ones are known by NVML";
        EXPECT_EQ(found.gpus[5].cuda, facts_unknown);
    }
}

} // namespace nvl
