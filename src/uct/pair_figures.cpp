// SPDX-License-Identifier: BSD-3-Clause
//
// From a path to the figures.
#include "uct/pair_figures.h"

#include <algorithm>

#include "topo/figures.h"

namespace nvl {

namespace {

// The least that UCP is told when it does not say which pair it asks about (UCX
// 1.22 never does). It is a bid, not a measure: UCP gives bytes to every lane with
// more than a quarter of the fastest one's figure (UCX_MULTI_LANE_MAX_RATIO), so
// that two true links of 24 GB/s would share each message with a network card. A
// quarter of this is above a port of 800 Gb/s. It also outbids cuda_ipc, which says
// up to 839 GB/s of any pair but 5.8 us where we say 4. It holds where all pairs are on
// PCIe too: with the true 25 GB/s of two L40S, put and get went to cuda_ipc, or to the
// card of 50 GB/s, which also took 69 % of each rendezvous (test/machines/*.choices).
constexpr double least_bid = 500e9;

} // namespace

pair_figures figures_of(const pair_path &path, bool pull) noexcept
{
    double latency =
        pull ? path.pull_latency_s - pull_latency_s : path.push_latency_s - push_latency_s;
    return {pull ? path.pull_bytes_s : path.push_bytes_s, std::max(latency, 0.0)};
}

double bid_of(const pair_path &best, bool pull) noexcept
{
    double push = std::max(best.push_bytes_s, least_bid);
    return (pull && (best.push_bytes_s > 0)) ? push * (best.pull_bytes_s / best.push_bytes_s)
                                             : push;
}

} // namespace nvl
