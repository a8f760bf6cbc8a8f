// SPDX-License-Identifier: BSD-3-Clause
//
// The judgement of pairs, one case at a time; whole machines are in test_machines.cpp.

#include "topo/graph.h"

#include "topo/machine_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nvl {

namespace {

using ::testing::HasSubstr;

// Two H200 whose links do what `links` says, and a pair that does what `pair` says.
machine_facts two_gpus(const std::string &links, const std::string &pair)
{
    return machine_of("machine two\n"
                      "gpu 0\nuuid GPU-00000000-0000-0000-0000-000000000001\npci 1b:00.0\n"
                      "compute 9.0\npcie 5 16\n" +
                      links +
                      "gpu 1\nuuid GPU-00000000-0000-0000-0000-000000000002\npci 43:00.0\n"
                      "compute 9.0\npcie 5 16\n" +
                      links + "pair 0 <-> 1 " + pair + "\n");
}

pair_path path_of(const machine_facts &facts)
{
    return graph(facts).path(0, 1);
}

constexpr char reached[] =
    "access yes atomics yes nvml_read ok nvml_write ok nvml_nvlink ok nvml_atomics ok";
constexpr char over_pcie[] = "access yes nvml_read ok nvml_write ok nvml_nvlink not_supported";

// As a guest sees them.
void hide_end(link_facts &link)
{
    link.remote = link_remote::hidden;
    link.remote_pci.clear();
}

void hide_ends(gpu_facts &gpu)
{
    std::for_each(gpu.links.begin(), gpu.links.end(), hide_end);
}

void hide_ends(machine_facts &facts)
{
    for (auto &gpu : facts.gpus) {
        hide_ends(gpu);
    }
}

} // namespace

TEST(graph, a_hidden_end_is_a_switch)
{
    const auto path =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n", reached));

    EXPECT_EQ(path.kind, path_kind::nvswitch);
    EXPECT_EQ(path.links, 18);
    EXPECT_FALSE(path.degraded);
}

TEST(graph, an_unreadable_end_is_a_switch)
{
    const auto path =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote unreadable\n", reached));

    EXPECT_EQ(path.kind, path_kind::nvswitch);
    EXPECT_EQ(path.links, 18);
}

// What NVML says in the measured guest: a switch, and all ones for its place.
TEST(graph, a_switch_without_a_place_is_one_that_the_machine_hides)
{
    const auto hidden =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n", reached));
    const auto placeless = path_of(
        two_gpus("links 0-17 up version 4 speed 26562 remote switch ffffffff:ff:ff.0\n", reached));
    EXPECT_EQ(placeless.kind, path_kind::nvswitch);
    EXPECT_EQ(placeless.reason, hidden.reason);
    EXPECT_EQ(placeless.push_bytes_s, hidden.push_bytes_s);
}

TEST(graph, a_hidden_end_is_no_evidence_of_nvlink_to_this_peer)
{
    const auto path =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n", over_pcie));

    EXPECT_EQ(path.kind, path_kind::pcie);
}

TEST(graph, one_unreadable_end_among_readable_ones_takes_nothing_away)
{
    const auto path = path_of(two_gpus("links 0-16 up version 4 speed 26562 remote switch 07:00.0\n"
                                       "links 17 up version 4 speed 26562 remote unreadable\n",
                                       reached));

    EXPECT_EQ(path.links, 18);
}

TEST(graph, a_dead_link_lowers_the_estimate_and_no_more)
{
    const auto whole =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n", reached));
    const auto less = path_of(two_gpus("links 0-16 up version 4 speed 26562 remote hidden\n"
                                       "links 17 down\n",
                                       reached));

    EXPECT_EQ(less.kind, path_kind::nvswitch);
    EXPECT_NEAR(less.push_bytes_s, whole.push_bytes_s * 17 / 18, 1e6);
    EXPECT_TRUE(less.degraded);
    EXPECT_THAT(less.reason, HasSubstr("1 link is down"));
}

TEST(graph, a_link_without_a_speed_has_that_of_its_version)
{
    const auto path = path_of(two_gpus("links 0-17 up version 4 remote hidden\n", reached));

    EXPECT_NEAR(path.push_bytes_s, 393e9, 2e9);
}

TEST(graph, a_link_without_a_version_has_that_of_its_gpu)
{
    const auto path = path_of(two_gpus("links 0-17 up remote hidden\n", reached));

    EXPECT_NEAR(path.push_bytes_s, 393e9, 2e9);
}

TEST(graph, one_side_with_unreadable_ends_is_told_by_the_other)
{
    auto facts = machine_named("a6000-bridged-x4");
    for (auto &link : facts.gpus[0].links) {
        link.remote = link_remote::unreadable;
        link.remote_pci.clear();
    }
    const graph pairs(facts);

    EXPECT_EQ(pairs.path(0, 1).kind, path_kind::nvlink);
    EXPECT_EQ(pairs.path(0, 1).links, 4);
    EXPECT_EQ(pairs.path(1, 0).links, 4);
}

// NVML that knows one GPU of the pair only, or none of its links, in either order.
TEST(graph, a_gpu_that_nvml_is_silent_about_has_the_links_of_its_peer)
{
    for (const char *end : {"hidden", "unreadable", "switch 07:00.0"}) {
        for (size_t silent : {0, 1}) {
            auto facts = two_gpus(
                std::string("links 0-17 up version 4 speed 26562 remote ") + end + "\n", reached);
            facts.gpus[silent].links.clear();
            facts.gpus[silent].nvml = facts_unknown;
            for (auto *pair : {&facts.pair(0, 1), &facts.pair(1, 0)}) {
                pair->nvml_read = pair->nvml_write = pair->nvml_nvlink = pair->nvml_atomics =
                    p2p_status::unknown;
            }
            const auto path = path_of(facts);
            EXPECT_EQ(path.kind, path_kind::nvswitch) << end << silent;
            EXPECT_EQ(path.links, 18) << end << silent;
        }
    }
}

TEST(graph, a_gpu_that_nvml_is_silent_about_is_said_to_be)
{
    for (const char *links : {"", "links 0-17 up version 4 speed 26562 remote hidden\n"}) {
        auto facts         = two_gpus(links, *links != '\0' ? reached : "access yes");
        facts.gpus[1].nvml = facts_unknown;
        facts.gpus[1].links.clear();
        const graph pairs(facts);
        EXPECT_TRUE(pairs.path(0, 1).reachable());
        EXPECT_THAT(pairs.path(0, 1).reason, HasSubstr("NVML tells nothing of the peer"));
        EXPECT_THAT(pairs.path(1, 0).reason, HasSubstr("NVML tells nothing of this GPU"));
        facts.nvml = nvml_state::missing;
        EXPECT_THAT(path_of(facts).reason, ::testing::Not(HasSubstr("tells nothing")));
    }
}

TEST(graph, a_silent_gpu_counts_as_a_peer_in_a_mesh_with_hidden_ends)
{
    auto facts = machine_named("dgx1-v100");
    hide_ends(facts);
    facts.gpus[1].links.clear();
    const graph pairs(facts);

    EXPECT_EQ(pairs.path(0, 3).links, 1);
    EXPECT_EQ(pairs.path(0, 1).links, 1);
    EXPECT_EQ(pairs.path(1, 0).links, 1);
    EXPECT_FALSE(pairs.path(1, 4).reachable());
}

// What was measured (p2pBandwidthLatencyTest, writes, one direction) or, where it says so, what is left of a
// lane's rate (PCI Express Base Specification) for payloads of 128 bytes behind 24 bytes of header. Within a
// tenth; between sockets processors differ by more than that: from 39 to 51 GB/s of the same slot.
TEST(pcie_estimate, is_near_what_is_known)
{
    constexpr double payload = 128.0 / 152.0;
    const char       ada[]   = "4 x RTX 6000 Ada, 2 x EPYC 9374F";
    const char       turin[] = "4 x RTX PRO 6000, 2 x EPYC Turin (voipmonitor/rtx6kpro)";
    const char       genoa[] = "8 x RTX PRO 6000, 2 x EPYC 9374F (voipmonitor/rtx6kpro)";
    const struct {
        int         generation, width;
        const char *level;
        double      gb_s, tolerance;
        const char *source;
    } known[] = {
        {3, 16, "single", 15.75 * payload, 0.1, "8 GT/s, 128b/130b"},
        {3, 16, "node", 15.75 * payload, 0.1, "8 GT/s, 128b/130b"},
        {3, 8, "single", 7.88 * payload, 0.1, "8 GT/s, 128b/130b"},
        {4, 16, "single", 31.5 * payload, 0.1, "16 GT/s, 128b/130b"},
        {4, 16, "node", 26.3, 0.1, ada},
        {4, 16, "system", 26.3, 0.2, ada},
        {4, 8, "single", 15.75 * payload, 0.1, "16 GT/s, 128b/130b"},
        {5, 16, "multiple", 54.3, 0.1, "8 x RTX PRO 6000 behind switches (lukealonso/p2pmark)"},
        {5, 16, "node", 56.6, 0.1, turin},
        {5, 16, "node", 54, 0.1, genoa},
        {5, 16, "system", 51, 0.2, turin},
        {5, 16, "system", 39, 0.2, genoa},
        {5, 8, "single", 31.5 * payload, 0.1, "32 GT/s, 128b/130b"},
    };
    for (const auto &one : known) {
        auto facts = two_gpus("", std::string(over_pcie) + " pcie " + one.level);
        for (auto &gpu : facts.gpus) {
            gpu.pcie_gen   = one.generation;
            gpu.pcie_width = one.width;
        }
        const auto path = path_of(facts);
        EXPECT_EQ(path.kind, path_kind::pcie);
        EXPECT_NEAR(path.push_bytes_s / 1e9, one.gb_s, one.tolerance * one.gb_s)
            << "generation " << one.generation << " x" << one.width << " " << one.level << ": "
            << one.source;
        EXPECT_NEAR(path.pull_bytes_s / 1e9, one.gb_s, one.tolerance * one.gb_s) << one.source;
    }
}

// The slower slot of the two.
TEST(pcie_estimate, is_that_of_the_narrower_slot)
{
    auto       facts         = two_gpus("", over_pcie);
    const auto even          = path_of(facts);
    facts.gpus[1].pcie_width = 8;

    EXPECT_DOUBLE_EQ(path_of(facts).push_bytes_s, even.push_bytes_s / 2);
    EXPECT_DOUBLE_EQ(graph(facts).path(1, 0).push_bytes_s, even.push_bytes_s / 2);
}

// A read waits for an answer; over PCIe each crossing takes longer.
TEST(graph, a_push_is_sooner_done_than_a_pull)
{
    const auto nvlink =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n", reached));
    const auto pcie = path_of(two_gpus("", over_pcie));
    const auto lone = graph(machine_named("h100-pcie-x1")).best();

    EXPECT_NEAR(nvlink.push_latency_s, 7.7e-6, 1e-9) << "2 x H200, see figures.h";
    EXPECT_NEAR(nvlink.pull_latency_s, 10.7e-6, 1e-9);
    EXPECT_NEAR(pcie.push_latency_s, 9.2e-6, 1e-9);
    EXPECT_NEAR(pcie.pull_latency_s, 13.7e-6, 1e-9);
    EXPECT_LT(lone.push_latency_s, lone.pull_latency_s);
}

TEST(graph, the_driver_is_believed_when_nvml_denies_peer_access)
{
    const auto path =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote switch 07:00.0\n",
                         "access yes atomics yes nvml_read chipset "
                         "nvml_write chipset nvml_nvlink chipset"));

    EXPECT_EQ(path.kind, path_kind::nvswitch);
    EXPECT_THAT(path.reason, HasSubstr("NVML denies peer access"));
}

// As in a virtual machine: the ends hide themselves, and NVML denies what the driver grants.
TEST(graph, native_atomics_tell_of_nvlink_whatever_nvml_says)
{
    for (const char *end : {"hidden", "unreadable"}) {
        const auto links = std::string("links 0-17 up version 4 speed 26562 remote ") + end + "\n";
        const auto path =
            path_of(two_gpus(links, "access yes atomics yes nvml_read chipset nvml_write chipset "
                                    "nvml_nvlink chipset nvml_atomics chipset"));
        EXPECT_EQ(path.kind, path_kind::nvswitch) << end;
        EXPECT_EQ(path.links, 18) << end;
    }
    EXPECT_TRUE(path_of(two_gpus("", "access yes atomics yes nvml_nvlink chipset")).over_nvlink());
}

// POWER9: atomics reach a peer through the processor, where there is no NVLink between the two.
TEST(graph, native_atomics_tell_nothing_on_coherent_hosts_of_old)
{
    auto facts                      = machine_named("power9-v100-x4");
    facts.pair(0, 2).native_atomics = facts.pair(2, 0).native_atomics = true;
    hide_ends(facts);
    EXPECT_EQ(graph(facts).path(0, 2).kind, path_kind::pcie);
    EXPECT_EQ(graph(facts).path(0, 1).kind, path_kind::nvlink);
}

TEST(graph, an_nvml_status_that_is_missing_is_no_denial)
{
    const auto path =
        path_of(two_gpus("links 0-17 up version 4 speed 26562 remote switch 07:00.0\n",
                         "access yes atomics yes nvml_read ok"));

    EXPECT_THAT(path.reason, ::testing::Not(HasSubstr("denies")));
}

TEST(graph, the_driver_is_believed_when_it_denies_peer_access)
{
    const auto path = path_of(two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n",
                                       "access no nvml_read ok nvml_write ok nvml_nvlink ok"));

    EXPECT_FALSE(path.reachable());
    EXPECT_EQ(path.push_bytes_s, 0);
}

TEST(graph, nvml_that_fails_changes_neither_reach_nor_direction)
{
    for (nvml_state state :
         {nvml_state::missing, nvml_state::stub, nvml_state::failing, nvml_state::hanging}) {
        auto facts      = two_gpus("links 0-17 up version 4 speed 26562 remote hidden\n", reached);
        facts.nvml      = state;
        const auto path = path_of(facts);
        EXPECT_TRUE(path.over_nvlink()) << to_text(state);
        EXPECT_GT(path.pull_bytes_s, 300e9) << to_text(state);
    }
}

TEST(graph, without_nvml_a_pair_without_atomics_is_on_pcie)
{
    auto facts = two_gpus("", "access yes atomics no");
    facts.nvml = nvml_state::missing;

    EXPECT_EQ(path_of(facts).kind, path_kind::pcie);
}

TEST(graph, a_status_that_could_not_be_asked_leaves_the_links_to_decide)
{
    const auto path = path_of(
        two_gpus("links 0-17 up version 4 speed 26562 remote switch 07:00.0\n", "access yes"));

    EXPECT_EQ(path.kind, path_kind::nvswitch);
}

TEST(graph, hwloc_tells_of_nvlink_where_nvml_does_not)
{
    const auto path = path_of(two_gpus("", "access yes hwloc 50000"));

    EXPECT_EQ(path.kind, path_kind::nvlink);
    EXPECT_NEAR(path.push_bytes_s, 41e9, 1e9);
}

TEST(graph, a_mesh_with_hidden_ends_shares_its_links_out)
{
    auto facts = machine_named("dgx1-v100");
    hide_ends(facts);
    const graph pairs(facts);

    // Six links, four peers: one each, which is right for one half and low for the other.
    EXPECT_EQ(pairs.path(0, 1).kind, path_kind::nvlink);
    EXPECT_EQ(pairs.path(0, 1).links, 1);
    EXPECT_EQ(pairs.path(0, 3).links, 1);
    EXPECT_FALSE(pairs.path(0, 5).reachable());
}

// A guest with one half of a DGX-1, where single ends are hidden: some name GPUs, so no link ends at a switch.
TEST(graph, hidden_ends_beside_ends_that_name_gpus_are_no_switch)
{
    const auto whole = machine_named("dgx1-v100");
    auto       facts = whole;
    facts.gpus.resize(4);
    facts.pairs.assign(16, pair_facts());
    const auto is_here = [&](const std::string &pci) {
        return std::any_of(facts.gpus.begin(), facts.gpus.end(),
                           [&](const auto &gpu) { return gpu.pci == pci; });
    };
    for (size_t a = 0; a < 4; ++a) {
        for (size_t b = 0; b < 4; ++b) {
            facts.pair(a, b) = whole.pair(a, b);
        }
        // What is outside of the guest, and the two links between GPU 0 and GPU 3.
        for (auto &link : facts.gpus[a].links) {
            if (!is_here(link.remote_pci) || (a == 0 && link.remote_pci == facts.gpus[3].pci) ||
                (a == 3 && link.remote_pci == facts.gpus[0].pci)) {
                hide_end(link);
            }
        }
    }
    const graph pairs(facts), all(whole);
    for (size_t a = 0; a < 4; ++a) {
        for (size_t b = 0; b < 4; ++b) {
            if (a != b) {
                EXPECT_EQ(pairs.path(a, b).kind, path_kind::nvlink) << a << b;
            }
        }
    }
    EXPECT_EQ(pairs.path(0, 1).links, 1);
    EXPECT_EQ(pairs.path(1, 3).links, all.path(1, 3).links);
    // Some lead to GPUs outside, which this guest cannot know: GPU 3 has three hidden ends.
    EXPECT_EQ(pairs.path(0, 3).links, 3);
    EXPECT_EQ(pairs.path(3, 0).links, 3);
    EXPECT_THAT(pairs.path(0, 3).reason, HasSubstr("whose ends NVML does not name"));
}

// The hidden ends of two GPUs lead to one that the guest lacks, not to each other.
TEST(graph, hidden_ends_promote_no_pair_in_a_mesh)
{
    auto facts = machine_named("dgx1-v100");
    hide_ends(facts.gpus[0]);
    hide_ends(facts.gpus[5]);
    EXPECT_FALSE(graph(facts).path(0, 5).reachable());
    facts.pair(0, 5).peer_access = facts.pair(5, 0).peer_access = true;
    EXPECT_EQ(graph(facts).path(0, 5).kind, path_kind::pcie);
    EXPECT_EQ(graph(facts).path(0, 1).kind, path_kind::nvlink) << "as the other end says";
    EXPECT_EQ(graph(facts).path(0, 1).links, 1);
}

TEST(graph, one_gpu_that_names_the_switch_tells_where_hidden_ends_lead)
{
    auto facts = two_gpus("links 0-17 up version 4 speed 26562 remote switch 07:00.0\n", reached);
    hide_ends(facts.gpus[1]);
    for (size_t a : {0, 1}) {
        EXPECT_EQ(graph(facts).path(a, 1 - a).kind, path_kind::nvswitch);
        EXPECT_EQ(graph(facts).path(a, 1 - a).links, 18);
    }
}

TEST(graph, a_gpu_hidden_from_cuda_is_judged_by_nvml)
{
    auto facts                   = machine_named("h200-vm-x2");
    facts.gpus[1].cuda           = facts_unknown;
    facts.pair(0, 1).peer_access = facts.pair(1, 0).peer_access = false; // CUDA cannot be asked

    EXPECT_EQ(path_of(facts).kind, path_kind::nvswitch);
    facts.pair(0, 1).nvml_read = p2p_status::topology;
    EXPECT_FALSE(path_of(facts).reachable());
}

TEST(graph, what_cuda_grants_is_not_refused_by_nvml_where_cuda_hides_the_gpu)
{
    auto facts                 = machine_named("h200-vm-x2");
    facts.gpus[1].cuda         = facts_unknown;
    facts.pair(0, 1).nvml_read = p2p_status::topology;

    EXPECT_EQ(path_of(facts).kind, path_kind::nvswitch);
    EXPECT_THAT(path_of(facts).reason, HasSubstr("NVML denies peer access"));
}

TEST(graph, one_physical_gpu_is_the_same)
{
    EXPECT_EQ(graph(machine_named("h200-vm-x2")).path(1, 1).kind, path_kind::same_gpu);
}

TEST(graph, best_is_the_fastest_pair)
{
    const graph pairs(machine_named("dgx1-v100"));

    EXPECT_EQ(pairs.best().links, 2);
    EXPECT_EQ(graph(machine_named("h100-mig")).best().kind, path_kind::none);
    EXPECT_EQ(graph(machine_named("rtx4090-x4")).best().kind, path_kind::none);
}

namespace {

// Link `index` of the GPU no longer says what is at its end.
void kill_link(machine_facts &facts, size_t gpu, int index)
{
    for (auto &link : facts.gpus[gpu].links) {
        if (link.index == index) {
            link        = link_facts();
            link.index  = index;
            link.active = false;
        }
    }
}

void kill_all(machine_facts &facts, size_t gpu)
{
    for (int i = 0; i < facts_max_links; ++i) {
        kill_link(facts, gpu, i);
    }
}

// "0-1 2-3": the pairs that are slower than they should be, each named once.
std::string degraded_pairs(const machine_facts &facts)
{
    const graph pairs(facts);
    std::string text;

    for (size_t a = 0; a < pairs.size(); ++a) {
        for (size_t b = a + 1; b < pairs.size(); ++b) {
            EXPECT_EQ(pairs.path(a, b).degraded, pairs.path(b, a).degraded) << a << b;
            if (pairs.path(a, b).degraded) {
                text += (text.empty() ? "" : " ") + std::to_string(a) + "-" + std::to_string(b);
            }
        }
    }
    return text;
}

// What NVML and the driver say of two GPUs without NVLink.
void part(machine_facts &facts, size_t a, size_t b)
{
    for (auto *pair : {&facts.pair(a, b), &facts.pair(b, a)}) {
        pair->native_atomics = false;
        pair->nvml_nvlink = pair->nvml_atomics = p2p_status::not_supported;
    }
}

} // namespace

TEST(degraded, is_the_pair_of_a_mesh_whose_only_link_is_dead)
{
    auto facts = machine_named("dgx1-v100");
    kill_link(facts, 0, 0);
    kill_link(facts, 1, 0);

    EXPECT_EQ(graph(facts).path(0, 1).kind, path_kind::pcie);
    EXPECT_EQ(degraded_pairs(facts), "0-1");
}

TEST(degraded, is_no_card_without_a_bridge_beside_those_with_one)
{
    auto facts = machine_named("a6000-bridged-x4");
    kill_all(facts, 2);
    kill_all(facts, 3);
    part(facts, 2, 3);

    EXPECT_EQ(degraded_pairs(facts), "");
}

TEST(degraded, is_no_pair_of_a_guest_that_has_a_part_of_a_mesh)
{
    const auto whole = machine_named("dgx1-v100");
    for (size_t count = 2; count < 8; ++count) {
        auto facts = whole;
        facts.gpus.resize(count);
        facts.pairs.assign(count * count, pair_facts());
        for (size_t a = 0; a < count; ++a) {
            for (size_t b = 0; b < count; ++b) {
                facts.pair(a, b) = whole.pair(a, b);
            }
            for (int i = 0; i < 6; ++i) {
                const auto end = facts.gpus[a].links[static_cast<size_t>(i)].remote_pci;
                if (std::none_of(facts.gpus.begin(), facts.gpus.end(),
                                 [&](const auto &gpu) { return gpu.pci == end; })) {
                    kill_link(facts, a, i);
                }
            }
        }
        EXPECT_EQ(degraded_pairs(facts), "") << count;
    }
}

TEST(degraded, is_a_bridge_whose_links_are_all_down)
{
    auto facts = machine_named("a6000-bridged-x4");
    kill_all(facts, 0);
    kill_all(facts, 1);

    EXPECT_EQ(degraded_pairs(facts), "0-1");
    EXPECT_THAT(graph(facts).path(0, 1).reason, HasSubstr("links are down"));
}

TEST(degraded, is_a_bridge_that_has_lost_one_link)
{
    for (const char *name : {"a6000-bridged-x4", "a6000-bridged-unreadable-x4"}) {
        auto facts = machine_named(name);
        kill_link(facts, 0, 2);
        kill_link(facts, 1, 2);

        EXPECT_EQ(degraded_pairs(facts), "0-1") << name;
        EXPECT_THAT(graph(facts).path(0, 1).reason, HasSubstr("1 link is down"));
        EXPECT_EQ(graph(facts).path(0, 1).links, 3);
    }
}

// Four GPUs with four links for each pair: the count is regular.
TEST(degraded, is_a_pair_with_fewer_links_than_all_others)
{
    std::string text = "machine mesh\n";
    for (int gpu = 0; gpu < 4; ++gpu) {
        text += "gpu " + std::to_string(gpu) + "\nuuid GPU-00000000-0000-0000-0000-00000000000" +
                std::to_string(gpu + 1) + "\npci 1" + std::to_string(gpu) +
                ":00.0\ncompute 8.0\npcie 4 16\n";
        for (int peer = 0, at = 0; peer < 4; ++peer) {
            if (peer != gpu) {
                text += "links " + std::to_string(at) + "-" + std::to_string(at + 3) +
                        " up version 3 speed 25000 remote gpu 1" + std::to_string(peer) + ":00.0\n";
                at += 4;
            }
        }
    }
    text += std::string("pair * -> * ") + reached + "\n";
    auto facts = machine_of(text);
    kill_link(facts, 0, 4); // to 2
    kill_link(facts, 2, 0); // to 0

    EXPECT_EQ(degraded_pairs(facts), "0-2");
    EXPECT_EQ(graph(facts).path(0, 2).links, 3);
    kill_link(facts, 1, 8); // to 3, whose end is dead too
    kill_link(facts, 3, 4);
    EXPECT_EQ(degraded_pairs(facts), "0-2 1-3");
}

TEST(degraded, are_two_gpus_that_have_lost_all_their_links_to_a_switch)
{
    auto facts = machine_named("h100-x4-dead-links");
    kill_all(facts, 2);
    for (size_t other : {0, 1, 3}) {
        part(facts, 2, other);
    }

    EXPECT_EQ(degraded_pairs(facts), "0-1 0-2 0-3 1-2 1-3 2-3");
}

TEST(judge, a_local_gpu_is_known_by_its_uuid)
{
    const graph pairs(machine_named("dgx1-v100"));
    const auto  path = pairs.judge(0, true, pairs.identity(3));

    EXPECT_EQ(path.kind, path_kind::nvlink);
    EXPECT_EQ(path.links, 2);
    EXPECT_EQ(pairs.judge(0, true, pairs.identity(5)).kind, path_kind::none);
    EXPECT_EQ(pairs.judge(2, true, pairs.identity(2)).kind, path_kind::same_gpu);
}

TEST(judge, a_gpu_that_the_container_does_not_show_is_refused)
{
    const graph  pairs(machine_named("h200-vm-x2"));
    gpu_identity stranger;
    stranger.uuid[3] = 7;
    const auto path  = pairs.judge(0, true, stranger);

    EXPECT_FALSE(path.reachable());
    EXPECT_THAT(path.reason, HasSubstr("container"));
}

TEST(judge, without_nvml_a_stranger_on_this_host_gets_the_benefit_of_the_doubt)
{
    const graph  pairs(machine_named("h200-vm-x2-no-nvml"));
    gpu_identity stranger;
    stranger.uuid[3] = 7;
    const auto path  = pairs.judge(0, true, stranger);

    EXPECT_TRUE(path.over_nvlink());
    EXPECT_NEAR(path.push_bytes_s, 393e9, 2e9);
}

// The usual way of MPI: a process shows CUDA one GPU, and its container lacks NVML.
TEST(judge, without_nvml_a_lone_gpu_has_the_links_of_its_kind)
{
    const struct {
        const char *name;
        double      least, most;
    } machines[] = {{"h200-vm-x2", 390e9, 396e9},
                    {"dgx-a100", 270e9, 290e9},
                    {"l40s-pcie-x4", 5e9, 60e9},
                    {"rtx4090-x4", 5e9, 60e9}};
    for (const auto &machine : machines) {
        auto facts = machine_named(machine.name);
        facts.gpus.resize(1);
        facts.pairs.resize(1);
        gpu_identity stranger;
        stranger.uuid[3] = 7;

        facts.nvml = nvml_state::missing;
        const graph pairs(facts);
        const auto  path = pairs.judge(0, true, stranger);
        EXPECT_GT(path.push_bytes_s, machine.least) << machine.name;
        EXPECT_LT(path.push_bytes_s, machine.most) << machine.name;
        EXPECT_EQ(pairs.best().push_bytes_s, path.push_bytes_s) << machine.name;
        EXPECT_FALSE(pairs.atomics_everywhere());
        // NVML is there, and shows no GPU.
        facts.nvml         = nvml_state::present;
        facts.gpus[0].nvml = facts_unknown;
        facts.gpus[0].links.clear();
        facts.gpus[0].pcie_gen = facts.gpus[0].pcie_width = facts_unknown;
        const graph blind(facts);
        EXPECT_EQ(blind.judge(0, true, stranger).push_bytes_s, path.push_bytes_s) << machine.name;
        EXPECT_FALSE(blind.atomics_everywhere());
    }
}

TEST(judge, a_hidden_peer_that_nvml_does_not_answer_about_is_taken_for_reached)
{
    auto facts         = machine_named("h200-vm-x2");
    facts.gpus[1].cuda = facts_unknown;
    for (auto &pair : facts.pairs) {
        pair = pair_facts();
    }
    const graph pairs(facts);

    EXPECT_TRUE(pairs.judge(0, true, pairs.identity(1)).over_nvlink());
    EXPECT_NEAR(pairs.judge(0, true, pairs.identity(1)).push_bytes_s, 393e9, 2e9);
    EXPECT_FALSE(pairs.atomics_everywhere());
}

// Nobody was asked about these pairs, and the ends of the links tell.
TEST(judge, a_hidden_peer_in_a_mesh_has_the_links_that_name_it_and_no_others)
{
    auto facts = machine_named("dgx1-v100");
    for (size_t hidden : {3, 5}) {
        facts.gpus[hidden].cuda = facts_unknown;
        facts.pair(0, hidden) = facts.pair(hidden, 0) = pair_facts();
    }
    const graph pairs(facts);

    EXPECT_EQ(pairs.path(0, 3).kind, path_kind::nvlink);
    EXPECT_EQ(pairs.path(0, 3).links, 2);
    EXPECT_EQ(pairs.path(0, 5).kind, path_kind::pcie);
    EXPECT_THAT(pairs.path(0, 5).reason, HasSubstr("NVML does not say"));
}

// The usual way of MPI: CUDA shows one GPU, and NVML counts another and tells nothing of it.
TEST(judge, a_hidden_peer_that_nvml_only_counts_is_taken_for_reached)
{
    auto       facts = machine_named("h200-vm-x2");
    const auto peer  = graph(facts).identity(1);
    facts.gpus.resize(1);
    facts.pairs.resize(1);
    EXPECT_FALSE(graph(facts).judge(0, true, peer).reachable()) << "not in this container";
    facts.nvml_untold = 1;
    const graph pairs(facts);
    const auto  path = pairs.judge(0, true, peer);

    EXPECT_TRUE(path.over_nvlink());
    EXPECT_NEAR(path.push_bytes_s, 393e9, 2e9);
    EXPECT_THAT(path.reason, HasSubstr("NVML is silent about it"));
    EXPECT_FALSE(pairs.atomics_everywhere());
}

TEST(judge, what_nvml_only_counts_is_no_stranger_where_cuda_shows_it)
{
    auto         facts = machine_named("h200-vm-x2");
    gpu_identity stranger;
    stranger.uuid[3]   = 7;
    facts.gpus[1].nvml = facts_unknown;
    facts.nvml_untold  = 1;

    EXPECT_FALSE(graph(facts).judge(0, true, stranger).reachable());
}

TEST(judge, a_lone_gpu_whose_links_nvml_denies_has_none)
{
    auto facts = two_gpus("", "access yes");
    facts.gpus.resize(1);
    facts.pairs.resize(1);

    EXPECT_EQ(graph(facts).best().kind, path_kind::pcie);
}

TEST(judge, dead_links_are_seen_between_hosts_too)
{
    const auto peer  = graph(machine_named("gb200-host-b")).identity(0);
    auto       facts = machine_named("gb200-host-a");
    kill_link(facts, 0, 3);
    facts.gpus[1].links.clear();
    kill_all(facts, 2);
    const graph pairs(facts);

    EXPECT_EQ(pairs.judge(0, false, peer).links, 17);
    EXPECT_TRUE(pairs.judge(0, false, peer).degraded);
    EXPECT_THAT(pairs.judge(0, false, peer).reason, HasSubstr("1 link is down"));
    EXPECT_EQ(pairs.judge(1, false, peer).kind, path_kind::fabric);
    EXPECT_EQ(pairs.judge(1, false, peer).links, 18);
    EXPECT_FALSE(pairs.judge(1, false, peer).degraded);
    EXPECT_THAT(pairs.judge(1, false, peer).reason, HasSubstr("not counted"));
    EXPECT_FALSE(pairs.judge(2, false, peer).reachable());
}

TEST(judge, hosts_of_one_clique_reach_each_other)
{
    const graph here(machine_named("gb200-host-a")), there(machine_named("gb200-host-b"));
    const auto  path = here.judge(0, false, there.identity(2));

    EXPECT_EQ(path.kind, path_kind::fabric);
    EXPECT_EQ(path.links, 18);
    EXPECT_NEAR(path.push_bytes_s, 771e9, 20e9);
    EXPECT_TRUE(there.judge(2, false, here.identity(0)).reachable());
}

TEST(judge, another_clique_or_cluster_is_another_fabric)
{
    const graph here(machine_named("gb200-host-a")), other(machine_named("gb200-other-clique"));
    auto        peer = other.identity(0);

    EXPECT_THAT(here.judge(0, false, peer).reason, HasSubstr("another clique"));
    EXPECT_FALSE(here.judge(0, false, peer).reachable());
    peer = graph(machine_named("gb200-host-b")).identity(0);
    peer.cluster[0] ^= 1;
    EXPECT_FALSE(here.judge(0, false, peer).reachable());
}

TEST(judge, a_zero_cluster_is_no_fabric)
{
    const graph one(machine_named("h200-vm-x2")), other(machine_named("dgx-h200"));

    EXPECT_EQ(one.identity(0).cluster, uuid_bytes{});
    EXPECT_FALSE(one.judge(0, false, other.identity(0)).reachable());
    // A peer that claims our (zero) cluster gets nothing by it.
    EXPECT_FALSE(one.judge(0, false, one.identity(0)).reachable());
}

TEST(judge, an_unfinished_or_failed_fabric_is_none)
{
    const auto peer  = graph(machine_named("gb200-host-b")).identity(0);
    auto       facts = machine_named("gb200-host-a");

    facts.gpus[0].fabric.state  = fabric_state::in_progress;
    facts.gpus[1].fabric.status = 999;
    const graph pairs(facts);
    EXPECT_FALSE(pairs.judge(0, false, peer).reachable());
    EXPECT_FALSE(pairs.judge(1, false, peer).reachable());
    EXPECT_TRUE(pairs.judge(2, false, peer).reachable());
}

TEST(judge, a_fabric_without_an_imex_channel_says_what_is_missing)
{
    auto facts = machine_named("gb200-host-a");
    facts.imex = false;
    const auto path =
        graph(facts).judge(0, false, graph(machine_named("gb200-host-b")).identity(0));

    EXPECT_FALSE(path.reachable());
    EXPECT_THAT(path.reason, HasSubstr("IMEX"));
}

TEST(judge, a_mig_instance_reaches_nobody)
{
    const graph pairs(machine_named("h100-mig"));
    const int   instance = pairs.find_cuda(0);

    ASSERT_GE(instance, 0);
    const auto path = pairs.judge(static_cast<size_t>(instance), true, pairs.identity(1));
    EXPECT_FALSE(path.reachable());
    EXPECT_THAT(path.reason, HasSubstr("MIG"));
}

TEST(uuid, is_read_with_and_without_its_prefix)
{
    uuid_bytes plain, prefixed;

    ASSERT_TRUE(parse_uuid("a71cf434-9a49-543c-1801-75203a3ddbea", &plain));
    ASSERT_TRUE(parse_uuid("GPU-A71CF434-9A49-543C-1801-75203A3DDBEA", &prefixed));
    EXPECT_EQ(plain, prefixed);
    EXPECT_EQ(format_uuid(plain, "GPU-"), "GPU-a71cf434-9a49-543c-1801-75203a3ddbea");
    EXPECT_FALSE(parse_uuid("a71cf434-9a49-543c-1801-75203a3ddbe", &plain));
    EXPECT_FALSE(parse_uuid("a71cf43449a49-543c-1801-75203a3ddbea", &plain));
    EXPECT_FALSE(parse_uuid("", &plain));
}

} // namespace nvl
