// SPDX-License-Identifier: BSD-3-Clause
//
// Everything that moves bytes for one interface in one place (GPU and context):
// its copy engine lanes, one for each direction and peer, made at first use, and
// the ring of the lingering kernel. Called by uct; calls route, lane and ring.
#ifndef NVLINK_ROUTE_GPU_ENGINE_H
#define NVLINK_ROUTE_GPU_ENGINE_H

#include <array>
#include <memory>

#include "engine/host_stage.h"
#include "engine/lane.h"
#include "engine/ring/ring_engine.h"
#include "route/route.h"

namespace nvl {

struct gpu_engine_config {
    lane_config       lane;
    host_stage_config stage;
    ring_config       ring;
    route_limits      limits;
    bool              use_ring = true;
};

// Used by one thread at a time, that of the interface's worker.
class gpu_engine {
public:
    // Opens the ring, where the GPU can run it; may take milliseconds. The context
    // lives.
    static result<std::unique_ptr<gpu_engine>> create(const cuda_api &cuda, CUdevice device,
                                                      CUcontext                context,
                                                      const gpu_engine_config &config) noexcept;

    // Starts one operation of `count` pieces. As lane::submit(). A full ring refuses:
    // waiting for it is quicker than another engine. `stays`: the near side is in
    // this GPU's memory for good (not managed). `upcoming`: pieces that are posted in
    // one go with these; for many, a kernel is waited for.
    ucs_status_t copy(direction way, unsigned peer, const copy_piece *pieces, size_t count,
                      const op_end &end, bool stays, size_t upcoming = 1) noexcept;

    // A box between GPUs, as one copy or row by row. UCS_ERR_UNSUPPORTED: it has more
    // than box_rows rows, and a copy engine does not take it (is_pitched()).
    static constexpr size_t box_rows = 64;
    ucs_status_t copy(direction way, unsigned peer, const copy_box &box, const op_end &end,
                      bool stays) noexcept;

    // The same between the memory of a GPU and page-locked memory of the host: always
    // by the copy engines, in lanes of their own, since the link to the host is
    // another one than those to peers.
    ucs_status_t copy_pinned(direction way, const copy_piece *pieces, size_t count,
                             const op_end &end) noexcept;
    ucs_status_t copy_pinned(direction way, const copy_box &box, const op_end &end) noexcept;

    // The same with any other memory of the host, which the processor copies part by
    // part in post and in poll.
    ucs_status_t copy_pageable(direction way, const copy_box &box, const op_end &end) noexcept;

    // Up to ring_inline_bytes of the host, which are copied before it returns: by the ring if
    // its kernel is there, else through a page-locked slot.
    ucs_status_t put_short(uint64_t dst, const void *bytes, uint32_t size_bytes,
                           const op_end &end) noexcept;

    // By the ring alone, see ring_engine::submit_atomic(). UCS_ERR_UNSUPPORTED without one.
    ucs_status_t atomic(const atomic_request &request, const op_end &end) noexcept;

    // How many operations copy_pageable() takes now.
    unsigned pageable_room() const noexcept
    {
        return stage_ ? stage_->room() : config_.stage.depth;
    }

    // Finishes about `max` operations at most; returns how many.
    unsigned poll(unsigned max) noexcept;

    // Marks the present end of everything that is in flight: `end` is finished
    // once for each marker. Adds the number of markers to *count; on failure the
    // markers set so far stay.
    ucs_status_t mark(const op_end &end, int *count) noexcept;

    // True if mark() needs no room that is not there.
    bool has_room() const noexcept;

    bool is_idle() const noexcept;

    // For blocking progress: calls fn(arg) on a thread of the driver once
    // something that is in flight now has ended. UCS_ERR_BUSY: poll first.
    ucs_status_t arm(CUhostFn fn, void *arg) noexcept;

    // True if its context is another one than the GPU's primary and that was reset, or
    // may have been: what was opened there for all contexts of the GPU is gone, and
    // nothing is to be posted here any more. Asks the driver now and then.
    bool is_homeless() const noexcept
    {
        return __builtin_expect(home_life_ != nullptr, 0) && home_life_->is_over_lately();
    }

    // False where the kernel is switched off or cannot run: lanes do all.
    bool has_ring() const noexcept
    {
        return ring_ != nullptr;
    }

private:
    // Peers beyond this share lanes; a host has 8 to 16 GPUs.
    static constexpr unsigned peers = 16;
    // Behind them, one lane a direction for the memory of the host.
    static constexpr unsigned host_lanes = 2 * peers;
    static constexpr unsigned max_lanes  = 2 * peers + 2;

    gpu_engine(const cuda_api &cuda, CUdevice device, const life_ref &life,
               const gpu_engine_config &config) noexcept;
    ucs_status_t open_home() noexcept;
    void         open_ring() noexcept;
    lane        *lane_at(unsigned index) noexcept;
    ucs_status_t open_lane(unsigned index) noexcept;
    bool         open_peer(unsigned peer) noexcept;
    ucs_status_t open_stage() noexcept;
    ucs_status_t ready_stage() noexcept
    {
        return __builtin_expect(!stage_, 0) ? open_stage() : UCS_OK;
    }
    ucs_status_t box_by_lane(unsigned index, const copy_box &box, const op_end &end) noexcept;
    ucs_status_t arm_lane(const lane &which, CUhostFn fn, void *arg) noexcept;
    ucs_status_t copy_by_lane(direction way, unsigned peer, const copy_piece *pieces, size_t count,
                              const op_end &end) noexcept;

    const cuda_api                              &cuda_;
    CUdevice                                     device_;
    life_ref                                     life_;
    life_ref                                     home_life_; // of the primary context, if another
    gpu_engine_config                            config_;
    std::unique_ptr<lane>                        fallback_; // what the ring hands back
    std::unique_ptr<ring_engine>                 ring_;
    std::unique_ptr<host_stage>                  stage_; // outlives the lanes
    std::array<std::unique_ptr<lane>, max_lanes> lanes_;
    std::array<lane *, max_lanes>                active_{}; // those that exist, packed
    unsigned                                     num_lanes_ = 0;
};

} // namespace nvl

#endif
