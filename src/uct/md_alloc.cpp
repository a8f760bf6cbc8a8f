// SPDX-License-Identifier: BSD-3-Clause
//
// Allocation of host memory by the memory domain. Called through the op table of md.
//
// It is here for what it makes of atomic operations. UCX 1.22 gives lanes for them to
// transports that register host memory or, in second place, that allocate it
// (ucp_wireup_add_amo_lanes asks for host memory alone), and then takes them for GPU
// memory too. A domain that registered host memory would displace others (doc/host-memory.md);
// one that allocates it gets the lane, and is asked for memory only where there is
// neither shared memory nor a huge page (UCX_ALLOC_PRIO).
#include "uct/md.h"

#include <sys/mman.h>
#include <unistd.h>

namespace nvl {

ucs_status_t md_alloc(uct_md_h super, size_t *length_p, void **address_p, ucs_memory_type_t type,
                      ucs_sys_device_t, unsigned, const char *, uct_mem_h *memh_p) noexcept
{
    if (type != UCS_MEMORY_TYPE_HOST) {
        return UCS_ERR_UNSUPPORTED; // cuda_copy allocates GPU memory
    }
    auto   page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t size = (*length_p + page - 1) / page * page;
    if (size == 0) {
        return UCS_ERR_INVALID_PARAM;
    }
    void *address =
        mmap(*address_p, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
        return UCS_ERR_NO_MEMORY;
    }
    result<std::unique_ptr<registration>> made =
        registration::create(*md_of(super).where, address, size);
    if (!made.ok()) {
        munmap(address, size);
        return made.status();
    }
    *length_p  = size;
    *address_p = address;
    *memh_p    = made.value().release();
    return UCS_OK;
}

ucs_status_t md_free(uct_md_h, uct_mem_h memh) noexcept
{
    registration *mine    = registration_of(memh);
    auto         *address = reinterpret_cast<void *>(mine->address());
    size_t        size    = mine->size_bytes();
    delete mine;
    return (munmap(address, size) == 0) ? UCS_OK : UCS_ERR_IO_ERROR;
}

} // namespace nvl
