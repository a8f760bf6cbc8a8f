// SPDX-License-Identifier: BSD-3-Clause
//
// What one process tells another about its GPUs, and what is made of it before any GPU is named.

#include "topo/graph.h"
#include "topo/path_log.h"
#include "uct/address.h"

#include "topo/machine_file.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nvl {

namespace {

using testing::HasSubstr;

// A process on the machine that CUDA shows only these GPUs.
graph process_with(const std::string &machine, const std::vector<int> &gpus)
{
    machine_facts facts = machine_named(machine);
    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        auto at            = std::find(gpus.begin(), gpus.end(), static_cast<int>(i));
        facts.gpus[i].cuda = at == gpus.end() ? facts_unknown : static_cast<int>(at - gpus.begin());
    }
    return graph(facts);
}

// As it arrives at the other end.
process_reach told_by(const graph &pairs)
{
    uint8_t        wire[device_address_size];
    device_address sent{17, pairs.reach()}, got;
    device_address_pack(sent, wire);
    EXPECT_TRUE(device_address_parse(wire, sizeof(wire), &got));
    EXPECT_EQ(got.host_id, 17u);
    return got.reach;
}

} // namespace

TEST(process_reach, survives_the_wire)
{
    process_reach sent, got;
    sent.peers   = true;
    sent.fabric  = true;
    sent.clique  = 0x12345678;
    sent.cluster = 0x1122334455667788;
    sent.gpu     = 0x99aabbccddeeff00;
    uint8_t        wire[device_address_size];
    device_address parsed;
    device_address_pack({5, sent}, wire);
    ASSERT_TRUE(device_address_parse(wire, 0, &parsed));
    got = parsed.reach;
    EXPECT_TRUE(got.peers && got.fabric);
    EXPECT_EQ(got.clique, sent.clique);
    EXPECT_EQ(got.cluster, sent.cluster);
    EXPECT_EQ(got.gpu, sent.gpu);
}

TEST(process_reach, of_an_older_address_is_taken_for_possible)
{
    uint8_t        wire[12] = {1, 0, 0, 0, 9};
    device_address parsed;
    ASSERT_TRUE(device_address_parse(wire, sizeof(wire), &parsed));
    EXPECT_EQ(parsed.host_id, 9u);
    EXPECT_TRUE(parsed.reach.peers);
    EXPECT_FALSE(parsed.reach.fabric);
}

TEST(process_reach, is_not_read_from_an_address_that_is_cut)
{
    uint8_t        wire[device_address_size];
    device_address parsed;
    device_address_pack({5, process_reach()}, wire);
    EXPECT_FALSE(device_address_parse(wire, sizeof(wire) - 1, &parsed));
    EXPECT_FALSE(device_address_parse(wire, 4, &parsed));
    wire[0] = 0;
    EXPECT_FALSE(device_address_parse(wire, sizeof(wire), &parsed));
    EXPECT_FALSE(device_address_parse(nullptr, 0, &parsed));
}

TEST(judge_process, takes_hosts_of_one_fabric_and_clique)
{
    const graph a(machine_named("gb200-host-a")), b(machine_named("gb200-host-b"));
    const graph other(machine_named("gb200-other-clique"));

    EXPECT_TRUE(a.judge_process(false, told_by(b)).reachable);
    EXPECT_TRUE(b.judge_process(false, told_by(a)).reachable);
    EXPECT_FALSE(a.judge_process(false, told_by(other)).reachable);
    EXPECT_THAT(a.judge_process(false, told_by(other)).reason, HasSubstr("another clique"));
    EXPECT_TRUE(a.judge_process(true, told_by(a)).reachable);
}

TEST(judge_process, takes_no_other_host_without_a_fabric)
{
    // Switches of one host: the fabric is complete and its cluster UUID is zero.
    const graph h200(machine_named("dgx-h200")), a(machine_named("gb200-host-a"));

    EXPECT_THAT(h200.judge_process(false, told_by(h200)).reason, HasSubstr("no NVLink fabric"));
    EXPECT_FALSE(h200.judge_process(false, told_by(h200)).reachable);
    EXPECT_THAT(a.judge_process(false, told_by(h200)).reason, HasSubstr("peer's GPU is in no"));
}

TEST(judge_process, needs_fabric_handles_on_both_sides)
{
    machine_facts facts = machine_named("gb200-host-b");
    facts.imex          = false;
    const graph a(machine_named("gb200-host-a")), no_channel(facts);

    EXPECT_THAT(a.judge_process(false, told_by(no_channel)).reason,
                HasSubstr("peer's user has no"));
    EXPECT_THAT(no_channel.judge_process(false, told_by(a)).reason, HasSubstr("no IMEX channel"));
}

TEST(judge_process, refuses_two_processes_whose_only_gpus_have_no_peer_access)
{
    // GPUs 0 and 5 of a DGX-1 have no link and no peer access; 0 and 1 have.
    const graph one = process_with("dgx1-v100", {0}), far = process_with("dgx1-v100", {5});
    const graph near = process_with("dgx1-v100", {1}), all(machine_named("dgx1-v100"));

    EXPECT_FALSE(one.judge_process(true, told_by(far)).reachable);
    EXPECT_FALSE(one.judge_process(true, told_by(far)).reason.empty());
    EXPECT_TRUE(one.judge_process(true, told_by(near)).reachable);
    EXPECT_TRUE(one.judge_process(true, told_by(one)).reachable) << "one GPU for two processes";
    EXPECT_TRUE(one.judge_process(true, told_by(all)).reachable) << "which of them, a key will say";
    EXPECT_TRUE(all.judge_process(true, told_by(far)).reachable);
}

// Where no GPU has a peer, UCX chooses as if the plugin were not there, whatever each process sees.
TEST(judge_process, refuses_processes_with_several_gpus_of_which_none_has_a_peer)
{
    const graph all(machine_named("rtx4090-x4")), one = process_with("rtx4090-x4", {0});
    const graph pair = process_with("rtx4090-x4", {2, 3});

    for (const graph *from : {&all, &pair}) {
        for (const graph *to : {&all, &pair, &one}) {
            EXPECT_FALSE(from->judge_process(true, told_by(*to)).reachable);
            EXPECT_FALSE(from->judge_process(true, told_by(*to)).reason.empty());
            EXPECT_FALSE(to->judge_process(true, told_by(*from)).reachable);
        }
    }
    EXPECT_TRUE(one.judge_process(true, told_by(one)).reachable) << "one GPU for two processes";

    // Without NVML there may be others that reach each other.
    machine_facts silent = machine_named("rtx4090-x4");
    silent.nvml          = nvml_state::missing;
    EXPECT_TRUE(graph(silent).judge_process(true, told_by(all)).reachable);

    // Where others have peers, both sides take the same view.
    const graph lone_gpu = process_with("dgx1-v100", {0}), two = process_with("dgx1-v100", {0, 5});
    EXPECT_TRUE(lone_gpu.judge_process(true, told_by(two)).reachable);
    EXPECT_TRUE(two.judge_process(true, told_by(lone_gpu)).reachable);

    const graph lone(machine_named("h100-pcie-x1"));
    EXPECT_TRUE(lone.judge_process(true, told_by(lone)).reachable) << "one GPU for two processes";
}

TEST(judge_process, refuses_a_process_whose_only_gpu_is_in_another_container)
{
    machine_facts few = machine_named("dgx-h200");
    few.gpus.erase(few.gpus.begin() + 2, few.gpus.end());
    const graph here(few), far = process_with("dgx-h200", {5});

    EXPECT_FALSE(here.judge_process(true, told_by(far)).reachable);
    EXPECT_THAT(here.judge_process(true, told_by(far)).reason, HasSubstr("not visible"));
    few.nvml = nvml_state::missing;
    EXPECT_TRUE(graph(few).judge_process(true, told_by(far)).reachable) << "nobody can tell";
}

TEST(judge_process, refuses_mig_instances)
{
    const graph      machine(machine_named("h100-mig"));
    std::vector<int> instances, whole;
    for (size_t i = 0; i < machine.size(); ++i) {
        const gpu_facts &gpu = machine.facts().gpus[i];
        if (gpu.mig == mig_mode::instance) {
            instances.push_back(static_cast<int>(i));
        } else if (gpu.mig == mig_mode::disabled) {
            whole.push_back(static_cast<int>(i));
        }
    }
    ASSERT_FALSE(instances.empty());
    const graph mig = process_with("h100-mig", {instances[0]});
    EXPECT_FALSE(mig.judge_process(true, told_by(mig)).reachable);
    EXPECT_THAT(mig.judge_process(true, told_by(mig)).reason, HasSubstr("MIG"));
    if (!whole.empty()) {
        const graph gpu = process_with("h100-mig", {whole[0]});
        EXPECT_FALSE(mig.judge_process(true, told_by(gpu)).reachable);
        EXPECT_FALSE(gpu.judge_process(true, told_by(mig)).reachable);
        EXPECT_TRUE(gpu.judge_process(true, told_by(gpu)).reachable);
    }
}

TEST(path_log, says_who_reaches_whom_how_fast_and_why)
{
    const graph dgx(machine_named("dgx1-v100"));
    const auto  line =
        path_log_text(0, dgx.identity(3).uuid, peer_side::other_process, dgx.path(0, 3));

    EXPECT_THAT(line, HasSubstr("GPU 0 reaches " + dgx.facts().gpus[3].uuid.substr(0, 12) +
                                " of a peer: 2 NVLinks"));
    EXPECT_THAT(line, HasSubstr("push 48, pull 48 GB/s"));
    EXPECT_THAT(path_log_text(0, dgx.identity(0).uuid, peer_side::this_process, dgx.path(0, 0)),
                HasSubstr("of this process: one GPU"));
    // Opened against all expectation.
    EXPECT_THAT(path_log_text(0, dgx.identity(5).uuid, peer_side::other_process, dgx.path(0, 5)),
                HasSubstr("driver's word, although"));
    pair_path uneven    = dgx.path(0, 3);
    uneven.pull_bytes_s = 20e9;
    EXPECT_THAT(path_log_text(0, dgx.identity(3).uuid, peer_side::other_process, uneven),
                HasSubstr("push 48, pull 20 GB/s"));
}

} // namespace nvl
