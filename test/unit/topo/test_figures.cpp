// SPDX-License-Identifier: BSD-3-Clause
//
// The figures against what was measured and published.

#include "topo/figures.h"

#include <gtest/gtest.h>

namespace nvl {

TEST(figures, a_copy_engine_of_h200_gets_393_of_478_gb_s)
{
    EXPECT_NEAR(18 * 26.562 * link_efficiency(4), 393.6, 2);
}

TEST(figures, a_pair_of_v100_links_gets_48_gb_s)
{
    EXPECT_NEAR(2 * 25.781 * link_efficiency(2), 47.9, 1);
}

TEST(figures, no_engine_gets_more_than_the_wire)
{
    for (int version = 0; version < 9; ++version) {
        EXPECT_LT(link_efficiency(version), 1);
    }
}

TEST(figures, a_newer_link_than_is_known_counts_as_the_newest_known)
{
    EXPECT_EQ(link_speed_mb_s(6), link_speed_mb_s(5));
    EXPECT_EQ(link_speed_mb_s(0), 0);
    EXPECT_EQ(link_speed_mb_s(facts_unknown), 0);
}

// An H200 says 6 for its links of generation 4.
TEST(figures, the_numbers_of_nvml_are_not_generations)
{
    EXPECT_EQ(link_generation(2), 2); // V100
    EXPECT_EQ(link_generation(4), 3); // A100
    EXPECT_EQ(link_generation(5), 3);
    EXPECT_EQ(link_generation(6), 4);
    EXPECT_EQ(link_generation(7), 5);
    EXPECT_EQ(link_generation(0), 0);
    EXPECT_EQ(link_generation(8), 0) << "what is newer is taken from the GPU's generation";
}

TEST(figures, a_slot_that_nobody_knows_counts_as_generation_3_with_16_lanes)
{
    EXPECT_NEAR(pcie_bytes_s(facts_unknown, facts_unknown), 15.76e9, 1e7);
    EXPECT_NEAR(pcie_bytes_s(5, 16), 63e9, 1e8);
    EXPECT_NEAR(pcie_bytes_s(4, 8), 15.75e9, 1e8);
}

TEST(figures, a_longer_pcie_path_is_never_faster)
{
    EXPECT_GE(pcie_efficiency(pcie_level::single), pcie_efficiency(pcie_level::node));
    EXPECT_GE(pcie_efficiency(pcie_level::node), pcie_efficiency(pcie_level::system));
}

// By the machine files, which say how many links each of these has.
TEST(figures, links_that_nobody_tells_of_are_those_of_the_board)
{
    gpu_facts  gpu;
    const auto links_of = [&](const char *name, int major, int minor) {
        gpu.name          = name;
        gpu.compute_major = major;
        gpu.compute_minor = minor;
        return assumed_links(gpu);
    };
    EXPECT_EQ(links_of("NVIDIA H200", 9, 0), 18);
    EXPECT_EQ(links_of("NVIDIA H100 NVL", 9, 0), 12);
    EXPECT_EQ(links_of("NVIDIA H100 PCIe", 9, 0), 12);
    EXPECT_EQ(links_of("Tesla V100-SXM3-32GB", 7, 0), 6);
    EXPECT_EQ(links_of("Tesla V100-SXM2-16GB", 7, 0), 1);
    EXPECT_EQ(links_of("NVIDIA A100-SXM4-80GB", 8, 0), 12);
    EXPECT_EQ(links_of("NVIDIA A30", 8, 0), 4);
    EXPECT_EQ(links_of("NVIDIA L40S", 8, 9), 0);
    EXPECT_EQ(links_of("NVIDIA RTX A6000", 8, 6), 4);
    EXPECT_EQ(link_speed_mb_s(3, gpu), 14062);
    EXPECT_EQ(links_of("NVIDIA A100-SXM4-80GB", 8, 0), 12);
    EXPECT_EQ(link_speed_mb_s(3, gpu), link_speed_mb_s(3));
}

} // namespace nvl
