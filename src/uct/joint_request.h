// SPDX-License-Identifier: BSD-3-Clause
//
// Requests whose parts are with several engines, or several times with one, and
// that end as one: a flush (its parts are markers) and a list (its parts are runs).
// Runs of a list that find no room wait in it and are posted from progress, so that
// a list of any length and kind is taken whole. Used under the worker's lock.
// Called by iface and ep_list; calls copy_run.
#ifndef NVLINK_UCT_JOINT_REQUEST_H
#define NVLINK_UCT_JOINT_REQUEST_H

#include "base/linked_list.h"
#include "uct/copy_run.h"

namespace nvl {

class joint_requests;

class joint_request {
public:
    // What an engine is given for each part. Its count is that of the parts, of which
    // the caller's own is one; its status is that of the whole.
    uct_completion_t &parts() noexcept
    {
        return parts_;
    }

    // Ends with the error of an operation before it that nobody was told of.
    void hear_all() noexcept
    {
        hears_all_ = true;
    }

    // Posts a run, or keeps it until there is room. UCS_ERR_NO_RESOURCE: nothing of
    // the request was posted yet, and now is not the time. Other errors: this run
    // was not posted.
    ucs_status_t post(direction way, const run &what, size_t upcoming) noexcept;

    // All parts are posted, or wait, or `status` says why not. The request may be
    // gone afterwards. UCS_INPROGRESS: `user` will be told. Else nothing of it was
    // posted.
    ucs_status_t close(ucs_status_t status) noexcept;

private:
    friend class joint_requests;

    // A run that waits, with its pieces behind it.
    struct waiting_run {
        waiting_run *next;
        run_head     head;
        copy_piece   pieces[1];
    };

    joint_request(iface &owner, joint_requests &all, uct_completion_t *user) noexcept;
    ~joint_request();

    static void  part_done(uct_completion_t *parts) noexcept;
    ucs_status_t keep(const run &what) noexcept;
    void         drop_first() noexcept;
    bool         post_waiting() noexcept;

    uct_completion_t         parts_; // first: what engines know of the request
    uct_completion_t        *user_;
    iface                   &owner_;
    joint_requests          &all_;
    direction                way_       = direction::push;
    bool                     hears_all_ = false;
    waiting_run             *first_     = nullptr;
    waiting_run             *last_      = nullptr;
    joint_request           *behind_    = nullptr; // of those that wait
    list_link<joint_request> alive_;
};

// Those of one interface. Frees, without a word to anyone, what is left at its end.
class joint_requests {
public:
    joint_requests() = default;
    ~joint_requests();

    joint_requests(const joint_requests &)            = delete;
    joint_requests &operator=(const joint_requests &) = delete;

    // With one part, the caller's own, which close() ends; `user` may be null. Null:
    // no memory.
    joint_request *open(iface &owner, uct_completion_t *user) noexcept;

    // Does a list wait for room?
    bool is_waiting() const noexcept
    {
        return waiting_ != nullptr;
    }

    // Posts what waits, in order, until there is no more room.
    void dispatch() noexcept;

private:
    friend class joint_request;

    linked_list<joint_request, &joint_request::alive_> alive_;

    joint_request *waiting_      = nullptr;
    joint_request *waiting_last_ = nullptr;
};

} // namespace nvl

#endif
