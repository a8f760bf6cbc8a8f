// SPDX-License-Identifier: BSD-3-Clause
//
// Sleeping while copies run: the descriptor wakes whoever armed it, always.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/sleeper.h"

#include <unistd.h>

#include <random>
#include <thread>

namespace nvl::test {

namespace {

constexpr size_t size = 256 * 1024;

void run(const settings &with, int rounds, unsigned seed)
{
    // Gets have memory of their own, so that no two operations meet in one place.
    connection   c(far_kind::other_worker, 0, 1, 2 * size, with);
    int          fd = descriptor(c.here);
    std::mt19937 random(seed);
    for (int round = 0; round < rounds; ++round) {
        int        count = 1 + static_cast<int>(random() % 4);
        completion done(count);
        for (int i = 0; i < count; ++i) {
            size_t length = 1 + random() % (random() % 2 == 0 ? 1000 : size);
            ASSERT_EQ(random() % 2 == 0 ? c.put(0, 0, length, &done)
                                        : c.get(size, size, length, &done),
                      UCS_INPROGRESS);
        }
        // So that the copies end before, while and after it is armed.
        auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 200);
        while (std::chrono::steady_clock::now() < end) {
        }
        ASSERT_TRUE(sleep_until(done, c.here, fd)) << "nobody woke the sleeper, round " << round;
    }
}

} // namespace

TEST(sleep, never_misses_a_wake_up)
{
    run({}, 3000, 1);
}

TEST(sleep, never_misses_a_wake_up_by_words)
{
    run({{"COMPLETION", "word"}}, 1000, 2);
}

TEST(sleep, never_misses_a_wake_up_of_the_copy_engine)
{
    run({{"KERNEL", "n"}}, 1000, 3);
}

TEST(sleep, is_quiet_where_nothing_happens)
{
    connection c(far_kind::other_worker, 0, 1, size);
    int        fd = descriptor(c.here);
    while (c.here.progress() != 0) {
    }
    ASSERT_EQ(ucx().uct_iface_event_arm(c.here.iface(), UCT_EVENT_SEND_COMP), UCS_OK);
    EXPECT_FALSE(wakes(fd, 50));
}

TEST(sleep, is_refused_while_there_is_something_to_find)
{
    connection c(far_kind::other_worker, 0, 1, size);
    descriptor(c.here);
    completion done;
    ASSERT_EQ(c.put(0, 0, size, &done), UCS_INPROGRESS);
    // Whenever it has ended by itself, arming must say so, or wake.
    int fd = descriptor(c.here);
    for (int i = 0; done.called == 0; ++i) {
        ASSERT_LT(i, 1000);
        ucs_status_t status = ucx().uct_iface_event_arm(c.here.iface(), UCT_EVENT_SEND_COMP);
        if (status == UCS_OK) {
            ASSERT_TRUE(wakes(fd, 5000));
        } else {
            ASSERT_EQ(status, UCS_ERR_BUSY);
        }
        c.here.progress();
    }
}

TEST(sleep, holds_while_the_copy_is_held)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_worker, 0, 1, size, {{"KERNEL", "n"}});
    int        fd = descriptor(c.here);
    ASSERT_EQ(c.put(0, 0, 8, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
    while (ucx().uct_iface_event_arm(c.here.iface(), UCT_EVENT_SEND_COMP) != UCS_OK) {
        c.here.progress();
    }
    held_streams held;
    completion   done;
    ASSERT_EQ(c.put(0, 0, size, &done), UCS_INPROGRESS);
    while (c.here.progress() != 0) {
    }
    // It may end soon, for some microseconds; then not.
    emulator()->reset_counts();
    ASSERT_EQ(ucx().uct_iface_event_arm(c.here.iface(), UCT_EVENT_SEND_COMP), UCS_ERR_BUSY);
    EXPECT_EQ(emulator()->call_count("cuLaunchHostFunc"), 0);
    usleep(100);
    ASSERT_EQ(ucx().uct_iface_event_arm(c.here.iface(), UCT_EVENT_SEND_COMP), UCS_OK);
    EXPECT_EQ(emulator()->call_count("cuLaunchHostFunc"), 1);
    EXPECT_FALSE(wakes(fd, 50));
    held.let_go();
    EXPECT_TRUE(wakes(fd, 5000));
    ASSERT_TRUE(c.wait(done));
}

} // namespace nvl::test
