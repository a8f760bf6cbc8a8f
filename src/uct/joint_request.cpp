// SPDX-License-Identifier: BSD-3-Clause
//
// Counting parts, and keeping the runs that wait.
#include "uct/joint_request.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "uct/iface.h"

namespace nvl {

joint_request::joint_request(iface &owner, joint_requests &all, uct_completion_t *user) noexcept
    : user_(user), owner_(owner), all_(all)
{
    parts_.func   = part_done;
    parts_.count  = 1;
    parts_.status = UCS_OK;
    all_.alive_.add(*this);
}

joint_request::~joint_request()
{
    while (first_ != nullptr) {
        drop_first();
    }
    all_.alive_.remove(*this);
}

// The completion of the parts.
void joint_request::part_done(uct_completion_t *parts) noexcept
{
    auto             *self   = reinterpret_cast<joint_request *>(parts);
    uct_completion_t *user   = self->user_;
    ucs_status_t      status = parts->status;
    if (self->hears_all_ && (status == UCS_OK)) {
        status = self->owner_.take_unheard();
    }
    delete self;
    op_finish(op_end{user, nullptr}, status);
}

// ---- runs that wait -----------------------------------------------------------

ucs_status_t joint_request::keep(const run &what) noexcept
{
    size_t pieces = what.is_box ? 0 : what.count;
    void  *memory =
        std::malloc(sizeof(waiting_run) + std::max<size_t>(pieces, 1) * sizeof(copy_piece));
    if (memory == nullptr) {
        return UCS_ERR_NO_MEMORY;
    }
    auto *kept = new (memory) waiting_run{nullptr, what, {}};
    std::copy_n(what.pieces, pieces, kept->pieces);
    kept->head.key->acquire(); // paid back by drop_first()

    (last_ != nullptr ? last_->next : first_) = kept;
    last_                                     = kept;
    ++parts_.count;
    return UCS_OK;
}

void joint_request::drop_first() noexcept
{
    waiting_run *old = first_;
    first_           = old->next;
    if (first_ == nullptr) {
        last_ = nullptr;
    }
    old->head.key->release();
    std::free(old);
}

ucs_status_t joint_request::post(direction way, const run &what, size_t upcoming) noexcept
{
    way_ = way;
    if (first_ != nullptr) {
        return keep(what); // behind those that wait
    }
    ++parts_.count;
    ucs_status_t status = submit_run(owner_, way, what, what.pieces, upcoming, &parts_);
    if (status == UCS_INPROGRESS) {
        return UCS_OK;
    }
    --parts_.count;
    return ((status == UCS_ERR_NO_RESOURCE) && (parts_.count > 1)) ? keep(what) : status;
}

ucs_status_t joint_request::close(ucs_status_t status) noexcept
{
    if ((parts_.count == 1) && (status != UCS_OK)) {
        delete this;
        return status;
    }
    if (status == UCS_ERR_NO_RESOURCE) {
        status = UCS_ERR_UNREACHABLE; // what is half posted is not tried again
    }
    if (status != UCS_OK) {
        // What was posted ends the request, with the error; the rest is not posted.
        while (first_ != nullptr) {
            drop_first();
            --parts_.count;
        }
    }
    if (first_ != nullptr) {
        (all_.waiting_last_ != nullptr ? all_.waiting_last_->behind_ : all_.waiting_) = this;
        all_.waiting_last_                                                            = this;
    }
    op_finish(op_end{&parts_, nullptr}, status);
    return UCS_INPROGRESS;
}

// False: something still waits. True: the request may be gone.
bool joint_request::post_waiting() noexcept
{
    while (first_ != nullptr) {
        waiting_run &next = *first_;
        ucs_status_t status =
            submit_run(owner_, way_, next.head, next.pieces, next.head.count, &parts_);
        if (status == UCS_ERR_NO_RESOURCE) {
            return false;
        }
        drop_first();
        if (status == UCS_INPROGRESS) {
            continue; // its part is with the engine
        }
        while (first_ != nullptr) {
            drop_first();
            --parts_.count; // the refused one's is left: it ends the request below
        }
        op_finish(op_end{&parts_, nullptr}, status);
        break;
    }
    return true;
}

// ---- all of an interface ------------------------------------------------------

joint_request *joint_requests::open(iface &owner, uct_completion_t *user) noexcept
{
    return new (std::nothrow) joint_request(owner, *this, user);
}

joint_requests::~joint_requests()
{
    for (joint_request *one = alive_.first(); one != nullptr;) {
        joint_request *next = alive_.behind(*one);
        delete one;
        one = next;
    }
}

void joint_requests::dispatch() noexcept
{
    while (waiting_ != nullptr) {
        // Taken out first: it may be gone afterwards, and a completion may add others.
        joint_request *first = waiting_;
        waiting_             = first->behind_;
        if (waiting_ == nullptr) {
            waiting_last_ = nullptr;
        }
        if (!first->post_waiting()) {
            first->behind_ = waiting_;
            waiting_       = first;
            if (waiting_last_ == nullptr) {
                waiting_last_ = first;
            }
            return;
        }
    }
}

} // namespace nvl
