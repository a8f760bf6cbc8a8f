// SPDX-License-Identifier: BSD-3-Clause
//
// What is known about one machine's GPUs, as plain structs, and their text form.
//
// Filled by topo/probe (real driver) or by facts_parse (a file); read by topo/graph, by
// nvlink_info and by the emulated driver of the tests, which plays the machine that a file
// describes. Calls nothing of CUDA, NVML or UCX. Nothing here throws.
//
// To load:   nvl::machine_facts facts; std::string error;
//            if (nvl::facts_read(path, &facts, &error) != nvl::facts_result::ok) ... error
// or, from memory, nvl::facts_parse(text, &facts, &error). The error names the line.
#ifndef NVLINK_TOPO_FACTS_H
#define NVLINK_TOPO_FACTS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nvl {

constexpr int facts_max_gpus  = 64;
constexpr int facts_max_links = 36; // a GPU of today has at most 18

// A value that nobody could give.
constexpr int facts_unknown = -1;

enum class nvml_state {
    present,
    slow,    // its time was up before all was asked; what it did not answer is unknown
    missing, // no libnvidia-ml.so.1
    stub,    // the library is there, every call answers 12 (LIBRARY_NOT_FOUND)
    failing, // initialisation fails with machine_facts::nvml_code
    hanging, // machine_facts::nvml_call did not return; what it answered before is forgotten
};

enum class link_remote {
    unknown,    // nobody asked, or NVML does not say what is there
    gpu,        // another GPU, link_facts::remote_pci
    nvswitch,   // a switch, link_facts::remote_pci
    cpu,        // a processor's NVLink port (POWER, Grace)
    hidden,     // NVML answers with FFFFFFFF:FF:FF.0 (a guest that may not see the switch)
    unreadable, // NVML fails to answer
};

// The values are NVML's nvmlGpuP2PStatus_t.
enum class p2p_status {
    ok            = 0,
    chipset       = 1, // chipset not supported
    gpu           = 2, // GPU not supported
    topology      = 3, // I/O hub topology not supported
    regkey        = 4, // switched off by a driver setting
    not_supported = 5,
    unknown       = 6,
};

// The values are NVML's nvmlGpuTopologyLevel_t.
enum class pcie_level {
    internal   = 0,  // same board
    single     = 10, // one PCIe switch
    multiple   = 20, // several PCIe switches, no host bridge
    hostbridge = 30, // one host bridge
    node       = 40, // several host bridges of one NUMA node
    system     = 50, // across NUMA nodes
    unknown    = 255,
};

// The values are NVML's nvmlGpuFabricState_t.
enum class fabric_state {
    not_supported = 0,
    not_started   = 1,
    in_progress   = 2,
    completed     = 3,
};

enum class mig_mode {
    disabled,
    enabled,  // a GPU that is cut into instances; CUDA does not show it
    instance, // one such instance: gpu_facts::mig_uuid, gpu_facts::mig_parent
};

enum class virtualization {
    unknown,
    none,
    passthrough,
    vgpu,
};

struct link_facts {
    int         index      = 0;
    bool        active     = true;
    int         version    = facts_unknown;
    int         speed_mb_s = facts_unknown; // one direction, 10^6 bytes per second, as NVML gives
    link_remote remote     = link_remote::unknown;
    std::string remote_pci; // of a gpu or nvswitch, else empty
};

struct fabric_facts {
    fabric_state state  = fabric_state::not_supported;
    int          status = 0;   // an nvmlReturn_t: what joining the fabric gave
    std::string  cluster_uuid; // 8-4-4-4-12, empty when not known
    uint32_t     clique = 0;
};

struct gpu_facts {
    int                     cuda = facts_unknown; // CUDA ordinal, -1: hidden from CUDA
    int                     nvml = facts_unknown; // NVML index, -1: hidden from NVML
    std::string             uuid;                 // "GPU-...", for an instance its parent's
    std::string             pci;                  // "00000000:00:06.0", lower case
    std::string             name;
    int                     compute_major = 0;
    int                     compute_minor = 0;
    uint64_t                memory_bytes  = 0;
    int                     sm_count      = 0;
    int                     copy_engines  = 0;
    int                     numa          = facts_unknown;
    int                     pcie_gen      = facts_unknown; // the most that GPU and slot agree on
    int                     pcie_width    = facts_unknown;
    mig_mode                mig           = mig_mode::disabled;
    std::string             mig_uuid;                   // "MIG-...", only of an instance
    int                     mig_parent = facts_unknown; // position in machine_facts::gpus
    virtualization          virt       = virtualization::unknown;
    fabric_facts            fabric;
    bool                    legacy_ipc = true;  // cuIpcGetMemHandle
    bool                    posix_fd   = false; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    bool                    fabric_ipc = false; // CU_MEM_HANDLE_TYPE_FABRIC
    bool                    integrated = false;
    bool                    coherent   = false; // CPU and GPU share page tables (POWER9, Grace)
    std::vector<link_facts> links;
    std::vector<std::pair<int, int>> attributes; // further CUdevice_attribute number, value
};

// A rate and a latency that the emulated driver gives to copies of this kind; 0: not set.
struct emulated_speed {
    double rate_gb_s  = 0;
    double latency_us = 0;
};

// How GPU a sees the memory of GPU b, a and b being positions in machine_facts::gpus.
// "Push" is a's engine writing to b, "pull" is a's engine reading from b.
struct pair_facts {
    bool           peer_access    = false; // cuDeviceCanAccessPeer(a, b)
    bool           native_atomics = false;
    int            perf_rank      = facts_unknown; // CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
    pcie_level     pcie           = pcie_level::unknown;
    p2p_status     nvml_read      = p2p_status::unknown;
    p2p_status     nvml_write     = p2p_status::unknown;
    p2p_status     nvml_nvlink    = p2p_status::unknown;
    p2p_status     nvml_atomics   = p2p_status::unknown;
    int            hwloc_mb_s     = facts_unknown; // hwloc's NVLinkBandwidth distance
    emulated_speed push;
    emulated_speed pull;
};

struct machine_facts {
    std::string             machine;          // a name, no spaces
    std::string             source;           // where the figures are from; several lines
    std::string             host;             // tells machines apart, any text without spaces
    std::string             driver;           // "580.159.04"
    int                     cuda_version = 0; // of the driver: 13000
    nvml_state              nvml         = nvml_state::present;
    int                     nvml_code    = 0; // what nvmlInit answers when failing
    std::string             nvml_call;        // that did not return when hanging
    int                     nvml_untold = 0;  // GPUs that NVML counts and tells nothing else of
    int                     numa_nodes  = 1;
    int                     peer_limit  = 0;     // peers that one GPU may enable; 0: no limit
    bool                    imex        = false; // this user may use an IMEX channel (fabric)
    std::vector<gpu_facts>  gpus;
    std::vector<pair_facts> pairs; // gpus.size() squared, by row; the diagonal is unused

    const pair_facts &pair(size_t a, size_t b) const
    {
        return pairs[a * gpus.size() + b];
    }
    pair_facts &pair(size_t a, size_t b)
    {
        return pairs[a * gpus.size() + b];
    }
};

enum class facts_result {
    ok,
    unreadable, // the file cannot be read
    malformed,  // the text is not facts; the error names the line
    no_memory,
};

// Each fills *out only on success, and *error (a line of text) only on failure.
[[nodiscard]] facts_result facts_parse(std::string_view text, machine_facts *out,
                                       std::string *error) noexcept;
[[nodiscard]] facts_result facts_read(const char *path, machine_facts *out,
                                      std::string *error) noexcept;

// The text form; facts_parse gives the same facts back. Empty when memory runs out.
std::string facts_print(const machine_facts &facts) noexcept;

// Words for the values, as in the text form.
const char *to_text(nvml_state value) noexcept;
const char *to_text(link_remote value) noexcept;
const char *to_text(p2p_status value) noexcept;
const char *to_text(pcie_level value) noexcept;
const char *to_text(fabric_state value) noexcept;
const char *to_text(mig_mode value) noexcept;
const char *to_text(virtualization value) noexcept;

// "0000:1B:00.0", "00000000:1b:00.0" and "1b:00.0" name one device: this gives the long form in
// lower case, or an empty string for what is no PCI address.
std::string pci_normal(std::string_view text);

// An all-zero UUID is not an identity.
bool uuid_is_zero(std::string_view uuid) noexcept;

} // namespace nvl

#endif
