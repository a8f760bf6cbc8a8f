// SPDX-License-Identifier: BSD-3-Clause
//
// See machine.h.
#include "machine.h"
#include "settings.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace emu {
namespace {

nvl::gpu_facts built_in_gpu(int index, const char *uuid, const char *pci)
{
    nvl::gpu_facts gpu;
    gpu.cuda                = index;
    gpu.nvml                = index;
    gpu.uuid                = uuid;
    gpu.pci                 = pci;
    gpu.name                = "NVIDIA H200";
    gpu.compute_major       = 9;
    gpu.memory_bytes        = 150754820096ull;
    gpu.sm_count            = 132;
    gpu.copy_engines        = 3;
    gpu.numa                = 0;
    gpu.pcie_gen            = 5;
    gpu.pcie_width          = 16;
    gpu.virt                = nvl::virtualization::passthrough;
    gpu.fabric.state        = nvl::fabric_state::completed;
    gpu.fabric.cluster_uuid = "00000000-0000-0000-0000-000000000000";
    gpu.posix_fd            = true;
    gpu.fabric_ipc          = true;
    for (int i = 0; i < 18; i++) {
        nvl::link_facts link;
        link.index      = i;
        link.version    = 4;
        link.speed_mb_s = 26562;
        link.remote     = nvl::link_remote::hidden;
        gpu.links.push_back(link);
    }
    return gpu;
}

// Two H200 of a virtual machine, driver 580: the machine that the project was measured on.
nvl::machine_facts built_in_machine()
{
    nvl::machine_facts facts;
    facts.machine      = "built-in";
    facts.source       = "built into the emulated driver";
    facts.host         = "emulated";
    facts.driver       = "580.159.04";
    facts.cuda_version = 13000;
    facts.gpus.push_back(
        built_in_gpu(0, "GPU-a71cf434-9a49-543c-1801-75203a3ddbea", "00000000:00:06.0"));
    facts.gpus.push_back(
        built_in_gpu(1, "GPU-7cfdba81-d84f-7ccf-bf33-65bd72540dcb", "00000000:00:07.0"));
    facts.pairs.resize(4);
    for (nvl::pair_facts &pair : facts.pairs) {
        pair.peer_access    = true;
        pair.native_atomics = true;
        pair.perf_rank      = 0;
        pair.pcie           = nvl::pcie_level::hostbridge;
        pair.nvml_read = pair.nvml_write = pair.nvml_nvlink = nvl::p2p_status::ok;
        pair.nvml_atomics                                   = nvl::p2p_status::ok;
    }
    return facts;
}

nvl::machine_facts read_machine(const char *path)
{
    nvl::machine_facts facts;
    std::string        error;
    if (nvl::facts_read(path, &facts, &error) != nvl::facts_result::ok) {
        fprintf(stderr, "emulated driver: NVL_EMU_MACHINE: %s\n", error.c_str());
        _exit(99);
    }
    return facts;
}

nvl::machine_facts load_machine()
{
    check_settings();
    const char        *path     = getenv("NVL_EMU_MACHINE");
    bool               has_file = path != nullptr && path[0] != '\0';
    nvl::machine_facts facts    = has_file ? read_machine(path) : built_in_machine();
    const char        *host     = getenv("NVL_EMU_HOST");
    if (host != nullptr && host[0] != '\0')
        facts.host = host;
    return facts;
}

} // namespace

const nvl::machine_facts &machine()
{
    // Never destroyed: calls may still come while the process ends.
    static const nvl::machine_facts *facts = new nvl::machine_facts(load_machine());
    return *facts;
}

std::string fabric_name(const nvl::gpu_facts &gpu)
{
    if (gpu.fabric.state != nvl::fabric_state::completed ||
        nvl::uuid_is_zero(gpu.fabric.cluster_uuid))
        return "";
    return gpu.fabric.cluster_uuid + "/" + std::to_string(gpu.fabric.clique);
}

bool parse_uuid(const std::string &text, unsigned char bytes[16])
{
    size_t begin  = text.compare(0, 4, "GPU-") == 0 || text.compare(0, 4, "MIG-") == 0 ? 4 : 0;
    int    digits = 0;
    for (size_t i = begin; i < text.size(); i++) {
        unsigned char c = static_cast<unsigned char>(text[i]);
        if (c == '-')
            continue;
        if (!isxdigit(c) || digits == 32)
            return false;
        int value = isdigit(c) ? c - '0' : tolower(c) - 'a' + 10;
        if (digits % 2 == 0)
            bytes[digits / 2] = static_cast<unsigned char>(value << 4);
        else
            bytes[digits / 2] = static_cast<unsigned char>(bytes[digits / 2] | value);
        digits++;
    }
    return digits == 32;
}

} // namespace emu
