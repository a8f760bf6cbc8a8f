// SPDX-License-Identifier: BSD-3-Clause
//
// cuInit and what may be asked of a device: the answers come from the machine file.
#include "driver.h"
#include "report.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

namespace emu {

driver &drv()
{
    static driver *only = new driver;
    return *only;
}

uint64_t new_handle(handle_kind kind)
{
    static std::atomic<uint64_t> last{0};
    return (static_cast<uint64_t>(kind) << 40) | (++last << 4);
}

device *device_at(CUdevice ordinal)
{
    auto &devices = drv().devices;
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices.size())
        return nullptr;
    return devices[static_cast<size_t>(ordinal)].get();
}

device *device_of_uuid(const unsigned char uuid[16])
{
    for (auto &dev : drv().devices) {
        if (memcmp(dev->uuid.bytes, uuid, 16) == 0)
            return dev.get();
    }
    return nullptr;
}

const nvl::pair_facts &pair_of(const device &from, const device &to)
{
    return machine().pair(from.position, to.position);
}

bool can_reach(const device &from, const device &to)
{
    return from.position != to.position && pair_of(from, to).peer_access;
}

namespace {

std::string uuid_text_of(const nvl::gpu_facts &gpu)
{
    return gpu.mig == nvl::mig_mode::instance ? gpu.mig_uuid : gpu.uuid;
}

// Positions of the GPUs that CUDA shows, in the order of their ordinals.
std::vector<size_t> shown_gpus()
{
    std::vector<size_t> shown;
    auto               &gpus = machine().gpus;
    for (size_t i = 0; i < gpus.size(); i++) {
        if (gpus[i].cuda >= 0)
            shown.push_back(i);
    }
    std::sort(shown.begin(), shown.end(),
              [&](size_t a, size_t b) { return gpus[a].cuda < gpus[b].cuda; });
    return shown;
}

// CUDA_VISIBLE_DEVICES: numbers or (beginnings of) UUIDs; the first wrong one ends the list.
std::vector<size_t> visible_gpus()
{
    std::vector<size_t> shown = shown_gpus();
    const char         *text  = getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr)
        return shown;
    std::vector<size_t> visible;
    std::string         rest = text;
    while (!rest.empty()) {
        std::string word  = rest.substr(0, rest.find(','));
        size_t      comma = rest.find(',');
        rest              = comma == std::string::npos ? "" : rest.substr(comma + 1);
        word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
        auto match = shown.end();
        if (word.compare(0, 4, "GPU-") == 0 || word.compare(0, 4, "MIG-") == 0) {
            match = std::find_if(shown.begin(), shown.end(), [&](size_t i) {
                return uuid_text_of(machine().gpus[i]).compare(0, word.size(), word) == 0;
            });
        } else if (!word.empty() && std::all_of(word.begin(), word.end(), ::isdigit)) {
            size_t number = std::stoul(word);
            if (number < shown.size())
                match = shown.begin() + static_cast<long>(number);
        }
        if (match == shown.end())
            return visible;
        if (std::find(visible.begin(), visible.end(), *match) != visible.end())
            return {}; // one named twice: the driver shows none
        visible.push_back(*match);
    }
    return visible;
}

} // namespace

// CUDA_VISIBLE_DEVICES hides a GPU from enumeration, not from handles of other processes: since CUDA 10.1 a legacy
// handle of its memory can be opened (NCCL builds on that). What NVML does not show either is not in this container.
device *hidden_device_of_uuid(const unsigned char uuid[16])
{
    static std::mutex                                *mutex = new std::mutex;
    static std::map<size_t, std::unique_ptr<device>> *hidden =
        new std::map<size_t, std::unique_ptr<device>>;
    constexpr int no_ordinal = 1000; // above those that CUDA gives
    auto         &gpus       = machine().gpus;
    for (size_t i = 0; i < gpus.size(); i++) {
        unsigned char bytes[16];
        if (gpus[i].nvml < 0 || !parse_uuid(uuid_text_of(gpus[i]), bytes) ||
            memcmp(bytes, uuid, 16) != 0)
            continue;
        std::lock_guard lock(*mutex);
        auto           &dev = (*hidden)[i];
        if (dev == nullptr) {
            dev           = std::make_unique<device>();
            dev->ordinal  = no_ordinal + static_cast<int>(i);
            dev->position = i;
            dev->facts    = &gpus[i];
            memcpy(dev->uuid.bytes, bytes, 16);
        }
        return dev.get();
    }
    return nullptr;
}

CUresult load_devices()
{
    for (size_t position : visible_gpus()) {
        auto dev            = std::make_unique<device>();
        dev->ordinal        = static_cast<int>(drv().devices.size());
        dev->position       = position;
        dev->facts          = &machine().gpus[position];
        dev->primary_handle = make_handle<CUcontext>(handle_kind::context);
        unsigned char uuid[16];
        if (!parse_uuid(uuid_text_of(*dev->facts), uuid))
            return CUDA_ERROR_UNKNOWN;
        memcpy(dev->uuid.bytes, uuid, 16);
        drv().devices.push_back(std::move(dev));
    }
    return drv().devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

namespace {

struct pci_address {
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
};

pci_address pci_of(const device &dev)
{
    pci_address pci;
    sscanf(dev.facts->pci.c_str(), "%x:%x:%x.%x", &pci.domain, &pci.bus, &pci.slot, &pci.function);
    return pci;
}

// What the machine file does not say is taken from NVIDIA's published limits (CUDA Programming
// Guide, technical specifications per compute capability).
struct known_attribute {
    CUdevice_attribute attribute;
    int                value;
};
const known_attribute common_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 100},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
};

int handle_types_of(const nvl::gpu_facts &gpu)
{
    int types = 0;
    if (gpu.posix_fd)
        types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (gpu.fabric_ipc)
        types |= CU_MEM_HANDLE_TYPE_FABRIC;
    return types;
}

// What the fields of the machine file say; false: nothing about this attribute.
bool attribute_from_facts(const device &dev, CUdevice_attribute attribute, int *value)
{
    const nvl::gpu_facts &gpu = *dev.facts;
    switch (static_cast<int>(attribute)) { // some are newer than the toolkit
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = gpu.compute_major;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = gpu.compute_minor;
        return true;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = gpu.sm_count;
        return true;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = gpu.copy_engines;
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *value = static_cast<int>(pci_of(dev).domain);
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = static_cast<int>(pci_of(dev).bus);
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *value = static_cast<int>(pci_of(dev).slot);
        return true;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        *value = gpu.integrated;
        return true;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
        *value = gpu.coherent;
        return true;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        *value = gpu.posix_fd;
        return true;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        *value = gpu.fabric_ipc;
        return true;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        *value = handle_types_of(gpu);
        return true;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
        *value = gpu.compute_major >= 9;
        return true;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        *value = std::max(gpu.numa, 0); // what the driver says of a machine without NUMA
        return true;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
        *value = gpu.coherent ? gpu.numa : -1;
        return true;
    default:
        return false;
    }
}

int attribute_of(const device &dev, CUdevice_attribute attribute)
{
    for (auto &[number, value] : dev.facts->attributes) {
        if (number == static_cast<int>(attribute))
            return value;
    }
    int value = 0;
    if (attribute_from_facts(dev, attribute, &value))
        return value;
    for (auto &known : common_attributes) {
        if (known.attribute == attribute)
            return known.value;
    }
    return 0;
}

} // namespace
} // namespace emu

using namespace emu;

EMU_API(cuInit, (unsigned int flags), (flags))
{
    EMU_REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    // A machine without a driver: a library that is there cannot be missing, so it is the stub.
    EMU_REQUIRE(machine().cuda_version > 0, CUDA_ERROR_STUB_LIBRARY);
    std::lock_guard lock(drv().mutex);
    if (drv().initialised)
        return CUDA_SUCCESS;
    EMU_TRY(load_devices());
    report_at_exit();
    drv().initialised = true;
    return CUDA_SUCCESS;
}

EMU_API(cuDriverGetVersion, (int *version), (version))
{
    EMU_REQUIRE(version != nullptr, CUDA_ERROR_INVALID_VALUE);
    *version = machine().cuda_version;
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGetCount, (int *count), (count))
{
    EMU_REQUIRE(count != nullptr, CUDA_ERROR_INVALID_VALUE);
    *count = static_cast<int>(drv().devices.size());
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGet, (CUdevice * dev, int ordinal), (dev, ordinal))
{
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(device_at(ordinal) != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *dev = ordinal;
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice dev),
        (value, attribute, dev))
{
    EMU_REQUIRE(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *value = attribute_of(*d, attribute);
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGetName, (char *name, int length, CUdevice dev), (name, length, dev))
{
    EMU_REQUIRE(name != nullptr && length > 0, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, static_cast<size_t>(length), "%s", d->facts->name.c_str());
    return CUDA_SUCCESS;
}

static CUresult give_uuid(CUuuid *uuid, CUdevice dev)
{
    EMU_REQUIRE(uuid != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *uuid = d->uuid;
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice dev), (uuid, dev))
{
    return give_uuid(uuid, dev);
}

EMU_API(cuDeviceGetUuid, (CUuuid * uuid, CUdevice dev), (uuid, dev))
{
    EMU_TRY(give_uuid(uuid, dev));
    // The first form of the call knows no instances: it names the whole GPU.
    unsigned char bytes[16];
    if (parse_uuid(device_at(dev)->facts->uuid, bytes))
        memcpy(uuid->bytes, bytes, 16);
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice dev), (bytes, dev))
{
    EMU_REQUIRE(bytes != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *bytes = d->facts->memory_bytes;
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGetPCIBusId, (char *text, int length, CUdevice dev), (text, length, dev))
{
    EMU_REQUIRE(text != nullptr && length > 0, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    pci_address pci = pci_of(*d);
    int needed      = snprintf(text, static_cast<size_t>(length), "%04X:%02X:%02X.%X", pci.domain,
                               pci.bus, pci.slot, pci.function);
    return needed < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EMU_API(cuDeviceGetByPCIBusId, (CUdevice * dev, const char *text), (dev, text))
{
    EMU_REQUIRE(dev != nullptr && text != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::string wanted = nvl::pci_normal(text);
    for (auto &d : drv().devices) {
        if (!wanted.empty() && nvl::pci_normal(d->facts->pci) == wanted) {
            *dev = d->ordinal;
            return CUDA_SUCCESS;
        }
    }
    return wanted.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
}

EMU_API(cuDeviceComputeCapability, (int *major, int *minor, CUdevice dev), (major, minor, dev))
{
    EMU_REQUIRE(major != nullptr && minor != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *d = device_at(dev);
    EMU_REQUIRE(d != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *major = d->facts->compute_major;
    *minor = d->facts->compute_minor;
    return CUDA_SUCCESS;
}
