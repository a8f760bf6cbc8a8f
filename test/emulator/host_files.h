// SPDX-License-Identifier: BSD-3-Clause
//
// A folder for NVL_EMU_FILES: what the plugin and UCX read of a host, for one that has an IMEX channel. Tests
// that play two hosts make one for each.
#ifndef NVLINK_TEST_EMULATOR_HOST_FILES_H
#define NVLINK_TEST_EMULATOR_HOST_FILES_H

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace nvl::test {

// `number` tells hosts apart: it is in their boot id.
inline void make_host_files(const std::filesystem::path &folder, unsigned number)
{
    char boot_id[64];
    std::snprintf(boot_id, sizeof(boot_id), "%08x-1111-4222-8333-444455556666", number);
    std::filesystem::create_directories(folder / "proc/sys/kernel/random");
    std::filesystem::create_directories(folder / "dev/nvidia-caps-imex-channels");
    std::ofstream(folder / "proc/sys/kernel/random/boot_id") << boot_id << "\n";
    std::ofstream(folder / "dev/nvidia-caps-imex-channels/channel0");
}

} // namespace nvl::test

#endif
