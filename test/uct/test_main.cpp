// SPDX-License-Identifier: BSD-3-Clause
//
// The conformance tests' main function. Exit status 77 with a reason where there is no UCX, no driver or only one GPU;
// as "--peer SOCKET" it is the other process of a test.
#include "uct/driver.h"
#include "uct/log_watch.h"
#include "uct/side.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>

namespace {

// Says why nothing can be tested here, in automake's way.
int skip(const std::string &reason)
{
    std::printf("SKIP: %s\n", reason.c_str());
    return 77;
}

} // namespace

int main(int argc, char **argv)
{
    using namespace nvl::test;

    if (argc == 3 && std::strcmp(argv[1], "--peer") == 0) {
        return serve_peer(std::atoi(argv[2]));
    }
    testing::InitGoogleTest(&argc, argv);
    if (!ucx_missing().empty()) {
        return skip(ucx_missing());
    }
    if (!gpus_missing().empty()) {
        return skip(gpus_missing());
    }
    if (nvlink_component() == nullptr) {
        std::printf("FAIL: UCX has not loaded the plugin (UCX_PLUGIN_PATH)\n");
        return 1;
    }
    std::printf("%d GPUs, %s driver\n", gpu_count(), emulator() != nullptr ? "emulated" : "real");
    watch_log();
    return RUN_ALL_TESTS();
}
