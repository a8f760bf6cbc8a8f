// SPDX-License-Identifier: BSD-3-Clause
//
// Loads the driver as the plugin does and prints what came of it: "ok VERSION", or "fault TEXT", or "absent TEXT".
// Twice with "again": the second time must find a driver that has come up meanwhile.
#include "driver/cuda.h"
#include "driver/nvml.h"

#include <cstdio>
#include <cstring>

namespace {

void try_once()
{
    std::string          why;
    const nvl::cuda_api *cuda = nvl::cuda_api::load(&why);
    if (cuda != nullptr) {
        std::printf("ok %d\n", cuda->version);
    } else {
        std::printf("%s %s\n", nvl::cuda_absence_is_fault() ? "fault" : "absent", why.c_str());
    }
}

} // namespace

int main(int argc, char **argv)
{
    try_once();
    if (argc > 1 && std::strcmp(argv[1], "again") == 0) {
        try_once();
    }
    return 0;
}
