// SPDX-License-Identifier: BSD-3-Clause
//
// The main function of unit tests that need the emulated driver; as "--exporter SOCKET" it is the other process.
#include "exporter.h"

#include "uct/driver.h"

#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>

int main(int argc, char **argv)
{
    if (argc == 3 && std::strcmp(argv[1], "--exporter") == 0) {
        return nvl::test::serve_exporter(std::atoi(argv[2]));
    }
    testing::InitGoogleTest(&argc, argv);
    if (nvl::test::emulator() == nullptr) {
        std::printf("SKIP: not on the emulated driver (%s)\n", nvl::test::gpus_missing().c_str());
        return 77;
    }
    return RUN_ALL_TESTS();
}
