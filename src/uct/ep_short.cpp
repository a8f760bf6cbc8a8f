// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of a few bytes that travel with the call: short puts from host memory,
// the copying forms that UCP wants beside them, and atomic operations. Called through
// the op table; calls mem and engine.
#include <cstring>
#include <new>

#include "base/log.h"
#include "topo/topology.h"
#include "uct/ep_post.h"

using namespace nvl;

namespace {

// Where the peer's memory is for who copies between it and the host.
struct target {
    gpu_engine  *engine;
    const place *at;
    remote_key  *key;
    uint64_t     remote;
};

// With a use of the key. UCS_ERR_NO_RESOURCE if there may be no post now.
ucs_status_t find_target(iface &self, uint64_t remote_addr, size_t size_bytes, uct_rkey_t rkey,
                         target *out) noexcept
{
    out->key = remote_key_of(rkey);
    out->at  = place_for_host(*self.domain->where, out->key, remote_addr, size_bytes);
    if (out->at == nullptr) {
        return UCS_ERR_UNREACHABLE;
    }
    ucs_status_t status = resolve(self, out->key, *out->at, remote_addr, size_bytes, &out->remote);
    if (status != UCS_OK) {
        return status;
    }
    if (!may_post(self)) {
        return no_room(self);
    }
    result<gpu_engine *> engine = self.engine_at(*out->at);
    if (!engine.ok()) {
        return engine.status();
    }
    out->engine = engine.value();
    if (!out->key->begin_use()) { // posted() or the operation's end pays it back
        return tell_freed(remote_addr);
    }
    return UCS_OK;
}

// What a post returns whose operation holds a use of the key.
ucs_status_t posted(iface &self, const target &to, ucs_status_t status) noexcept
{
    if (__builtin_expect(status == UCS_INPROGRESS, 1)) {
        return status;
    }
    to.key->release();
    return (status == UCS_ERR_NO_RESOURCE) ? no_room(self) : status;
}

// ---- bytes -------------------------------------------------------------------

ucs_status_t nvl_ep_put_short(uct_ep_h super, const void *buffer, unsigned length,
                              uint64_t remote_addr, uct_rkey_t rkey) noexcept
{
    iface &self = iface_of(super->iface);
    target to;
    if (length == 0) {
        return UCS_OK;
    }
    if (length > self.max_short) {
        return UCS_ERR_INVALID_PARAM;
    }
    ucs_status_t status = find_target(self, remote_addr, length, rkey, &to);
    if (status != UCS_OK) {
        return status;
    }
    status = to.engine->put_short(to.remote, buffer, length, op_end{&self.unheard, to.key});
    status = posted(self, to, status);
    return (status == UCS_INPROGRESS) ? UCS_OK : status;
}

ssize_t nvl_ep_put_bcopy(uct_ep_h super, uct_pack_callback_t pack, void *arg, uint64_t remote_addr,
                         uct_rkey_t rkey) noexcept
{
    uint8_t      bytes[ring_inline_bytes];
    size_t       length = pack(bytes, arg);
    ucs_status_t status =
        nvl_ep_put_short(super, bytes, static_cast<unsigned>(length), remote_addr, rkey);
    return (status == UCS_OK) ? static_cast<ssize_t>(length) : static_cast<ssize_t>(status);
}

} // namespace

namespace nvl {

bcopy_gets::~bcopy_gets()
{
    for (bcopy_get *one = alive.first(); one != nullptr;) {
        bcopy_get *next = alive.behind(*one);
        delete one;
        one = next;
    }
}

} // namespace nvl

namespace {

void end_get(bcopy_get *mine) noexcept
{
    mine->owner->gets.alive.remove(*mine);
    delete mine;
}

void bcopy_arrived(uct_completion_t *done) noexcept
{
    auto *mine = reinterpret_cast<bcopy_get *>(done);
    if (done->status == UCS_OK) {
        mine->unpack(mine->arg, mine->bytes, mine->length);
    }
    op_finish(op_end{mine->user, nullptr}, done->status);
    end_get(mine);
}

ucs_status_t nvl_ep_get_bcopy(uct_ep_h super, uct_unpack_callback_t unpack, void *arg,
                              size_t length, uint64_t remote_addr, uct_rkey_t rkey,
                              uct_completion_t *comp) noexcept
{
    iface &self = iface_of(super->iface);
    target from;
    if (length == 0) {
        return UCS_OK;
    }
    if (length > self.max_short) {
        return UCS_ERR_INVALID_PARAM;
    }
    ucs_status_t status = find_target(self, remote_addr, length, rkey, &from);
    if (status != UCS_OK) {
        return status;
    }
    auto *mine = new (std::nothrow) bcopy_get();
    if (mine == nullptr) {
        return posted(self, from, UCS_ERR_NO_MEMORY);
    }
    self.gets.alive.add(*mine);
    mine->owner      = &self;
    mine->done.func  = bcopy_arrived;
    mine->done.count = 1;
    mine->unpack     = unpack;
    mine->arg        = arg;
    mine->length     = length;
    mine->user       = comp;
    copy_box box{reinterpret_cast<uint64_t>(mine->bytes), from.remote, length, 1, 0, 0};
    status = from.engine->copy_pageable(direction::pull, box, op_end{&mine->done, from.key});
    status = posted(self, from, status);
    if (status != UCS_INPROGRESS) {
        end_get(mine);
    }
    return status;
}

// ---- atomic operations -------------------------------------------------------

static_assert((static_cast<int>(UCT_ATOMIC_OP_ADD) == ring_atomic_add) &&
                  (static_cast<int>(UCT_ATOMIC_OP_AND) == ring_atomic_and) &&
                  (static_cast<int>(UCT_ATOMIC_OP_OR) == ring_atomic_or) &&
                  (static_cast<int>(UCT_ATOMIC_OP_XOR) == ring_atomic_xor) &&
                  (static_cast<int>(UCT_ATOMIC_OP_SWAP) == ring_atomic_swap) &&
                  (static_cast<int>(UCT_ATOMIC_OP_CSWAP) == ring_atomic_compare_swap),
              "the ring counts as UCX does");

// The first use of a key from a place: of a peer's GPU that this process does not see,
// little is known before.
bool pair_has_atomics(const iface &self, const target &to) noexcept
try {
    if (to.key->has_atomics(to.at->id())) {
        return true;
    }
    const places     &where  = *self.domain->where;
    const topology   &known  = topology::get(where.cuda());
    const key_fields &fields = to.key->fields();
    pair_path         path   = known.judge(where.gpus()[to.at->gpu].ordinal,
                                           fields.owner.host_id == self.domain->self.host_id,
                                           gpu_of(fields.uuid, fields.fabric));
    if (!path.native_atomics) {
        NVL_DIAG("no atomic operations on the memory of a peer's GPU: %s", path.reason.c_str());
        return false;
    }
    const unsigned id = to.at->id();
    return where.while_numbered({{to.at, id}}, [&] { to.key->allow_atomics(id); });
} catch (const std::exception &) {
    return false;
}

ucs_status_t post_atomic(uct_ep_h super, const atomic_request &what, uint64_t remote_addr,
                         uct_rkey_t rkey, uct_completion_t *comp) noexcept
{
    iface &self = iface_of(super->iface);
    target to;
    if (!self.has_atomics) {
        return UCS_ERR_UNSUPPORTED;
    }
    if ((remote_addr % what.size_bytes) != 0) {
        return UCS_ERR_INVALID_PARAM;
    }
    ucs_status_t status = find_target(self, remote_addr, what.size_bytes, rkey, &to);
    if (status != UCS_OK) {
        return status;
    }
    if (!pair_has_atomics(self, to)) {
        return posted(self, to, UCS_ERR_UNSUPPORTED);
    }
    atomic_request request = what;
    request.dst            = to.remote;
    return posted(self, to, to.engine->atomic(request, op_end{comp, to.key}));
}

template<typename word>
ucs_status_t post(uct_ep_h ep, unsigned opcode, word value, uint64_t remote_addr,
                  uct_rkey_t rkey) noexcept
{
    if ((opcode >= UCT_ATOMIC_OP_LAST) || (((post_operations >> opcode) & 1) == 0)) {
        return UCS_ERR_UNSUPPORTED;
    }
    ucs_status_t status =
        post_atomic(ep, {0, value, 0, nullptr, sizeof(word), static_cast<ring_atomic>(opcode)},
                    remote_addr, rkey, &iface_of(ep->iface).unheard);
    return (status == UCS_INPROGRESS) ? UCS_OK : status;
}

template<typename word>
ucs_status_t fetch(uct_ep_h ep, unsigned opcode, word value, word *result, uint64_t remote_addr,
                   uct_rkey_t rkey, uct_completion_t *comp) noexcept
{
    if ((opcode >= UCT_ATOMIC_OP_CSWAP) || (((fetch_operations >> opcode) & 1) == 0)) {
        return UCS_ERR_UNSUPPORTED; // compare and swap has a call of its own
    }
    return post_atomic(ep, {0, value, 0, result, sizeof(word), static_cast<ring_atomic>(opcode)},
                       remote_addr, rkey, comp);
}

template<typename word>
ucs_status_t compare_swap(uct_ep_h ep, word compare, word swap, uint64_t remote_addr,
                          uct_rkey_t rkey, word *result, uct_completion_t *comp) noexcept
{
    return post_atomic(ep, {0, swap, compare, result, sizeof(word), ring_atomic_compare_swap},
                       remote_addr, rkey, comp);
}

ucs_status_t nvl_ep_atomic32_post(uct_ep_h ep, unsigned opcode, uint32_t value,
                                  uint64_t remote_addr, uct_rkey_t rkey) noexcept
{
    return post(ep, opcode, value, remote_addr, rkey);
}

ucs_status_t nvl_ep_atomic64_post(uct_ep_h ep, unsigned opcode, uint64_t value,
                                  uint64_t remote_addr, uct_rkey_t rkey) noexcept
{
    return post(ep, opcode, value, remote_addr, rkey);
}

ucs_status_t nvl_ep_atomic32_fetch(uct_ep_h ep, unsigned opcode, uint32_t value, uint32_t *result,
                                   uint64_t remote_addr, uct_rkey_t rkey,
                                   uct_completion_t *comp) noexcept
{
    return fetch(ep, opcode, value, result, remote_addr, rkey, comp);
}

ucs_status_t nvl_ep_atomic64_fetch(uct_ep_h ep, unsigned opcode, uint64_t value, uint64_t *result,
                                   uint64_t remote_addr, uct_rkey_t rkey,
                                   uct_completion_t *comp) noexcept
{
    return fetch(ep, opcode, value, result, remote_addr, rkey, comp);
}

ucs_status_t nvl_ep_atomic_cswap32(uct_ep_h ep, uint32_t compare, uint32_t swap,
                                   uint64_t remote_addr, uct_rkey_t rkey, uint32_t *result,
                                   uct_completion_t *comp) noexcept
{
    return compare_swap(ep, compare, swap, remote_addr, rkey, result, comp);
}

ucs_status_t nvl_ep_atomic_cswap64(uct_ep_h ep, uint64_t compare, uint64_t swap,
                                   uint64_t remote_addr, uct_rkey_t rkey, uint64_t *result,
                                   uct_completion_t *comp) noexcept
{
    return compare_swap(ep, compare, swap, remote_addr, rkey, result, comp);
}

} // namespace

namespace nvl {

void ep_fill_short_ops(uct_iface_ops_t *ops) noexcept
{
    ops->ep_put_short      = nvl_ep_put_short;
    ops->ep_put_bcopy      = nvl_ep_put_bcopy;
    ops->ep_get_bcopy      = nvl_ep_get_bcopy;
    ops->ep_atomic32_post  = nvl_ep_atomic32_post;
    ops->ep_atomic64_post  = nvl_ep_atomic64_post;
    ops->ep_atomic32_fetch = nvl_ep_atomic32_fetch;
    ops->ep_atomic64_fetch = nvl_ep_atomic64_fetch;
    ops->ep_atomic_cswap32 = nvl_ep_atomic_cswap32;
    ops->ep_atomic_cswap64 = nvl_ep_atomic_cswap64;
}

} // namespace nvl
