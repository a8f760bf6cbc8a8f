// SPDX-License-Identifier: BSD-3-Clause
//
// The order of the questions, and what CUDA answers.

#include "topo/probe.h"

#include "topo/graph.h"
#include "topo/probe_parts.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace nvl {

namespace {

// cuDeviceGetAttribute, or `otherwise` where the driver does not know the attribute.
int attribute_of(const cuda_api &cuda, CUdevice device, CUdevice_attribute attribute, int otherwise)
{
    int value = 0;
    return cuda.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : otherwise;
}

int p2p_attribute_of(const cuda_api &cuda, CUdevice from, CUdevice to,
                     CUdevice_P2PAttribute attribute, int otherwise)
{
    int value = 0;
    return cuda.cuDeviceGetP2PAttribute(&value, attribute, from, to) == CUDA_SUCCESS ? value
                                                                                     : otherwise;
}

void ask_identity(const cuda_api &cuda, CUdevice device, gpu_facts &gpu)
{
    char   name[128] = "";
    char   pci[64]   = "";
    size_t memory    = 0;
    CUuuid cuda_uuid;

    if (cuda.cuDeviceGetName(name, sizeof(name) - 1, device) == CUDA_SUCCESS) {
        gpu.name = name;
    }
    if (cuda.cuDeviceGetPCIBusId(pci, sizeof(pci) - 1, device) == CUDA_SUCCESS) {
        gpu.pci = pci_normal(pci);
    }
    if (cuda.cuDeviceGetUuid(&cuda_uuid, device) == CUDA_SUCCESS) {
        uuid_bytes bytes;
        std::memcpy(bytes.data(), cuda_uuid.bytes, bytes.size());
        gpu.uuid = format_uuid(bytes, "GPU-");
    }
    if (cuda.cuDeviceTotalMem(&memory, device) == CUDA_SUCCESS) {
        gpu.memory_bytes = memory;
    }
    // The driver's names for instances are like "NVIDIA H100 80GB HBM3 MIG 3g.40gb".
    if (gpu.name.find(" MIG ") != std::string::npos) {
        gpu.mig      = mig_mode::instance;
        gpu.mig_uuid = gpu.uuid.empty() ? "" : "MIG-" + gpu.uuid.substr(4);
    }
}

void ask_attributes(const cuda_api &cuda, CUdevice device, gpu_facts &gpu)
{
    const auto ask = [&](CUdevice_attribute attribute, int otherwise) {
        return attribute_of(cuda, device, attribute, otherwise);
    };

    gpu.compute_major = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    gpu.compute_minor = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
    gpu.sm_count      = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    gpu.copy_engines  = ask(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 0);
    gpu.integrated    = ask(CU_DEVICE_ATTRIBUTE_INTEGRATED, 0) != 0;
    gpu.coherent = ask(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0) != 0;
    gpu.posix_fd = ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0) != 0;
    // By number: toolkits before 12.1, 12.3 and 12.9 do not name these. A driver that does not
    // know "IPC events" is from a time when every GPU with peer access had IPC.
    gpu.legacy_ipc = ask(static_cast<CUdevice_attribute>(125), 1) != 0;
    gpu.fabric_ipc = ask(static_cast<CUdevice_attribute>(128), 0) != 0;
    gpu.numa       = ask(static_cast<CUdevice_attribute>(134), facts_unknown);
}

void ask_pair(const cuda_api &cuda, CUdevice from, CUdevice to, pair_facts &pair)
{
    int can = 0;

    pair.peer_access = cuda.cuDeviceCanAccessPeer(&can, from, to) == CUDA_SUCCESS && can != 0;
    pair.native_atomics =
        p2p_attribute_of(cuda, from, to, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0) != 0;
    pair.perf_rank = std::max(
        facts_unknown,
        p2p_attribute_of(cuda, from, to, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, facts_unknown));
}

// "2x-nvidia-h200": tells what it is without telling whose it is.
std::string machine_name(const machine_facts &facts)
{
    if (facts.gpus.empty()) {
        return "no-gpu";
    }
    std::string name = std::to_string(facts.gpus.size()) + "x-";

    name += facts.gpus[0].name.empty() ? "gpu" : facts.gpus[0].name;
    for (char &c : name) {
        c = std::isalnum(static_cast<unsigned char>(c)) || c == '.'
                ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                : '-';
    }
    return name;
}

} // namespace

gpu_facts &add_gpu(machine_facts &facts)
{
    const size_t            old = facts.gpus.size();
    std::vector<pair_facts> larger((old + 1) * (old + 1));

    for (size_t a = 0; a < old; ++a) {
        for (size_t b = 0; b < old; ++b) {
            larger[a * (old + 1) + b] = facts.pairs[a * old + b];
        }
    }
    facts.pairs = std::move(larger);
    facts.gpus.emplace_back();
    return facts.gpus.back();
}

void probe_cuda(const cuda_api &cuda, machine_facts &facts)
{
    std::vector<CUdevice> devices;
    int                   count = 0;

    facts.cuda_version = cuda.version;
    if (cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) {
        return;
    }
    for (int ordinal = 0; ordinal < std::min(count, facts_max_gpus); ++ordinal) {
        CUdevice device;
        if (cuda.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS) {
            continue;
        }
        gpu_facts &gpu = add_gpu(facts);
        gpu.cuda       = ordinal;
        ask_identity(cuda, device, gpu);
        ask_attributes(cuda, device, gpu);
        devices.push_back(device);
    }
    for (size_t a = 0; a < devices.size(); ++a) {
        for (size_t b = 0; b < devices.size(); ++b) {
            if (a != b) {
                ask_pair(cuda, devices[a], devices[b], facts.pair(a, b));
            }
        }
    }
}

namespace {

template<typename F> bool any_pair(const machine_facts &facts, F is_one)
{
    for (size_t a = 0; a < facts.gpus.size(); ++a) {
        for (size_t b = 0; b < facts.gpus.size(); ++b) {
            if (a != b && is_one(a, b)) {
                return true;
            }
        }
    }
    return false;
}

// Is there a pair of which neither the driver nor NVML tells how its bytes go?
bool lacks_pcie(const machine_facts &facts)
{
    return any_pair(
        facts, [&](size_t a, size_t b) { return facts.pair(a, b).pcie == pcie_level::unknown; });
}

// Or one that is reached, and nobody tells of its links?
bool lacks_links(const machine_facts &facts)
{
    return any_pair(facts, [&](size_t a, size_t b) {
        return facts.gpus[a].links.empty() && facts.gpus[b].links.empty() &&
               facts.pair(a, b).peer_access && facts.pair(a, b).nvml_nvlink == p2p_status::unknown;
    });
}

} // namespace

machine_facts probe_machine(const cuda_api *cuda, probe_depth depth)
{
    machine_facts facts;

    if (cuda != nullptr) {
        probe_cuda(*cuda, facts);
    }
    probe_nvml(facts);
    probe_system(facts);
    const bool links = depth == probe_depth::full || lacks_links(facts);
    if (links || lacks_pcie(facts)) {
        probe_hwloc(facts, links);
    }
    facts.machine = machine_name(facts);
    return facts;
}

} // namespace nvl
