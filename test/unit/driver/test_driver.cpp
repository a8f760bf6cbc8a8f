// SPDX-License-Identifier: BSD-3-Clause
//
// Loading the driver: what is said, to people and in which tone, when there is none, an old one, or one that does not
// start. Each case is a process of its own, since a process loads one driver.
#include "driver/cuda.h"
#include "driver/library.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl::test {

namespace {

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

std::string probed(const std::string &folder, const std::string &environment = "",
                   const char *arguments = "")
{
    const std::string command = fmt::format(
        "env LD_LIBRARY_PATH='{}' NVL_EMU_MACHINE='{}/h200-vm-x2.machine' {} '{}/driver_probe' {} "
        "2>&1",
        folder, NVL_TEST_MACHINES, environment, required("BUILD") + "/test/unit", arguments);
    std::unique_ptr<FILE, pipe_closer> pipe(popen(command.c_str(), "r"));
    std::string                        text;
    std::array<char, 4096>             chunk;
    size_t                             length;
    while ((length = std::fread(chunk.data(), 1, chunk.size(), pipe.get())) > 0) {
        text.append(chunk.data(), length);
    }
    return text;
}

std::string emulated(const std::string &environment = "", const char *arguments = "")
{
    return probed(required("BUILD") + "/test/emulator/lib", environment, arguments);
}

std::string fake(const char *which)
{
    return probed(required("BUILD") + "/test/unit/driver/" + which);
}

#define EXPECT_HAS(_text, _part) EXPECT_NE((_text).find(_part), std::string::npos) << (_text)

} // namespace

TEST(driver, starts)
{
    EXPECT_EQ(emulated(), "ok 13000\n");
}

TEST(driver, that_is_not_there_is_no_fault)
{
    std::string said = probed("/nonexistent");
    // A machine that has a real driver cannot be without one.
    if (said.find("ok ") == 0) {
        GTEST_SKIP() << "this machine has a driver";
    }
    EXPECT_EQ(said.find("absent "), 0u) << said;
    EXPECT_HAS(said, "libcuda.so.1");
}

TEST(driver, without_gpus_is_no_fault)
{
    std::string said = emulated("NVL_EMU_FAULTS=cuInit=100");
    EXPECT_EQ(said.find("absent "), 0u) << said;
    EXPECT_HAS(said, "CUDA_VISIBLE_DEVICES");
    EXPECT_HAS(said, "CUDA_ERROR_NO_DEVICE");
}

TEST(driver, that_waits_for_the_fabric_manager_names_it)
{
    std::string said = emulated("NVL_EMU_FAULTS=cuInit=802");
    EXPECT_EQ(said.find("fault "), 0u) << said;
    EXPECT_HAS(said, "nvidia-fabricmanager");
}

TEST(driver, of_another_version_than_the_kernels_says_so)
{
    std::string said = emulated("NVL_EMU_FAULTS=cuInit=803");
    EXPECT_EQ(said.find("fault "), 0u) << said;
    EXPECT_HAS(said, "different versions");
}

TEST(driver, that_fails_for_an_unknown_reason_is_quoted)
{
    std::string said = emulated("NVL_EMU_FAULTS=cuInit=999");
    EXPECT_EQ(said.find("fault "), 0u) << said;
    EXPECT_HAS(said, "CUDA_ERROR_UNKNOWN");
}

TEST(driver, that_comes_up_later_is_found)
{
    std::string said = emulated("NVL_EMU_FAULTS=cuInit:1=802", "again");
    EXPECT_HAS(said, "fault ");
    EXPECT_HAS(said, "\nok 13000\n");
}

TEST(driver, that_is_too_old_says_which_is_needed)
{
    std::string said = fake("old");
    EXPECT_EQ(said.find("fault "), 0u) << said;
    EXPECT_HAS(said, "too old");
    EXPECT_HAS(said, "12.2");
}

TEST(driver, that_lacks_a_function_is_told_by_its_name)
{
    std::string said = fake("lacks");
    EXPECT_EQ(said.find("fault "), 0u) << said;
    EXPECT_HAS(said, "cuIpcOpenMemHandle");
}

TEST(driver, that_lacks_what_is_optional_does)
{
    EXPECT_HAS(fake("lacks_optional"), "ok ");
}

TEST(cuda_status, keeps_the_meaning)
{
    EXPECT_EQ(cuda_status(CUDA_SUCCESS), UCS_OK);
    EXPECT_EQ(cuda_status(CUDA_ERROR_NOT_READY), UCS_INPROGRESS);
    EXPECT_EQ(cuda_status(CUDA_ERROR_OUT_OF_MEMORY), UCS_ERR_NO_MEMORY);
    EXPECT_EQ(cuda_status(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(cuda_status(CUDA_ERROR_TOO_MANY_PEERS), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(cuda_status(CUDA_ERROR_LAUNCH_FAILED), UCS_ERR_IO_ERROR);
    EXPECT_EQ(cuda_status(static_cast<CUresult>(123456)), UCS_ERR_IO_ERROR)
        << "one of a later driver";
}

TEST(library, that_is_missing_says_why)
{
    library none{"libnvl-there-is-no-such-library.so.1"};
    EXPECT_FALSE(none.is_open());
    EXPECT_NE(none.error().find("libnvl-there-is-no-such-library.so.1"), std::string::npos);
    EXPECT_EQ(none.symbol("anything"), nullptr);
}

TEST(library, is_the_first_that_can_be_opened)
{
    library one{"libnvl-there-is-no-such-library.so.1", "libc.so.6"};
    EXPECT_TRUE(one.is_open());
    EXPECT_EQ(one.error(), "");
    EXPECT_NE(one.symbol("malloc"), nullptr);
    EXPECT_EQ(one.symbol("nvl_no_such_function"), nullptr);
}

TEST(library, that_is_to_be_kept_stays_when_it_is_closed)
{
    constexpr char name[]    = "libresolv.so.2"; // nobody else has it open here
    const auto     is_loaded = [&] {
        void *again = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
        return again != nullptr && dlclose(again) == 0;
    };
    void *one = dlopen(name, RTLD_LAZY);
    ASSERT_NE(one, nullptr) << dlerror();
    dlclose(one);
    ASSERT_FALSE(is_loaded()) << "or this test says nothing";
    one = dlopen(name, RTLD_LAZY);
    keep_loaded(dlsym(one, "__b64_ntop"));
    dlclose(one);
    EXPECT_TRUE(is_loaded());
}

} // namespace nvl::test
