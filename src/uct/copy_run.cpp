// SPDX-License-Identifier: BSD-3-Clause
//
// From a run to the engine of its place.
#include "uct/copy_run.h"

#include "uct/iface.h"

namespace nvl {

ucs_status_t submit_run(iface &self, direction way, const run_head &head, const copy_piece *pieces,
                        size_t upcoming, uct_completion_t *comp) noexcept
{
    result<gpu_engine *> engine = self.engine_at(*head.side.at);
    if (!engine.ok()) {
        return engine.status();
    }
    gpu_engine  &by   = *engine.value();
    unsigned     peer = head.key->peer_index();
    op_end       end{comp, head.key};
    ucs_status_t status;

    if (!head.key->begin_use()) { // paid back when the operation ends
        return tell_freed(head.key->fields().base);
    }
    if (head.side.kind == near_kind::pageable) {
        status = by.copy_pageable(way, head.box, end);
    } else if (head.side.kind == near_kind::pinned) {
        status = head.is_box ? by.copy_pinned(way, head.box, end)
                             : by.copy_pinned(way, pieces, head.count, end);
    } else {
        status = head.is_box
                     ? by.copy(way, peer, head.box, end, head.side.stays)
                     : by.copy(way, peer, pieces, head.count, end, head.side.stays, upcoming);
    }
    if (status != UCS_INPROGRESS) {
        head.key->release();
    }
    return status;
}

} // namespace nvl
