// SPDX-License-Identifier: BSD-3-Clause
//
// What all operations of an endpoint share on their way to an engine: from a key
// and a remote address to a pointer, whether there may be a post now, and the
// forms with several pieces (iov and lists). Called by ep; calls mem and iface.
#ifndef NVLINK_UCT_EP_POST_H
#define NVLINK_UCT_EP_POST_H

#include "uct/iface.h"

namespace nvl {

// Pieces of one iov, and of one list; a list that is longer comes in parts.
constexpr size_t max_iov        = 64;
constexpr size_t max_list_count = 1024;

// The slow way to a pointer: the first use of a key from a place that it was not
// unpacked for, or a range that is refused. UCS_ERR_NO_RESOURCE: an operation that is under
// way may be in the way.
ucs_status_t resolve_slow(iface &self, remote_key *key, const place &from, uint64_t remote_addr,
                          size_t size_bytes, uint64_t *remote) noexcept;

// Where [remote_addr, +size) of the peer is for copies that run in `from`.
inline ucs_status_t resolve(iface &self, remote_key *key, const place &from, uint64_t remote_addr,
                            size_t size_bytes, uint64_t *remote) noexcept
{
    if (__builtin_expect(key->lookup(from.id(), remote_addr, size_bytes, remote), 1)) {
        return UCS_OK;
    }
    return resolve_slow(self, key, from, remote_addr, size_bytes, remote);
}

// Room for one more, and no fence in the way. If not, the caller returns
// NO_RESOURCE, and UCP comes back through pending_add.
inline bool may_post(iface &self) noexcept
{
    if (__builtin_expect(!self.pending.empty() && !self.pending.is_dispatching(), 0) ||
        __builtin_expect(self.joints.is_waiting(), 0)) {
        return false;
    }
    if (__builtin_expect(self.fence_wanted, 0)) {
        if (!self.is_idle()) {
            return false;
        }
        // Who waits was there before the fence, or is behind it: with the last
        // of them the fence has done its work. (dispatch() takes a request out
        // before it lets it try.)
        self.fence_wanted = !self.pending.empty();
    }
    return true;
}

// What is posted from now on waits for all that was posted, or waits, already:
// copies in different lanes overtake each other.
inline void want_fence(iface &self) noexcept
{
    self.fence_wanted = self.fence_wanted || !self.is_idle() || !self.pending.empty();
}

// What a post returns when there is no room; pending_add then knows that the
// caller is not to try again at once.
inline ucs_status_t no_room(iface &self) noexcept
{
    self.refused = true;
    return UCS_ERR_NO_RESOURCE;
}

inline copy_piece piece_of(direction way, uint64_t local, uint64_t remote,
                           size_t size_bytes) noexcept
{
    return (way == direction::push) ? copy_piece{remote, local, size_bytes}
                                    : copy_piece{local, remote, size_bytes};
}

// Where copies from and to a local buffer run; null: it is memory of the host. A
// buffer without a registration is looked up. *stays: it is known to be in that GPU's
// memory for good.
inline const place *place_of_buffer(iface &self, const void *buffer, uct_mem_h memh,
                                    bool *stays) noexcept
{
    *stays = false;
    if (__builtin_expect(memh != UCT_MEM_HANDLE_NULL, 0)) {
        const place *at = registration_of(memh)->where();
        return (at != nullptr) ? place_now(at) : nullptr;
    }
    const local_range *found =
        self.local.find(*self.domain->local, reinterpret_cast<uint64_t>(buffer));
    if (__builtin_expect(found == nullptr, 0)) {
        return nullptr;
    }
    *stays = found->stays;
    return (found->at != nullptr) ? place_now(found->at) : nullptr;
}

// The place that copies between memory of the host and a peer's; null: there is none.
const place *place_for_host(places &where, remote_key *key, uint64_t remote_addr,
                            size_t size_bytes) noexcept;

// One piece of host memory.
ucs_status_t post_host(direction way, uct_ep_h ep, void *buffer, size_t size_bytes,
                       uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp) noexcept;

// Local pieces to or from one contiguous remote range, as one operation.
ucs_status_t post_iov(direction way, uct_ep_h ep, const uct_iov_t *iov, size_t iovcnt,
                      uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp) noexcept;

// UCT's list form: element i copies lengths[i] bytes between buffers[i] and
// remote_addrs[i], counts[i] times at distances of strides[i] bytes on both sides
// (once, without counts).
struct list_view {
    void *const      *buffers;
    const size_t     *lengths;
    const uct_mem_h  *memhs;
    const uint64_t   *remote_addrs;
    const uct_rkey_t *rkeys;
    const size_t     *counts;
    const size_t     *strides;
    size_t            count;
};

// One completion for the whole list. Either all of it is posted or nothing.
ucs_status_t post_list(direction way, uct_ep_h ep, const list_view &list,
                       uct_completion_t *comp) noexcept;

// ---- what travels with the call (ep_short.cpp) -------------------------------

// What uct_atomic_op_t says, as the bits of uct_iface_attr_t.
constexpr uint64_t post_operations = (1u << UCT_ATOMIC_OP_ADD) | (1u << UCT_ATOMIC_OP_AND) |
                                     (1u << UCT_ATOMIC_OP_OR) | (1u << UCT_ATOMIC_OP_XOR);
constexpr uint64_t fetch_operations =
    post_operations | (1u << UCT_ATOMIC_OP_SWAP) | (1u << UCT_ATOMIC_OP_CSWAP);

void ep_fill_short_ops(uct_iface_ops_t *ops) noexcept;

} // namespace nvl

#endif
