// SPDX-License-Identifier: BSD-3-Clause
//
// What is taken from hwloc, on a machine that hwloc itself reads from a file.

#include "topo/machine_file.h"
#include "topo/probe_parts.h"

#include <cstdlib>
#include <dlfcn.h>

#ifdef HAVE_CONFIG_H
#include "build_config.h"
#endif

#include <gtest/gtest.h>

namespace nvl {

namespace {

// Six GPUs of which nobody but hwloc knows where they are: 06 and 07 behind one PCIe switch, 0a
// behind a second switch under it, 0c on another port of the host bridge, 41 on another host
// bridge of the node, 81 on the other node.
machine_facts probed(bool distances)
{
    machine_facts facts;

    for (const char *bus : {"06", "07", "0a", "0c", "41", "81"}) {
        gpu_facts &gpu = add_gpu(facts);
        gpu.pci        = std::string("00000000:") + bus + ":00.0";
    }
    setenv("HWLOC_XMLFILE", NVL_TEST_HWLOC_XML, 1);
    setenv("HWLOC_THISSYSTEM", "0", 1);
    probe_hwloc(facts, distances);
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
    return facts;
}

class probe_of_hwloc : public testing::Test {
protected:
    void SetUp() override
    {
#if defined(HAVE_HWLOC) && HAVE_HWLOC
        if (dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL) == nullptr) {
            GTEST_SKIP() << "no libhwloc.so.15";
        }
#else
        GTEST_SKIP() << "built without hwloc";
#endif
    }
};

} // namespace

TEST_F(probe_of_hwloc, tells_how_far_two_gpus_are_apart)
{
    const auto facts = probed(false);

    EXPECT_EQ(facts.pair(0, 1).pcie, pcie_level::single);
    EXPECT_EQ(facts.pair(0, 2).pcie, pcie_level::multiple);
    EXPECT_EQ(facts.pair(2, 0).pcie, pcie_level::multiple);
    EXPECT_EQ(facts.pair(0, 3).pcie, pcie_level::hostbridge);
    EXPECT_EQ(facts.pair(0, 4).pcie, pcie_level::node);
    EXPECT_EQ(facts.pair(0, 5).pcie, pcie_level::system);
}

TEST_F(probe_of_hwloc, tells_the_numa_node)
{
    const auto facts = probed(false);

    EXPECT_EQ(facts.gpus[0].numa, 0);
    EXPECT_EQ(facts.gpus[4].numa, 0);
    EXPECT_EQ(facts.gpus[5].numa, 1);
}

TEST_F(probe_of_hwloc, tells_its_nvlink_bandwidth_when_asked)
{
    const auto facts = probed(true);

    EXPECT_EQ(facts.pair(0, 1).hwloc_mb_s, 50000);
    EXPECT_EQ(facts.pair(1, 0).hwloc_mb_s, 50000);
    EXPECT_EQ(facts.pair(0, 2).hwloc_mb_s, facts_unknown);
    EXPECT_EQ(probed(false).pair(0, 1).hwloc_mb_s, facts_unknown);
}

TEST_F(probe_of_hwloc, that_knows_no_such_gpu_changes_nothing)
{
    machine_facts facts;
    add_gpu(facts).pci = "00000000:f0:00.0";
    add_gpu(facts).pci = "00000000:f1:00.0";
    probe_hwloc(facts, true);

    EXPECT_EQ(facts.pair(0, 1).pcie, pcie_level::unknown);
    EXPECT_EQ(facts.gpus[0].numa, facts_unknown);
}

} // namespace nvl
