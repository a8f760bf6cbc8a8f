// SPDX-License-Identifier: BSD-3-Clause
//
// The facts' text form: what is written comes back, and what is wrong is refused by line.

#include "topo/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nvl {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char two_gpus[] = "machine test\n"
                            "gpu 0\n"
                            "uuid GPU-00000000-0000-0000-0000-000000000001\n"
                            "pci 0000:1B:00.0\n"
                            "links 0-2,5 up version 4 speed 26562 remote gpu 1c:00.0\n"
                            "links 3 down\n"
                            "gpu 1\n"
                            "uuid GPU-00000000-0000-0000-0000-000000000002\n"
                            "pci 1c:00.0 # short form\n"
                            "pair 0 <-> 1 access yes rank 1\n"
                            "pair 0 -> 1 atomics yes\n";

machine_facts parsed(const std::string &text)
{
    machine_facts facts;
    std::string   error;
    EXPECT_EQ(facts_parse(text, &facts, &error), facts_result::ok) << error;
    return facts;
}

std::string error_of(const std::string &text)
{
    machine_facts facts;
    std::string   error;
    EXPECT_EQ(facts_parse(text, &facts, &error), facts_result::malformed);
    EXPECT_EQ(facts.machine, "") << "filled on failure";
    return error;
}

} // namespace

TEST(facts, a_list_of_links_becomes_single_links_in_order)
{
    const auto facts = parsed(two_gpus);

    ASSERT_EQ(facts.gpus[0].links.size(), 5u);
    EXPECT_EQ(facts.gpus[0].links[2].index, 2);
    EXPECT_EQ(facts.gpus[0].links[2].remote_pci, "00000000:1c:00.0");
    EXPECT_FALSE(facts.gpus[0].links[3].active);
    EXPECT_EQ(facts.gpus[0].links[4].index, 5);
}

TEST(facts, a_later_pair_line_changes_only_what_it_names)
{
    const auto facts = parsed(two_gpus);

    EXPECT_TRUE(facts.pair(0, 1).native_atomics);
    EXPECT_FALSE(facts.pair(1, 0).native_atomics);
    EXPECT_TRUE(facts.pair(0, 1).peer_access);
    EXPECT_EQ(facts.pair(1, 0).perf_rank, 1);
}

TEST(facts, a_gpu_without_ordinals_has_those_of_its_position)
{
    const auto facts = parsed(two_gpus);

    EXPECT_EQ(facts.gpus[1].cuda, 1);
    EXPECT_EQ(facts.gpus[1].nvml, 1);
}

TEST(facts, every_value_survives_printing)
{
    machine_facts facts = parsed(two_gpus);
    facts.source        = "one line\nanother line";
    facts.nvml          = nvml_state::failing;
    facts.nvml_code     = 999;
    facts.nvml_untold   = 2;
    facts.imex          = true;
    facts.peer_limit    = 8;
    auto &gpu           = facts.gpus[1];
    gpu.cuda            = facts_unknown;
    gpu.mig             = mig_mode::instance;
    gpu.mig_uuid        = "MIG-00000000-0000-0000-0000-0000000000ff";
    gpu.mig_parent      = 0;
    gpu.virt            = virtualization::vgpu;
    gpu.fabric          = {fabric_state::completed, 3, "00000000-0000-0000-0000-0000000000aa", 7};
    gpu.fabric_ipc      = true;
    gpu.legacy_ipc      = false;
    gpu.integrated = gpu.coherent = true;
    gpu.attributes.emplace_back(131, -1);
    gpu.pcie_gen           = 5;
    gpu.pcie_width         = 16;
    auto &pair             = facts.pair(1, 0);
    pair.pcie              = pcie_level::hostbridge;
    pair.nvml_nvlink       = p2p_status::topology;
    pair.hwloc_mb_s        = 450000;
    pair.push.rate_gb_s    = 393.5;
    pair.pull.latency_us   = 10.7;
    const std::string text = facts_print(facts);
    const auto        back = parsed(text);

    EXPECT_EQ(facts_print(back), text);
    EXPECT_EQ(back.source, facts.source);
    EXPECT_EQ(back.nvml_code, 999);
    EXPECT_EQ(back.nvml_untold, 2);
    EXPECT_EQ(back.gpus[1].mig_uuid, gpu.mig_uuid);
    EXPECT_EQ(back.gpus[1].fabric.clique, 7u);
    EXPECT_EQ(back.gpus[1].cuda, facts_unknown);
    EXPECT_FALSE(back.gpus[1].legacy_ipc);
    EXPECT_EQ(back.gpus[1].attributes, gpu.attributes);
    EXPECT_EQ(back.pair(1, 0).pcie, pcie_level::hostbridge);
    EXPECT_EQ(back.pair(1, 0).hwloc_mb_s, 450000);
    EXPECT_EQ(back.pair(0, 1).hwloc_mb_s, facts_unknown);
    EXPECT_DOUBLE_EQ(back.pair(1, 0).push.rate_gb_s, 393.5);
    EXPECT_DOUBLE_EQ(back.pair(0, 1).push.rate_gb_s, 0);
}

TEST(facts, of_an_nvml_that_hangs_name_the_call)
{
    machine_facts facts = parsed(two_gpus);
    facts.nvml          = nvml_state::hanging;
    facts.nvml_call     = "nvmlInit_v2";
    const auto back     = parsed(facts_print(facts));

    EXPECT_EQ(back.nvml, nvml_state::hanging);
    EXPECT_EQ(back.nvml_call, "nvmlInit_v2");
}

TEST(facts, eighteen_equal_links_are_one_line)
{
    machine_facts facts = parsed(two_gpus);
    facts.gpus[1].links.clear();
    for (int i = 0; i < 18; ++i) {
        link_facts link;
        link.index  = i;
        link.remote = link_remote::hidden;
        facts.gpus[1].links.push_back(link);
    }
    EXPECT_THAT(facts_print(facts), HasSubstr("links 0-17 up remote hidden\n"));
}

TEST(facts, an_error_names_its_line)
{
    EXPECT_EQ(error_of("machine a\n\n# comment\ncolour red\n"), "line 4: unknown key 'colour'");
    EXPECT_THAT(error_of("machine a\ngpu 0\nspeed 3\n"), StartsWith("line 3: unknown key"));
    EXPECT_THAT(error_of("machine a\ngpu 1\n"), StartsWith("line 2: expected gpu 0"));
    EXPECT_THAT(error_of("machine a\nnuma_nodes many\n"), StartsWith("line 2: 'many'"));
    EXPECT_THAT(error_of("machine a\nimex\n"), HasSubstr("end of the line"));
    EXPECT_THAT(error_of("machine a b\n"), HasSubstr("unexpected 'b'"));
    EXPECT_THAT(error_of("machine a\npair 0 -> 1 access yes\n"), StartsWith("line 2:"));
}

TEST(facts, wrong_values_are_refused)
{
    const std::string gpu = "machine a\ngpu 0\n";

    EXPECT_THAT(error_of(gpu + "uuid GPU-12\n"), HasSubstr("not a UUID"));
    EXPECT_THAT(error_of(gpu + "pci 1:2:3:4\n"), HasSubstr("not a PCI address"));
    EXPECT_THAT(error_of(gpu + "links 0-99 up\n"), HasSubstr("out of range"));
    EXPECT_THAT(error_of(gpu + "links 3-1 up\n"), HasSubstr("out of range"));
    EXPECT_THAT(error_of(gpu + "links 0,0 up\n"), HasSubstr("there already"));
    EXPECT_THAT(error_of(gpu + "links 0 sideways\n"), HasSubstr("neither 'up' nor 'down'"));
    EXPECT_THAT(error_of(gpu + "fabric completed colour 3\n"), HasSubstr("'colour'"));
    EXPECT_THAT(error_of(gpu + "handles telepathy\n"), HasSubstr("'telepathy'"));
    EXPECT_THAT(error_of(gpu + "memory 12XiB\n"), HasSubstr("not a number"));
    EXPECT_THAT(error_of(std::string(two_gpus) + "pair 0 = 1 access yes\n"), HasSubstr("neither"));
    EXPECT_THAT(error_of(std::string(two_gpus) + "pair 0 -> 2 access yes\n"),
                HasSubstr("out of range"));
    EXPECT_THAT(error_of(std::string(two_gpus) + "pair 0 -> 1 push fast 1\n"),
                HasSubstr("not a positive number"));
}

TEST(facts, a_machine_must_make_sense_as_a_whole)
{
    const std::string one = "gpu 0\nuuid GPU-00000000-0000-0000-0000-000000000001\npci 1b:00.0\n";
    const std::string two = "gpu 1\nuuid GPU-00000000-0000-0000-0000-000000000002\npci 1c:00.0\n";

    EXPECT_THAT(error_of(one), HasSubstr("no name"));
    EXPECT_THAT(error_of("machine a\ngpu 0\n"), HasSubstr("no uuid"));
    EXPECT_THAT(error_of("machine a\n" + one +
                         "gpu 1\nuuid GPU-00000000-0000-0000-0000-000000000001\npci 1c:00.0\n"),
                HasSubstr("UUID of another"));
    EXPECT_THAT(error_of("machine a\n" + one + two + "cuda 0\n"), HasSubstr("ordinal of another"));
    EXPECT_THAT(error_of("machine a\n" + one + two + "cuda 2\n"), HasSubstr("gap"));
    EXPECT_THAT(error_of("machine a\n" + one + two + "nvml 0\n"), HasSubstr("index of another"));
}

TEST(facts, two_gpus_that_would_be_one_are_refused_where_the_second_says_so)
{
    const std::string one = "machine a\ngpu 0\nuuid GPU-00000000-0000-0000-0000-000000000001\n"
                            "pci 1b:00.0\n";
    const std::string mig = "mig instance MIG-00000000-0000-0000-0000-00000000000";

    EXPECT_THAT(
        error_of(one + "gpu 1\npci 1c:00.0\nuuid GPU-00000000-0000-0000-0000-000000000001\n"),
        StartsWith("line 7: gpu 1 has the UUID of another one, gpu 0: give it"));
    EXPECT_THAT(error_of(one + "gpu 1\nuuid unknown\npci 1b:00.0\n"),
                StartsWith("line 7: gpu 1 has the PCI address of another one, gpu 0: give it"));
    EXPECT_THAT(error_of(one + "gpu 0\nsms 3\n"),
                StartsWith("line 5: gpu 0 is there already, from line 2 on"));
    EXPECT_THAT(error_of(one + mig + "1 0\n"),
                StartsWith("line 5: gpu 0 is an instance of itself"));
    const std::string instances = one + "gpu 1\nuuid unknown\npci 1b:00.0\n" + mig + "1 0\n" +
                                  "gpu 2\nuuid unknown\npci 1b:00.0\n";
    EXPECT_EQ(parsed(instances + mig + "2 0\n").gpus.size(), 3u);
    EXPECT_THAT(error_of(instances + mig + "1 0\n"), StartsWith("line 12: gpu 2 has the UUID of"));
    EXPECT_THAT(error_of(instances + mig + "2 1\n"),
                StartsWith("line 12: gpu 2 is an instance of gpu 1, which is one"));
    EXPECT_THAT(error_of(instances + mig + "2 7\n"), HasSubstr("that is not there"));
    EXPECT_THAT(error_of("machine a\ngpu 0\nuuid unknown\n"), StartsWith("line 2: gpu 0 has no"));
}

TEST(facts, a_line_says_each_thing_once_and_something)
{
    const std::string gpu = "machine a\ngpu 0\n";

    EXPECT_THAT(error_of(gpu + "fabric completed status 0 status 1\n"),
                StartsWith("line 3: 'status' stands twice"));
    EXPECT_THAT(error_of(gpu + "links 0 up version 4 speed 1 version 3\n"),
                HasSubstr("'version' stands twice"));
    EXPECT_THAT(error_of(gpu + "handles fabric posix_fd fabric\n"),
                HasSubstr("'fabric' stands twice"));
    EXPECT_THAT(error_of(std::string(two_gpus) + "pair 0 -> 1 rank 1 access no rank 2\n"),
                HasSubstr("'rank' stands twice"));
    EXPECT_THAT(error_of(gpu + "handles\n"), HasSubstr("expected a handle type or 'none'"));
    EXPECT_THAT(error_of(gpu + "name\n"), HasSubstr("expected a name"));
    EXPECT_THAT(error_of(std::string(two_gpus) + "pair 0 -> 1\n"), HasSubstr("expected a key"));
    EXPECT_THAT(error_of(std::string(two_gpus) + "pair 0 -> 0 access no\n"),
                HasSubstr("are no pair"));
    EXPECT_THAT(error_of(gpu + "attribute 1000 1\n"), HasSubstr("out of range, 1 to 999"));
    EXPECT_THAT(error_of(gpu + "attribute 0 1\n"), HasSubstr("out of range"));
}

TEST(facts, pci_addresses_have_one_normal_form)
{
    EXPECT_EQ(pci_normal("0000:1B:00.0"), "00000000:1b:00.0");
    EXPECT_EQ(pci_normal("00000008:01:00.0"), "00000008:01:00.0");
    EXPECT_EQ(pci_normal("1b:00.0"), "00000000:1b:00.0");
    EXPECT_EQ(pci_normal("FFFFFFFF:FF:FF.0"), "ffffffff:ff:ff.0");
    EXPECT_EQ(pci_normal("1b:00"), "");
    EXPECT_EQ(pci_normal("1b:00.0x"), "");
    EXPECT_EQ(pci_normal(""), "");
}

TEST(facts, a_file_that_is_not_there_says_so)
{
    machine_facts facts;
    std::string   error;

    EXPECT_EQ(facts_read("/nonexistent/file", &facts, &error), facts_result::unreadable);
    EXPECT_THAT(error, HasSubstr("/nonexistent/file: No such file"));
}

} // namespace nvl
