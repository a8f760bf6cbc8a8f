// SPDX-License-Identifier: BSD-3-Clause
//
// Endpoint operations: put, get, flush, fence, pending.
#include "uct/ep.h"

#include <cerrno>
#include <csignal>
#include <new>

#include "base/log.h"
#include "uct/address.h"
#include "uct/ep_post.h"

using namespace nvl;

namespace {

// ---- data path ---------------------------------------------------------------

// One piece of memory on each side; `way` says which is the source.
inline ucs_status_t copy(direction way, uct_ep_h super, const uct_iov_t *iov, size_t iovcnt,
                         uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp) noexcept
{
    if (__builtin_expect((iovcnt != 1) || (iov->count != 1), 0)) {
        return post_iov(way, super, iov, iovcnt, remote_addr, rkey, comp);
    }

    iface      &self       = iface_of(super->iface);
    remote_key *key        = remote_key_of(rkey);
    size_t      size_bytes = iov->length;
    uint64_t    remote;
    if (__builtin_expect(size_bytes == 0, 0)) {
        return UCS_OK;
    }
    bool         stays;
    const place *near = place_of_buffer(self, iov->buffer, iov->memh, &stays);
    if (__builtin_expect(near == nullptr, 0)) {
        return post_host(way, super, iov->buffer, size_bytes, remote_addr, rkey, comp);
    }

    const place &at     = *near;
    ucs_status_t status = resolve(self, key, at, remote_addr, size_bytes, &remote);
    if (__builtin_expect(status != UCS_OK, 0)) {
        return status;
    }
    if (__builtin_expect(!may_post(self), 0)) {
        return no_room(self);
    }

    result<gpu_engine *> engine = self.engine_at(at);
    if (__builtin_expect(!engine.ok(), 0)) {
        return engine.status();
    }

    copy_piece piece = piece_of(way, reinterpret_cast<uint64_t>(iov->buffer), remote, size_bytes);
    if (__builtin_expect(!key->begin_use(), 0)) { // paid back when the operation ends
        return tell_freed(remote_addr);
    }
    status = engine.value()->copy(way, key->peer_index(), &piece, 1, op_end{comp, key}, stays);
    if (__builtin_expect(status != UCS_INPROGRESS, 0)) {
        key->release();
        self.refused = self.refused || (status == UCS_ERR_NO_RESOURCE);
    }
    return status;
}

ucs_status_t nvl_ep_put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t iovcnt,
                              uint64_t remote_addr, uct_rkey_t rkey,
                              uct_completion_t *comp) noexcept
{
    return copy(direction::push, ep, iov, iovcnt, remote_addr, rkey, comp);
}

ucs_status_t nvl_ep_get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t iovcnt,
                              uint64_t remote_addr, uct_rkey_t rkey,
                              uct_completion_t *comp) noexcept
{
    return copy(direction::pull, ep, iov, iovcnt, remote_addr, rkey, comp);
}

ucs_status_t nvl_ep_put_sgl_zcopy(uct_ep_h ep, void *const *buffers, const size_t *lengths,
                                  const uct_mem_h *memhs, const uint64_t *remote_addrs,
                                  const uct_rkey_t *rkeys, const size_t *counts,
                                  const size_t *strides, size_t count,
                                  uct_completion_t *comp) noexcept
{
    return post_list(direction::push, ep,
                     {buffers, lengths, memhs, remote_addrs, rkeys, counts, strides, count}, comp);
}

ucs_status_t nvl_ep_get_sgl_zcopy(uct_ep_h ep, void *const *buffers, const size_t *lengths,
                                  const uct_mem_h *memhs, const uint64_t *remote_addrs,
                                  const uct_rkey_t *rkeys, const size_t *counts,
                                  const size_t *strides, size_t count,
                                  uct_completion_t *comp) noexcept
{
    return post_list(direction::pull, ep,
                     {buffers, lengths, memhs, remote_addrs, rkeys, counts, strides, count}, comp);
}

// ---- order -------------------------------------------------------------------

ucs_status_t nvl_ep_flush(uct_ep_h super, unsigned, uct_completion_t *comp) noexcept
{
    iface &self = iface_of(super->iface);
    // Requests that wait are UCP's to flush: it sends a flush through
    // pending_add behind them.
    if (!self.pending.empty() && !self.pending.is_dispatching()) {
        return no_room(self);
    }
    ucs_status_t status = self.flush(comp);
    return (status == UCS_ERR_NO_RESOURCE) ? no_room(self) : status;
}

ucs_status_t nvl_ep_fence(uct_ep_h super, unsigned) noexcept
{
    want_fence(iface_of(super->iface));
    return UCS_OK;
}

ucs_status_t nvl_ep_pending_add(uct_ep_h super, uct_pending_req_t *req, unsigned) noexcept
{
    iface &self = iface_of(super->iface);
    // Only what a progress call will let go waits: something was refused, and something is in
    // flight whose end makes room, or the caller is in that progress call.
    if (self.pending.empty() && (!self.refused || (self.is_idle() && !self.is_polling))) {
        return UCS_ERR_BUSY;
    }
    self.pending.push(req, super);
    return UCS_OK;
}

void nvl_ep_pending_purge(uct_ep_h super, uct_pending_purge_callback_t callback, void *arg) noexcept
{
    iface_of(super->iface).pending.purge(super, callback, arg);
}

// ---- life --------------------------------------------------------------------

// A process of our PID namespace is dead when its number is free. (In another
// namespace, or on another host, whose first namespace has the number of ours, it
// says nothing; there the transport that carries UCP's active messages notices.)
ucs_status_t nvl_ep_check(uct_ep_h super, unsigned, uct_completion_t *) noexcept
{
    ep    &self  = ep_of(super);
    iface &owner = iface_of(super->iface);
    if (!self.peer_known || !self.on_this_host || (self.peer.pid_ns != owner.domain->self.pid_ns) ||
        (kill(static_cast<pid_t>(self.peer.pid), 0) == 0) || (errno != ESRCH)) {
        return UCS_OK;
    }
    return owner.api->uct_iface_handle_ep_err(super->iface, super, UCS_ERR_ENDPOINT_TIMEOUT);
}

ucs_status_t nvl_ep_create(const uct_ep_params_t *params, uct_ep_h *ep_p) noexcept
{
    if (!(params->field_mask & UCT_EP_PARAM_FIELD_IFACE)) {
        return UCS_ERR_INVALID_PARAM;
    }

    iface         &owner = iface_of(params->iface);
    const ucx_api &api   = *owner.api;
    auto          *self  = new (std::nothrow) ep();
    if (self == nullptr) {
        return UCS_ERR_NO_MEMORY;
    }

    int          init_count = 1;
    ucs_status_t status =
        api.uct_base_ep_t_init(&self->super, api.uct_base_ep_t_class, &init_count, &owner.super);
    if (status != UCS_OK) {
        api.ucs_class_call_cleanup_chain(api.uct_base_ep_t_class, self, init_count);
        delete self;
        return status;
    }

    if (params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR) {
        size_t size      = (params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR_LENGTH)
                               ? params->iface_addr_length
                               : 0;
        self->peer_known = iface_address_parse(
            reinterpret_cast<const uint8_t *>(params->iface_addr), size, &self->peer);
    }
    if (params->field_mask & UCT_EP_PARAM_FIELD_DEV_ADDR) {
        device_address there;
        size_t         size =
            (params->field_mask & UCT_EP_PARAM_FIELD_DEV_ADDR_LENGTH) ? params->dev_addr_length : 0;
        self->on_this_host =
            device_address_parse(reinterpret_cast<const uint8_t *>(params->dev_addr), size,
                                 &there) &&
            (there.host_id == owner.domain->self.host_id);
    }
    owner.prepare();
    *ep_p = &self->super.super;
    return UCS_OK;
}

void nvl_ep_destroy(uct_ep_h super) noexcept
{
    ep            *self  = &ep_of(super);
    iface         &owner = iface_of(super->iface);
    const ucx_api &api   = *owner.api;
    owner.pending.purge(super, nullptr, nullptr);
    api.ucs_class_call_cleanup_chain(api.uct_base_ep_t_class, self, -1);
    delete self;
}

ucs_status_t nvl_ep_query(uct_ep_h, uct_ep_attr_t *attr) noexcept
{
    // There are no sockets and no tokens behind this transport.
    return (attr->field_mask == 0) ? UCS_OK : UCS_ERR_UNSUPPORTED;
}

ucs_status_t nvl_ep_invalidate(uct_ep_h, const uct_ep_invalidate_params_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t nvl_ep_connect_to_ep_v2(uct_ep_h, const uct_device_addr_t *, const uct_ep_addr_t *,
                                     const uct_ep_connect_to_ep_params_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED; // endpoints connect to interfaces
}

int nvl_ep_is_connected(uct_ep_h super, const uct_ep_is_connected_params_t *params) noexcept
{
    ep              &self = ep_of(super);
    process_identity other;
    if (!(params->field_mask & UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR) || !self.peer_known ||
        !iface_address_parse(reinterpret_cast<const uint8_t *>(params->iface_addr), 0, &other)) {
        return 0;
    }
    return (other.pid == self.peer.pid) && (other.token == self.peer.token);
}

ucs_status_t nvl_ep_get_device_ep(uct_ep_h, uct_device_ep_h *) noexcept
{
    return UCS_ERR_UNSUPPORTED; // cuda_ipc keeps that lane: its flag is not set here
}

ucs_status_t nvl_ep_no_sgl_zcopy(uct_ep_h, void *const *, const size_t *, const uct_mem_h *,
                                 const uint64_t *, const uct_rkey_t *, const size_t *,
                                 const size_t *, size_t, uct_completion_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t nvl_ep_outstanding_purge(uct_ep_h, const void *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t nvl_ep_get_address(uct_ep_h, uct_ep_addr_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

} // namespace

namespace nvl {

void ep_fill_ops(const ucx_layout &layout, uct_iface_ops_t *ops,
                 iface_internal_ops *internal) noexcept
{
    ops->ep_put_zcopy = nvl_ep_put_zcopy;
    ops->ep_get_zcopy = nvl_ep_get_zcopy;
    ep_fill_short_ops(ops);
    ops->ep_pending_add   = nvl_ep_pending_add;
    ops->ep_pending_purge = nvl_ep_pending_purge;
    ops->ep_flush         = nvl_ep_flush;
    ops->ep_fence         = nvl_ep_fence;
    ops->ep_check         = nvl_ep_check;
    ops->ep_create        = nvl_ep_create;
    ops->ep_destroy       = nvl_ep_destroy;
    ops->ep_get_address   = nvl_ep_get_address;

    internal->ep_query             = nvl_ep_query;
    internal->ep_invalidate        = nvl_ep_invalidate;
    internal->ep_connect_to_ep_v2  = nvl_ep_connect_to_ep_v2;
    internal->ep_is_connected      = nvl_ep_is_connected;
    internal->ep_get_device_ep     = nvl_ep_get_device_ep;
    internal->ep_put_sgl_zcopy     = nvl_ep_put_sgl_zcopy;
    internal->ep_outstanding_purge = nvl_ep_outstanding_purge;
    // In the first snapshots of 1.23 this slot means ep_outstanding_purge.
    if (layout.has_get_sgl_zcopy) {
        internal->ep_get_sgl_zcopy = nvl_ep_get_sgl_zcopy;
    } else {
        internal->ep_get_sgl_zcopy = nvl_ep_no_sgl_zcopy;
    }
}

} // namespace nvl
