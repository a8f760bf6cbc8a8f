// SPDX-License-Identifier: BSD-3-Clause
//
// See kinds.h.
#include "uct/kinds.h"

#include "driver/cuda_newer.h"

#include <algorithm>

namespace nvl::test {

namespace {

constexpr size_t granule = 2u << 20;

unsigned types_of(memory_kind kind, size_t index)
{
    switch (kind) {
    case memory_kind::vmm_fabric:
    case memory_kind::pool_fabric:
        return CU_MEM_HANDLE_TYPE_FABRIC;
    case memory_kind::vmm_both:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    case memory_kind::vmm_mixed:
        return index == 1 ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    case memory_kind::vmm_fd:
    case memory_kind::vmm_chunks:
    case memory_kind::pool_fd:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    default:
        return 0;
    }
}

CUmemAllocationProp prop_of(int gpu, unsigned types)
{
    CUmemAllocationProp prop{};
    prop.type                 = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type        = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id          = device_of(gpu);
    prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    return prop;
}

bool needs_fabric(memory_kind kind)
{
    return kind == memory_kind::vmm_fabric || kind == memory_kind::vmm_both ||
           kind == memory_kind::vmm_mixed || kind == memory_kind::pool_fabric;
}

} // namespace

const char *to_text(memory_kind kind)
{
    const char *const names[] = {"alloc",    "vmm_fd",      "vmm_fabric", "vmm_both",
                                 "vmm_none", "vmm_chunks",  "vmm_mixed",  "pool_default",
                                 "pool_fd",  "pool_fabric", "pool_none"};
    static_assert(sizeof(names) / sizeof(names[0]) == memory_kind_count, "one name each");
    return names[static_cast<int>(kind)];
}

bool can_make(memory_kind kind)
{
    if (!needs_fabric(kind)) {
        return true;
    }
    CUmemAllocationProp          prop = prop_of(0, CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle chunk;
    current_context              scope(primary_context(0));
    if (cu().cuMemCreate(&chunk, granule, &prop, 0) != CUDA_SUCCESS) {
        return false;
    }
    NVL_MUST(cuMemRelease, (chunk));
    return true;
}

bool is_exportable(memory_kind kind)
{
    return kind == memory_kind::alloc || types_of(kind, 0) != 0;
}

any_memory::any_memory(memory_kind kind, int gpu, size_t size)
    : kind_(kind), gpu_(gpu), context_(primary_context(gpu)), size_(size)
{
    current_context scope(context_);
    switch (kind) {
    case memory_kind::alloc:
        NVL_MUST(cuMemAlloc_v2, (&address_, size));
        break;
    case memory_kind::vmm_chunks:
    case memory_kind::vmm_mixed:
        make_vmm(granule);
        break;
    case memory_kind::vmm_fd:
    case memory_kind::vmm_fabric:
    case memory_kind::vmm_both:
    case memory_kind::vmm_none:
        make_vmm((size + granule - 1) / granule * granule);
        break;
    case memory_kind::pool_default:
        NVL_MUST(cuMemAllocAsync, (&address_, size, nullptr));
        NVL_MUST(cuStreamSynchronize, (nullptr));
        break;
    default:
        make_in_pool(types_of(kind, 0));
    }
}

void any_memory::make_vmm(size_t chunk_size)
{
    chunk_size_ = chunk_size;
    mapped_.resize((size_ + chunk_size - 1) / chunk_size);
    size_ = mapped_.size() * chunk_size;
    NVL_MUST(cuMemAddressReserve, (&address_, size_, 0, 0, 0));
    for (size_t i = 0; i < mapped_.size(); ++i) {
        map_chunk(i);
    }
}

void any_memory::map_chunk(size_t index)
{
    CUmemAllocationProp          prop = prop_of(gpu_, types_of(kind_, index));
    CUmemGenericAllocationHandle chunk;
    CUdeviceptr                  at = address_ + index * chunk_size_;
    CUmemAccessDesc              access{};
    access.location = prop.location;
    access.flags    = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    NVL_MUST(cuMemCreate, (&chunk, chunk_size_, &prop, 0));
    NVL_MUST(cuMemMap, (at, chunk_size_, 0, chunk, 0));
    NVL_MUST(cuMemRelease, (chunk));
    NVL_MUST(cuMemSetAccess, (at, chunk_size_, &access, 1));
    mapped_[index] = true;
}

void any_memory::unmap_chunk(size_t index)
{
    NVL_MUST(cuMemUnmap, (address_ + index * chunk_size_, chunk_size_));
    mapped_[index] = false;
}

void any_memory::replace_chunk(size_t index)
{
    current_context scope(context_);
    unmap_chunk(index);
    map_chunk(index);
}

void any_memory::make_in_pool(unsigned handle_types)
{
    CUmemPoolProps props{};
    props.allocType     = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes   = static_cast<CUmemAllocationHandleType>(handle_types);
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id   = device_of(gpu_);
    NVL_MUST(cuMemPoolCreate, (&pool_, &props));
    NVL_MUST(cuMemAllocFromPoolAsync, (&address_, size_, pool_, nullptr));
    NVL_MUST(cuStreamSynchronize, (nullptr));
}

any_memory::~any_memory()
{
    current_context scope(context_);
    if (chunk_size_ != 0) {
        for (size_t i = 0; i < mapped_.size(); ++i) {
            if (mapped_[i]) {
                unmap_chunk(i);
            }
        }
        NVL_MUST(cuMemAddressFree, (address_, size_));
    } else if (kind_ == memory_kind::alloc) {
        NVL_MUST(cuMemFree_v2, (address_));
    } else {
        NVL_MUST(cuMemFreeAsync, (address_, nullptr));
        NVL_MUST(cuStreamSynchronize, (nullptr));
    }
    if (pool_ != nullptr) {
        NVL_MUST(cuMemPoolDestroy, (pool_));
    }
}

void any_memory::write(size_t offset, const bytes &from)
{
    current_context scope(context_);
    NVL_MUST(cuMemcpyHtoD_v2, (address_ + offset, from.data(), from.size()));
    NVL_MUST(cuStreamSynchronize, (nullptr));
}

bytes any_memory::read(size_t offset, size_t size) const
{
    bytes           found(size);
    current_context scope(context_);
    NVL_MUST(cuMemcpyDtoH_v2, (found.data(), address_ + offset, size));
    return found;
}

} // namespace nvl::test
