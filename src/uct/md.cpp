// SPDX-License-Identifier: BSD-3-Clause
//
// Memory domain: resources, attributes, registration, keys, memory detection.
#include "uct/md.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "base/log.h"
#include "mem/pair_check.h"
#include "topo/topology.h"

namespace nvl {

namespace {

uint64_t memory_type_bit(ucs_memory_type_t type) noexcept
{
    return 1ull << type;
}

ucs_status_t unsupported_advise(uct_md_h, uct_mem_h, void *, size_t, unsigned) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t unsupported_attach(uct_md_h, const void *, uct_md_mem_attach_params_t *,
                                uct_mem_h *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t unsupported_elem_pack(uct_md_h, uct_mem_h, uct_rkey_t,
                                   uct_device_mem_elem_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED; // the interface has no device endpoints
}

void no_elem_release(uct_md_h, void *) noexcept
{
}

// UCX_NVLINK_STRICT of the memory domain that was opened last: a key is unpacked
// without one.
std::atomic<bool> strict_g{false};

// UCP takes another path on UNREACHABLE alone; on anything else the operation fails.
ucs_status_t not_reached(ucs_status_t status, const uint8_t *wire) noexcept
{
    key_fields fields;
    if ((status != UCS_ERR_UNREACHABLE) || !strict_g.load(std::memory_order_relaxed) ||
        (key_parse(wire, &fields) != UCS_OK)) {
        return status;
    }
    NVL_ERROR("UCX_NVLINK_STRICT=y: the GPU memory of a peer at 0x%" PRIx64
              " is not reached directly; UCX_LOG_LEVEL=diag says why",
              fields.base);
    return UCS_ERR_REJECTED;
}

// Memory domains that are open, of all UCXs in the process. The lock: none opens while the last
// one closes.
std::mutex open_mds_mutex_g;
int        open_mds_g = 0;

void md_close(uct_md_h super) noexcept
{
    md                         *self = &md_of(super);
    std::lock_guard<std::mutex> guard(open_mds_mutex_g);
    // Nobody is left who could name the peers' memory again: let go of it.
    if (--open_mds_g == 0) {
        key_table::get(*self->where).purge();
        pair_check::get(*self->where).close(); // gives imports back
        self->cache->purge();
        self->local->forget(0, SIZE_MAX); // names places
        self->where->let_go();
    }
    delete self;
}

ucs_status_t md_query(uct_md_h super, uct_md_attr_v2_t *attr) noexcept
{
    const ucx_api &api = md_of(super).owner->host->api;
    api.uct_md_base_md_query(attr);

    attr->flags = UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_RKEY | UCT_MD_FLAG_INVALIDATE |
                  UCT_MD_FLAG_INVALIDATE_RMA | UCT_MD_FLAG_INVALIDATE_AMO |
                  UCT_MD_FLAG_MEMTYPE_COPY | UCT_MD_FLAG_RKEY_PTR;
    uint64_t cuda          = memory_type_bit(UCS_MEMORY_TYPE_CUDA);
    attr->reg_mem_types    = cuda;
    attr->cache_mem_types  = cuda;
    attr->access_mem_types = cuda;
    if (md_of(super).takes_host) {
        // Host memory is accessed, not registered: UCP gives lanes for a type of memory
        // to who can register it (ucp_wireup_memaccess_bitmap of 1.22), so transfers
        // between host memories keep their lanes; and without NEED_MEMH it takes who
        // can access it for the near side (ucp_proto_common_filter_min_frag).
        attr->access_mem_types |= memory_type_bit(UCS_MEMORY_TYPE_HOST);
    } else {
        attr->flags |= UCT_MD_FLAG_NEED_MEMH;
    }
    if (md_of(super).has_atomics) {
        attr->flags |= UCT_MD_FLAG_ALLOC; // why: md_alloc.cpp
        attr->alloc_mem_types = memory_type_bit(UCS_MEMORY_TYPE_HOST);
    }
    // Managed memory is left to cuda_copy, which knows its preferred location;
    // without cuda_copy it is host memory, which the processor can touch.
    attr->detect_mem_types = cuda;
    attr->reg_cost.c       = reg_cost_s;
    attr->reg_cost.m       = 0;
    attr->rkey_packed_size = key_wire_size(md_of(super).where->shares_between_hosts());
    return UCS_OK;
}

ucs_status_t mem_reg(uct_md_h super, void *address, size_t length,
                     const uct_md_mem_reg_params_t *params, uct_mem_h *memh_p) noexcept
{
    (void)params;
    result<std::unique_ptr<registration>> made =
        registration::create(*md_of(super).where, address, length);
    if (!made.ok()) {
        return made.status();
    }
    *memh_p = made.value().release();
    return UCS_OK;
}

ucs_status_t mem_dereg(uct_md_h, const uct_md_mem_dereg_params_t *params) noexcept
{
    if (!(params->field_mask & UCT_MD_MEM_DEREG_FIELD_MEMH)) {
        return UCS_ERR_INVALID_PARAM;
    }
    delete registration_of(params->memh);

    // Whoever uses a key keeps an open mapping; what the driver cannot take
    // back, it keeps alive, so nothing of this process is in danger.
    bool invalidate = (params->field_mask & UCT_MD_MEM_DEREG_FIELD_FLAGS) &&
                      (params->flags & UCT_MD_MEM_DEREG_FLAG_INVALIDATE);
    if (invalidate && (params->field_mask & UCT_MD_MEM_DEREG_FIELD_COMPLETION)) {
        op_finish(op_end{params->comp, nullptr}, UCS_OK);
    }
    return UCS_OK;
}

ucs_status_t mkey_pack(uct_md_h super, uct_mem_h memh, void *address, size_t length,
                       const uct_md_mkey_pack_params_t *, void *mkey_buffer) noexcept
{
    registration *reg = registration_of(memh);

    // UCP may ask for memory that it got from elsewhere in the end.
    if ((reg == nullptr) || (reg->where() == nullptr)) {
        key_pack_nothing(static_cast<uint8_t *>(mkey_buffer),
                         md_of(super).where->shares_between_hosts());
        return UCS_OK;
    }
    return reg->pack_key(md_of(super).self, reinterpret_cast<uint64_t>(address), length,
                         static_cast<uint8_t *>(mkey_buffer));
}

void describe(const ucs_memory_info_t &info, uct_md_mem_attr_v2_t *attr) noexcept
{
    uint64_t mask = attr->field_mask;
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE) {
        attr->mem_type = info.type;
    }
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV) {
        attr->sys_dev = info.sys_dev;
    }
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS) {
        attr->base_address = info.base_address;
    }
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH) {
        attr->alloc_length = info.alloc_length;
    }
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD) {
        attr->dmabuf_fd = -1; // none: cuda_copy is UCP's provider of dmabufs
    }
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET) {
        attr->dmabuf_offset = 0;
    }
    if (mask & UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS) {
        attr->mem_flags = info.mem_flags;
    }
}

// UCP asks here about an address that its cache does not know; the answer goes
// into that cache, so that the question is asked once for an allocation.
ucs_status_t mem_query(uct_md_h super, const void *address, size_t length,
                       uct_md_mem_attr_v2_t *attr) noexcept
{
    const md      &self = md_of(super);
    const ucx_api &api  = self.owner->host->api;
    if (address == nullptr) {
        return UCS_ERR_INVALID_ADDR;
    }
    region found = region_query(*self.where, address);
    // Anything else is not ours to report: the next component is asked. Pools
    // without handles are left to cuda_copy, whose UCX_CUDA_COPY_ASYNC_MEM_TYPE says
    // how to take them.
    if ((found.kind != memory_kind::device) || (found.gpu < 0) ||
        ((found.pool != nullptr) && (found.handle_types == 0))) {
        return UCS_ERR_INVALID_ADDR;
    }
    found = region_mapped(*self.where, found, reinterpret_cast<uint64_t>(address), length);

    bool              has_range = (found.base != 0) && (found.size_bytes != 0);
    ucs_memory_info_t info;
    info.type    = UCS_MEMORY_TYPE_CUDA;
    info.sys_dev = sys_device_of(*self.owner, *self.where, found.gpu);
    info.base_address =
        has_range ? reinterpret_cast<void *>(found.base) : const_cast<void *>(address);
    info.alloc_length = has_range ? found.size_bytes : length;
    info.mem_flags =
        (has_range && region_is_registrable(*self.where, found)) ? UCS_MEM_FLAG_REGISTRABLE : 0;
    if (has_range) {
        region_sync_memops(*self.where, found);
        api.ucs_memtype_cache_update(info.base_address, info.alloc_length, info.type, info.sys_dev,
                                     info.mem_flags);
    }
    describe(info, attr);
    return UCS_OK;
}

ucs_status_t detect_memory_type(uct_md_h super, const void *address, size_t length,
                                ucs_memory_type_t *mem_type_p) noexcept
{
    uct_md_mem_attr_v2_t attr;
    attr.field_mask     = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE;
    ucs_status_t status = mem_query(super, address, length, &attr);
    if (status == UCS_OK) {
        *mem_type_p = attr.mem_type;
    }
    return status;
}

md_ops make_md_ops() noexcept
{
    md_ops ops{};
    ops.close              = md_close;
    ops.query              = md_query;
    ops.mem_alloc          = md_alloc;
    ops.mem_free           = md_free;
    ops.mem_advise         = unsupported_advise;
    ops.mem_reg            = mem_reg;
    ops.mem_dereg          = mem_dereg;
    ops.mem_query          = mem_query;
    ops.mkey_pack          = mkey_pack;
    ops.mem_attach         = unsupported_attach;
    ops.detect_memory_type = detect_memory_type;
    ops.mem_elem_pack      = unsupported_elem_pack;
    ops.mem_elem_release   = no_elem_release;
    return ops;
}

ucs_sys_device_t find_sys_device(const ucx_api &api, const gpu &which) noexcept
{
    unsigned       domain, bus, slot, function;
    ucs_sys_bus_id id;
    if (std::sscanf(which.bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) {
        return UCS_SYS_DEVICE_ID_UNKNOWN;
    }
    id.domain   = static_cast<uint16_t>(domain);
    id.bus      = static_cast<uint8_t>(bus);
    id.slot     = static_cast<uint8_t>(slot);
    id.function = 0; // as UCX's CUDA components set it

    // UCX's CUDA components find the CUDA device again by the user value, which
    // is the CUdevice; a system device without it is a different one to them.
    ucs_sys_device_t device = UCS_SYS_DEVICE_ID_UNKNOWN;
    if ((api.ucs_topo_find_device_by_bus_id_and_user_value(
             &id, static_cast<uintptr_t>(which.device), &device) != UCS_OK) ||
        (api.ucs_topo_sys_device_enable_aux_path(device) != UCS_OK)) {
        return UCS_SYS_DEVICE_ID_UNKNOWN;
    }
    return device;
}

// UCX's word that memory of a GPU, or page-locked memory, comes or goes.
void memory_event(ucm_event_type_t, ucm_event_t *event, void *arg) noexcept
{
    static_cast<local_memory *>(arg)->forget(reinterpret_cast<uint64_t>(event->mem_type.address),
                                             event->mem_type.size);
}

// Has `all` told of such events, once for each UCX. Where UCX cannot see them
// nothing is kept, and every operation without a registration asks the driver.
void watch_memory(const ucx_api &api, local_memory &all)
{
    static std::mutex                   mutex;
    static std::vector<const ucx_api *> watched;
    std::lock_guard<std::mutex>         guard(mutex);
    if ((api.ucm_set_event_handler == nullptr) ||
        (std::find(watched.begin(), watched.end(), &api) != watched.end())) {
        return;
    }
    watched.push_back(&api);
    if (api.ucm_set_event_handler(UCM_EVENT_MEM_TYPE_ALLOC | UCM_EVENT_MEM_TYPE_FREE, 0,
                                  memory_event, &all) == UCS_OK) {
        all.keep_answers();
    } else {
        NVL_DIAG("UCX does not see memory come and go: each operation asks the driver where its "
                 "local buffer is");
    }
}

// UCX asks for the resources of a process several times.
bool is_news(const std::string &why)
{
    static std::mutex           mutex;
    static std::string          told;
    std::lock_guard<std::mutex> guard(mutex);
    bool                        news = (told != why);
    told                             = why;
    return news;
}

// What a person is told when there is no transport; a machine without a driver
// or without a GPU is nothing to talk about.
places *usable_places(std::string *why)
{
    places *where = places::get(why);
    if (where == nullptr) {
        bool tell = cuda_absence_is_fault() && is_news(*why);
        NVL_LOG(tell ? log_level::warn : log_level::debug, "no nvlink transport: %s", why->c_str());
    }
    return where;
}

// The GPU where UCP says that the local buffer is, or -1 if it does not say.
int local_gpu(const component &owner, const places &where,
              const uct_rkey_unpack_params_t &params) noexcept
{
    if (!(params.field_mask & UCT_RKEY_UNPACK_FIELD_SYS_DEVICE) ||
        (params.sys_device == UCS_SYS_DEVICE_ID_UNKNOWN)) {
        return -1;
    }
    int found = -1;
    for (size_t i = 0; i < where.gpus().size(); ++i) {
        if (sys_device_of(owner, where, static_cast<int>(i)) == params.sys_device) {
            found = static_cast<int>(i);
        }
    }
    return found;
}

} // namespace

bool md_is_strict() noexcept
{
    return strict_g.load(std::memory_order_relaxed);
}

ucs_sys_device_t sys_device_of(const component &owner, const places &where, int gpu) noexcept
{
    std::atomic<int> &known = owner.sys_devices[gpu];
    int               value = known.load(std::memory_order_relaxed);
    if (value < 0) {
        value = find_sys_device(owner.host->api, where.gpus()[gpu]);
        known.store(value, std::memory_order_relaxed);
    }
    return static_cast<ucs_sys_device_t>(value);
}

} // namespace nvl

using namespace nvl;

ucs_status_t nvl_query_md_resources(uct_component_t *super, uct_md_resource_desc_t **resources_p,
                                    unsigned *num_resources_p) noexcept
try {
    const ucx_api &api = component_of(super).host->api;
    std::string    why;
    if (usable_places(&why) == nullptr) {
        return api.uct_md_query_empty_md_resource(resources_p, num_resources_p);
    }
    return api.uct_md_query_single_md_resource(super, resources_p, num_resources_p);
} catch (const std::exception &) {
    return UCS_ERR_NO_MEMORY;
}

ucs_status_t nvl_md_open(uct_component_t *super, const char *, const uct_md_config_t *config,
                         uct_md_h *md_p) noexcept
try {
    static md_ops    ops   = make_md_ops();
    const component &owner = component_of(super);
    std::string      why;
    places          *where = usable_places(&why);
    if (where == nullptr) {
        return UCS_ERR_NO_DEVICE;
    }

    auto            *limits_from = reinterpret_cast<const md_config *>(config);
    map_cache_limits limits;
    limits.count      = limits_from->import_cache_count;
    limits.size_bytes = limits_from->import_cache_size;

    auto *self            = new md();
    self->super.ops       = &ops;
    self->super.component = super;
    self->owner           = &owner;
    self->where           = where;
    self->cache           = &map_cache::get(*where);
    self->local           = &local_memory::get(*where);
    self->takes_host      = limits_from->host_memory != 0;
    self->has_atomics =
        (limits_from->atomics != 0) && topology::get(where->cuda()).pairs().atomics_everywhere();
    strict_g.store(limits_from->strict != 0, std::memory_order_relaxed);
    watch_memory(owner.host->api, *self->local);
    self->self = process_self(owner.host->api.ucs_get_system_id());
    self->cache->set_limits(limits);
    self->cache->set_socket_folder(limits_from->socket_dir);
    exports::get(*where).set_socket_folder(limits_from->socket_dir);
    {
        std::lock_guard<std::mutex> guard(open_mds_mutex_g);
        ++open_mds_g;
    }
    *md_p = &self->super;
    return UCS_OK;
} catch (const std::exception &) {
    return UCS_ERR_NO_MEMORY;
}

void nvl_md_vfs_init(uct_md_h) noexcept
{
}

ucs_status_t nvl_rkey_unpack(uct_component_t *super, const void *rkey_buffer,
                             const uct_rkey_unpack_params_t *params, uct_rkey_t *rkey_p,
                             void **handle_p) noexcept
try {
    const component &owner = component_of(super);
    auto            *wire  = static_cast<const uint8_t *>(rkey_buffer);
    if (key_is_nothing(wire)) {
        return UCS_ERR_UNREACHABLE;
    }
    std::string why;
    places     *where = usable_places(&why);
    if (where == nullptr) {
        return UCS_ERR_UNREACHABLE;
    }

    int                   wanted = local_gpu(owner, *where, *params);
    result<const place *> from   = where->preferred(wanted);
    if (!from.ok()) {
        return UCS_ERR_UNREACHABLE;
    }

    key_table           &keys = key_table::get(*where);
    result<remote_key *> key  = keys.find(wire, *from.value());
    if (key.status() == UCS_ERR_NO_ELEM) {
        key_fields   fields;
        ucs_status_t status = key_parse(wire, &fields);
        if (status != UCS_OK) {
            // UCP takes another lane for what is out of reach, as a peer of another
            // release is, and fails for anything else.
            return (status == UCS_ERR_UNSUPPORTED) ? UCS_ERR_UNREACHABLE : status;
        }
        key = keys.add(wire, fields, process_self(owner.host->api.ucs_get_system_id()),
                       *from.value());
    }
    if (!key.ok()) {
        return not_reached(key.status(), wire);
    }
    // UCP does not say: the local buffer may be in host memory, for which the peer's
    // own GPU copies best if this process uses it. Not in an operation's time.
    int          gpu = (wanted < 0) ? where->find_gpu(key.value()->fields().uuid) : -1;
    const place *own = (gpu >= 0) ? where->known_primary(static_cast<unsigned>(gpu)) : nullptr;
    if ((own != nullptr) && (own != from.value())) {
        (void)key.value()->connect(*own);
    }
    *rkey_p   = reinterpret_cast<uct_rkey_t>(key.value());
    *handle_p = nullptr;
    return UCS_OK;
} catch (const std::exception &) {
    return UCS_ERR_NO_MEMORY;
}

ucs_status_t nvl_rkey_ptr(uct_component_t *, uct_rkey_t rkey, void *, uint64_t remote_addr,
                          void **local_addr_p) noexcept
try {
    std::string why;
    remote_key *key   = remote_key_of(rkey);
    places     *where = places::get(&why);
    if (!key->contains(remote_addr, 1)) {
        return UCS_ERR_INVALID_ADDR;
    }
    result<const place *> from = where->preferred(-1);
    if (!from.ok()) {
        return from.status();
    }
    ucs_status_t status = key->connect(*from.value());
    if (status != UCS_OK) {
        return status;
    }
    uint64_t local = 0;
    if (!key->lend(from.value()->id(), remote_addr, &local)) {
        return UCS_ERR_UNREACHABLE;
    }
    *local_addr_p = reinterpret_cast<void *>(local);
    return UCS_OK;
} catch (const std::exception &) {
    return UCS_ERR_NO_MEMORY;
}

ucs_status_t nvl_rkey_release(uct_component_t *, uct_rkey_t rkey, void *) noexcept
{
    remote_key_of(rkey)->let_go();
    return UCS_OK;
}

ucs_status_t nvl_rkey_compare(uct_component_t *, uct_rkey_t rkey1, uct_rkey_t rkey2,
                              const uct_rkey_compare_params_t *, int *result) noexcept
{
    *result = std::memcmp(remote_key_of(rkey1)->wire(), remote_key_of(rkey2)->wire(),
                          key_packed_size_most);
    return UCS_OK;
}
