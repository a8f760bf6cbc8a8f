// SPDX-License-Identifier: BSD-3-Clause
//
// The memory domain and the keys, as UCP calls them. C entry points: nothing
// throws out of them. Called through the op tables; calls mem.
#ifndef NVLINK_UCT_MD_H
#define NVLINK_UCT_MD_H

#include "mem/export.h"
#include "mem/key_table.h"
#include "mem/local_memory.h"
#include "uct/component.h"

namespace nvl {

// UCP multiplies this with the transfer, so it has to be about right: one
// pointer query, 1 us (measured: probe peer_limits, "pointer attributes").
constexpr double reg_cost_s = 1e-6;

// UCX_NVLINK_STRICT of the memory domain that was opened last. Any thread.
bool md_is_strict() noexcept;

struct md {
    uct_md_t         super;
    const component *owner;
    places          *where;
    map_cache       *cache;
    local_memory    *local;
    bool             takes_host; // memory on the near side
    bool             has_atomics;
    process_identity self;
};

inline md &md_of(uct_md_h super) noexcept
{
    return *reinterpret_cast<md *>(super);
}

// The registration behind a UCT memory handle.
inline registration *registration_of(uct_mem_h memh) noexcept
{
    return static_cast<registration *>(memh);
}

inline remote_key *remote_key_of(uct_rkey_t rkey) noexcept
{
    return reinterpret_cast<remote_key *>(rkey);
}

// As uct_md_mem_alloc and uct_md_mem_free, host memory only: see md_alloc.cpp.
ucs_status_t md_alloc(uct_md_h md, size_t *length_p, void **address_p, ucs_memory_type_t type,
                      ucs_sys_device_t device, unsigned flags, const char *name,
                      uct_mem_h *memh_p) noexcept;
ucs_status_t md_free(uct_md_h md, uct_mem_h memh) noexcept;

// UCX's number for the GPU with this index, or UCS_SYS_DEVICE_ID_UNKNOWN; asked
// once and kept.
ucs_sys_device_t sys_device_of(const component &owner, const places &where, int gpu) noexcept;

} // namespace nvl

extern "C" {

ucs_status_t nvl_query_md_resources(uct_component_t         *component,
                                    uct_md_resource_desc_t **resources_p,
                                    unsigned                *num_resources_p) noexcept;
ucs_status_t nvl_md_open(uct_component_t *component, const char *md_name,
                         const uct_md_config_t *config, uct_md_h *md_p) noexcept;
void         nvl_md_vfs_init(uct_md_h md) noexcept;
ucs_status_t nvl_rkey_unpack(uct_component_t *component, const void *rkey_buffer,
                             const uct_rkey_unpack_params_t *params, uct_rkey_t *rkey_p,
                             void **handle_p) noexcept;
ucs_status_t nvl_rkey_ptr(uct_component_t *component, uct_rkey_t rkey, void *handle,
                          uint64_t remote_addr, void **local_addr_p) noexcept;
ucs_status_t nvl_rkey_release(uct_component_t *component, uct_rkey_t rkey, void *handle) noexcept;
ucs_status_t nvl_rkey_compare(uct_component_t *component, uct_rkey_t rkey1, uct_rkey_t rkey2,
                              const uct_rkey_compare_params_t *params, int *result) noexcept;
}

#endif
