// SPDX-License-Identifier: BSD-3-Clause
//
// A run: pieces of a list, or one box, that go to an engine as one operation,
// because they have one near place and one key. Called by ep_list and joint_request;
// calls route.
#ifndef NVLINK_UCT_COPY_RUN_H
#define NVLINK_UCT_COPY_RUN_H

#include "engine/op.h"
#include "mem/remote_key.h"
#include "route/route.h"

namespace nvl {

struct iface;

// On the copy engine each run is one submission and one completion.
constexpr size_t run_length = 64;

enum class near_kind { gpu, pinned, pageable };

// Where the near side of a piece is, and the place that copies.
struct near_side {
    near_kind    kind  = near_kind::gpu;
    const place *at    = nullptr; // null: nowhere that can be reached
    bool         stays = false;   // in that GPU's memory for good
};

// What a run is, without its pieces.
struct run_head {
    near_side   side;
    remote_key *key    = nullptr;
    size_t      count  = 0; // pieces, or rows of the box
    bool        is_box = false;
    copy_box    box{}; // also of pieces that are equal rows so far
};

struct run : run_head {
    copy_piece pieces[run_length];
};

// Posts a run; the key is held until `comp` has been told. `upcoming`: pieces that
// are posted in one go with these. UCS_INPROGRESS, or nothing was submitted:
// UCS_ERR_NO_RESOURCE means that what is in flight makes room.
ucs_status_t submit_run(iface &self, direction way, const run_head &head, const copy_piece *pieces,
                        size_t upcoming, uct_completion_t *comp) noexcept;

} // namespace nvl

#endif
