// SPDX-License-Identifier: BSD-3-Clause
//
// Which engine an operation goes to, on both sides of each limit.
#include "route/route.h"

#include <gtest/gtest.h>

namespace nvl::test {

namespace {

bool ring(direction way, size_t bytes, size_t pieces, bool in_stream)
{
    return ring_is_better(route_limits(), {way, bytes, pieces, in_stream});
}

} // namespace

TEST(route, sends_a_lone_operation_to_the_ring_up_to_its_limit)
{
    route_limits limits;
    for (direction way : {direction::push, direction::pull}) {
        size_t limit = limits.alone[static_cast<unsigned>(way)];
        EXPECT_TRUE(ring(way, 1, 1, false));
        EXPECT_TRUE(ring(way, limit, 1, false));
        EXPECT_FALSE(ring(way, limit + 1, 1, false));
        EXPECT_FALSE(ring(way, SIZE_MAX, 1, false));
    }
}

TEST(route, sends_a_stream_of_them_to_the_ring_up_to_another)
{
    route_limits limits;
    for (direction way : {direction::push, direction::pull}) {
        size_t limit = limits.stream[static_cast<unsigned>(way)];
        EXPECT_GT(limit, limits.alone[static_cast<unsigned>(way)]);
        EXPECT_TRUE(ring(way, limit, 1, true));
        EXPECT_FALSE(ring(way, limit + 1, 1, true));
    }
}

TEST(route, takes_many_pieces_for_a_stream)
{
    route_limits limits;
    for (direction way : {direction::push, direction::pull}) {
        size_t between = limits.alone[static_cast<unsigned>(way)] + 1;
        EXPECT_FALSE(ring(way, between, 1, false));
        EXPECT_TRUE(ring(way, between, 2, false));
    }
}

TEST(route, has_limits_for_each_direction)
{
    route_limits limits;
    limits.alone[0] = 100;
    limits.alone[1] = 10;
    EXPECT_TRUE(ring_is_better(limits, {direction::push, 50, 1, false}));
    EXPECT_FALSE(ring_is_better(limits, {direction::pull, 50, 1, false}));
}

} // namespace nvl::test
