// SPDX-License-Identifier: BSD-3-Clause
//
// Look-ups by CUDA ordinal, as the transport makes them.

#include "topo/topology.h"

#include "topo/machine_file.h"

#include <gtest/gtest.h>

namespace nvl {

TEST(topology, is_looked_up_by_cuda_ordinal_whatever_order_nvml_has)
{
    const topology known(machine_named("h100-x4-other-order"));

    // CUDA_VISIBLE_DEVICES=3,0,2: ordinal 0 is the GPU that NVML calls 3.
    EXPECT_EQ(known.find_pci(0, 0xc3, 0), 0);
    EXPECT_EQ(known.find_pci(0, 0x1b, 0), 1);
    EXPECT_EQ(known.find_pci(0, 0x43, 0), -1) << "hidden from CUDA";
    EXPECT_EQ(known.identity(0).uuid, known.pairs().identity(3).uuid);
    EXPECT_EQ(known.path(0, 2).kind, path_kind::nvswitch);
}

TEST(topology, an_unknown_ordinal_gets_the_best_pair)
{
    const topology known(machine_named("dgx1-v100"));

    EXPECT_EQ(known.path(-1, 3).links, 2);
    EXPECT_EQ(known.path(0, 99).links, 2);
    EXPECT_EQ(known.path(0, facts_max_gpus).links, 2);
    EXPECT_EQ(&known.best(), &known.pairs().best());
}

TEST(topology, the_best_of_one_gpu_is_its_own)
{
    const topology known(machine_named("h100-x4-dead-links"));

    EXPECT_EQ(known.best_of(0).links, 18);
    EXPECT_EQ(known.best_of(1).links, 14);
    EXPECT_EQ(known.best_of(3).kind, path_kind::pcie);
}

TEST(topology, judges_a_peer_by_ordinal)
{
    const topology here(machine_named("gb200-host-a")), there(machine_named("gb200-host-b"));

    EXPECT_EQ(here.judge(1, false, there.identity(3)).kind, path_kind::fabric);
    EXPECT_EQ(here.judge(7, false, there.identity(3)).kind, path_kind::none);
}

TEST(topology, a_machine_without_gpus_has_no_pairs)
{
    const topology empty{machine_facts()};

    EXPECT_FALSE(empty.path(0, 1).reachable());
    EXPECT_FALSE(empty.best().reason.empty());
}

} // namespace nvl
