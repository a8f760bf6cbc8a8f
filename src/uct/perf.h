// SPDX-License-Identifier: BSD-3-Clause
//
// What UCP is told about speed: attributes for the choice of lanes, estimates
// for the choice of protocols. Called by iface.
#ifndef NVLINK_UCT_PERF_H
#define NVLINK_UCT_PERF_H

#include "uct/iface.h"

namespace nvl {

// As uct_iface_estimate_perf. For two GPUs that the caller names (system devices)
// the true figures of that pair, push and pull apart; else the bid. Of memory types
// or of a pair that the transport cannot copy between: UCS_ERR_UNSUPPORTED.
ucs_status_t estimate_perf(const iface &self, uct_perf_attr_t *attr) noexcept;

// The bid, bytes/s, when no variable sets it: the best pair's push, or what it
// takes to win where that is less.
double default_bandwidth(const places &where) noexcept;

} // namespace nvl

#endif
