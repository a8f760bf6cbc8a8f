// SPDX-License-Identifier: BSD-3-Clause
//
// The endpoint: the way to one peer process, and the data path. Called through
// the op tables; calls mem (lookup) and engine (copy).
#ifndef NVLINK_UCT_EP_H
#define NVLINK_UCT_EP_H

#include "mem/process.h"
#include "uct/iface.h"

namespace nvl {

struct ep {
    uct_base_ep_t    super;
    process_identity peer;
    bool             peer_known;
    bool             on_this_host;
};

inline ep &ep_of(uct_ep_h super) noexcept
{
    return *reinterpret_cast<ep *>(super);
}

// Fills in the endpoint's operations for a host of this layout.
void ep_fill_ops(const ucx_layout &layout, uct_iface_ops_t *ops,
                 iface_internal_ops *internal) noexcept;

} // namespace nvl

#endif
