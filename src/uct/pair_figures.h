// SPDX-License-Identifier: BSD-3-Clause
//
// What UCP is told of a pair of GPUs, push and pull apart. Pure. Called by perf.cpp and tests;
// calls topo only.
#ifndef NVLINK_UCT_PAIR_FIGURES_H
#define NVLINK_UCT_PAIR_FIGURES_H

#include "topo/graph.h"

namespace nvl {

struct pair_figures {
    double bandwidth;     // bytes/s
    double extra_latency; // seconds beyond that of a pair on NVLink
};

// The true figures of a pair that the caller names.
pair_figures figures_of(const pair_path &path, bool pull) noexcept;

// For a pair that is not named, bytes/s: the best pair's rate, but enough to win. Push and pull
// stay as far apart as on the best pair.
double bid_of(const pair_path &best, bool pull) noexcept;

} // namespace nvl

#endif
