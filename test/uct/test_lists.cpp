// SPDX-License-Identifier: BSD-3-Clause
//
// Lists that are longer than what an engine takes at once: taken whole, posted as there is room, ended once.
#include "uct/emulated.h"
#include "uct/host_memory.h"
#include "uct/list.h"
#include "uct/log_watch.h"
#include "uct/sleeper.h"

namespace nvl::test {

namespace {

constexpr size_t step = 512; // of the elements, on both sides

const settings by_copy_engine = {{"KERNEL", "n"}};
const settings by_small_lane  = {{"KERNEL", "n"}, {"DEPTH", "2"}};

// Elements of different lengths and odd offsets, of one connection and of a second key by turns: no two neighbours can
// share a submission.
struct alternating_list {
    alternating_list(connection &c, size_t elements)
        : far(*c.far), from(c), other(far.allocate(1, elements * step)), other_key(far.key(other))
    {
        bytes sent  = random_bytes(elements * step, 1);
        expected[0] = expected[1] = random_bytes(elements * step, 2);
        c.local.write(0, sent);
        far.write(c.remote, 0, expected[0]);
        far.write(other, 0, expected[1]);
        for (size_t i = 0; i < elements; ++i) {
            size_t   at   = i * step + i % 7;
            size_t   size = 1 + (i * 37) % (step - 8);
            uint64_t base = (i % 2 == 0) ? c.remote : other;
            all.add(reinterpret_cast<void *>(c.local.address() + at), c.local_registration.memh(),
                    size, base + at, (i % 2 == 0) ? c.rkey() : other_key.rkey());
            std::copy_n(sent.begin() + at, size, expected[i % 2].begin() + at);
        }
    }

    ~alternating_list()
    {
        far.release(other);
    }

    std::string difference_from_expected() const
    {
        std::string wrong = difference(expected[0], far.read(from.remote, 0, expected[0].size()));
        return wrong.empty() ? difference(expected[1], far.read(other, 0, expected[1].size()))
                             : wrong;
    }

    side             &far;
    const connection &from;
    uint64_t          other;
    unpacked          other_key;
    list              all;
    bytes             expected[2];
};

} // namespace

TEST(list, of_many_runs_is_taken_whole)
{
    for (const settings &with : {settings{}, by_copy_engine, by_small_lane}) {
        constexpr size_t elements = 1000; // above a lane's depth
        connection       c(far_kind::other_process, 0, 1, elements * step, with);
        alternating_list many(c, elements);
        completion       done;
        ASSERT_EQ(many.all.put(c, &done, false), UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(done.status, UCS_OK);
        EXPECT_EQ(many.difference_from_expected(), "");
        ASSERT_TRUE(c.drain());
        EXPECT_EQ(done.called, 1);
    }
}

TEST(list, of_any_host_memory_is_taken_whole)
{
    // Ordinary, page-locked and GPU memory by turns: no two neighbours share an engine's submission.
    constexpr size_t elements = 900;
    connection       c(far_kind::other_process, 0, 1, elements * step, by_small_lane);
    bytes            sent = random_bytes(elements * step, 1);
    host_memory      ordinary(host_kind::ordinary, sent);
    host_memory      pinned(host_kind::allocated_pinned, sent);
    bytes            expected = random_bytes(elements * step, 2);
    c.local.write(0, sent);
    c.far->write(c.remote, 0, expected);
    list all;
    for (size_t i = 0; i < elements; ++i) {
        size_t at   = i * step + i % 5;
        size_t size = 1 + (i * 53) % (step - 8);
        if (i % 3 == 0) {
            all.add(c, c.local.address() + at, size, c.remote + at);
        } else {
            all.add((i % 3 == 1 ? ordinary : pinned).address() + at, nullptr, size, c.remote + at,
                    c.rkey());
        }
        std::copy_n(sent.begin() + at, size, expected.begin() + at);
    }
    completion done;
    ASSERT_EQ(all.put(c, &done, false), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.status, UCS_OK);
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, expected.size())), "");
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(done.called, 1);
}

TEST(list, whose_rows_overlap_is_taken_whole)
{
    constexpr size_t rows = 700;
    connection       c(far_kind::other_process, 0, 1, 1u << 20, by_small_lane);
    bytes            sent = random_bytes(rows * 10 + 100, 1);
    c.local.write(0, sent);
    uct_iov_t one{reinterpret_cast<void *>(c.local.address()), 100, c.local_registration.memh(), 10,
                  rows};
    completion done;
    ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &one, 1, c.remote, c.rkey(), &done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    bytes expected(rows * 100);
    for (size_t i = 0; i < rows; ++i) {
        std::copy_n(sent.begin() + i * 10, 100, expected.begin() + i * 100);
    }
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, expected.size())), "");
}

TEST(list_that_waits, lets_nothing_pass)
{
    NVL_NEEDS_EMULATOR();
    connection       c(far_kind::other_process, 0, 1, 100 * step, by_small_lane);
    alternating_list many(c, 50);
    completion       done, flushed, later;
    {
        held_streams hold;
        ASSERT_EQ(many.all.put(c, &done, false), UCS_INPROGRESS);
        c.here.progress();
        EXPECT_EQ(c.put(60 * step, 60 * step, 100, &later), UCS_ERR_NO_RESOURCE);
        EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, &flushed.super), UCS_ERR_NO_RESOURCE);
        EXPECT_EQ(uct_iface_flush(c.here.iface(), 0, nullptr), UCS_INPROGRESS);
        EXPECT_EQ(done.called, 0);
    }
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(many.difference_from_expected(), "");
}

TEST(list_that_waits, ends_with_the_error_of_a_run)
{
    NVL_NEEDS_EMULATOR();
    connection       c(far_kind::other_process, 0, 1, 100 * step, by_small_lane);
    alternating_list many(c, 50);
    completion       warm, done;
    ASSERT_EQ(c.put(0, 0, 100, &warm), UCS_INPROGRESS); // opens the lanes
    ASSERT_TRUE(c.wait(warm));
    {
        expect_log("cuMemcpyAsync failed: CUDA_ERROR_LAUNCH_FAILED");
        planned_faults fault("cuMemcpyAsync:20=719");
        ASSERT_EQ(many.all.put(c, &done, false), UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
    }
    EXPECT_NE(done.status, UCS_OK);
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(done.called, 1);
}

TEST(list_that_waits, goes_with_its_interface)
{
    NVL_NEEDS_EMULATOR();
    completion done;
    {
        connection       c(far_kind::other_process, 0, 1, 100 * step, by_small_lane);
        alternating_list many(c, 50);
        held_streams     hold;
        ASSERT_EQ(many.all.put(c, &done, false), UCS_INPROGRESS);
    }
    EXPECT_EQ(done.called, 0);
}

TEST(list_that_waits, wakes_who_sleeps_until_its_end)
{
    NVL_NEEDS_EMULATOR();
    connection       c(far_kind::other_process, 0, 1, 300 * step, by_small_lane);
    alternating_list many(c, 300);
    completion       done;
    ASSERT_EQ(many.all.put(c, &done, false), UCS_INPROGRESS);
    EXPECT_TRUE(sleep_until(done, c.here, descriptor(c.here)));
    EXPECT_EQ(many.difference_from_expected(), "");
}

} // namespace nvl::test
