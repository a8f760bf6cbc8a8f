// SPDX-License-Identifier: BSD-3-Clause
//
// Asks the route, picks ring or lane, and polls what is open.
#include "route/gpu_engine.h"

#include <algorithm>
#include <new>

#include "base/log.h"

namespace nvl {

namespace {

// A submission to a copy engine: 2.1 us for a push (bench/results).
constexpr double copy_call_ns = 2000;

void cut_rows(const copy_box &box, copy_piece *rows) noexcept
{
    for (size_t i = 0; i < box.rows; ++i) {
        rows[i] = copy_piece{box.dst + i * box.dst_step, box.src + i * box.src_step, box.row_bytes};
    }
}

} // namespace

gpu_engine::gpu_engine(const cuda_api &cuda, CUdevice device, const life_ref &life,
                       const gpu_engine_config &config) noexcept
    : cuda_(cuda), device_(device), life_(life), config_(config)
{
}

result<std::unique_ptr<gpu_engine>> gpu_engine::create(const cuda_api &cuda, CUdevice device,
                                                       CUcontext                context,
                                                       const gpu_engine_config &config) noexcept
{
    result<life_ref> life = context_life::of(cuda, context);
    if (!life.ok()) {
        return life.status();
    }
    std::unique_ptr<gpu_engine> self(new (std::nothrow)
                                         gpu_engine(cuda, device, life.value(), config));
    if (!self) {
        return UCS_ERR_NO_MEMORY;
    }
    ucs_status_t status = self->open_home();
    if (status != UCS_OK) {
        return status;
    }
    if (config.use_ring) {
        self->open_ring();
    }
    return self;
}

ucs_status_t gpu_engine::open_home() noexcept
{
    result<primary_context> home = primary_context::retain(cuda_, device_);
    if (!home.ok()) {
        return home.status();
    }
    if (home.value().get() == life_->context()) {
        return UCS_OK;
    }
    result<life_ref> life = context_life::of(cuda_, home.value().get());
    if (!life.ok()) {
        return life.status();
    }
    home_life_ = std::move(life.value());
    return UCS_OK;
}

// Without a ring the copy engine does everything.
void gpu_engine::open_ring() noexcept
{
    result<std::unique_ptr<lane>> fallback = lane::create(cuda_, life_->context(), config_.lane);
    if (!fallback.ok()) {
        return;
    }
    fallback_ = std::move(fallback.value());

    result<std::unique_ptr<ring_engine>> ring =
        ring_engine::create(cuda_, life_->context(), device_, *fallback_, config_.ring);
    if (ring.ok()) {
        ring_ = std::move(ring.value());
    }
}

// Null if it cannot be opened, which is logged.
lane *gpu_engine::lane_at(unsigned index) noexcept
{
    if (__builtin_expect(!lanes_[index], 0) && (open_lane(index) != UCS_OK)) {
        return nullptr;
    }
    return lanes_[index].get();
}

ucs_status_t gpu_engine::open_stage() noexcept
{
    if (life_->is_over()) {
        return UCS_ERR_IO_ERROR;
    }
    lane *push = lane_at(host_lanes + static_cast<unsigned>(direction::push));
    lane *pull = lane_at(host_lanes + static_cast<unsigned>(direction::pull));
    if ((push == nullptr) || (pull == nullptr)) {
        return UCS_ERR_IO_ERROR;
    }
    result<std::unique_ptr<host_stage>> opened =
        host_stage::create(cuda_, life_, *push, *pull, config_.stage);
    if (!opened.ok()) {
        return opened.status();
    }
    stage_ = std::move(opened.value());
    return UCS_OK;
}

ucs_status_t gpu_engine::open_lane(unsigned index) noexcept
{
    if (life_->is_over()) {
        return cuda_failed(cuda_, CUDA_ERROR_CONTEXT_IS_DESTROYED, "a new lane", 1);
    }
    result<std::unique_ptr<lane>> opened = lane::create(cuda_, life_->context(), config_.lane);
    if (!opened.ok()) {
        return opened.status();
    }
    lanes_[index]         = std::move(opened.value());
    active_[num_lanes_++] = lanes_[index].get();
    return UCS_OK;
}

// Both lanes of a peer with its first operation, whoever does it: opening one takes a
// while that no later operation is to wait for.
inline bool gpu_engine::open_peer(unsigned peer) noexcept
{
    const unsigned first = 2 * (peer % peers);
    return __builtin_expect(lanes_[first] && lanes_[first + 1], 1) ||
           ((lane_at(first) != nullptr) && (lane_at(first + 1) != nullptr));
}

ucs_status_t gpu_engine::copy_by_lane(direction way, unsigned peer, const copy_piece *pieces,
                                      size_t count, const op_end &end) noexcept
{
    lane *by = lane_at(2 * (peer % peers) + static_cast<unsigned>(way));
    return (by != nullptr) ? by->submit(pieces, count, end) : UCS_ERR_IO_ERROR;
}

ucs_status_t gpu_engine::box_by_lane(unsigned index, const copy_box &box,
                                     const op_end &end) noexcept
{
    lane *by = lane_at(index);
    if (by == nullptr) {
        return UCS_ERR_IO_ERROR;
    }
    ucs_status_t status = by->submit_box(box, end);
    if (status != UCS_ERR_UNSUPPORTED) {
        return status;
    }

    copy_piece rows[box_rows];
    if (box.rows > box_rows) {
        return status;
    }
    cut_rows(box, rows);
    return by->submit(rows, box.rows, end);
}

ucs_status_t gpu_engine::copy(direction way, unsigned peer, const copy_box &box, const op_end &end,
                              bool stays) noexcept
{
    // A few rows may be quicker by the ring, as pieces.
    if (ring_ && (box.rows <= box_rows)) {
        copy_piece rows[box_rows];
        cut_rows(box, rows);
        return copy(way, peer, rows, box.rows, end, stays, box.rows);
    }
    if (!open_peer(peer)) {
        return UCS_ERR_IO_ERROR;
    }
    return box_by_lane(2 * (peer % peers) + static_cast<unsigned>(way), box, end);
}

ucs_status_t gpu_engine::copy_pinned(direction way, const copy_piece *pieces, size_t count,
                                     const op_end &end) noexcept
{
    lane *by = lane_at(host_lanes + static_cast<unsigned>(way));
    return (by != nullptr) ? by->submit(pieces, count, end) : UCS_ERR_IO_ERROR;
}

ucs_status_t gpu_engine::copy_pinned(direction way, const copy_box &box, const op_end &end) noexcept
{
    return box_by_lane(host_lanes + static_cast<unsigned>(way), box, end);
}

ucs_status_t gpu_engine::copy_pageable(direction way, const copy_box &box,
                                       const op_end &end) noexcept
{
    ucs_status_t status = ready_stage();
    return (status == UCS_OK) ? stage_->submit(way == direction::push, box, end) : status;
}

ucs_status_t gpu_engine::put_short(uint64_t dst, const void *bytes, uint32_t size_bytes,
                                   const op_end &end) noexcept
{
    if (ring_) {
        ring_->summon(size_bytes);
        ucs_status_t status = ring_->submit_inline(dst, bytes, size_bytes, end);
        // A ring that is full is still the fastest there is.
        if ((status != UCS_ERR_NO_RESOURCE) || ring_->ready()) {
            return status;
        }
    }
    ucs_status_t status = ready_stage();
    return (status == UCS_OK) ? stage_->submit_inline(dst, bytes, size_bytes, end) : status;
}

ucs_status_t gpu_engine::atomic(const atomic_request &request, const op_end &end) noexcept
{
    return ring_ ? ring_->submit_atomic(request, end) : UCS_ERR_UNSUPPORTED;
}

ucs_status_t gpu_engine::copy(direction way, unsigned peer, const copy_piece *pieces, size_t count,
                              const op_end &end, bool stays, size_t upcoming) noexcept
{
    if (!open_peer(peer)) {
        return UCS_ERR_IO_ERROR;
    }
    if (ring_) {
        size_t largest = pieces[0].size_bytes;
        for (size_t i = 1; i < count; ++i) {
            largest = std::max(largest, pieces[i].size_bytes);
        }
        if (ring_is_better(config_.limits, {way, largest, std::max(count, upcoming), !is_idle()})) {
            if (upcoming > 1) {
                // The copy engine would cost a call for each piece: a kernel that
                // reports in meanwhile is waited for, no longer than that.
                ring_->await(largest, static_cast<double>(upcoming) * copy_call_ns);
            } else {
                ring_->summon(largest);
            }
            const bool   is_near = stays && (way == direction::pull);
            ucs_status_t status  = ring_->submit(pieces, count, end, is_near);
            if (status == UCS_INPROGRESS) {
                return status;
            }
            // A ring that is full is the fastest there is: wait for room. With
            // nothing in flight there is nothing to wait for.
            if ((status == UCS_ERR_NO_RESOURCE) && (ring_->in_flight() != 0) && ring_->ready()) {
                return status;
            }
        }
    }
    return copy_by_lane(way, peer, pieces, count, end);
}

unsigned gpu_engine::poll(unsigned max) noexcept
{
    unsigned count = ring_ ? ring_->poll(max) : 0;
    for (unsigned i = 0; i < num_lanes_; ++i) {
        count += active_[i]->poll(max);
    }
    if (stage_) {
        count += stage_->poll();
    }
    return count;
}

bool gpu_engine::has_room() const noexcept
{
    for (unsigned i = 0; i < num_lanes_; ++i) {
        if (active_[i]->is_full()) {
            return false;
        }
    }
    return (!ring_ || ring_->has_marker_room()) && (pageable_room() != 0);
}

bool gpu_engine::is_idle() const noexcept
{
    for (unsigned i = 0; i < num_lanes_; ++i) {
        if (active_[i]->in_flight() != 0) {
            return false;
        }
    }
    return (!ring_ || !ring_->is_busy()) && (!stage_ || stage_->is_idle());
}

ucs_status_t gpu_engine::mark(const op_end &end, int *count) noexcept
{
    // One that is broken takes no marker and says why; the others do.
    ucs_status_t result = UCS_OK;
    auto         note   = [&](ucs_status_t status) {
        if (status == UCS_INPROGRESS) {
            ++*count;
        } else {
            result = status;
        }
    };
    if (ring_ && ring_->is_busy()) {
        note(ring_->submit_marker(end));
    }
    if (stage_ && !stage_->is_idle()) {
        note(stage_->submit_marker(end));
    }
    for (unsigned i = 0; i < num_lanes_; ++i) {
        if (active_[i]->in_flight() != 0) {
            note(active_[i]->submit_marker(end));
        }
    }
    return result;
}

ucs_status_t gpu_engine::arm(CUhostFn fn, void *arg) noexcept
{
    if (ring_ && ring_->is_busy()) {
        ucs_status_t status = ring_->arm(fn, arg);
        if (status != UCS_OK) {
            return status;
        }
    }
    // The processor's turn: there is no end to wait for.
    if (stage_ && stage_->has_work()) {
        return UCS_ERR_BUSY;
    }
    // What the ring handed back ends here, and the ring itself is idle meanwhile.
    if (fallback_) {
        ucs_status_t status = arm_lane(*fallback_, fn, arg);
        if (status != UCS_OK) {
            return status;
        }
    }
    for (unsigned i = 0; i < num_lanes_; ++i) {
        ucs_status_t status = arm_lane(*active_[i], fn, arg);
        if (status != UCS_OK) {
            return status;
        }
    }
    return UCS_OK;
}

ucs_status_t gpu_engine::arm_lane(const lane &which, CUhostFn fn, void *arg) noexcept
{
    if (which.in_flight() == 0) {
        return UCS_OK;
    }
    context_guard guard(cuda_, which.life());
    if (!guard.ok()) {
        return UCS_ERR_BUSY; // its next poll ends what it has
    }
    relaxed_capture relaxed(cuda_);
    CUresult        code = cuda_.cuLaunchHostFunc(which.stream_ref(), fn, arg);
    return (code == CUDA_SUCCESS) ? UCS_OK : cuda_failed(cuda_, code, "cuLaunchHostFunc", 1);
}

} // namespace nvl
