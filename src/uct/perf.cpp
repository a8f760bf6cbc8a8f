// SPDX-License-Identifier: BSD-3-Clause
//
// The figures behind UCP's choices.
#include "uct/perf.h"

#include "topo/topology.h"
#include "uct/pair_figures.h"

namespace nvl {

namespace {

// Of the overhead of a put; the rest is the local buffer's. UCP's choice between the two
// hangs on it alone.
constexpr double short_share = 0.2;

// The copying forms are there to be asked for, see iface_query, not to be used: where
// another lane has them UCP is to take that one, and zero-copy where there is none.
constexpr double bcopy_extra_s = 2e-6;
constexpr double bcopy_bytes_s = 20e6; // ring_inline_bytes at a time

bool is_copied(ucs_memory_type_t type) noexcept
{
    return (type == UCS_MEMORY_TYPE_CUDA) || (type == UCS_MEMORY_TYPE_UNKNOWN);
}

// Between host memory on the near side and a GPU on the far one, where UCP says
// that this is what it asks about: host memory has no key, so it is never far.
bool is_host_to_gpu(const uct_perf_attr_t &attr) noexcept
{
    constexpr uint64_t both =
        UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE | UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE;
    return ((attr.field_mask & both) == both) && (attr.local_memory_type == UCS_MEMORY_TYPE_HOST) &&
           (attr.remote_memory_type == UCS_MEMORY_TYPE_CUDA);
}

bool asks_about(const uct_perf_attr_t &attr, uct_ep_operation_t operation) noexcept
{
    return (attr.field_mask & UCT_PERF_ATTR_FIELD_OPERATION) && (attr.operation == operation);
}

bool is_bcopy(const uct_perf_attr_t &attr) noexcept
{
    return asks_about(attr, UCT_EP_OP_PUT_BCOPY) || asks_about(attr, UCT_EP_OP_GET_BCOPY);
}

// Host bytes that travel with the call: UCP then says nothing of the near side's memory.
bool is_with_call(const uct_perf_attr_t &attr) noexcept
{
    uint64_t mask    = attr.field_mask;
    bool     is_near = !(mask & UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE) ||
                   (attr.local_memory_type == UCS_MEMORY_TYPE_UNKNOWN) ||
                   (attr.local_memory_type == UCS_MEMORY_TYPE_HOST);
    bool is_far =
        !(mask & UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE) || is_copied(attr.remote_memory_type);
    return (asks_about(attr, UCT_EP_OP_PUT_SHORT) || is_bcopy(attr)) && is_near && is_far;
}

bool is_offered(const iface &self, uct_ep_operation_t operation) noexcept
{
    switch (operation) {
    case UCT_EP_OP_PUT_ZCOPY:
    case UCT_EP_OP_GET_ZCOPY:
        return true;
    case UCT_EP_OP_PUT_SHORT:
    case UCT_EP_OP_PUT_BCOPY:
    case UCT_EP_OP_GET_BCOPY:
        return self.max_short != 0;
    case UCT_EP_OP_ATOMIC_POST:
    case UCT_EP_OP_ATOMIC_FETCH:
        return self.has_atomics;
    default:
        return false;
    }
}

// The CUDA ordinal of UCX's system device if it is a GPU of this process, else -1.
int ordinal_of(const iface &self, ucs_sys_device_t device) noexcept
{
    const places &where = *self.domain->where;
    for (size_t i = 0; (device != UCS_SYS_DEVICE_ID_UNKNOWN) && (i < where.gpus().size()); ++i) {
        if (sys_device_of(*self.domain->owner, where, static_cast<int>(i)) == device) {
            return where.gpus()[i].ordinal;
        }
    }
    return -1;
}

bool is_pull(const uct_perf_attr_t &attr) noexcept
{
    return (attr.field_mask & UCT_PERF_ATTR_FIELD_OPERATION) &&
           (attr.operation >= UCT_EP_OP_GET_SHORT) && (attr.operation <= UCT_EP_OP_GET_ZCOPY);
}

// False if the pair that UCP names cannot copy.
bool figures_asked_for(const iface &self, const uct_perf_attr_t &attr, pair_figures *out) noexcept
{
    uint64_t mask   = attr.field_mask;
    bool     pull   = is_pull(attr);
    int      local  = (mask & UCT_PERF_ATTR_FIELD_LOCAL_SYS_DEVICE)
                          ? ordinal_of(self, attr.local_sys_device)
                          : -1;
    int      remote = (mask & UCT_PERF_ATTR_FIELD_REMOTE_SYS_DEVICE)
                          ? ordinal_of(self, attr.remote_sys_device)
                          : -1;

    const topology &known = topology::get(self.domain->where->cuda());
    if ((local >= 0) && (remote >= 0)) {
        const pair_path &path = known.path(local, remote);
        *out                  = figures_of(path, pull);
        if (self.bandwidth_is_set) {
            out->bandwidth = self.bandwidth;
        }
        return path.reachable();
    }
    const pair_path &best = (local >= 0) ? known.best_of(local) : known.best();
    *out                  = {self.bandwidth_is_set ? self.bandwidth : bid_of(best, pull), 0};
    return true;
}

} // namespace

double default_bandwidth(const places &where) noexcept
{
    return bid_of(topology::get(where.cuda()).best(), false);
}

ucs_status_t estimate_perf(const iface &self, uct_perf_attr_t *attr) noexcept
{
    uint64_t     mask = attr->field_mask;
    pair_figures pair;
    if (self.domain->takes_host && (is_host_to_gpu(*attr) || is_with_call(*attr))) {
        pair = {self.host_bandwidth[is_pull(*attr)], 0};
    } else if (((mask & UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE) &&
                !is_copied(attr->local_memory_type)) ||
               ((mask & UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE) &&
                !is_copied(attr->remote_memory_type)) ||
               !figures_asked_for(self, *attr, &pair)) {
        return UCS_ERR_UNSUPPORTED;
    }
    double bandwidth = is_bcopy(*attr) ? bcopy_bytes_s : pair.bandwidth;
    bool   offered = !(mask & UCT_PERF_ATTR_FIELD_OPERATION) || is_offered(self, attr->operation) ||
                   (attr->operation >= UCT_EP_OP_LAST);

    if (mask & UCT_PERF_ATTR_FIELD_BANDWIDTH) {
        attr->bandwidth.dedicated = 0;
        attr->bandwidth.shared    = offered ? bandwidth : 0;
    }
    if (mask & UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH) {
        attr->path_bandwidth.dedicated = 0;
        attr->path_bandwidth.shared    = offered ? bandwidth : 0;
    }
    if (mask & UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD) {
        // UCP would add this for a buffer that it registers; what was measured to be
        // UCP's best choice (bench/results) was measured with it.
        bool unregistered       = self.domain->takes_host && !is_host_to_gpu(*attr);
        attr->send_pre_overhead = self.overhead + (unregistered ? reg_cost_s : 0);
        if (asks_about(*attr, UCT_EP_OP_PUT_SHORT)) {
            attr->send_pre_overhead = self.overhead * short_share;
        } else if (is_bcopy(*attr)) {
            attr->send_pre_overhead = self.overhead + bcopy_extra_s;
        }
    }
    if (mask & UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD) {
        attr->send_post_overhead = 0;
    }
    if (mask & UCT_PERF_ATTR_FIELD_RECV_OVERHEAD) {
        attr->recv_overhead = 0; // the peer's processor has no part in it
    }
    if (mask & UCT_PERF_ATTR_FIELD_LATENCY) {
        attr->latency.c = self.latency + pair.extra_latency;
        attr->latency.m = 0;
    }
    if (mask & UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS) {
        attr->max_inflight_eps = SIZE_MAX;
    }
    if (mask & UCT_PERF_ATTR_FIELD_FLAGS) {
        attr->flags = 0;
    }
    return UCS_OK;
}

} // namespace nvl
