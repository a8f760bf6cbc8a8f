// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of several pieces or shapes, those of host memory, and the slow way
// from a key to a pointer.
#include <algorithm>

#include "base/log.h"
#include "uct/copy_run.h"
#include "uct/ep_post.h"

namespace nvl {

namespace {

// An element of an iov or a list: rows at equal distances on both sides.
struct element {
    void       *buffer;
    uct_mem_h   memh;
    remote_key *key;
    uint64_t    remote_addr;
    size_t      row_bytes;
    size_t      rows;
    size_t      near_step;
    size_t      far_step;
};

size_t span_of(size_t row_bytes, size_t rows, size_t step) noexcept
{
    return (rows - 1) * step + row_bytes;
}

near_side side_of(iface &self, const element &what) noexcept
{
    near_side side;
    auto      first = reinterpret_cast<uint64_t>(what.buffer);
    side.kind       = near_kind::pageable;
    if ((what.memh != UCT_MEM_HANDLE_NULL) || !self.local.has_just_missed(first)) {
        side.at = place_of_buffer(self, what.buffer, what.memh, &side.stays);
        if (side.at != nullptr) {
            side.kind = near_kind::gpu;
            return side;
        }
        size_t size = span_of(what.row_bytes, what.rows, what.near_step);
        if (!self.local.has_just_missed(first) && self.domain->local->is_pinned(first, size)) {
            side.kind = near_kind::pinned;
        }
    }
    side.at = place_for_host(*self.domain->where, what.key, what.remote_addr,
                             span_of(what.row_bytes, what.rows, what.far_step));
    return side;
}

// Gathers elements into runs: pieces of one place and one key, and, in place of
// pieces, boxes where rows follow each other at equal distances. A sink gets each
// run that is complete, and the first status of it that is not UCS_OK ends it all.
template<typename sink_t> class gatherer {
public:
    gatherer(iface &self, direction way, sink_t sink) noexcept : self_(self), way_(way), sink_(sink)
    {
    }

    ucs_status_t add(const element &what) noexcept
    {
        near_side    side = side_of(self_, what);
        uint64_t     remote;
        ucs_status_t status = UCS_ERR_UNREACHABLE;
        if (side.at != nullptr) {
            status = resolve(self_, what.key, *side.at, what.remote_addr,
                             span_of(what.row_bytes, what.rows, what.far_step), &remote);
        }
        if (status != UCS_OK) {
            return status;
        }

        bool     push = way_ == direction::push;
        auto     near = reinterpret_cast<uint64_t>(what.buffer);
        copy_box box{push ? remote : near,
                     push ? near : remote,
                     what.row_bytes,
                     what.rows,
                     push ? what.far_step : what.near_step,
                     push ? what.near_step : what.far_step};
        if ((box.rows > 1) && (box.dst_step == box.row_bytes) && (box.src_step == box.row_bytes)) {
            box.row_bytes *= box.rows; // no gaps
            box.rows = 1;
        }
        bool one_copy = (box.rows > run_length) && is_pitched(box);
        if (one_copy || (side.kind == near_kind::pageable)) {
            return add_alone(side, what.key, box);
        }
        for (size_t i = 0; (i < box.rows) && (status == UCS_OK); ++i) {
            status =
                add_row(side, what.key,
                        {box.dst + i * box.dst_step, box.src + i * box.src_step, box.row_bytes});
        }
        return status;
    }

    ucs_status_t finish() noexcept
    {
        if (all_.count == 0) {
            return UCS_OK;
        }
        ucs_status_t status = sink_(all_);
        all_.count          = 0;
        all_.is_box         = false;
        return status;
    }

private:
    ucs_status_t add_alone(const near_side &side, remote_key *key, const copy_box &box) noexcept
    {
        ucs_status_t status = finish();
        if (status != UCS_OK) {
            return status;
        }
        all_.side   = side;
        all_.key    = key;
        all_.count  = box.rows;
        all_.is_box = true;
        all_.box    = box;
        return finish();
    }

    // Would the piece be the next row of what is gathered?
    bool is_next_row(const copy_piece &piece) const noexcept
    {
        const copy_box &box = all_.box;
        return (piece.size_bytes == box.row_bytes) &&
               (piece.dst == box.dst + all_.count * box.dst_step) &&
               (piece.src == box.src + all_.count * box.src_step);
    }

    ucs_status_t add_row(const near_side &side, remote_key *key, const copy_piece &piece) noexcept
    {
        bool fits = (all_.count != 0) && (side.at == all_.side.at) &&
                    (side.kind == all_.side.kind) && (side.stays == all_.side.stays) &&
                    (key == all_.key);
        if (fits && (all_.count == 1) && (piece.dst > all_.box.dst) && (piece.src > all_.box.src)) {
            all_.box.dst_step = piece.dst - all_.box.dst;
            all_.box.src_step = piece.src - all_.box.src;
            all_.box.rows     = 1;
        }
        // box.rows counts the pieces that are its rows.
        bool in_line = fits && (all_.box.rows == all_.count) && is_next_row(piece);
        if (fits && (all_.count >= run_length)) {
            if (in_line && is_pitched(all_.box)) {
                all_.is_box   = true;
                all_.box.rows = ++all_.count;
                return UCS_OK;
            }
            fits = false;
        }
        if (!fits) {
            ucs_status_t status = finish();
            if (status != UCS_OK) {
                return status;
            }
            all_.side = side;
            all_.key  = key;
            all_.box  = copy_box{piece.dst, piece.src, piece.size_bytes, 0, 0, 0};
        }
        if (in_line || (all_.count == 0)) {
            ++all_.box.rows;
        }
        all_.pieces[all_.count++] = piece;
        return UCS_OK;
    }

    iface    &self_;
    direction way_;
    sink_t    sink_;
    run       all_;
};

// All elements of a source, through a gatherer.
template<typename source_t, typename sink_t>
ucs_status_t gather(iface &self, direction way, const source_t &source, sink_t sink) noexcept
{
    gatherer<sink_t> all(self, way, sink);
    for (size_t i = 0; i < source.size(); ++i) {
        element what = source.at(i);
        if ((what.row_bytes == 0) || (what.rows == 0)) {
            continue; // whatever its buffer is
        }
        ucs_status_t status = all.add(what);
        if (status != UCS_OK) {
            return status;
        }
    }
    return all.finish();
}

// In one pass: the GPU copies the first pieces while the next ones are looked up. What
// is wrong in the first run is refused and nothing is posted; behind it, the request
// ends with the error.
template<typename source_t>
ucs_status_t post_all(direction way, iface &self, const source_t &source,
                      uct_completion_t *comp) noexcept
{
    if (!may_post(self)) {
        return no_room(self);
    }

    run            first; // kept back until there is a second: most have one alone
    size_t         runs   = 0;
    joint_request *joint  = nullptr;
    ucs_status_t   status = gather(self, way, source, [&](const run &all) {
        if (++runs == 1) {
            static_cast<run_head &>(first) = all;
            std::copy_n(all.pieces, all.is_box ? 0 : all.count, first.pieces);
            return UCS_OK;
        }
        if (joint == nullptr) {
            joint = self.joints.open(self, comp);
            if (joint == nullptr) {
                return UCS_ERR_NO_MEMORY;
            }
            // It may wait for a kernel, as long as a run that is full would.
            ucs_status_t posted =
                joint->post(way, first, std::max(std::min(source.size(), run_length), first.count));
            if (posted != UCS_OK) {
                return posted;
            }
        }
        return joint->post(way, all, all.count);
    });
    if (joint != nullptr) {
        status = joint->close(status);
    } else if ((status == UCS_OK) && (runs != 0)) {
        status = submit_run(self, way, first, first.pieces, first.count, comp);
    }
    return (status == UCS_ERR_NO_RESOURCE) ? no_room(self) : status;
}

class iov_source {
public:
    iov_source(const uct_iov_t *iov, size_t count, uint64_t remote_addr, remote_key *key) noexcept
        : iov_(iov), count_(count), remote_addr_(remote_addr), key_(key)
    {
    }

    size_t size() const noexcept
    {
        return count_;
    }

    // The far side is one range: rows follow each other there.
    element at(size_t i) const noexcept
    {
        const uct_iov_t &one = iov_[i];
        size_t           far = 0;
        for (size_t before = 0; before < i; ++before) {
            far += iov_[before].length * iov_[before].count;
        }
        return {one.buffer, one.memh,  key_,       remote_addr_ + far,
                one.length, one.count, one.stride, one.length};
    }

private:
    const uct_iov_t *iov_;
    size_t           count_;
    uint64_t         remote_addr_;
    remote_key      *key_;
};

class list_source {
public:
    explicit list_source(const list_view &list) noexcept : list_(list)
    {
    }

    size_t size() const noexcept
    {
        return list_.count;
    }

    element at(size_t i) const noexcept
    {
        size_t step = (list_.strides != nullptr) ? list_.strides[i] : 0;
        return {list_.buffers[i],
                (list_.memhs != nullptr) ? list_.memhs[i] : UCT_MEM_HANDLE_NULL,
                remote_key_of(list_.rkeys[i]),
                list_.remote_addrs[i],
                list_.lengths[i],
                (list_.counts != nullptr) ? list_.counts[i] : 1,
                step,
                step};
    }

private:
    const list_view &list_;
};

} // namespace

// The place that copies between memory of the host and a peer's. On the peer's own
// GPU, where this process uses it: the bytes then cross no link between GPUs. Else on
// one that the key is open for; a context is made on no further GPU.
const place *place_for_host(places &where, remote_key *key, uint64_t remote_addr,
                            size_t size_bytes) noexcept
{
    uint64_t     remote;
    int          gpu = where.find_gpu(key->fields().uuid);
    const place *own = (gpu >= 0) ? where.known_primary(static_cast<unsigned>(gpu)) : nullptr;
    if ((own != nullptr) && key->lookup(own->id(), remote_addr, size_bytes, &remote)) {
        return own;
    }
    // A primary context stays; one of the application may be over.
    for (unsigned i = 0; i < where.gpus().size(); ++i) {
        const place *at = where.known_primary(i);
        if ((at != nullptr) && key->lookup(at->id(), remote_addr, size_bytes, &remote)) {
            return at;
        }
    }
    for (unsigned i = where.count(); i-- > 0;) {
        const place *at = where.numbered(i);
        if ((at == nullptr) || !key->lookup(i, remote_addr, size_bytes, &remote)) {
            continue;
        }
        const place *home    = where.known_primary(at->gpu);
        bool         is_left = (home == nullptr) || (home->id() != at->home); // by a reset
        if (!is_left && !where.is_over(*at)) {
            return at;
        }
    }
    if (own != nullptr) {
        return own;
    }
    result<const place *> any = where.preferred(-1);
    return any.ok() ? any.value() : nullptr;
}

ucs_status_t resolve_slow(iface &self, remote_key *key, const place &from, uint64_t remote_addr,
                          size_t size_bytes, uint64_t *remote) noexcept
{
    if (!key->contains(remote_addr, size_bytes)) {
        NVL_ERROR("0x%lx length %zu is outside the peer's registered memory 0x%lx length %lu",
                  static_cast<unsigned long>(remote_addr), size_bytes,
                  static_cast<unsigned long>(key->fields().base),
                  static_cast<unsigned long>(key->fields().size_bytes));
        return UCS_ERR_INVALID_ADDR;
    }

    ucs_status_t status = key->connect(from);
    if ((status == UCS_ERR_BUSY) && !self.is_idle()) {
        return no_room(self); // what is in the way may be one of these operations
    }
    if (status == UCS_ERR_BUSY) {
        NVL_ERROR("the peer's memory at 0x%lx cannot be reached: something in this process keeps "
                  "an allocation open that the peer has freed there (UCX_TLS=^cuda_ipc helps)",
                  static_cast<unsigned long>(key->fields().base));
        return UCS_ERR_UNREACHABLE;
    }
    if (status != UCS_OK) {
        return status;
    }
    return key->lookup(from.id(), remote_addr, size_bytes, remote) ? UCS_OK : UCS_ERR_INVALID_ADDR;
}

ucs_status_t post_host(direction way, uct_ep_h super, void *buffer, size_t size_bytes,
                       uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp) noexcept
{
    uct_iov_t one{buffer, size_bytes, UCT_MEM_HANDLE_NULL, 0, 1};
    return post_all(way, iface_of(super->iface),
                    iov_source(&one, 1, remote_addr, remote_key_of(rkey)), comp);
}

ucs_status_t post_iov(direction way, uct_ep_h super, const uct_iov_t *iov, size_t iovcnt,
                      uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp) noexcept
{
    if (iovcnt > max_iov) {
        return UCS_ERR_INVALID_PARAM;
    }
    iface_of(super->iface).local.begin();
    return post_all(way, iface_of(super->iface),
                    iov_source(iov, iovcnt, remote_addr, remote_key_of(rkey)), comp);
}

ucs_status_t post_list(direction way, uct_ep_h super, const list_view &list,
                       uct_completion_t *comp) noexcept
{
    if (list.count > max_list_count) {
        return UCS_ERR_UNSUPPORTED;
    }
    iface_of(super->iface).local.begin();
    return post_all(way, iface_of(super->iface), list_source(list), comp);
}

} // namespace nvl
