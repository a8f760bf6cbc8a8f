// SPDX-License-Identifier: BSD-3-Clause
//
// The interface: one for each worker of UCP. Owns the engines of each place, the
// requests that wait for room, and flushes. Used under its worker's lock, by one
// thread at a time. Called through the op tables and by ep; calls engine.
#ifndef NVLINK_UCT_IFACE_H
#define NVLINK_UCT_IFACE_H

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "route/gpu_engine.h"
#include "uct/joint_request.h"
#include "uct/md.h"

namespace nvl {

// A request of UCP that found no room, in the order of arrival. Lives in the
// request's private area.
struct pending_link {
    uct_pending_req_t *next;
    uct_ep_t          *ep;
};

class pending_queue {
public:
    bool empty() const noexcept
    {
        return head_ == nullptr;
    }

    void push(uct_pending_req_t *req, uct_ep_t *ep) noexcept;

    // Lets waiting requests try again until one finds no room; returns how many
    // went through.
    unsigned dispatch() noexcept;

    // Takes out the requests of an endpoint and hands them to `callback`.
    void purge(uct_ep_t *ep, uct_pending_purge_callback_t callback, void *arg) noexcept;

    bool is_dispatching() const noexcept
    {
        return dispatching_;
    }

private:
    static pending_link &link_of(uct_pending_req_t *req) noexcept
    {
        static_assert(sizeof(pending_link) <= UCT_PENDING_REQ_PRIV_LEN, "fits");
        return *reinterpret_cast<pending_link *>(req->priv);
    }

    uct_pending_req_t *head_        = nullptr;
    uct_pending_req_t *tail_        = nullptr;
    bool               dispatching_ = false;
};

// A get that hands its bytes to a function of the caller's, in flight.
struct bcopy_get {
    uct_completion_t      done{}; // first: told by the engine
    list_link<bcopy_get>  alive;
    uct_unpack_callback_t unpack = nullptr;
    void                 *arg    = nullptr;
    size_t                length = 0;
    uct_completion_t     *user   = nullptr;
    iface                *owner  = nullptr;
    uint8_t               bytes[ring_inline_bytes];
};

// Those of one interface. Frees, without a word to anyone, what is left at its end.
struct bcopy_gets {
    bcopy_gets() = default;
    ~bcopy_gets();
    bcopy_gets(const bcopy_gets &)            = delete;
    bcopy_gets &operator=(const bcopy_gets &) = delete;

    linked_list<bcopy_get, &bcopy_get::alive> alive;
};

// What copies in a place. The number under which it is kept may be another place's since.
struct place_engine {
    const place                *in = nullptr;
    std::unique_ptr<gpu_engine> engine;
};

struct iface {
    uct_base_iface_t                     super;
    iface_internal_ops                   internal_ops;
    const ucx_api                       *api;
    const host_binding                  *host;
    md                                  *domain;
    gpu_engine_config                    engine_config;
    unsigned                             max_poll;
    double                               bandwidth;        // of the bid, bytes/s
    bool                                 bandwidth_is_set; // by the user
    bool                                 has_atomics;
    size_t                               max_short;         // 0: no short operations
    double                               latency;           // seconds
    double                               overhead;          // seconds
    double                               host_bandwidth[2]; // [direction], bytes/s
    local_lookup                         local;             // where local buffers are
    by_place<place_engine>               engines;
    std::array<gpu_engine *, max_places> active; // those that exist, packed
    unsigned                             num_active;
    bool                                 is_polling; // an engine of `active`
    pending_queue                        pending;
    uct_completion_t unheard; // of operations that have none: an error is the next flush's
    joint_requests   joints;
    bcopy_gets       gets;
    bool             fence_wanted; // the next post waits for all before it
    bool             refused;      // a post found no room since something ended last
    uint32_t         ended;        // operations that progress calls have ended, modulo 2^32
    uint32_t         armed_after;  // `ended` when somebody wanted to sleep first
    uint64_t         arm_ticks;    // when that was; 0: never
    int              event_fd;
    std::string      last_refusal; // of a peer, and told

    // The engines of a place, made at first use. UCS_ERR_IO_ERROR: its context is gone, or
    // what was opened for it. UCS_ERR_NO_RESOURCE: operations in an ended context are to be
    // told so first.
    result<gpu_engine *> engine_at(const place &at) noexcept
    {
        const place_engine &known = engines[at.id()];
        if (__builtin_expect(known.in != &at, 0)) {
            return open_engine(at);
        }
        if (__builtin_expect(known.engine->is_homeless(), 0)) {
            return homeless(at);
        }
        return known.engine.get();
    }

    result<gpu_engine *> open_engine(const place &at) noexcept;
    ucs_status_t         homeless(const place &at) noexcept;
    void                 close_ended() noexcept;

    // Makes the engines of the GPUs that buffers are registered on, so that no
    // operation has to: loading the copy kernel takes milliseconds.
    void prepare() noexcept;

    bool is_idle() const noexcept;
    bool has_room() const noexcept;

    // The error of an operation without a completion, once; else UCS_OK.
    ucs_status_t take_unheard() noexcept
    {
        ucs_status_t status = unheard.status;
        unheard.status      = UCS_OK;
        return status;
    }

    // As uct_iface_flush.
    ucs_status_t flush(uct_completion_t *comp) noexcept;
};

inline iface &iface_of(uct_iface_h super) noexcept
{
    return *reinterpret_cast<iface *>(super);
}

} // namespace nvl

extern "C" {

ucs_status_t nvl_query_devices(uct_md_h md, uct_tl_device_resource_t **devices_p,
                               unsigned *num_devices_p) noexcept;
ucs_status_t nvl_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                            const uct_iface_config_t *config, uct_iface_h *iface_p) noexcept;
}

#endif
