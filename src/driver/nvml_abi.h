// SPDX-License-Identifier: BSD-3-Clause
//
// NVML's interface in our own declarations: the toolkit's PyPI packages that are enough to build
// the rest do not bring nvml.h. Only what is used; layouts as of NVML 12.2 to 13.
// Included by nvml.h and by the emulated NVML of the tests. Calls nothing.
#ifndef NVLINK_DRIVER_NVML_ABI_H
#define NVLINK_DRIVER_NVML_ABI_H

#include <cstddef>

namespace nvl {

using nvml_return = int; // an enum in NVML, of int's size
using nvml_device = struct nvml_device_opaque *;

constexpr nvml_return nvml_success           = 0;
constexpr nvml_return nvml_uninitialized     = 1;
constexpr nvml_return nvml_invalid_argument  = 2;
constexpr nvml_return nvml_not_supported     = 3;
constexpr nvml_return nvml_no_permission     = 4;
constexpr nvml_return nvml_not_found         = 6;
constexpr nvml_return nvml_insufficient_size = 7;
constexpr nvml_return nvml_driver_not_loaded = 9;
constexpr nvml_return nvml_library_not_found = 12; // what the stub library answers
constexpr nvml_return nvml_version_mismatch  = 25; // of a structure
constexpr nvml_return nvml_unknown           = 999;

struct nvml_pci_info {
    char     bus_id_legacy[16]; // "0000:1B:00.0"
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    char     bus_id[32]; // "00000000:1B:00.0"
};
static_assert(sizeof(nvml_pci_info) == 68, "nvmlPciInfo_t");

struct nvml_memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

union nvml_value {
    double             double_value;
    unsigned           uint_value;
    unsigned long      ulong_value;
    unsigned long long ullong_value;
    long long          llong_value;
    int                int_value;
};

constexpr int nvml_type_unsigned_int = 1;

struct nvml_field_value {
    unsigned    field;
    unsigned    scope; // the link, for the fields that are asked link by link
    long long   timestamp;
    long long   latency_us;
    int         type;
    nvml_return code;
    nvml_value  value;
};
static_assert(sizeof(nvml_field_value) == 40, "nvmlFieldValue_t");

constexpr unsigned nvml_field_speed_l0     = 84; // to L5 = 89, MB/s of one direction
constexpr unsigned nvml_field_speed_common = 90;
constexpr unsigned nvml_field_link_count   = 91;
constexpr unsigned nvml_field_speed_l6     = 132; // to L11 = 137
constexpr unsigned nvml_field_link_speed   = 164; // by scope
constexpr unsigned nvml_field_link_state   = 165; // by scope
constexpr unsigned nvml_field_link_version = 166; // by scope

// nvmlIntNvLinkDeviceType_t
constexpr int nvml_remote_gpu      = 0;
constexpr int nvml_remote_npu      = 1;
constexpr int nvml_remote_nvswitch = 2;
constexpr int nvml_remote_unknown  = 255;

// nvmlGpuP2PCapsIndex_t
constexpr int nvml_p2p_read    = 0;
constexpr int nvml_p2p_write   = 1;
constexpr int nvml_p2p_nvlink  = 2;
constexpr int nvml_p2p_atomics = 3;

constexpr size_t nvml_cluster_uuid_size = 16;

struct nvml_fabric_info {
    unsigned char cluster_uuid[nvml_cluster_uuid_size];
    nvml_return   status;
    unsigned      clique;
    unsigned char state;
};
static_assert(sizeof(nvml_fabric_info) == 28, "nvmlGpuFabricInfo_t");

// Version 2 of nvmlGpuFabricInfoV_t; a newer NVML still answers it.
struct nvml_fabric_info_v2 {
    unsigned      version; // nvml_fabric_info_v2_version, set by the caller
    unsigned char cluster_uuid[nvml_cluster_uuid_size];
    nvml_return   status;
    unsigned      clique;
    unsigned char state;
    unsigned      health_mask;
};
static_assert(sizeof(nvml_fabric_info_v2) == 36, "nvmlGpuFabricInfo_v2_t");

constexpr unsigned nvml_struct_version(size_t size, unsigned version)
{
    return static_cast<unsigned>(size) | (version << 24);
}

constexpr unsigned nvml_fabric_info_v2_version =
    nvml_struct_version(sizeof(nvml_fabric_info_v2), 2);

} // namespace nvl

#endif
