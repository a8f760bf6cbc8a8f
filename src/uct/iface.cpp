// SPDX-License-Identifier: BSD-3-Clause
//
// Opens the interface, answers what UCP asks about it, and makes progress.
#include "uct/iface.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "host/iface_attr_v2.h"
#include "topo/topology.h"
#include "uct/address.h"
#include "uct/ep.h"
#include "uct/ep_post.h"
#include "uct/perf.h"

namespace nvl {

// ---- pending requests --------------------------------------------------------

void pending_queue::push(uct_pending_req_t *req, uct_ep_t *ep) noexcept
{
    link_of(req) = pending_link{nullptr, ep};
    if (head_ == nullptr) {
        head_ = req;
    } else {
        link_of(tail_).next = req;
    }
    tail_ = req;
}

unsigned pending_queue::dispatch() noexcept
{
    unsigned count = 0;
    dispatching_   = true;
    while (head_ != nullptr) {
        uct_pending_req_t *req = head_;
        // Taken out first: on success UCP may free the request.
        pending_link link = link_of(req);
        head_             = link.next;

        ucs_status_t status = req->func(req);
        if (status == UCS_OK) {
            ++count;
            continue;
        }
        // Not through yet: first in line again.
        link_of(req) = pending_link{head_, link.ep};
        if (head_ == nullptr) {
            tail_ = req;
        }
        head_ = req;
        if (status != UCS_INPROGRESS) {
            break;
        }
        ++count;
    }
    dispatching_ = false;
    return count;
}

void pending_queue::purge(uct_ep_t *ep, uct_pending_purge_callback_t callback, void *arg) noexcept
{
    uct_pending_req_t *req = head_;
    head_ = tail_ = nullptr;
    while (req != nullptr) {
        pending_link link = link_of(req);
        if (link.ep == ep) {
            if (callback != nullptr) {
                callback(req, arg);
            }
        } else {
            push(req, link.ep);
        }
        req = link.next;
    }
}

// ---- engines and flush -------------------------------------------------------

result<gpu_engine *> iface::open_engine(const place &at) noexcept
{
    places        &where = *domain->where;
    const unsigned id    = at.id();
    if ((id == no_place) || where.is_over(at)) {
        return tell_context_over();
    }
    close_ended();
    if (engines[id].engine) {
        refused = true; // as no_room()
        return UCS_ERR_NO_RESOURCE;
    }
    result<std::unique_ptr<gpu_engine>> made =
        gpu_engine::create(where.cuda(), where.gpus()[at.gpu].device, at.context, engine_config);
    if (!made.ok()) {
        return made.status();
    }
    // Asked after the engine has begun to watch the primary context itself.
    if (!where.is_current(at)) {
        return homeless(at);
    }
    engines[id]          = {&at, std::move(made.value())};
    active[num_active++] = engines[id].engine.get();
    return engines[id].engine.get();
}

// The engines of contexts of the application that are over and have told of all that was in
// flight. Not while one of them may be the caller.
void iface::close_ended() noexcept
{
    for (place_engine &one : engines) {
        const bool is_ended = one.engine && !one.in->is_primary() &&
                              domain->where->is_over(*one.in) && one.engine->is_idle();
        if (!is_ended || is_polling) {
            continue;
        }
        gpu_engine **end                                 = active.data() + num_active;
        *std::find(active.data(), end, one.engine.get()) = end[-1];
        --num_active;
        one = {};
    }
}

// What the operation would use is not open any more; the next one finds another place.
ucs_status_t iface::homeless(const place &at) noexcept
{
    NVL_ERROR("the primary CUDA context of GPU %d was reset: what peers share is opened anew",
              domain->where->gpus()[at.gpu].ordinal);
    (void)domain->where->primary(domain->where->gpus()[at.gpu].device);
    return UCS_ERR_IO_ERROR;
}

void iface::prepare() noexcept
{
    const places &where = *domain->where;
    for (unsigned i = 0; i < where.gpus().size(); ++i) {
        const place *at = where.known_primary(i);
        if ((at != nullptr) && (engines[at->id()].in != at) && !where.was_reset(*at)) {
            (void)engine_at(*at); // if not, the first operation tries again and reports
        }
    }
}

bool iface::is_idle() const noexcept
{
    if (joints.is_waiting()) {
        return false;
    }
    for (unsigned i = 0; i < num_active; ++i) {
        if (!active[i]->is_idle()) {
            return false;
        }
    }
    return true;
}

bool iface::has_room() const noexcept
{
    if (joints.is_waiting()) {
        return false;
    }
    for (unsigned i = 0; i < num_active; ++i) {
        if (!active[i]->has_room()) {
            return false;
        }
    }
    return true;
}

ucs_status_t iface::flush(uct_completion_t *comp) noexcept
{
    if (is_idle()) {
        return take_unheard();
    }
    if (comp == nullptr) {
        return UCS_INPROGRESS;
    }
    if (!has_room()) {
        return UCS_ERR_NO_RESOURCE;
    }

    joint_request *request = joints.open(*this, comp);
    if (request == nullptr) {
        return UCS_ERR_NO_MEMORY;
    }
    // An engine that is broken takes no marker: its next poll ends all that it
    // has with the error, and that is the flush's error too.
    uct_completion_t &parts = request->parts();
    for (unsigned i = 0; i < num_active; ++i) {
        ucs_status_t status = active[i]->mark(op_end{&parts, nullptr}, &parts.count);
        if (status != UCS_OK) {
            parts.status = status;
        }
    }
    request->hear_all();
    return request->close((parts.count == 1) ? UCS_ERR_IO_ERROR : UCS_OK);
}

} // namespace nvl

using namespace nvl;

namespace {

// ---- what UCP asks -----------------------------------------------------------

ucs_status_t nvl_iface_query(uct_iface_h super, uct_iface_attr_t *attr) noexcept
{
    iface &self = iface_of(super);
    self.api->uct_base_iface_query(&self.super, attr);

    attr->device_addr_len = device_address_size;
    attr->iface_addr_len  = iface_address_size;
    attr->ep_addr_len     = 0;
    attr->max_conn_priv   = 0;
    attr->cap.flags       = UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_GET_ZCOPY |
                      UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_PENDING |
                      UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE;
    if (self.max_short != 0) {
        // For a lane that does short puts UCX 1.22 wants the other two as well
        // (ucp_wireup_add_rma_lanes).
        attr->cap.flags |=
            UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_PUT_BCOPY | UCT_IFACE_FLAG_GET_BCOPY;
    }
    if (self.has_atomics) {
        // "CPU": consistent with everybody who reaches the memory. The other flag would
        // switch off the atomic operations of transports for host memory
        // (ucp_worker_init_guess_atomics).
        attr->cap.flags |= UCT_IFACE_FLAG_ATOMIC_CPU;
        attr->cap.atomic32.op_flags = attr->cap.atomic64.op_flags = post_operations;
        attr->cap.atomic32.fop_flags = attr->cap.atomic64.fop_flags = fetch_operations;
    }
    if (self.domain->where->shares_between_hosts()) {
        // Else UCP would take every peer with a lane of ours to be on this host.
        attr->cap.flags |= UCT_IFACE_FLAG_INTER_NODE;
    }
    attr->cap.event_flags =
        UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_RECV | UCT_IFACE_FLAG_EVENT_FD;

    attr->cap.put.max_short       = self.max_short;
    attr->cap.put.max_bcopy       = self.max_short;
    attr->cap.get.max_bcopy       = self.max_short;
    attr->cap.put.max_zcopy       = SIZE_MAX;
    attr->cap.put.opt_zcopy_align = 1;
    attr->cap.put.align_mtu       = 1;
    attr->cap.put.max_iov         = max_iov;
    attr->cap.get.max_zcopy       = SIZE_MAX;
    attr->cap.get.opt_zcopy_align = 1;
    attr->cap.get.align_mtu       = 1;
    attr->cap.get.max_iov         = max_iov;

    attr->latency.c           = self.latency;
    attr->latency.m           = 0;
    attr->bandwidth.dedicated = 0;
    attr->bandwidth.shared    = self.bandwidth;
    attr->overhead            = self.overhead;
    attr->priority            = 0;
    attr->ctl_device          = UCS_SYS_DEVICE_ID_UNKNOWN;
    return UCS_OK;
}

ucs_status_t nvl_iface_query_v2(uct_iface_h super, uct_iface_attr_v2_t *attr) noexcept
{
    iface            &self = iface_of(super);
    iface_attr_v2_ref out(*self.host->layout, attr);
    out.set_max_put_sgl_zcopy_count(max_list_count);
    out.set_max_get_sgl_zcopy_count(max_list_count);
    out.set_cap_flags(out.bits().flag_put_sgl_zcopy | out.bits().flag_get_sgl_zcopy);
    out.set_token_lengths(0, 0);
    return UCS_OK;
}

ucs_status_t nvl_iface_estimate_perf(uct_iface_h super, uct_perf_attr_t *attr) noexcept
{
    return estimate_perf(iface_of(super), attr);
}

void nvl_iface_vfs_refresh(uct_iface_h) noexcept
{
}

ucs_status_t nvl_iface_get_device_address(uct_iface_h super, uct_device_addr_t *addr) noexcept
{
    const md      &domain = *iface_of(super).domain;
    device_address self;
    self.host_id = domain.self.host_id;
    self.reach   = topology::get(domain.where->cuda()).pairs().reach();
    device_address_pack(self, reinterpret_cast<uint8_t *>(addr));
    return UCS_OK;
}

ucs_status_t nvl_iface_get_address(uct_iface_h super, uct_iface_addr_t *addr) noexcept
{
    iface_address_pack(iface_of(super).domain->self, reinterpret_cast<uint8_t *>(addr));
    return UCS_OK;
}

int nvl_iface_is_reachable_v2(uct_iface_h                            super,
                              const uct_iface_is_reachable_params_t *params) noexcept
{
    iface         &self = iface_of(super);
    const ucx_api &api  = *self.api;
    device_address peer;

    if (!(params->field_mask & UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR)) {
        return 0;
    }
    size_t device_size = (params->field_mask & UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR_LENGTH)
                             ? params->device_addr_length
                             : 0;
    if (!device_address_parse(reinterpret_cast<const uint8_t *>(params->device_addr), device_size,
                              &peer)) {
        api.uct_iface_fill_info_str_buf(params, "the peer's nvlink address has an unknown form: "
                                                "use one release of the plugin on both sides");
        return 0;
    }
    bool         same_host = peer.host_id == self.domain->self.host_id;
    reach_answer answer =
        topology::get(self.domain->where->cuda()).judge_process(same_host, peer.reach);
    if (!answer.reachable) {
        api.uct_iface_fill_info_str_buf(params, "%s", answer.reason.c_str());
        // UCP asks several times for an endpoint.
        const bool is_fault = same_host && md_is_strict();
        NVL_LOG((answer.reason == self.last_refusal) ? log_level::debug
                : is_fault                           ? log_level::error
                                                     : log_level::info,
                "%sa peer takes UCX's other paths: %s", is_fault ? "UCX_NVLINK_STRICT=y: " : "",
                answer.reason.c_str());
        self.last_refusal = answer.reason;
        return 0;
    }
    // UCP asks so whether the peer is on this host; UCX's own answer compares whole
    // addresses, and two processes of one host may see different GPUs.
    bool asks_for_host = (params->field_mask & UCT_IFACE_IS_REACHABLE_FIELD_SCOPE) &&
                         (params->scope == UCT_IFACE_REACHABILITY_SCOPE_DEVICE);
    if (asks_for_host && !same_host) {
        api.uct_iface_fill_info_str_buf(params, "another host");
    }
    return !asks_for_host || same_host;
}

// ---- progress ----------------------------------------------------------------

unsigned nvl_iface_progress(uct_iface_h super) noexcept
{
    iface   &self  = iface_of(super);
    unsigned count = 0;
    // An operation's end may call progress again.
    const bool was_polling = std::exchange(self.is_polling, true);
    for (unsigned i = 0; i < self.num_active; ++i) {
        count += self.active[i]->poll(self.max_poll);
    }
    self.is_polling = was_polling;
    if (count != 0) {
        self.refused = false;
        self.ended += count;
    }
    if (__builtin_expect(self.joints.is_waiting(), 0)) {
        self.joints.dispatch();
    }
    if (__builtin_expect(!self.pending.empty(), 0)) {
        count += self.pending.dispatch();
    }
    return count;
}

ucs_status_t nvl_iface_flush(uct_iface_h super, unsigned, uct_completion_t *comp) noexcept
{
    iface &self = iface_of(super);
    if (!self.pending.empty()) {
        return (comp == nullptr) ? UCS_INPROGRESS : UCS_ERR_NO_RESOURCE;
    }
    return self.flush(comp);
}

// What is posted after a fence waits for all that was posted before it: copies
// in different lanes overtake each other.
ucs_status_t nvl_iface_fence(uct_iface_h super, unsigned) noexcept
{
    want_fence(iface_of(super));
    return UCS_OK;
}

ucs_status_t nvl_iface_event_fd_get(uct_iface_h super, int *fd_p) noexcept
{
    iface &self = iface_of(super);
    if (self.event_fd < 0) {
        ucs_status_t status = self.api->ucs_async_eventfd_create(&self.event_fd);
        if (status != UCS_OK) {
            return status;
        }
    }
    *fd_p = self.event_fd;
    return UCS_OK;
}

// Runs on a thread of the driver, after the copies before it in its stream; the
// interface outlives it, since closing a lane waits for its stream.
void CUDA_CB wake(void *arg) noexcept
{
    uint64_t one = 1;
    int      fd  = static_cast<int>(reinterpret_cast<intptr_t>(arg));
    // A full counter means that the reader is to wake up already.
    ssize_t written = write(fd, &one, sizeof(one));
    (void)written;
}

// Does something in flight end soon, as most operations do? To be woken costs more: the copy
// kernel leaves for it, or a function of the host stands in the copy engine's way, 10 us and
// more each time. A thread that progresses and sleeps in turns (NIXL's) would have every
// operation pay for that.
bool ends_soon(iface &self) noexcept
{
    constexpr double soon_ns = 50e3;
    if (self.is_idle()) {
        return false;
    }
    const uint64_t now = clock_ticks();
    if ((self.arm_ticks == 0) || (self.armed_after != self.ended)) {
        self.armed_after = self.ended;
        self.arm_ticks   = now;
    }
    return now - self.arm_ticks < clock_from_ns(soon_ns);
}

ucs_status_t nvl_iface_event_arm(uct_iface_h super, unsigned) noexcept
{
    iface &self = iface_of(super);
    int    fd;
    // Not armed while there is something to find: the caller progresses again.
    unsigned   count       = 0;
    const bool was_polling = std::exchange(self.is_polling, true);
    for (unsigned i = 0; (i < self.num_active) && (count == 0); ++i) {
        count = self.active[i]->poll(self.max_poll);
    }
    self.is_polling = was_polling;
    if (count != 0) {
        self.ended += count;
        return UCS_ERR_BUSY;
    }
    if (ends_soon(self)) {
        return UCS_ERR_BUSY;
    }
    ucs_status_t status = nvl_iface_event_fd_get(super, &fd);
    if (status != UCS_OK) {
        return status;
    }
    status = self.api->ucs_async_eventfd_poll(fd);
    if (status != UCS_ERR_NO_PROGRESS) {
        return (status == UCS_OK) ? UCS_ERR_BUSY : status;
    }

    for (unsigned i = 0; i < self.num_active; ++i) {
        status = self.active[i]->arm(wake, reinterpret_cast<void *>(static_cast<intptr_t>(fd)));
        if (status != UCS_OK) {
            return status;
        }
    }
    return UCS_OK;
}

// ---- open and close ----------------------------------------------------------

void nvl_iface_close(uct_iface_h super) noexcept
{
    iface         *self = &iface_of(super);
    const ucx_api &api  = *self->api;
    uct_iface_progress_disable(super, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    for (place_engine &one : self->engines) {
        one = {};
    }
    if (self->event_fd >= 0) {
        api.ucs_async_eventfd_destroy(self->event_fd);
    }
    api.ucs_class_call_cleanup_chain(api.uct_base_iface_t_class, self, -1);
    delete self;
}

int nvl_iface_is_reachable(uct_iface_h super, const uct_device_addr_t *dev_addr,
                           const uct_iface_addr_t *iface_addr) noexcept
{
    return iface_of(super).api->uct_base_iface_is_reachable(super, dev_addr, iface_addr);
}

struct op_tables {
    uct_iface_ops_t    ops;
    iface_internal_ops internal;
};

op_tables make_op_tables(const host_binding &host) noexcept
{
    op_tables t{};
    ep_fill_ops(*host.layout, &t.ops, &t.internal);
    t.ops.iface_flush              = nvl_iface_flush;
    t.ops.iface_fence              = nvl_iface_fence;
    t.ops.iface_progress_enable    = host.api.uct_base_iface_progress_enable;
    t.ops.iface_progress_disable   = host.api.uct_base_iface_progress_disable;
    t.ops.iface_progress           = nvl_iface_progress;
    t.ops.iface_event_fd_get       = nvl_iface_event_fd_get;
    t.ops.iface_event_arm          = nvl_iface_event_arm;
    t.ops.iface_close              = nvl_iface_close;
    t.ops.iface_query              = nvl_iface_query;
    t.ops.iface_get_device_address = nvl_iface_get_device_address;
    t.ops.iface_get_address        = nvl_iface_get_address;
    t.ops.iface_is_reachable       = nvl_iface_is_reachable;

    t.internal.iface_query_v2        = nvl_iface_query_v2;
    t.internal.iface_estimate_perf   = nvl_iface_estimate_perf;
    t.internal.iface_vfs_refresh     = nvl_iface_vfs_refresh;
    t.internal.iface_is_reachable_v2 = nvl_iface_is_reachable_v2;
    return t;
}

unsigned round_up_pow2(unsigned value) noexcept
{
    unsigned power = 2;
    while ((power < value) && (power < (1u << 16))) {
        power *= 2;
    }
    return power;
}

uint32_t clamp(size_t value, size_t least, size_t most) noexcept
{
    return static_cast<uint32_t>(std::min(std::max(value, least), most));
}

// A time of the copy kernel, of "inf" as well 5 s at most: what waits for the whole GPU (cudaFree
// for one), or for a kernel that does not start, has an end.
double nanoseconds(double seconds, double least_s) noexcept
{
    constexpr double most_s = 5;
    return ((seconds < most_s) ? std::max(seconds, least_s) : most_s) *
           1e9; // also what is no number
}

// What the kernel could not run with is brought into its bounds.
void take_ring_config(gpu_engine_config *to, const iface_config &from) noexcept
{
    constexpr size_t chunk_least = 256, chunk_most = 1u << 20;
    ring_config     &ring   = to->ring;
    route_limits    &limits = to->limits;

    to->use_ring            = from.kernel != UCS_NO;
    ring.idle_ns            = nanoseconds(from.idle, 0);
    ring.narrow_ns          = nanoseconds(from.narrow, 0);
    ring.narrow_most_ns     = ring.idle_ns;
    ring.stay_ns            = nanoseconds(from.stay, 1e-5);
    ring.hello_timeout_ns   = nanoseconds(from.hello, 1e-6);
    ring.patience_ns        = std::max(ring.patience_ns, ring.hello_timeout_ns);
    ring.burst_gap_ns       = nanoseconds(from.gap, 0);
    ring.large_blocks       = clamp(from.blocks, 1, 128);
    ring.large_warps        = clamp(from.warps, 2, 16);
    ring.alone_bytes        = clamp(from.alone, 1, 1u << 16);
    ring.chunk_small_bytes  = clamp(from.chunk_small, chunk_least, chunk_most);
    ring.chunk_large_bytes  = clamp(from.chunk_large, chunk_least, chunk_most);
    ring.chunk_stream_bytes = clamp(from.chunk_stream, chunk_least, chunk_most);

    ring.granted = clamp(from.ahead, 0, ring_granted_max);

    bool forced      = (from.kernel == UCS_YES) || (from.kernel == UCS_TRY);
    limits.stream[0] = from.put_stream_max;
    limits.stream[1] = from.get_stream_max;
    limits.alone[0]  = forced ? from.put_stream_max : from.put_lone_max;
    limits.alone[1]  = forced ? from.get_stream_max : from.get_lone_max;
}

// UCP 1.22 ends the process where an atomic operation fails: what is known to fail is
// not offered.
bool kernel_runs_everywhere(const places &where) noexcept
{
    for (const gpu &one : where.gpus()) {
        const char *reason = ring_engine::why_not(where.cuda(), one.device);
        if ((reason == nullptr) && !ring_engine::has_code_for(where.cuda(), one.device)) {
            reason = "it was not compiled for it (configure --with-gpu-archs)";
        }
        if (reason != nullptr) {
            NVL_DEBUG("no atomic operations: no copy kernel on device %d: %s", one.device, reason);
            return false;
        }
    }
    return true;
}

void take_config(iface *self, const iface_config &from) noexcept
{
    take_ring_config(&self->engine_config, from);
    self->engine_config.lane.completion =
        (from.completion == 0) ? lane_completion::by_event : lane_completion::by_word;
    self->engine_config.lane.depth = round_up_pow2(from.depth);
    self->max_poll                 = (from.max_poll != 0) ? from.max_poll : 1;
    host_stage_config &stage       = self->engine_config.stage;
    stage.slot_bytes               = clamp(from.host_chunk, 4096, 64u << 20);
    stage.total_bytes              = clamp(from.host_stage, 2 * stage.slot_bytes, 1u << 30);
    stage.inline_bytes             = std::min(from.host_inline, stage.slot_bytes);
    self->max_short =
        self->domain->takes_host ? std::min<size_t>(ring_inline_bytes, stage.inline_bytes) : 0;
    self->has_atomics = self->domain->has_atomics && self->engine_config.use_ring &&
                        kernel_runs_everywhere(*self->domain->where);
    self->host_bandwidth[0] = from.host_put_bandwidth;
    self->host_bandwidth[1] = from.host_get_bandwidth;
    self->latency           = from.latency;
    self->overhead          = from.overhead;
    self->bandwidth_is_set  = !UCS_CONFIG_DBL_IS_AUTO(from.bandwidth);
    self->bandwidth =
        self->bandwidth_is_set ? from.bandwidth : default_bandwidth(*self->domain->where);
}

} // namespace

ucs_status_t nvl_query_devices(uct_md_h super, uct_tl_device_resource_t **devices_p,
                               unsigned *num_devices_p) noexcept
{
    // One device for all GPUs of the process, of no place of its own: with a
    // system device UCP would charge the PCIe distance from it to the buffer.
    return md_of(super).owner->host->api.uct_single_device_resource(
        super, device_name, UCT_DEVICE_TYPE_SHM, UCS_SYS_DEVICE_ID_UNKNOWN, devices_p,
        num_devices_p);
}

ucs_status_t nvl_iface_open(uct_md_h super, uct_worker_h worker, const uct_iface_params_t *params,
                            const uct_iface_config_t *config, uct_iface_h *iface_p) noexcept
{
    md            &domain = md_of(super);
    const ucx_api &api    = domain.owner->host->api;

    if (!(params->field_mask & UCT_IFACE_PARAM_FIELD_DEVICE) ||
        (std::strcmp(params->mode.device.dev_name, device_name) != 0)) {
        NVL_ERROR("nvlink has one device, named \"%s\"", device_name);
        return UCS_ERR_NO_DEVICE;
    }

    op_tables tables = make_op_tables(*domain.owner->host);
    auto     *self   = new (std::nothrow) iface();
    if (self == nullptr) {
        return UCS_ERR_NO_MEMORY;
    }
    self->internal_ops = tables.internal; // the base keeps a pointer to these, a copy of the others
    self->api          = &api;
    self->host         = domain.owner->host;
    self->domain       = &domain;
    self->event_fd     = -1;
    // Counts down to nothing; begins anew where it comes to its end.
    self->unheard = {[](uct_completion_t *all) { all->count = INT_MAX; }, INT_MAX, UCS_OK};
    take_config(self, *reinterpret_cast<const iface_config *>(config));

    int          init_count = 1;
    ucs_status_t status =
        api.uct_base_iface_t_init(&self->super, api.uct_base_iface_t_class, &init_count,
                                  &tables.ops, &self->internal_ops, super, worker, params, config);
    if (status != UCS_OK) {
        api.ucs_class_call_cleanup_chain(api.uct_base_iface_t_class, self, init_count);
        delete self;
        return status;
    }
    *iface_p = &self->super.super;
    return UCS_OK;
}
