// SPDX-License-Identifier: BSD-3-Clause
//
// A transport that plays a network card in the tests of UCP's choice: 50 GB/s, 2 us, put, get and active messages of
// host and GPU memory, as UCX would see a fast InfiniBand port. It is a second plugin for stock UCX (libuct_standin.so)
// and really works: bytes go through Unix datagrams, to any process of the machine, whatever host that claims to be.
// NVL_STANDIN_COUNTERS names a file to which each interface appends "am BYTES put BYTES get BYTES" when it is closed:
// that is how a test knows what a network got. Called by UCX; calls src/host and the CUDA driver. One thread.
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver/handles.h"
#include "engine/op.h"
#include "host/binding.h"
#include "host/config_types.h"

using namespace nvl;

namespace {

constexpr const char *name           = "standin";
constexpr const char *device         = "card0:1";
constexpr size_t      segment_bytes  = 8256;    // as UCX's InfiniBand transports
constexpr size_t      datagram_bytes = 1 << 15; // below what a Unix socket takes in one piece
constexpr size_t      most_bytes     = 1 << 30;
constexpr size_t      most_iov       = 8;

// ---- what goes through the socket ----------------------------------------------------------------------------------

enum class kind : uint8_t { message, put, put_end, ack, get, data, data_end };

struct header {
    kind     what;
    uint8_t  am_id;
    uint64_t address; // put, get: in the peer's process; data: offset
    uint64_t size;    // get: bytes wanted
    uint64_t token;   // of the operation, for its end
};

struct net_config {
    uct_iface_config_t super;
    double             bandwidth;
};

struct component {
    uct_component_t    super{};
    uct_tl_t           transport{};
    host_binding      *host = nullptr;
    ucs_config_field_t md_rows[2];
    ucs_config_field_t iface_rows[3];
};

component *self_g; // one UCX a process in these tests

struct net_md {
    uct_md_t super;
};

struct net_ep;

struct operation {
    net_ep                *ep;
    uct_completion_t      *comp;
    std::vector<uct_iov_t> to; // get: where the data goes
    uct_unpack_callback_t  unpack = nullptr;
    void                  *arg    = nullptr;
    std::vector<uint8_t>   data; // get_bcopy
};

struct datagram {
    sockaddr_un          to;
    socklen_t            to_size;
    std::vector<uint8_t> bytes;
};

struct counts {
    uint64_t am = 0, put = 0, get = 0;
};

struct net_iface {
    uct_base_iface_t              super;
    iface_internal_ops            internal;
    int                           socket;
    double                        bandwidth;
    sockaddr_un                   address;
    socklen_t                     address_size;
    std::deque<datagram>          out;
    std::map<uint64_t, operation> flying;
    uint64_t                      next_token;
    counts                        moved;
};

struct waiting_flush {
    uint64_t          after; // this many operations of the endpoint have ended
    uct_completion_t *comp;
};

struct net_ep {
    uct_base_ep_t              super;
    sockaddr_un                peer;
    socklen_t                  peer_size;
    uint64_t                   posted;
    uint64_t                   ended;
    std::deque<waiting_flush> *flushes;
};

net_iface &iface_of(uct_iface_h super)
{
    return *reinterpret_cast<net_iface *>(super);
}

net_ep &ep_of(uct_ep_h super)
{
    return *reinterpret_cast<net_ep *>(super);
}

const ucx_api &api()
{
    return self_g->host->api;
}

// ---- memory, of the host or of a GPU -------------------------------------------------------------------------------

// Null for host memory. VMM memory and pools are of a GPU, and of no context: its primary one, kept.
CUcontext context_of(const cuda_api &cuda, const void *memory)
{
    auto      address = reinterpret_cast<CUdeviceptr>(memory);
    CUcontext owner   = nullptr;
    CUdevice  gpu     = 0;
    int       ordinal = -1;
    unsigned  type    = 0;
    if ((cuda.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
         CUDA_SUCCESS) &&
        (owner != nullptr)) {
        return owner;
    }
    if ((cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
         CUDA_SUCCESS) ||
        (type != CU_MEMORYTYPE_DEVICE) ||
        (cuda.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) !=
         CUDA_SUCCESS) ||
        (cuda.cuDeviceGet(&gpu, ordinal) != CUDA_SUCCESS) ||
        (cuda.cuDevicePrimaryCtxRetain(&owner, gpu) != CUDA_SUCCESS)) {
        return nullptr;
    }
    return owner;
}

void copy_memory(void *to, const void *from, size_t size)
{
    static const cuda_api *const cuda = [] {
        std::string why;
        return cuda_api::load(&why);
    }();
    CUcontext context = nullptr;
    if (cuda != nullptr) {
        for (const void *side : {static_cast<const void *>(to), from}) {
            CUcontext owner = context_of(*cuda, side);
            context         = (owner != nullptr) ? owner : context;
        }
    }
    if (context == nullptr) {
        std::memcpy(to, from, size);
        return;
    }
    context_guard guard(*cuda, context);
    if ((cuda->cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                             size, nullptr) != CUDA_SUCCESS) ||
        (cuda->cuStreamSynchronize(nullptr) != CUDA_SUCCESS)) {
        std::fprintf(stderr, "standin: a copy of %zu bytes failed\n", size);
    }
}

std::vector<uint8_t> gather(const uct_iov_t *iov, size_t iovcnt)
{
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < iovcnt; ++i) {
        size_t size = iov[i].length * iov[i].count, at = bytes.size();
        bytes.resize(at + size);
        copy_memory(bytes.data() + at, iov[i].buffer, size);
    }
    return bytes;
}

// ---- sending and receiving -----------------------------------------------------------------------------------------

void drain(net_iface &self)
{
    while (!self.out.empty()) {
        datagram &first = self.out.front();
        ssize_t   sent  = sendto(self.socket, first.bytes.data(), first.bytes.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr *>(&first.to), first.to_size);
        if ((sent < 0) && ((errno == EAGAIN) || (errno == ENOBUFS) || (errno == EINTR))) {
            return;
        }
        self.out.pop_front(); // sent, or its receiver is gone
    }
}

void send(net_iface &self, const sockaddr_un &to, socklen_t to_size, header head,
          const uint8_t *payload, size_t size)
{
    datagram one{to, to_size, {}};
    one.bytes.resize(sizeof(head) + size);
    std::memcpy(one.bytes.data(), &head, sizeof(head));
    if (size != 0) {
        std::memcpy(one.bytes.data() + sizeof(head), payload, size);
    }
    self.out.push_back(std::move(one));
    drain(self);
}

// In pieces; the last is of kind `last`.
void send_long(net_iface &self, const sockaddr_un &to, socklen_t to_size, header head, kind last,
               const std::vector<uint8_t> &bytes)
{
    uint64_t address = head.address;
    size_t   at      = 0;
    do {
        size_t size  = std::min(datagram_bytes, bytes.size() - at);
        head.address = address + at;
        head.what    = (at + size == bytes.size()) ? last : head.what;
        send(self, to, to_size, head, bytes.data() + at, size);
        at += size;
    } while (at < bytes.size());
}

void note_end(net_ep &ep)
{
    ++ep.ended;
    while (!ep.flushes->empty() && (ep.flushes->front().after <= ep.ended)) {
        uct_completion_t *comp = ep.flushes->front().comp;
        ep.flushes->pop_front();
        op_finish(op_end{comp, nullptr}, UCS_OK);
    }
}

void scatter(operation &op, size_t offset, const uint8_t *bytes, size_t size)
{
    if (op.unpack != nullptr) {
        op.data.insert(op.data.end(), bytes, bytes + size);
        return;
    }
    for (const uct_iov_t &part : op.to) {
        size_t length = part.length * part.count;
        if (offset >= length) {
            offset -= length;
            continue;
        }
        size_t now = std::min(size, length - offset);
        copy_memory(static_cast<uint8_t *>(part.buffer) + offset, bytes, now);
        bytes += now;
        size -= now;
        offset = 0;
        if (size == 0) {
            return;
        }
    }
}

void end_operation(net_iface &self, uint64_t token)
{
    auto found = self.flying.find(token);
    if (found == self.flying.end()) {
        return; // its endpoint is gone
    }
    operation op = std::move(found->second);
    self.flying.erase(found);
    if (op.unpack != nullptr) {
        op.unpack(op.arg, op.data.data(), op.data.size());
    }
    if (op.comp != nullptr) {
        op_finish(op_end{op.comp, nullptr}, UCS_OK);
    }
    note_end(*op.ep);
}

void take(net_iface &self, const sockaddr_un &from, socklen_t from_size, const header &head,
          uint8_t *payload, size_t size)
{
    switch (head.what) {
    case kind::message: {
        const uct_am_handler_t &handler = self.super.am[head.am_id];
        (void)handler.cb(handler.arg, payload, size, 0);
        break;
    }
    case kind::put:
    case kind::put_end:
        copy_memory(reinterpret_cast<void *>(head.address), payload, size);
        if (head.what == kind::put_end) {
            send(self, from, from_size, {kind::ack, 0, 0, 0, head.token}, nullptr, 0);
        }
        break;
    case kind::get: {
        std::vector<uint8_t> bytes(head.size);
        copy_memory(bytes.data(), reinterpret_cast<const void *>(head.address), bytes.size());
        send_long(self, from, from_size, {kind::data, 0, 0, 0, head.token}, kind::data_end, bytes);
        break;
    }
    case kind::data:
    case kind::data_end: {
        auto found = self.flying.find(head.token);
        if (found != self.flying.end()) {
            scatter(found->second, head.address, payload, size);
        }
        if (head.what == kind::data_end) {
            end_operation(self, head.token);
        }
        break;
    }
    case kind::ack:
        end_operation(self, head.token);
        break;
    }
}

unsigned progress(uct_iface_h super) noexcept
{
    constexpr unsigned most = 16;

    net_iface          &self = iface_of(super);
    alignas(16) uint8_t buffer[sizeof(header) + datagram_bytes];
    unsigned            count = 0;
    drain(self);
    while (count < most) {
        sockaddr_un from{};
        socklen_t   from_size = sizeof(from);
        ssize_t     size      = recvfrom(self.socket, buffer, sizeof(buffer), MSG_DONTWAIT,
                                         reinterpret_cast<sockaddr *>(&from), &from_size);
        if (size < static_cast<ssize_t>(sizeof(header))) {
            break;
        }
        header head;
        std::memcpy(&head, buffer, sizeof(head));
        take(self, from, from_size, head, buffer + sizeof(head),
             static_cast<size_t>(size) - sizeof(head));
        ++count;
    }
    return count;
}

// ---- operations ----------------------------------------------------------------------------------------------------

ucs_status_t put(uct_ep_h super, const std::vector<uint8_t> &bytes, uint64_t address,
                 uct_completion_t *comp)
{
    net_ep    &ep   = ep_of(super);
    net_iface &self = iface_of(super->iface);
    uint64_t   id   = self.next_token++;
    self.moved.put += bytes.size();
    self.flying[id] = operation{&ep, comp, {}, nullptr, nullptr, {}};
    ++ep.posted;
    send_long(self, ep.peer, ep.peer_size, {kind::put, 0, address, 0, id}, kind::put_end, bytes);
    return UCS_INPROGRESS;
}

ucs_status_t put_short(uct_ep_h super, const void *buffer, unsigned length, uint64_t address,
                       uct_rkey_t) noexcept
{
    const uint8_t *bytes = static_cast<const uint8_t *>(buffer);
    (void)put(super, std::vector<uint8_t>(bytes, bytes + length), address, nullptr);
    return UCS_OK;
}

ssize_t put_bcopy(uct_ep_h super, uct_pack_callback_t pack, void *arg, uint64_t address,
                  uct_rkey_t) noexcept
{
    std::vector<uint8_t> bytes(segment_bytes);
    bytes.resize(pack(bytes.data(), arg));
    (void)put(super, bytes, address, nullptr);
    return static_cast<ssize_t>(bytes.size());
}

ucs_status_t put_zcopy(uct_ep_h super, const uct_iov_t *iov, size_t iovcnt, uint64_t address,
                       uct_rkey_t, uct_completion_t *comp) noexcept
{
    return put(super, gather(iov, iovcnt), address, comp);
}

ucs_status_t get(uct_ep_h super, operation op, uint64_t address, uint64_t size)
{
    net_ep    &ep   = ep_of(super);
    net_iface &self = iface_of(super->iface);
    uint64_t   id   = self.next_token++;
    self.moved.get += size;
    self.flying[id] = std::move(op);
    ++ep.posted;
    send(self, ep.peer, ep.peer_size, {kind::get, 0, address, size, id}, nullptr, 0);
    return UCS_INPROGRESS;
}

ucs_status_t get_bcopy(uct_ep_h super, uct_unpack_callback_t unpack, void *arg, size_t length,
                       uint64_t address, uct_rkey_t, uct_completion_t *comp) noexcept
{
    return get(super, {&ep_of(super), comp, {}, unpack, arg, {}}, address, length);
}

ucs_status_t get_zcopy(uct_ep_h super, const uct_iov_t *iov, size_t iovcnt, uint64_t address,
                       uct_rkey_t, uct_completion_t *comp) noexcept
{
    uint64_t size = 0;
    for (size_t i = 0; i < iovcnt; ++i) {
        size += iov[i].length * iov[i].count;
    }
    return get(super, {&ep_of(super), comp, {iov, iov + iovcnt}, nullptr, nullptr, {}}, address,
               size);
}

void message(uct_ep_h super, uint8_t id, const std::vector<uint8_t> &bytes)
{
    net_ep    &ep   = ep_of(super);
    net_iface &self = iface_of(super->iface);
    self.moved.am += bytes.size();
    send(self, ep.peer, ep.peer_size, {kind::message, id, 0, 0, 0}, bytes.data(), bytes.size());
}

ucs_status_t am_short(uct_ep_h super, uint8_t id, uint64_t head, const void *payload,
                      unsigned length) noexcept
{
    std::vector<uint8_t> bytes(sizeof(head) + length);
    std::memcpy(bytes.data(), &head, sizeof(head));
    if (length != 0) {
        std::memcpy(bytes.data() + sizeof(head), payload, length);
    }
    message(super, id, bytes);
    return UCS_OK;
}

ucs_status_t am_short_iov(uct_ep_h super, uint8_t id, const uct_iov_t *iov, size_t iovcnt) noexcept
{
    message(super, id, gather(iov, iovcnt));
    return UCS_OK;
}

ssize_t am_bcopy(uct_ep_h super, uint8_t id, uct_pack_callback_t pack, void *arg, unsigned) noexcept
{
    std::vector<uint8_t> bytes(segment_bytes);
    bytes.resize(pack(bytes.data(), arg));
    message(super, id, bytes);
    return static_cast<ssize_t>(bytes.size());
}

ucs_status_t am_zcopy(uct_ep_h super, uint8_t id, const void *head, unsigned head_length,
                      const uct_iov_t *iov, size_t iovcnt, unsigned, uct_completion_t *) noexcept
{
    std::vector<uint8_t> bytes = gather(iov, iovcnt);
    const uint8_t       *first = static_cast<const uint8_t *>(head);
    bytes.insert(bytes.begin(), first, first + head_length);
    message(super, id, bytes);
    return UCS_OK;
}

ucs_status_t ep_flush(uct_ep_h super, unsigned, uct_completion_t *comp) noexcept
{
    net_ep &ep = ep_of(super);
    if (ep.posted == ep.ended) {
        return UCS_OK;
    }
    if (comp != nullptr) {
        ep.flushes->push_back({ep.posted, comp});
    }
    return UCS_INPROGRESS;
}

ucs_status_t iface_flush(uct_iface_h super, unsigned, uct_completion_t *comp) noexcept
{
    if (comp != nullptr) {
        return UCS_ERR_UNSUPPORTED;
    }
    return iface_of(super).flying.empty() ? UCS_OK : UCS_INPROGRESS;
}

ucs_status_t ep_fence(uct_ep_h, unsigned) noexcept
{
    return UCS_OK; // datagrams to one peer stay in order
}

ucs_status_t iface_fence(uct_iface_h, unsigned) noexcept
{
    return UCS_OK;
}

// Nothing is ever refused for want of room.
ucs_status_t pending_add(uct_ep_h, uct_pending_req_t *, unsigned) noexcept
{
    return UCS_ERR_BUSY;
}

void pending_purge(uct_ep_h, uct_pending_purge_callback_t, void *) noexcept
{
}

ucs_status_t ep_check(uct_ep_h, unsigned, uct_completion_t *) noexcept
{
    return UCS_OK;
}

ucs_status_t ep_create(const uct_ep_params_t *params, uct_ep_h *ep_p) noexcept
{
    auto        *ep         = new net_ep();
    int          init_count = 1;
    ucs_status_t status =
        api().uct_base_ep_t_init(&ep->super, api().uct_base_ep_t_class, &init_count,
                                 reinterpret_cast<uct_base_iface_t *>(params->iface));
    if (status != UCS_OK) {
        delete ep;
        return status;
    }
    ep->flushes   = new std::deque<waiting_flush>();
    ep->peer_size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 6);
    std::memcpy(&ep->peer, params->iface_addr, ep->peer_size);
    *ep_p = &ep->super.super;
    return UCS_OK;
}

void ep_destroy(uct_ep_h super) noexcept
{
    net_ep    &ep   = ep_of(super);
    net_iface &self = iface_of(super->iface);
    for (auto i = self.flying.begin(); i != self.flying.end();) {
        i = (i->second.ep == &ep) ? self.flying.erase(i) : std::next(i);
    }
    api().ucs_class_call_cleanup_chain(api().uct_base_ep_t_class, &ep, -1);
    delete ep.flushes;
    delete &ep;
}

// ---- the interface -------------------------------------------------------------------------------------------------

ucs_status_t iface_query(uct_iface_h super, uct_iface_attr_t *attr) noexcept
{
    net_iface &self = iface_of(super);
    api().uct_base_iface_query(&self.super, attr);
    attr->device_addr_len = sizeof(uint64_t);
    attr->iface_addr_len  = offsetof(sockaddr_un, sun_path) + 6;
    attr->cap.flags =
        UCT_IFACE_FLAG_AM_SHORT | UCT_IFACE_FLAG_AM_BCOPY | UCT_IFACE_FLAG_AM_ZCOPY |
        UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_PUT_BCOPY | UCT_IFACE_FLAG_PUT_ZCOPY |
        UCT_IFACE_FLAG_GET_BCOPY | UCT_IFACE_FLAG_GET_ZCOPY | UCT_IFACE_FLAG_PENDING |
        UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_CB_SYNC |
        UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE | UCT_IFACE_FLAG_EP_CHECK | UCT_IFACE_FLAG_INTER_NODE;

    attr->cap.put.max_short       = 220;
    attr->cap.put.max_bcopy       = segment_bytes;
    attr->cap.put.max_zcopy       = most_bytes;
    attr->cap.put.opt_zcopy_align = 512;
    attr->cap.put.align_mtu       = 4096;
    attr->cap.put.max_iov         = most_iov;
    attr->cap.get.max_bcopy       = segment_bytes;
    attr->cap.get.max_zcopy       = most_bytes;
    attr->cap.get.opt_zcopy_align = 512;
    attr->cap.get.align_mtu       = 4096;
    attr->cap.get.max_iov         = most_iov;
    attr->cap.am.max_short        = 234;
    attr->cap.am.max_bcopy        = segment_bytes;
    attr->cap.am.max_zcopy        = segment_bytes;
    attr->cap.am.opt_zcopy_align  = 512;
    attr->cap.am.align_mtu        = 4096;
    attr->cap.am.max_hdr          = 128;
    attr->cap.am.max_iov          = most_iov;

    attr->latency.c        = 2e-6;
    attr->bandwidth.shared = self.bandwidth;
    attr->overhead         = 75e-9; // as UCX says of mlx5
    attr->ctl_device       = UCS_SYS_DEVICE_ID_UNKNOWN;
    return UCS_OK;
}

int is_reachable_v2(uct_iface_h super, const uct_iface_is_reachable_params_t *params) noexcept
{
    (void)super;
    return (params->field_mask & UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR) != 0;
}

int is_reachable(uct_iface_h, const uct_device_addr_t *, const uct_iface_addr_t *) noexcept
{
    return 1;
}

ucs_status_t get_device_address(uct_iface_h, uct_device_addr_t *address) noexcept
{
    std::memset(address, 0, sizeof(uint64_t));
    return UCS_OK;
}

ucs_status_t get_address(uct_iface_h super, uct_iface_addr_t *address) noexcept
{
    net_iface &self = iface_of(super);
    std::memcpy(address, &self.address, self.address_size);
    return UCS_OK;
}

void write_counts(const counts &moved)
{
    const char *path = std::getenv("NVL_STANDIN_COUNTERS");
    FILE       *file = (path != nullptr) ? std::fopen(path, "a") : nullptr;
    if (file != nullptr) {
        std::fprintf(file, "am %llu put %llu get %llu\n", static_cast<unsigned long long>(moved.am),
                     static_cast<unsigned long long>(moved.put),
                     static_cast<unsigned long long>(moved.get));
        std::fclose(file);
    }
}

void iface_close(uct_iface_h super) noexcept
{
    net_iface *self = &iface_of(super);
    api().uct_base_iface_progress_disable(super, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    // What peers still wait for; one that takes nothing is not waited for long.
    for (int i = 0; (i < 1000) && !self->out.empty(); ++i) {
        drain(*self);
        usleep(self->out.empty() ? 0 : 100);
    }
    write_counts(self->moved);
    close(self->socket);
    api().ucs_class_call_cleanup_chain(api().uct_base_iface_t_class, self, -1);
    delete self;
}

ucs_status_t refuse_ep_query(uct_ep_h, uct_ep_attr_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t refuse_invalidate(uct_ep_h, const uct_ep_invalidate_params_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t refuse_connect(uct_ep_h, const uct_device_addr_t *, const uct_ep_addr_t *,
                            const uct_ep_connect_to_ep_params_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t refuse_device_ep(uct_ep_h, uct_device_ep_h *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t refuse_sgl(uct_ep_h, void *const *, const size_t *, const uct_mem_h *,
                        const uint64_t *, const uct_rkey_t *, const size_t *, const size_t *,
                        size_t, uct_completion_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

int is_connected(uct_ep_h super, const uct_ep_is_connected_params_t *params) noexcept
{
    net_ep &ep = ep_of(super);
    return std::memcmp(&ep.peer, params->iface_addr, ep.peer_size) == 0;
}

void vfs_refresh(uct_iface_h) noexcept
{
}

uct_iface_ops_t make_ops()
{
    uct_iface_ops_t ops{};
    ops.ep_put_short             = put_short;
    ops.ep_put_bcopy             = put_bcopy;
    ops.ep_put_zcopy             = put_zcopy;
    ops.ep_get_bcopy             = get_bcopy;
    ops.ep_get_zcopy             = get_zcopy;
    ops.ep_am_short              = am_short;
    ops.ep_am_short_iov          = am_short_iov;
    ops.ep_am_bcopy              = am_bcopy;
    ops.ep_am_zcopy              = am_zcopy;
    ops.ep_pending_add           = pending_add;
    ops.ep_pending_purge         = pending_purge;
    ops.ep_flush                 = ep_flush;
    ops.ep_fence                 = ep_fence;
    ops.ep_check                 = ep_check;
    ops.ep_create                = ep_create;
    ops.ep_destroy               = ep_destroy;
    ops.iface_flush              = iface_flush;
    ops.iface_fence              = iface_fence;
    ops.iface_progress_enable    = api().uct_base_iface_progress_enable;
    ops.iface_progress_disable   = api().uct_base_iface_progress_disable;
    ops.iface_progress           = progress;
    ops.iface_close              = iface_close;
    ops.iface_query              = iface_query;
    ops.iface_get_device_address = get_device_address;
    ops.iface_get_address        = get_address;
    ops.iface_is_reachable       = is_reachable;
    return ops;
}

iface_internal_ops make_internal_ops()
{
    iface_internal_ops ops{};
    ops.iface_query_v2        = api().uct_iface_base_query_v2;
    ops.iface_estimate_perf   = api().uct_base_iface_estimate_perf;
    ops.iface_vfs_refresh     = vfs_refresh;
    ops.ep_query              = refuse_ep_query;
    ops.ep_invalidate         = refuse_invalidate;
    ops.ep_connect_to_ep_v2   = refuse_connect;
    ops.iface_is_reachable_v2 = is_reachable_v2;
    ops.ep_is_connected       = is_connected;
    ops.ep_get_device_ep      = refuse_device_ep;
    ops.ep_put_sgl_zcopy      = refuse_sgl;
    ops.ep_get_sgl_zcopy      = refuse_sgl;
    return ops;
}

ucs_status_t open_socket(net_iface *self)
{
    // Without a name: the kernel gives one of six characters in the abstract space.
    self->socket             = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    self->address.sun_family = AF_UNIX;
    self->address_size       = sizeof(self->address);
    auto     *generic        = reinterpret_cast<sockaddr *>(&self->address);
    const int large          = 1 << 20;
    (void)setsockopt(self->socket, SOL_SOCKET, SO_SNDBUF, &large, sizeof(large));
    if ((self->socket < 0) || (bind(self->socket, generic, sizeof(sa_family_t)) != 0) ||
        (getsockname(self->socket, generic, &self->address_size) != 0)) {
        return UCS_ERR_IO_ERROR;
    }
    return UCS_OK;
}

ucs_status_t iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                        const uct_iface_config_t *config, uct_iface_h *iface_p) noexcept
{
    auto *self                 = new net_iface();
    self->internal             = make_internal_ops();
    self->bandwidth            = reinterpret_cast<const net_config *>(config)->bandwidth;
    uct_iface_ops_t ops        = make_ops();
    int             init_count = 1;
    ucs_status_t    status     = open_socket(self);
    if (status == UCS_OK) {
        status =
            api().uct_base_iface_t_init(&self->super, api().uct_base_iface_t_class, &init_count,
                                        &ops, &self->internal, md, worker, params, config);
    }
    if (status != UCS_OK) {
        delete self;
        return status;
    }
    *iface_p = &self->super.super;
    return UCS_OK;
}

ucs_status_t query_devices(uct_md_h md, uct_tl_device_resource_t **devices_p,
                           unsigned *count_p) noexcept
{
    return api().uct_single_device_resource(md, device, UCT_DEVICE_TYPE_NET,
                                            UCS_SYS_DEVICE_ID_UNKNOWN, devices_p, count_p);
}

// ---- the memory domain ---------------------------------------------------------------------------------------------

void md_close(uct_md_h md) noexcept
{
    delete reinterpret_cast<net_md *>(md);
}

ucs_status_t md_query(uct_md_h, uct_md_attr_v2_t *attr) noexcept
{
    constexpr uint64_t host = 1u << UCS_MEMORY_TYPE_HOST, cuda = 1u << UCS_MEMORY_TYPE_CUDA;
    api().uct_md_base_md_query(attr);
    attr->flags = UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_MEMH | UCT_MD_FLAG_NEED_RKEY |
                  UCT_MD_FLAG_INVALIDATE | UCT_MD_FLAG_INVALIDATE_RMA;
    attr->reg_mem_types    = host | cuda;
    attr->cache_mem_types  = host | cuda;
    attr->access_mem_types = host;
    attr->rkey_packed_size = sizeof(uint64_t);
    return UCS_OK;
}

ucs_status_t mem_reg(uct_md_h, void *, size_t, const uct_md_mem_reg_params_t *,
                     uct_mem_h *memh_p) noexcept
{
    *memh_p = reinterpret_cast<uct_mem_h>(self_g); // there is nothing to know
    return UCS_OK;
}

ucs_status_t mem_dereg(uct_md_h, const uct_md_mem_dereg_params_t *params) noexcept
{
    bool invalidate = (params->field_mask & UCT_MD_MEM_DEREG_FIELD_FLAGS) &&
                      (params->flags & UCT_MD_MEM_DEREG_FLAG_INVALIDATE);
    if (invalidate && (params->field_mask & UCT_MD_MEM_DEREG_FIELD_COMPLETION)) {
        op_finish(op_end{params->comp, nullptr}, UCS_OK);
    }
    return UCS_OK;
}

ucs_status_t mkey_pack(uct_md_h, uct_mem_h, void *, size_t, const uct_md_mkey_pack_params_t *,
                       void *key) noexcept
{
    std::memset(key, 0, sizeof(uint64_t));
    return UCS_OK;
}

ucs_status_t no_attach(uct_md_h, const void *, uct_md_mem_attach_params_t *, uct_mem_h *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t no_mem_query(uct_md_h, const void *, size_t, uct_md_mem_attr_v2_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t no_detection(uct_md_h, const void *, size_t, ucs_memory_type_t *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t md_open(uct_component_t *component, const char *, const uct_md_config_t *,
                     uct_md_h        *md_p) noexcept
{
    static md_ops ops = [] {
        md_ops made{};
        made.close              = md_close;
        made.query              = md_query;
        made.mem_reg            = mem_reg;
        made.mem_dereg          = mem_dereg;
        made.mem_query          = no_mem_query;
        made.mkey_pack          = mkey_pack;
        made.mem_attach         = no_attach;
        made.detect_memory_type = no_detection;
        return made;
    }();
    auto *md            = new net_md();
    md->super.ops       = &ops;
    md->super.component = component;
    *md_p               = &md->super;
    return UCS_OK;
}

void md_vfs_init(uct_md_h) noexcept
{
}

ucs_status_t query_md_resources(uct_component_t *component, uct_md_resource_desc_t **resources_p,
                                unsigned *count_p) noexcept
{
    return api().uct_md_query_single_md_resource(component, resources_p, count_p);
}

ucs_status_t rkey_unpack(uct_component_t *, const void *, const uct_rkey_unpack_params_t *,
                         uct_rkey_t *rkey_p, void **handle_p) noexcept
{
    *rkey_p   = 1;
    *handle_p = nullptr;
    return UCS_OK;
}

ucs_status_t rkey_ptr(uct_component_t *, uct_rkey_t, void *, uint64_t, void **) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t rkey_release(uct_component_t *, uct_rkey_t, void *) noexcept
{
    return UCS_OK;
}

ucs_status_t rkey_compare(uct_component_t *, uct_rkey_t, uct_rkey_t,
                          const uct_rkey_compare_params_t *, int *result) noexcept
{
    *result = 0;
    return UCS_OK;
}

ucs_status_t cm_open(uct_component_t *, uct_worker_h, const uct_cm_config_t *, uct_cm_h *) noexcept
{
    return UCS_ERR_UNSUPPORTED;
}

void fill(component *self)
{
    field_builder row(self->host->api);
    self->md_rows[0]    = row.md_base();
    self->md_rows[1]    = field_builder::end();
    self->iface_rows[0] = row.iface_base();
    self->iface_rows[1] =
        row.bandwidth("BW", "50GBs", "What UCP is told.", NVL_CONFIG_MEMBER(net_config, bandwidth));
    self->iface_rows[2] = field_builder::end();

    uct_component_t &c = self->super;
    std::strncpy(c.name, name, sizeof(c.name) - 1);
    c.query_md_resources = query_md_resources;
    c.md_open            = md_open;
    c.cm_open            = cm_open;
    c.rkey_unpack        = rkey_unpack;
    c.rkey_ptr           = rkey_ptr;
    c.rkey_release       = rkey_release;
    c.rkey_compare       = rkey_compare;
    c.md_config          = {"STANDIN memory domain", "STANDIN_", self->md_rows,
                            sizeof(uct_md_config_t), {},         0};
    c.cm_config.name     = "";
    c.cm_config.prefix   = "";
    c.md_vfs_init        = md_vfs_init;
    c.tl_list.prev = c.tl_list.next = &c.tl_list;
    c.list.prev = c.list.next = &c.list;

    uct_tl_t &t = self->transport;
    std::strncpy(t.name, name, sizeof(t.name) - 1);
    t.query_devices = query_devices;
    t.iface_open    = iface_open;
    t.config = {"standin transport", "STANDIN_", self->iface_rows, sizeof(net_config), {}, 0};
}

} // namespace

extern "C" __attribute__((visibility("default"))) ucs_status_t ucs_module_global_init(void);

ucs_status_t ucs_module_global_init(void)
{
    host_bind_result found = host_find(__builtin_return_address(0));
    if (found.host == nullptr) {
        std::fprintf(stderr, "standin: %s\n", found.refusal.c_str());
        return UCS_ERR_UNSUPPORTED;
    }
    self_g       = new component();
    self_g->host = found.host;
    fill(self_g);
    api().uct_tl_register(&self_g->super, &self_g->transport);
    api().uct_component_register(&self_g->super);
    return UCS_OK;
}
