// SPDX-License-Identifier: BSD-3-Clause
//
// Virtual memory management: physical memory and its handles, reserved addresses, mappings and
// who may use them; sharing by descriptor and by fabric handle.
#include "vmm.h"
#include "driver.h"
#include "handle_file.h"
#include "sharing.h"

namespace emu {

// A CUmemGenericAllocationHandle. The memory lives on for as long as it is mapped anywhere.
struct physical {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp          prop{};
    size_t                       size = 0;
    std::shared_ptr<backing>     memory;
    unsigned                     refs = 1; // under the table's mutex
};

namespace {

struct vmm_state {
    std::mutex                                                        mutex;
    std::map<CUmemGenericAllocationHandle, std::shared_ptr<physical>> handles;
    std::map<uint64_t, size_t>                                        reservations;
    std::map<uint64_t, std::shared_ptr<physical>>                     mapped; // by address
};

vmm_state &vmm()
{
    static vmm_state *only = new vmm_state;
    return *only;
}

constexpr int known_handle_types =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;

CUresult check_prop(const CUmemAllocationProp *prop, device **dev)
{
    EMU_REQUIRE(prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
    *dev = device_at(prop->location.id);
    EMU_REQUIRE(*dev != nullptr, CUDA_ERROR_INVALID_DEVICE);
    return check_handle_types(**dev, static_cast<unsigned>(prop->requestedHandleTypes));
}

std::shared_ptr<physical> physical_of(CUmemGenericAllocationHandle handle)
{
    std::lock_guard lock(vmm().mutex);
    auto            found = vmm().handles.find(handle);
    return found == vmm().handles.end() ? nullptr : found->second;
}

void add_handle(const std::shared_ptr<physical> &made)
{
    made->handle = new_handle(handle_kind::physical);
    std::lock_guard lock(vmm().mutex);
    vmm().handles[made->handle] = made;
}

bool is_reserved(uint64_t base, size_t size) // under the lock
{
    auto next = vmm().reservations.upper_bound(base);
    if (next == vmm().reservations.begin())
        return false;
    auto &[start, length] = *std::prev(next);
    return size <= length && base - start <= length - size;
}

// The mappings that make up [base, base + size) exactly; empty when they do not.
std::vector<std::shared_ptr<range>> whole_mappings(uint64_t base, size_t size)
{
    auto     found = drv().memory.within(base, size);
    uint64_t at    = base;
    for (auto &r : found) {
        if (r->kind != range_kind::vmm || r->base != at)
            return {};
        at += r->size;
    }
    return at == base + size ? found : std::vector<std::shared_ptr<range>>();
}

} // namespace

// Which kinds of handle this device and this user may have. A fabric handle needs an IMEX channel.
CUresult check_handle_types(const device &dev, unsigned types)
{
    EMU_REQUIRE((types & ~static_cast<unsigned>(known_handle_types)) == 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0 || dev.facts->posix_fd,
                CUDA_ERROR_NOT_SUPPORTED);
    if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
        EMU_REQUIRE(dev.facts->fabric_ipc, CUDA_ERROR_NOT_SUPPORTED);
        EMU_REQUIRE(machine().imex, CUDA_ERROR_NOT_PERMITTED);
    }
    return CUDA_SUCCESS;
}

CUresult open_shared_fd(int fd, std::shared_ptr<backing> *memory)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    EMU_REQUIRE(own >= 0, CUDA_ERROR_UNKNOWN);
    *memory = backing::adopt(own);
    EMU_REQUIRE(*memory != nullptr, CUDA_ERROR_INVALID_VALUE);
    const shared_page &page = (*memory)->page();
    EMU_REQUIRE(machine().host.compare(0, sizeof(page.host) - 1, page.host) == 0,
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult open_shared_fabric(const void *raw, handle_purpose purpose,
                            std::shared_ptr<backing> *memory)
{
    EMU_REQUIRE(machine().imex, CUDA_ERROR_NOT_SUPPORTED);
    memory_handle handle;
    memcpy(&handle, raw, sizeof(handle));
    EMU_REQUIRE(handle.purpose == purpose, CUDA_ERROR_INVALID_VALUE);
    *memory = open_file(handle);
    EMU_REQUIRE(*memory != nullptr, CUDA_ERROR_INVALID_HANDLE);
    const shared_page &page      = (*memory)->page();
    bool               same_host = machine().host.compare(0, sizeof(page.host) - 1, page.host) == 0;
    bool               same_fabric = page.cluster[0] != '\0' && !machine().gpus.empty() &&
                       fabric_name(machine().gpus[0]) == page.cluster;
    EMU_REQUIRE(same_host || same_fabric, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult device_of_shared(const backing &memory, int *ordinal)
{
    device *dev = device_of_uuid(memory.page().device_uuid);
    if (dev != nullptr) {
        *ordinal = dev->ordinal;
        return CUDA_SUCCESS;
    }
    const shared_page &page = memory.page();
    // Memory of another host's GPU, over the fabric: it belongs to none of ours.
    EMU_REQUIRE(machine().host.compare(0, sizeof(page.host) - 1, page.host) != 0,
                CUDA_ERROR_INVALID_DEVICE);
    *ordinal = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
}

CUresult share_memory(void *out, const backing &memory, size_t size, unsigned type,
                      unsigned allowed, handle_purpose purpose)
{
    EMU_REQUIRE(out != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((allowed & type) != 0, CUDA_ERROR_INVALID_VALUE);
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        int fd = fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0);
        EMU_REQUIRE(fd >= 0, CUDA_ERROR_OUT_OF_MEMORY);
        memcpy(out, &fd, sizeof(fd));
        return CUDA_SUCCESS;
    }
    EMU_REQUIRE(type == CU_MEM_HANDLE_TYPE_FABRIC, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(machine().imex, CUDA_ERROR_NOT_PERMITTED);
    memory_handle handle = handle_of(memory, size, purpose);
    memset(out, 0, sizeof(CUmemFabricHandle));
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

// A device that may be given access: the memory's own, or one that can reach it.
CUresult check_access_to(const CUmemLocation &location, int memory_device)
{
    EMU_REQUIRE(location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    device *dev   = device_at(location.id);
    device *owner = device_at(memory_device);
    EMU_REQUIRE(dev != nullptr, CUDA_ERROR_INVALID_DEVICE);
    EMU_REQUIRE(owner == nullptr || owner == dev || can_reach(*dev, *owner),
                CUDA_ERROR_INVALID_DEVICE);
    return CUDA_SUCCESS;
}

bool is_access(unsigned long long flags)
{
    return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
           flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

std::pair<uint64_t, size_t> reservation_of(uint64_t address)
{
    std::lock_guard lock(vmm().mutex);
    auto            next = vmm().reservations.upper_bound(address);
    if (next == vmm().reservations.begin())
        return {0, 0};
    auto &[base, size] = *std::prev(next);
    return address - base < size ? std::make_pair(base, size) : std::pair<uint64_t, size_t>(0, 0);
}

size_t live_physical()
{
    std::lock_guard lock(vmm().mutex);
    return vmm().handles.size();
}

size_t live_reservations()
{
    std::lock_guard lock(vmm().mutex);
    return vmm().reservations.size();
}

} // namespace emu

using namespace emu;

EMU_API(cuMemGetAllocationGranularity,
        (size_t * granularity, const CUmemAllocationProp *prop,
         CUmemAllocationGranularity_flags option),
        (granularity, prop, option))
{
    EMU_REQUIRE(granularity != nullptr && prop != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(option == CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
                    option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(prop->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        EMU_REQUIRE(device_at(prop->location.id) != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *granularity = va_granule;
    return CUDA_SUCCESS;
}

EMU_API(cuMemCreate,
        (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,
         unsigned long long flags),
        (handle, size, prop, flags))
{
    EMU_REQUIRE(handle != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
    device *dev = nullptr;
    EMU_TRY(check_prop(prop, &dev));
    EMU_REQUIRE(size > 0 && size % va_granule == 0, CUDA_ERROR_INVALID_VALUE);
    auto made  = std::make_shared<physical>();
    made->prop = *prop;
    made->size = size;
    EMU_TRY(make_backing(dev, size, memory_source::physical, &made->memory));
    made->memory->page().handle_types    = static_cast<uint32_t>(prop->requestedHandleTypes);
    made->memory->page().gpu_direct_rdma = prop->allocFlags.gpuDirectRDMACapable;
    add_handle(made);
    *handle = made->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
{
    std::shared_ptr<physical> last;
    std::lock_guard           lock(vmm().mutex);
    auto                      found = vmm().handles.find(handle);
    EMU_REQUIRE(found != vmm().handles.end(), CUDA_ERROR_INVALID_VALUE);
    if (--found->second->refs == 0) {
        last = found->second;
        vmm().handles.erase(found);
    }
    return CUDA_SUCCESS;
}

EMU_API(cuMemAddressReserve,
        (CUdeviceptr * pointer, size_t size, size_t alignment, CUdeviceptr wanted,
         unsigned long long flags),
        (pointer, size, alignment, wanted, flags))
{
    EMU_REQUIRE(pointer != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(size > 0 && size % va_granule == 0, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((alignment & (alignment - 1)) == 0, CUDA_ERROR_INVALID_VALUE);
    uint64_t base = drv().memory.reserve(size, alignment, wanted);
    EMU_REQUIRE(base != 0, CUDA_ERROR_OUT_OF_MEMORY);
    std::lock_guard lock(vmm().mutex);
    vmm().reservations[base] = size;
    *pointer                 = base;
    return CUDA_SUCCESS;
}

EMU_API(cuMemAddressFree, (CUdeviceptr pointer, size_t size), (pointer, size))
{
    {
        std::lock_guard lock(vmm().mutex);
        EMU_REQUIRE(!drv().memory.overlaps(pointer, size), CUDA_ERROR_INVALID_VALUE);
        auto found = vmm().reservations.find(pointer);
        EMU_REQUIRE(found != vmm().reservations.end() && found->second == size,
                    CUDA_ERROR_INVALID_VALUE);
        vmm().reservations.erase(found);
    }
    drv().memory.release(pointer, size);
    return CUDA_SUCCESS;
}

EMU_API(cuMemMap,
        (CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
         unsigned long long flags),
        (pointer, size, offset, handle, flags))
{
    EMU_REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<physical> p = physical_of(handle);
    EMU_REQUIRE(p != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(size > 0 && size % va_granule == 0 && pointer % va_granule == 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(offset == 0 && size <= p->size, CUDA_ERROR_NOT_SUPPORTED);
    auto r          = std::make_shared<range>();
    r->base         = pointer;
    r->size         = size;
    r->kind         = range_kind::vmm;
    r->memory       = p->memory;
    r->bytes        = p->memory->bytes();
    r->device       = p->prop.location.id;
    r->buffer_id    = next_buffer_id();
    r->handle_types = static_cast<unsigned>(p->prop.requestedHandleTypes);
    std::lock_guard lock(vmm().mutex);
    EMU_REQUIRE(is_reserved(pointer, size) && drv().memory.insert_alone(r),
                CUDA_ERROR_INVALID_VALUE);
    vmm().mapped[pointer] = p;
    return CUDA_SUCCESS;
}

EMU_API(cuMemUnmap, (CUdeviceptr pointer, size_t size), (pointer, size))
{
    {
        std::lock_guard lock(vmm().mutex);
        if (is_reserved(pointer, size) && !drv().memory.overlaps(pointer, size))
            return CUDA_SUCCESS; // nothing was mapped there
    }
    auto mappings = whole_mappings(pointer, size);
    EMU_REQUIRE(!mappings.empty(), CUDA_ERROR_INVALID_VALUE);
    wait_for_users(-1); // anybody may have access
    for (auto &r : mappings) {
        std::lock_guard lock(vmm().mutex);
        EMU_TRY(free_range(r));
        vmm().mapped.erase(r->base);
    }
    return CUDA_SUCCESS;
}

EMU_API(cuMemSetAccess,
        (CUdeviceptr pointer, size_t size, const CUmemAccessDesc *descriptions, size_t count),
        (pointer, size, descriptions, count))
{
    EMU_REQUIRE(descriptions != nullptr && count > 0, CUDA_ERROR_INVALID_VALUE);
    auto mappings = whole_mappings(pointer, size);
    EMU_REQUIRE(!mappings.empty(), CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        EMU_REQUIRE(is_access(descriptions[i].flags), CUDA_ERROR_INVALID_VALUE);
        EMU_REQUIRE(device_at(descriptions[i].location.id) != nullptr, CUDA_ERROR_INVALID_VALUE);
        for (auto &r : mappings)
            EMU_TRY(check_access_to(descriptions[i].location, r->device));
    }
    for (size_t i = 0; i < count; i++) {
        for (auto &r : mappings)
            r->access[static_cast<size_t>(descriptions[i].location.id)] =
                static_cast<unsigned char>(descriptions[i].flags);
    }
    return CUDA_SUCCESS;
}

EMU_API(cuMemGetAccess,
        (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer),
        (flags, location, pointer))
{
    EMU_REQUIRE(flags != nullptr && location != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(device_at(location->id) != nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr, CUDA_ERROR_INVALID_VALUE);
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (r->has_own_access())
        *flags = r->access[static_cast<size_t>(location->id)].load();
    return CUDA_SUCCESS;
}

EMU_API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),
        (handle, address))
{
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(reinterpret_cast<uint64_t>(address));
    EMU_REQUIRE(r != nullptr && r->kind == range_kind::vmm, CUDA_ERROR_INVALID_VALUE);
    std::lock_guard lock(vmm().mutex);
    auto            found = vmm().mapped.find(r->base);
    EMU_REQUIRE(found != vmm().mapped.end(), CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<physical> &p = found->second;
    // Released before, and only mapped since: it gets its handle back.
    if (vmm().handles.emplace(p->handle, p).second)
        p->refs = 1;
    else
        p->refs++;
    *handle = p->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuMemGetAllocationPropertiesFromHandle,
        (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), (prop, handle))
{
    EMU_REQUIRE(prop != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<physical> p = physical_of(handle);
    EMU_REQUIRE(p != nullptr, CUDA_ERROR_INVALID_VALUE);
    *prop = p->prop;
    return CUDA_SUCCESS;
}

EMU_API(cuMemExportToShareableHandle,
        (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
         unsigned long long flags),
        (out, handle, type, flags))
{
    EMU_REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<physical> p = physical_of(handle);
    EMU_REQUIRE(p != nullptr, CUDA_ERROR_INVALID_VALUE);
    return share_memory(out, *p->memory, p->size, static_cast<unsigned>(type),
                        static_cast<unsigned>(p->prop.requestedHandleTypes),
                        handle_purpose::fabric);
}

EMU_API(cuMemImportFromShareableHandle,
        (CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type),
        (handle, os_handle, type))
{
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto made = std::make_shared<physical>();
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        EMU_TRY(
            open_shared_fd(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), &made->memory));
    } else {
        EMU_REQUIRE(type == CU_MEM_HANDLE_TYPE_FABRIC && os_handle != nullptr,
                    CUDA_ERROR_INVALID_VALUE);
        EMU_TRY(open_shared_fabric(os_handle, handle_purpose::fabric, &made->memory));
    }
    const shared_page &page = made->memory->page();
    EMU_REQUIRE(page.source == memory_source::physical, CUDA_ERROR_INVALID_VALUE);
    int ordinal = 0;
    EMU_TRY(device_of_shared(*made->memory, &ordinal));
    made->size                      = page.size;
    made->prop.type                 = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->prop.location.type        = CU_MEM_LOCATION_TYPE_DEVICE;
    made->prop.location.id          = ordinal;
    made->prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(page.handle_types);
    add_handle(made);
    *handle = made->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuMemGetHandleForAddressRange,
        (void *out, CUdeviceptr pointer, size_t size, CUmemRangeHandleType type,
         unsigned long long flags),
        (out, pointer, size, type, flags))
{
    EMU_REQUIRE(out != nullptr && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((flags & ~static_cast<unsigned long long>(
                             CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)) == 0,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(pointer % page_size == 0 && size > 0 && size % page_size == 0,
                CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<range> r = gpu_range(pointer);
    EMU_REQUIRE(r != nullptr && !r->is_host() && r->kind != range_kind::managed,
                CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(size <= round_up(r->size, page_size) - (pointer - r->base),
                CUDA_ERROR_INVALID_VALUE);
    device *dev = device_at(r->device);
    EMU_REQUIRE(dev != nullptr && dev->facts->posix_fd, CUDA_ERROR_NOT_SUPPORTED);
    int fd = fcntl(r->memory->fd(), F_DUPFD_CLOEXEC, 0);
    EMU_REQUIRE(fd >= 0, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}
