// SPDX-License-Identifier: BSD-3-Clause
//
// Push and pull apart, on a pair whose two directions differ: on no machine that is known do they by
// much, so that a swap would pass unseen there.
#include "uct/pair_figures.h"

#include "topo/figures.h"

#include <gtest/gtest.h>

namespace nvl::test {

namespace {

pair_path uneven(double push_bytes_s, double pull_bytes_s)
{
    pair_path path;
    path.kind           = path_kind::pcie;
    path.push_bytes_s   = push_bytes_s;
    path.pull_bytes_s   = pull_bytes_s;
    path.push_latency_s = push_latency_s + 1e-6;
    path.pull_latency_s = pull_latency_s + 5e-6;
    return path;
}

} // namespace

TEST(pair_figures, of_a_named_pair_are_those_of_the_direction)
{
    const pair_path path = uneven(40e9, 20e9);

    EXPECT_DOUBLE_EQ(figures_of(path, false).bandwidth, 40e9);
    EXPECT_DOUBLE_EQ(figures_of(path, true).bandwidth, 20e9);
    EXPECT_NEAR(figures_of(path, false).extra_latency, 1e-6, 1e-9);
    EXPECT_NEAR(figures_of(path, true).extra_latency, 5e-6, 1e-9);
}

TEST(pair_figures, of_a_pair_on_nvlink_have_no_extra_latency)
{
    pair_path path      = uneven(40e9, 20e9);
    path.push_latency_s = push_latency_s / 2;
    path.pull_latency_s = pull_latency_s;

    EXPECT_EQ(figures_of(path, false).extra_latency, 0);
    EXPECT_EQ(figures_of(path, true).extra_latency, 0);
}

TEST(pair_figures, of_a_bid_keep_the_directions_apart)
{
    // Fast enough to win as it is, and not.
    EXPECT_DOUBLE_EQ(bid_of(uneven(800e9, 600e9), false), 800e9);
    EXPECT_DOUBLE_EQ(bid_of(uneven(800e9, 600e9), true), 600e9);
    EXPECT_DOUBLE_EQ(bid_of(uneven(40e9, 20e9), false), 500e9);
    EXPECT_DOUBLE_EQ(bid_of(uneven(40e9, 20e9), true), 250e9);
    EXPECT_DOUBLE_EQ(bid_of(pair_path(), true), 500e9) << "no pair is known";
}

} // namespace nvl::test
