// SPDX-License-Identifier: BSD-3-Clause
//
// The emulated NVML, libnvidia-ml.so.1: answers from the machine that machine.h reads, as
// the real library answers on it. Shares no state with the emulated libcuda, as in reality. Loaded by the plugin, by UCX's own CUDA modules and by
// nvlink_info.
//
// NVL_EMU_NVML=stub, =missing or =<code> overrides the machine's own nvml_state: a library that
// is there cannot be missing, so "missing" answers as the stub does; a test that wants it truly
// away leaves this folder out of the search path. Single calls fail by NVL_EMU_FAULTS.

#include "driver/nvml_abi.h"
#include "machine.h"
#include "nvml_faults.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

namespace nvl {
struct nvml_device_opaque {
    const gpu_facts *gpu = nullptr;
};
} // namespace nvl

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

// NVML_API(name, parameters, arguments) { body } : the call is counted, may be made to fail, and
// is refused before nvmlInit; no exception leaves it.
#define NVML_API(name, params, args)                           \
    static nvml_return name##_body params;                     \
    NVML_EXPORT nvml_return name   params;                     \
    NVML_EXPORT nvml_return name   params                      \
    {                                                          \
        return enter(#name, [&] { return name##_body args; }); \
    }                                                          \
    static nvml_return name##_body params

using namespace nvl;

namespace {

struct machine_state {
    std::vector<nvml_device_opaque> devices;  // one for each of the machine's gpus
    std::vector<size_t>             by_index; // NVML index -> position in its gpus
};

std::mutex lock_g;
unsigned   users_g = 0; // nvmlInit without nvmlShutdown

// What nvmlInit, and the stub everywhere, answers.
nvml_return start_code(const machine_facts &facts)
{
    const char *forced = std::getenv("NVL_EMU_NVML");

    if (forced != nullptr && *forced != '\0') {
        if (std::strcmp(forced, "stub") == 0 || std::strcmp(forced, "missing") == 0) {
            return nvml_library_not_found;
        }
        if (std::strcmp(forced, "present") == 0) {
            return nvml_success;
        }
        return std::atoi(forced);
    }
    switch (facts.nvml) {
    case nvml_state::present:
    case nvml_state::slow:
    case nvml_state::hanging: // at the call that the file names, see enter()
        return nvml_success;
    case nvml_state::failing:
        return facts.nvml_code;
    case nvml_state::missing:
    case nvml_state::stub:
        break;
    }
    return nvml_library_not_found;
}

machine_state load_machine()
{
    machine_state state;

    const auto &gpus = emu::machine().gpus;
    state.devices.resize(gpus.size());
    for (size_t i = 0; i < gpus.size(); ++i) {
        state.devices[i].gpu = &gpus[i];
        if (gpus[i].nvml >= 0) {
            state.by_index.push_back(i);
        }
    }
    std::sort(state.by_index.begin(), state.by_index.end(),
              [&](size_t a, size_t b) { return gpus[a].nvml < gpus[b].nvml; });
    return state;
}

machine_state &devices()
{
    // Never destroyed: a thread that was left behind in a call may go on while the process ends.
    static auto *only = new machine_state(load_machine());
    return *only;
}

template<class Body> nvml_return enter(const char *name, Body &&body) noexcept
{
    try {
        std::unique_lock<std::mutex> guard(lock_g);
        const nvml_return            start = start_code(emu::machine());
        nvml_return                  planned;

        if (start == nvml_library_not_found) {
            return start;
        }
        const auto &facts  = emu::machine();
        const char *forced = std::getenv("NVL_EMU_NVML");
        const bool  is_own = forced == nullptr || *forced == '\0';
        if (is_own && facts.nvml == nvml_state::hanging && facts.nvml_call == name) {
            guard.unlock();
            for (;;) {
                pause();
            }
        }
        if (emu::nvml_fault(name, guard, &planned)) {
            return planned;
        }
        if (std::strncmp(name, "nvmlInit", 8) == 0) {
            if (start == nvml_success) {
                ++users_g;
            }
            return start;
        }
        return users_g == 0 ? nvml_uninitialized : body();
    } catch (...) {
        return nvml_unknown;
    }
}

const gpu_facts *gpu_of(nvml_device device)
{
    for (const auto &known : devices().devices) {
        if (&known == device) {
            return known.gpu;
        }
    }
    return nullptr;
}

nvml_return give_text(char *out, unsigned length, const std::string &text)
{
    if (out == nullptr) {
        return nvml_invalid_argument;
    }
    if (text.size() + 1 > length) {
        return nvml_insufficient_size;
    }
    std::memcpy(out, text.c_str(), text.size() + 1);
    return nvml_success;
}

// NVML writes PCI addresses in upper case and always names function 0.
void give_pci(const std::string &normal, nvml_pci_info *out)
{
    unsigned domain = 0, bus = 0, device = 0;

    std::memset(out, 0, sizeof(*out));
    std::sscanf(normal.c_str(), "%8x:%2x:%2x", &domain, &bus, &device);
    out->domain = domain;
    out->bus    = bus;
    out->device = device;
    std::snprintf(out->bus_id, sizeof(out->bus_id), "%08X:%02X:%02X.0", domain, bus, device);
    std::snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "%04X:%02X:%02X.0",
                  domain & 0xffff, bus & 0xff, device & 0xff);
}

// The number of link positions that the GPU has, dead ones included.
unsigned link_count(const gpu_facts &gpu)
{
    return gpu.links.empty() ? 0 : static_cast<unsigned>(gpu.links.back().index) + 1;
}

nvml_return find_link(nvml_device device, unsigned link, const link_facts **out)
{
    const gpu_facts *gpu = gpu_of(device);

    if (gpu == nullptr || gpu->mig == mig_mode::instance) {
        return nvml_invalid_argument;
    }
    if (gpu->links.empty()) {
        return nvml_not_supported;
    }
    for (const auto &known : gpu->links) {
        if (static_cast<unsigned>(known.index) == link) {
            *out = &known;
            return nvml_success;
        }
    }
    return nvml_invalid_argument;
}

nvml_return find_active_link(nvml_device device, unsigned link, const link_facts **out)
{
    const nvml_return code = find_link(device, link, out);
    return code == nvml_success && !(*out)->active ? nvml_not_supported : code;
}

void set_uint(nvml_field_value &value, int number)
{
    value.type             = nvml_type_unsigned_int;
    value.code             = number < 0 ? nvml_not_supported : nvml_success;
    value.value.uint_value = number < 0 ? 0 : static_cast<unsigned>(number);
}

// The link whose speed a field of the form SPEED_MBPS_L<n> asks for, or -1.
int link_of_speed_field(unsigned field)
{
    if (field >= nvml_field_speed_l0 && field < nvml_field_speed_common) {
        return static_cast<int>(field - nvml_field_speed_l0);
    }
    if (field >= nvml_field_speed_l6 && field < nvml_field_speed_l6 + 6) {
        return static_cast<int>(field - nvml_field_speed_l6) + 6;
    }
    return -1;
}

int common_speed(const gpu_facts &gpu)
{
    for (const auto &link : gpu.links) {
        if (link.active) {
            return link.speed_mb_s;
        }
    }
    return -1;
}

void answer_link_field(nvml_device device, unsigned link_index, nvml_field_value &value)
{
    const link_facts *link = nullptr;

    value.code = find_link(device, link_index, &link);
    if (value.code != nvml_success) {
        return;
    }
    if (value.field == nvml_field_link_state) {
        set_uint(value, link->active ? 1 : 0);
    } else if (!link->active) {
        set_uint(value, value.field == nvml_field_link_version ? -1 : 0);
    } else {
        set_uint(value, value.field == nvml_field_link_version ? link->version : link->speed_mb_s);
    }
}

void answer_field(nvml_device device, const gpu_facts &gpu, nvml_field_value &value)
{
    const int link = link_of_speed_field(value.field);

    if (value.field == nvml_field_link_count) {
        set_uint(value, static_cast<int>(link_count(gpu)));
    } else if (value.field == nvml_field_speed_common) {
        set_uint(value, common_speed(gpu));
    } else if (link >= 0) {
        answer_link_field(device, static_cast<unsigned>(link), value);
    } else if (value.field >= nvml_field_link_speed && value.field <= nvml_field_link_version) {
        answer_link_field(device, value.scope, value);
    } else {
        value.code = nvml_not_supported;
    }
}

// "8-4-4-4-12" to 16 bytes; an empty text gives zeroes.
void give_uuid_bytes(const std::string &text, unsigned char *out)
{
    size_t nibble = 0;

    std::memset(out, 0, nvml_cluster_uuid_size);
    for (char c : text) {
        if (c != '-' && nibble < 2 * nvml_cluster_uuid_size) {
            const int value = c <= '9' ? c - '0' : c - 'a' + 10;
            out[nibble / 2] =
                static_cast<unsigned char>(out[nibble / 2] | (value << (nibble % 2 ? 0 : 4)));
            ++nibble;
        }
    }
}

template<class T> void give_fabric(const fabric_facts &fabric, T *out)
{
    give_uuid_bytes(fabric.cluster_uuid, out->cluster_uuid);
    out->status = fabric.status;
    out->clique = fabric.clique;
    out->state  = static_cast<unsigned char>(fabric.state);
}

nvml_return find_index(unsigned index, nvml_device *out)
{
    auto &state = devices();

    if (out == nullptr || index >= state.by_index.size()) {
        return nvml_invalid_argument;
    }
    *out = &state.devices[state.by_index[index]];
    return nvml_success;
}

nvml_return find_pci(const char *pci, nvml_device *out)
{
    auto             &state  = devices();
    const std::string normal = pci == nullptr ? std::string() : pci_normal(pci);

    if (normal.empty() || out == nullptr) {
        return nvml_invalid_argument;
    }
    for (size_t position : state.by_index) {
        if (emu::machine().gpus[position].pci == normal) {
            *out = &state.devices[position];
            return nvml_success;
        }
    }
    return nvml_not_found;
}

} // namespace

// ---- the library ---------------------------------------------------------------------------

NVML_API(nvmlInit, (), ())
{
    return nvml_success;
}

NVML_API(nvmlInit_v2, (), ())
{
    return nvml_success;
}

NVML_API(nvmlInitWithFlags, (unsigned flags), (flags))
{
    (void)flags;
    return nvml_success;
}

NVML_API(nvmlShutdown, (), ())
{
    --users_g;
    return nvml_success;
}

NVML_EXPORT const char *nvmlErrorString(nvml_return code);
NVML_EXPORT const char *nvmlErrorString(nvml_return code)
{
    switch (code) {
    case nvml_success:
        return "Success";
    case nvml_uninitialized:
        return "Uninitialized";
    case nvml_invalid_argument:
        return "Invalid Argument";
    case nvml_not_supported:
        return "Not Supported";
    case nvml_no_permission:
        return "Insufficient Permissions";
    case nvml_not_found:
        return "Not Found";
    case nvml_insufficient_size:
        return "Insufficient Size";
    case nvml_driver_not_loaded:
        return "Driver Not Loaded";
    case nvml_library_not_found:
        return "NVML Shared Library Not Found";
    case nvml_version_mismatch:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

NVML_API(nvmlSystemGetDriverVersion, (char *out, unsigned length), (out, length))
{
    return give_text(out, length, emu::machine().driver);
}

NVML_API(nvmlSystemGetNVMLVersion, (char *out, unsigned length), (out, length))
{
    const int version = emu::machine().cuda_version / 1000;
    return give_text(out, length, std::to_string(version) + "." + emu::machine().driver);
}

static nvml_return give_cuda_version(int *out)
{
    if (out == nullptr) {
        return nvml_invalid_argument;
    }
    *out = emu::machine().cuda_version;
    return nvml_success;
}

NVML_API(nvmlSystemGetCudaDriverVersion, (int *out), (out))
{
    return give_cuda_version(out);
}

NVML_API(nvmlSystemGetCudaDriverVersion_v2, (int *out), (out))
{
    return give_cuda_version(out);
}

// ---- finding devices -----------------------------------------------------------------------

static nvml_return give_count(unsigned *out)
{
    if (out == nullptr) {
        return nvml_invalid_argument;
    }
    *out = static_cast<unsigned>(devices().by_index.size());
    return nvml_success;
}

NVML_API(nvmlDeviceGetCount, (unsigned *out), (out))
{
    return give_count(out);
}

NVML_API(nvmlDeviceGetCount_v2, (unsigned *out), (out))
{
    return give_count(out);
}

NVML_API(nvmlDeviceGetHandleByIndex, (unsigned index, nvml_device *out), (index, out))
{
    return find_index(index, out);
}

NVML_API(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvml_device *out), (index, out))
{
    return find_index(index, out);
}

NVML_API(nvmlDeviceGetHandleByUUID, (const char *uuid, nvml_device *out), (uuid, out))
{
    auto &state = devices();

    if (uuid == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    for (size_t i = 0; i < emu::machine().gpus.size(); ++i) {
        const gpu_facts &gpu      = emu::machine().gpus[i];
        const bool       instance = gpu.mig == mig_mode::instance;
        if ((instance ? gpu.mig_uuid : gpu.uuid) == uuid && (instance || gpu.nvml >= 0)) {
            *out = &state.devices[i];
            return nvml_success;
        }
    }
    return nvml_not_found;
}

NVML_API(nvmlDeviceGetHandleByPciBusId, (const char *pci, nvml_device *out), (pci, out))
{
    return find_pci(pci, out);
}

NVML_API(nvmlDeviceGetHandleByPciBusId_v2, (const char *pci, nvml_device *out), (pci, out))
{
    return find_pci(pci, out);
}

// ---- one device ----------------------------------------------------------------------------

NVML_API(nvmlDeviceGetUUID, (nvml_device device, char *out, unsigned length), (device, out, length))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr) {
        return nvml_invalid_argument;
    }
    return give_text(out, length, gpu->mig == mig_mode::instance ? gpu->mig_uuid : gpu->uuid);
}

NVML_API(nvmlDeviceGetName, (nvml_device device, char *out, unsigned length), (device, out, length))
{
    const gpu_facts *gpu = gpu_of(device);
    return gpu == nullptr ? nvml_invalid_argument : give_text(out, length, gpu->name);
}

NVML_API(nvmlDeviceGetIndex, (nvml_device device, unsigned *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr || gpu->nvml < 0) {
        return nvml_invalid_argument;
    }
    *out = static_cast<unsigned>(gpu->nvml);
    return nvml_success;
}

NVML_API(nvmlDeviceGetMinorNumber, (nvml_device device, unsigned *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr || gpu->nvml < 0) {
        return nvml_invalid_argument;
    }
    *out = static_cast<unsigned>(gpu->nvml);
    return nvml_success;
}

NVML_API(nvmlDeviceGetPciInfo_v3, (nvml_device device, nvml_pci_info *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    give_pci(gpu->pci, out);
    return nvml_success;
}

NVML_API(nvmlDeviceGetMemoryInfo, (nvml_device device, nvml_memory *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    out->total = out->free = gpu->memory_bytes;
    out->used              = 0;
    return nvml_success;
}

// Every GPU here shows its whole memory through the bus.
struct nvml_bar1_memory {
    unsigned long long total, free, used;
};

NVML_API(nvmlDeviceGetBAR1MemoryInfo, (nvml_device device, nvml_bar1_memory *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    out->total = out->free = gpu->memory_bytes;
    out->used              = 0;
    return nvml_success;
}

NVML_API(nvmlDeviceGetCudaComputeCapability, (nvml_device device, int *major, int *minor),
         (device, major, minor))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || major == nullptr || minor == nullptr) {
        return nvml_invalid_argument;
    }
    *major = gpu->compute_major;
    *minor = gpu->compute_minor;
    return nvml_success;
}

static nvml_return give_pcie(nvml_device device, unsigned *out, int gpu_facts::*member)
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    if (gpu->*member < 0) {
        return nvml_not_supported;
    }
    *out = static_cast<unsigned>(gpu->*member);
    return nvml_success;
}

NVML_API(nvmlDeviceGetMaxPcieLinkGeneration, (nvml_device device, unsigned *out), (device, out))
{
    return give_pcie(device, out, &gpu_facts::pcie_gen);
}

NVML_API(nvmlDeviceGetCurrPcieLinkGeneration, (nvml_device device, unsigned *out), (device, out))
{
    return give_pcie(device, out, &gpu_facts::pcie_gen);
}

NVML_API(nvmlDeviceGetMaxPcieLinkWidth, (nvml_device device, unsigned *out), (device, out))
{
    return give_pcie(device, out, &gpu_facts::pcie_width);
}

NVML_API(nvmlDeviceGetCurrPcieLinkWidth, (nvml_device device, unsigned *out), (device, out))
{
    return give_pcie(device, out, &gpu_facts::pcie_width);
}

NVML_API(nvmlDeviceGetNumaNodeId, (nvml_device device, unsigned *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    // The node of the GPU's own memory, which only coherent systems have.
    return nvml_not_supported;
}

NVML_API(nvmlDeviceGetVirtualizationMode, (nvml_device device, int *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    if (gpu->virt == virtualization::unknown) {
        return nvml_not_supported;
    }
    *out = static_cast<int>(gpu->virt) - static_cast<int>(virtualization::none);
    return nvml_success;
}

// ---- instances -----------------------------------------------------------------------------

NVML_API(nvmlDeviceGetMigMode, (nvml_device device, unsigned *current, unsigned *pending),
         (device, current, pending))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || current == nullptr || pending == nullptr) {
        return nvml_invalid_argument;
    }
    if (gpu->compute_major < 8 || gpu->mig == mig_mode::instance) {
        return nvml_not_supported;
    }
    *current = *pending = gpu->mig == mig_mode::enabled ? 1 : 0;
    return nvml_success;
}

NVML_API(nvmlDeviceIsMigDeviceHandle, (nvml_device device, unsigned *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    *out = gpu->mig == mig_mode::instance ? 1 : 0;
    return nvml_success;
}

NVML_API(nvmlDeviceGetMaxMigDeviceCount, (nvml_device device, unsigned *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    *out = gpu->mig == mig_mode::enabled ? 7 : 0;
    return nvml_success;
}

NVML_API(nvmlDeviceGetMigDeviceHandleByIndex,
         (nvml_device device, unsigned index, nvml_device *out), (device, index, out))
{
    auto            &state = devices();
    const gpu_facts *gpu   = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    const int parent = static_cast<int>(gpu - emu::machine().gpus.data());
    for (size_t i = 0; i < emu::machine().gpus.size(); ++i) {
        const gpu_facts &instance = emu::machine().gpus[i];
        if (instance.mig == mig_mode::instance && instance.mig_parent == parent && index-- == 0) {
            *out = &state.devices[i];
            return nvml_success;
        }
    }
    return nvml_not_found;
}

NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvml_device device, nvml_device *out),
         (device, out))
{
    auto            &state = devices();
    const gpu_facts *gpu   = gpu_of(device);
    if (gpu == nullptr || out == nullptr || gpu->mig != mig_mode::instance || gpu->mig_parent < 0) {
        return nvml_invalid_argument;
    }
    *out = &state.devices[static_cast<size_t>(gpu->mig_parent)];
    return nvml_success;
}

// ---- links ---------------------------------------------------------------------------------

NVML_API(nvmlDeviceGetNvLinkState, (nvml_device device, unsigned link, int *out),
         (device, link, out))
{
    const link_facts *found = nullptr;
    const nvml_return code  = find_link(device, link, &found);

    if (code == nvml_success) {
        *out = found->active ? 1 : 0;
    }
    return code;
}

NVML_API(nvmlDeviceGetNvLinkVersion, (nvml_device device, unsigned link, unsigned *out),
         (device, link, out))
{
    const link_facts *found = nullptr;
    const nvml_return code  = find_active_link(device, link, &found);

    if (code != nvml_success) {
        return code;
    }
    if (found->version < 0) {
        return nvml_not_supported;
    }
    // The driver's own numbers: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0 are 1 to 7.
    static constexpr unsigned numbers[] = {0, 1, 2, 4, 6, 7};
    if (static_cast<size_t>(found->version) >= sizeof(numbers) / sizeof(numbers[0])) {
        return nvml_not_supported;
    }
    *out = numbers[found->version];
    return nvml_success;
}

NVML_API(nvmlDeviceGetNvLinkCapability,
         (nvml_device device, unsigned link, int capability, unsigned *out),
         (device, link, capability, out))
{
    const link_facts *found = nullptr;
    const nvml_return code  = find_active_link(device, link, &found);

    if (code == nvml_success) {
        // P2P, P2P atomics and "valid"; system memory only where a processor has the other end.
        const bool cpu = found->remote == link_remote::cpu;
        *out           = (capability == 0 || capability == 2)   ? !cpu
                         : (capability == 1 || capability == 3) ? cpu
                                                                : capability == 5;
    }
    return code;
}

static nvml_return give_remote_pci(nvml_device device, unsigned link, nvml_pci_info *out)
{
    const link_facts *found = nullptr;
    const nvml_return code  = find_active_link(device, link, &found);

    if (code != nvml_success) {
        return code;
    }
    if (out == nullptr) {
        return nvml_invalid_argument;
    }
    if (found->remote == link_remote::unreadable) {
        return nvml_unknown;
    }
    if (found->remote_pci.empty()) {
        give_pci("ffffffff:ff:ff.0", out); // what a guest reads that may not see the other end
        return nvml_success;
    }
    give_pci(found->remote_pci, out);
    return nvml_success;
}

NVML_API(nvmlDeviceGetNvLinkRemotePciInfo, (nvml_device device, unsigned link, nvml_pci_info *out),
         (device, link, out))
{
    return give_remote_pci(device, link, out);
}

NVML_API(nvmlDeviceGetNvLinkRemotePciInfo_v2,
         (nvml_device device, unsigned link, nvml_pci_info *out), (device, link, out))
{
    return give_remote_pci(device, link, out);
}

NVML_API(nvmlDeviceGetNvLinkRemoteDeviceType, (nvml_device device, unsigned link, int *out),
         (device, link, out))
{
    const link_facts *found = nullptr;
    const nvml_return code  = find_active_link(device, link, &found);

    if (code != nvml_success) {
        return code;
    }
    switch (found->remote) {
    case link_remote::gpu:
        *out = nvml_remote_gpu;
        break;
    case link_remote::nvswitch:
        *out = nvml_remote_nvswitch;
        break;
    case link_remote::cpu:
        *out = nvml_remote_npu;
        break;
    case link_remote::unreadable:
        return nvml_unknown;
    case link_remote::hidden:
    case link_remote::unknown:
        *out = nvml_remote_unknown;
        break;
    }
    return nvml_success;
}

NVML_API(nvmlDeviceGetFieldValues, (nvml_device device, int count, nvml_field_value *values),
         (device, count, values))
{
    const gpu_facts *gpu = gpu_of(device);

    if (gpu == nullptr || values == nullptr || count < 1) {
        return nvml_invalid_argument;
    }
    for (int i = 0; i < count; ++i) {
        values[i].timestamp = std::chrono::duration_cast<std::chrono::microseconds>(
                                  std::chrono::system_clock::now().time_since_epoch())
                                  .count();
        values[i].latency_us = 0;
        answer_field(device, *gpu, values[i]);
    }
    return nvml_success;
}

// ---- pairs ---------------------------------------------------------------------------------

static const pair_facts *find_pair(nvml_device one, nvml_device other)
{
    const gpu_facts *a = gpu_of(one);
    const gpu_facts *b = gpu_of(other);

    if (a == nullptr || b == nullptr) {
        return nullptr;
    }
    return &emu::machine().pair(static_cast<size_t>(a - emu::machine().gpus.data()),
                                static_cast<size_t>(b - emu::machine().gpus.data()));
}

NVML_API(nvmlDeviceGetP2PStatus, (nvml_device one, nvml_device other, int index, int *out),
         (one, other, index, out))
{
    const pair_facts *pair = find_pair(one, other);

    if (pair == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    const p2p_status status[] = {pair->nvml_read, pair->nvml_write, pair->nvml_nvlink,
                                 pair->nvml_atomics};
    if (index < 0 || index > 3) {
        return nvml_not_supported;
    }
    *out = one == other ? 0 : static_cast<int>(status[index]);
    return nvml_success;
}

NVML_API(nvmlDeviceGetTopologyCommonAncestor, (nvml_device one, nvml_device other, int *out),
         (one, other, out))
{
    const pair_facts *pair = find_pair(one, other);

    if (pair == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    if (one != other && pair->pcie == pcie_level::unknown) {
        return nvml_not_supported;
    }
    *out = one == other ? 0 : static_cast<int>(pair->pcie);
    return nvml_success;
}

// ---- fabric --------------------------------------------------------------------------------

NVML_API(nvmlDeviceGetGpuFabricInfo, (nvml_device device, nvml_fabric_info *out), (device, out))
{
    const gpu_facts *gpu = gpu_of(device);
    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    if (gpu->compute_major < 9) {
        return nvml_not_supported;
    }
    give_fabric(gpu->fabric, out);
    return nvml_success;
}

NVML_API(nvmlDeviceGetGpuFabricInfoV, (nvml_device device, nvml_fabric_info_v2 *out), (device, out))
{
    // Version 3 adds one byte, which falls into the padding that version 2 does not have.
    static constexpr unsigned size_v3 = 40;
    const gpu_facts          *gpu     = gpu_of(device);

    if (gpu == nullptr || out == nullptr) {
        return nvml_invalid_argument;
    }
    const bool v3 = out->version == nvml_struct_version(size_v3, 3);
    if (out->version != nvml_fabric_info_v2_version && !v3) {
        return nvml_version_mismatch;
    }
    if (gpu->compute_major < 9) {
        return nvml_not_supported;
    }
    give_fabric(gpu->fabric, out);
    out->health_mask = 0;
    if (v3) {
        reinterpret_cast<unsigned char *>(out)[sizeof(*out)] = 0; // summary: not supported
    }
    return nvml_success;
}
