// SPDX-License-Identifier: BSD-3-Clause
//
// Do the right bytes arrive, and only those? Every operation by size, alignment of both sides, process and GPU.
#include "uct/connection.h"

namespace nvl::test {

namespace {

constexpr size_t guard_size = 64; // looked at on both sides of what is copied
constexpr size_t size_max   = 4u << 20;
constexpr size_t room       = size_max + 4 * guard_size;

// One operation, its neighbourhood filled with other bytes before, all of it compared after.
void check_put(connection *c, size_t from, size_t to, size_t size, uint64_t seed)
{
    bytes source   = random_bytes(size, seed);
    bytes expected = random_bytes(size + 2 * guard_size, seed + 1);
    c->local.write(from, source);
    c->far->write(c->remote, to - guard_size, expected);
    std::copy(source.begin(), source.end(), expected.begin() + guard_size);

    completion done;
    ASSERT_EQ(c->put(from, to, size, &done), UCS_INPROGRESS);
    ASSERT_TRUE(c->wait(done));
    ASSERT_EQ(done.status, UCS_OK);
    ASSERT_EQ(difference(expected, c->far->read(c->remote, to - guard_size, expected.size())), "")
        << size << " bytes from +" << from << " to +" << to;
    ASSERT_EQ(difference(source, c->local.read(from, size)), "") << "the source has changed";
}

void check_get(connection *c, size_t to, size_t from, size_t size, uint64_t seed)
{
    bytes source   = random_bytes(size, seed);
    bytes expected = random_bytes(size + 2 * guard_size, seed + 1);
    c->far->write(c->remote, from, source);
    c->local.write(to - guard_size, expected);
    std::copy(source.begin(), source.end(), expected.begin() + guard_size);

    completion done;
    ASSERT_EQ(c->get(to, from, size, &done), UCS_INPROGRESS);
    ASSERT_TRUE(c->wait(done));
    ASSERT_EQ(done.status, UCS_OK);
    ASSERT_EQ(difference(expected, c->local.read(to - guard_size, expected.size())), "")
        << size << " bytes from +" << from << " to +" << to;
    ASSERT_EQ(difference(source, c->far->read(c->remote, from, size)), "")
        << "the source has changed";
}

using check = void (*)(connection *, size_t, size_t, size_t, uint64_t);

void check_all(connection *c, check one)
{
    const size_t sizes[]  = {1,      2,      3,       4,       7,       8,       15,    16,
                             17,     31,     63,      64,      127,     255,     513,   1000,
                             4095,   4096,   4097,    8191,    16385,   65535,   65536, 65537,
                             131071, 524289, 1048576, 1048577, 3333333, size_max};
    const size_t shifts[] = {0, 1, 3, 4, 8, 15};
    uint64_t     seed     = 1;
    for (size_t size : sizes) {
        for (size_t left : shifts) {
            for (size_t right : shifts) {
                // All pairs of shifts for what is small; for the rest aligned, each side alone, and both.
                bool is_typical =
                    left + right == 0 || left + right == 3 || (left == 1 && right == 8);
                if (size > 5000 && !is_typical) {
                    continue;
                }
                one(c, guard_size + left, guard_size + right, size, seed += 2);
                if (testing::Test::HasFatalFailure()) {
                    return;
                }
            }
        }
    }
}

} // namespace

class copy : public every_pair {};

TEST_P(copy, puts_every_size_at_every_alignment)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, room);
    check_all(&c, check_put);
}

TEST_P(copy, gets_every_size_at_every_alignment)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, room);
    check_all(&c, check_get);
}

TEST_P(copy, keeps_many_operations_apart)
{
    constexpr size_t slots = 200, stride = 5001;
    connection       c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, room);
    bytes            source = random_bytes(slots * stride, 77);
    bytes            target = random_bytes(slots * stride, 78);
    c.local.write(0, source);
    c.far->write(c.remote, 0, target);

    completion all(1);
    for (size_t i = 0; i < slots; ++i) {
        size_t size = 1 + (i * 37) % stride;
        // In another order over there.
        size_t       to     = ((i * 7) % slots) * stride;
        ucs_status_t status = UCS_ERR_NO_RESOURCE;
        ASSERT_TRUE(c.wait([&] {
            status = c.put(i * stride, to, size, &all);
            return status != UCS_ERR_NO_RESOURCE;
        }));
        ASSERT_EQ(status, UCS_INPROGRESS);
        ++all.super.count;
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(i * stride), size,
                    target.begin() + static_cast<ptrdiff_t>(to));
    }
    --all.super.count;
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(all.super.count, 0);
    EXPECT_EQ(difference(target, c.far->read(c.remote, 0, target.size())), "");
}

// Otherwise the tests of the kernel would be tests of the copy engine.
TEST_P(copy, is_done_by_the_engine_that_is_under_test)
{
    NVL_NEEDS_EMULATOR();
    constexpr long count  = 300;
    constexpr int  trials = 10; // a kernel that a busy machine keeps from starting is given up
    connection     c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, room);
    const char    *kernel         = getenv("UCX_NVLINK_KERNEL");
    const bool     is_kernel      = (kernel != nullptr) && (*kernel == 'y');
    long           by_copy_engine = count;
    for (int trial = 0; (trial < trials) && (by_copy_engine >= count / 2); ++trial) {
        emulator()->reset_counts();
        for (long i = 0; i < count; ++i) {
            ASSERT_NO_FATAL_FAILURE(
                check_put(&c, guard_size, guard_size, 1000, static_cast<uint64_t>(i)));
        }
        by_copy_engine = emulator()->call_count("cuMemcpyAsync");
        if (!is_kernel) {
            EXPECT_EQ(by_copy_engine, count);
            return;
        }
    }
    EXPECT_LT(by_copy_engine, count / 2) << "the kernel does next to nothing";
}

TEST_P(copy, takes_nothing_for_no_bytes)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, 4096);
    EXPECT_EQ(c.put(0, 0, 0, nullptr), UCS_OK);
    EXPECT_EQ(c.get(0, 0, 0, nullptr), UCS_OK);
    EXPECT_EQ(uct_ep_put_zcopy(c.ep.get(), nullptr, 0, c.remote, c.rkey(), nullptr), UCS_OK);
    EXPECT_EQ(uct_iface_flush(c.here.iface(), 0, nullptr), UCS_OK);
}

TEST_P(copy, works_without_a_completion)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, 4096);
    bytes      source = random_bytes(1000, 3);
    c.local.write(0, source);
    ASSERT_EQ(c.put(0, 100, 1000, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(difference(source, c.far->read(c.remote, 100, 1000)), "");
}

INSTANTIATE_TEST_SUITE_P(pairs, copy, all_pairs(), name_of);

// The other process is the one that copies.
TEST(copy_by_the_peer, goes_both_ways)
{
    entity     here;
    local_side mine(here);
    peer_side  peer;
    uint64_t   ours = mine.allocate(0, 100000), theirs = peer.allocate(1, 100000);
    bytes      first = random_bytes(99999, 5), second = random_bytes(99999, 6);

    peer.write(theirs, 1, first);
    ASSERT_EQ(peer.put(theirs, 100000, here.address(), ours, mine.key(ours)), UCS_OK);
    EXPECT_EQ(difference(first, mine.read(ours, 1, first.size())), "");

    mine.write(ours, 1, second);
    ASSERT_EQ(peer.get(theirs, 100000, here.address(), ours, mine.key(ours)), UCS_OK);
    EXPECT_EQ(difference(second, peer.read(theirs, 1, second.size())), "");
}

} // namespace nvl::test
