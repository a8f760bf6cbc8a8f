// SPDX-License-Identifier: BSD-3-Clause
//
// The binding against fake UCXs, each wrong in one way (build_fakes), and against real ones: the PyPI package
// that configure found, and the copy inside NIXL's package where NVL_TEST_NIXL_LIBS names its folder.

#include "host/binding.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

namespace {

// Output of host_probe, errors included.
std::string probe(const std::string &arguments)
{
    std::string command = "./host_probe " + arguments + " 2>&1";
    std::string output;
    FILE       *pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) {
        return "popen failed";
    }

    std::array<char, 4096> buffer;
    while (size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
        output.append(buffer.data(), count);
    }
    int status = pclose(pipe);
    if (status != 0) {
        output += "exit status " + std::to_string(status) + "\n";
    }
    return output;
}

std::string fake(const std::string &library)
{
    return "host/fakes/lib" + library + ".so ";
}

auto bound_to(const std::string &layout)
{
    return AllOf(StartsWith("bound: layout " + layout + " "), HasSubstr("again: same\n"),
                 HasSubstr("loaded: 0\n"), Not(HasSubstr("exit status")));
}

auto refused_for(const std::string &reason)
{
    return AllOf(StartsWith("refused: "), HasSubstr(reason), HasSubstr("loaded: 0\n"),
                 Not(HasSubstr("exit status")));
}

// ---- real libraries ----------------------------------------------------------------------------

std::string file_in(const std::string &folder, const std::string &prefix)
{
    DIR        *dir = opendir(folder.c_str());
    std::string found;
    if (dir == nullptr) {
        return found;
    }
    while (const dirent *entry = readdir(dir)) {
        if (std::string(entry->d_name).rfind(prefix, 0) == 0) {
            found = folder + "/" + entry->d_name;
        }
    }
    closedir(dir);
    return found;
}

std::string ucx_library(const std::string &name)
{
    const char *dir = std::getenv("NVL_TEST_UCX_DIR");
    for (const char *folder : {"/lib/", "/lib64/"}) {
        std::string path = std::string(dir == nullptr ? "" : dir) + folder + name;
        if (access(path.c_str(), R_OK) == 0) {
            return path + " ";
        }
    }
    return "";
}

#define NVL_UCX_LIBRARY(variable, name)                             \
    std::string variable = ucx_library(name);                       \
    if (variable.empty()) {                                         \
        GTEST_SKIP() << "no " << name << " under NVL_TEST_UCX_DIR"; \
    }

#define NVL_NIXL_LIBRARY(variable, prefix)                                            \
    const char *nixl_folder = std::getenv("NVL_TEST_NIXL_LIBS");                      \
    if (nixl_folder == nullptr) {                                                     \
        GTEST_SKIP() << "NVL_TEST_NIXL_LIBS does not name the folder nixl_cu1x.libs"; \
    }                                                                                 \
    std::string variable = file_in(nixl_folder, prefix) + " ";                        \
    ASSERT_NE(variable, " ") << "no " << prefix << " in " << nixl_folder

} // namespace

// ---- what is accepted --------------------------------------------------------------------------

TEST(binding, accepts_the_layout_of_1_22)
{
    EXPECT_THAT(probe(fake("uct-good")),
                AllOf(bound_to("1.22"), HasSubstr("version 0.0 libucs-good.so libuct-good.so\n")));
}

TEST(binding, accepts_the_layout_of_1_23)
{
    EXPECT_THAT(probe(fake("uct-v123")), bound_to("1.23"));
}

TEST(binding, accepts_a_1_23_from_before_get_sgl_zcopy)
{
    EXPECT_THAT(probe(fake("uct-v123early")), bound_to("1.23 before get_sgl_zcopy"));
}

TEST(binding, takes_the_version_from_the_libucp_of_the_same_ucx)
{
    EXPECT_THAT(probe(fake("ucp-later")), bound_to("1.22 version 1.22"));
}

TEST(binding, ignores_the_libucp_of_another_ucx)
{
    std::string output = probe(fake("ucp-v124") + fake("uct-good"));
    EXPECT_THAT(output, HasSubstr("bound: layout 1.22 version 0.0 libucs-good.so"));
}

TEST(binding, gives_each_ucx_of_a_process_its_own_libuct)
{
    std::string output = probe(fake("uct-good") + fake("uct-other"));
    EXPECT_THAT(output, AllOf(HasSubstr("libucs-good.so libuct-good.so\n"),
                              HasSubstr("libucs-other.so libuct-other.so\n")));
}

TEST(binding, gives_the_same_answer_to_all_threads)
{
    EXPECT_THAT(probe("-t " + fake("uct-good")), StartsWith("threads: one answer\n"));
}

// ---- what is refused ---------------------------------------------------------------------------

TEST(binding, refuses_an_older_ucx)
{
    EXPECT_THAT(probe(fake("uct-old")), refused_for("UCX 1.22 or later is needed"));
}

TEST(binding, refuses_a_later_version)
{
    EXPECT_THAT(probe(fake("ucp-v124")), refused_for("UCX 1.24.0 is not known"));
}

TEST(binding, refuses_another_major_version)
{
    EXPECT_THAT(probe(fake("ucp-v2")), refused_for("UCX 2.22.0 is not known"));
}

TEST(binding, refuses_an_unknown_set_of_symbols)
{
    EXPECT_THAT(probe(fake("uct-operations")), refused_for("does not know"));
}

TEST(binding, names_the_symbol_that_libucs_lacks)
{
    EXPECT_THAT(probe(fake("uct-noucs")),
                refused_for("libucs-noucs.so has no symbol ucs_get_system_id"));
}

TEST(binding, names_the_symbol_that_libuct_lacks)
{
    EXPECT_THAT(probe(fake("uct-nouct")),
                refused_for("libuct-nouct.so has no symbol uct_base_iface_query"));
}

TEST(binding, refuses_a_ucx_with_statistics)
{
    EXPECT_THAT(probe(fake("uct-statistics")), refused_for("--enable-stats"));
}

TEST(binding, refuses_base_classes_of_another_size)
{
    EXPECT_THAT(probe(fake("uct-bigger")), refused_for("1296 and 8 bytes instead of 1280 and 8"));
}

TEST(binding, refuses_operations_in_other_slots)
{
    EXPECT_THAT(probe(fake("uct-slots")),
                refused_for("its iface_estimate_perf is in slot 2 instead of 1"));
}

TEST(binding, refuses_memory_domain_operations_in_other_slots)
{
    EXPECT_THAT(probe(fake("uct-mdslots")), refused_for("its mem_reg is in slot 6 instead of 5"));
}

TEST(binding, refuses_the_new_slots_of_1_23_in_another_order)
{
    EXPECT_THAT(probe(fake("uct-swapped")),
                refused_for("its ep_get_sgl_zcopy is in slot 11 instead of 10"));
}

TEST(binding, refuses_a_list_that_leads_to_nowhere)
{
    EXPECT_THAT(probe(fake("uct-wild")), refused_for("list of components is not laid out"));
}

TEST(binding, refuses_a_component_that_reads_differently)
{
    EXPECT_THAT(probe(fake("uct-prefix")), refused_for("\"self\" is not laid out"));
}

TEST(binding, refuses_a_list_without_the_component_that_all_have)
{
    EXPECT_THAT(probe(fake("uct-noself")), refused_for("\"self\" is not laid out"));
}

TEST(binding, refuses_a_libucs_without_its_libuct)
{
    EXPECT_THAT(probe(fake("ucs-alone")), refused_for("no libuct in the process belongs to"));
}

TEST(binding, does_not_take_the_libuct_of_another_ucx)
{
    std::string output = probe(fake("uct-good") + fake("ucs-alone"));
    EXPECT_THAT(output, AllOf(HasSubstr("libucs-good.so libuct-good.so\n"),
                              HasSubstr("refused: no libuct in the process belongs to")));
}

TEST(binding, refuses_a_ucx_whose_data_another_one_has_taken_over)
{
    std::string output = probe("-g " + fake("uct-good") + "-l " + fake("uct-other"));
    EXPECT_THAT(output, HasSubstr("refused: two UCXs are mixed up in this process"));
}

TEST(binding, refuses_a_caller_that_is_not_ucx)
{
    nvl::host_bind_result result = nvl::host_find(reinterpret_cast<const void *>(&std::getenv));
    EXPECT_EQ(result.host, nullptr);
    EXPECT_THAT(result.refusal, HasSubstr("is not a libucs"));
}

TEST(binding, refuses_a_caller_in_no_library)
{
    char here;
    EXPECT_THAT(nvl::host_find(&here).refusal, HasSubstr("in no library"));
    EXPECT_THAT(nvl::host_find(nullptr).refusal, HasSubstr("in no library"));
}

TEST(binding, goes_on_after_a_refusal)
{
    std::string output = probe(fake("uct-statistics") + fake("uct-good"));
    EXPECT_THAT(output, HasSubstr("bound: layout 1.22 version 0.0 libucs-good.so libuct-good.so"));
}

// ---- the log -----------------------------------------------------------------------------------

TEST(binding_log, has_one_warning_for_a_ucx_that_is_refused)
{
    std::string output = probe("-b " + fake("uct-statistics"));
    EXPECT_EQ(output, "fake log 2: nvlink: not used: this UCX was built with --enable-stats, which "
                      "changes its base classes\nrefused\nloaded: 0\n");
}

TEST(binding_log, is_silent_for_a_ucx_that_is_accepted)
{
    EXPECT_EQ(probe("-b " + fake("uct-good")), "bound\nloaded: 0\n");
}

// ---- real UCX ----------------------------------------------------------------------------------

TEST(binding_to_real_ucx, works_with_a_local_libucp)
{
    NVL_UCX_LIBRARY(library, "libucp.so.0");
    EXPECT_THAT(probe(library), bound_to("1.22 version 1.22"));
}

TEST(binding_to_real_ucx, works_with_a_global_libucp)
{
    NVL_UCX_LIBRARY(library, "libucp.so.0");
    EXPECT_THAT(probe("-g " + library), bound_to("1.22 version 1.22"));
}

TEST(binding_to_real_ucx, works_without_a_libucp)
{
    NVL_UCX_LIBRARY(library, "libuct.so.0");
    EXPECT_THAT(probe(library), bound_to("1.22 version 0.0"));
}

TEST(binding_to_real_ucx, works_under_the_name_that_python_loads)
{
    NVL_UCX_LIBRARY(library, "libuct.so");
    EXPECT_THAT(probe(library), bound_to("1.22 version 0.0"));
}

TEST(binding_to_real_ucx, works_with_the_copy_in_nixl)
{
    NVL_NIXL_LIBRARY(library, "libucp-");
    EXPECT_THAT(probe(library), bound_to("1.23 version 1.23"));
}

TEST(binding_to_real_ucx, works_with_the_copy_in_nixl_without_libucp)
{
    NVL_NIXL_LIBRARY(library, "libuct-");
    EXPECT_THAT(probe("-g " + library), bound_to("1.23 version 0.0"));
}

TEST(binding_to_real_ucx, keeps_two_in_one_process_apart)
{
    NVL_UCX_LIBRARY(first, "libuct.so.0");
    NVL_NIXL_LIBRARY(second, "libuct-");
    std::string output = probe(first + second);
    EXPECT_THAT(output, AllOf(HasSubstr("bound: layout 1.22 "), HasSubstr("bound: layout 1.23 ")));
}
