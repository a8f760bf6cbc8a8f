// SPDX-License-Identifier: BSD-3-Clause
//
// A part of the probe that does not return: who waits for it, and what becomes of it.

#include "topo/probe_watch.h"

#include <future>
#include <new>

#include <gtest/gtest.h>

namespace nvl {

namespace {

using std::chrono::milliseconds;

constexpr auto for_ever = std::chrono::minutes(10);

// What the part that stays behind waits for, and what it then says of itself.
std::promise<void> go_on_g;
std::promise<bool> was_left_g;

void answer(machine_facts &facts, probe_watch &watch)
{
    watch.begin("first");
    facts.driver = "1.2";
}

void hang(machine_facts &facts, probe_watch &watch)
{
    facts.driver = "1.2";
    watch.begin("first");
    watch.begin("second");
    go_on_g.get_future().wait();
    facts.machine = "late";
    was_left_g.set_value(watch.is_left());
}

void run_out_of_memory(machine_facts &, probe_watch &)
{
    throw std::bad_alloc();
}

} // namespace

TEST(probe_watch, takes_the_answers_that_come_in_time)
{
    machine_facts facts;

    EXPECT_EQ(probe_within(for_ever, facts, answer), nullptr);
    EXPECT_EQ(facts.driver, "1.2");
}

TEST(probe_watch, leaves_behind_what_does_not_return_and_names_the_call)
{
    machine_facts facts;
    facts.driver = "before";

    EXPECT_STREQ(probe_within(milliseconds(50), facts, hang), "second");
    EXPECT_EQ(facts.driver, "before") << "a part of the answers is none";
    // It returns after all, and what it writes then is its own.
    go_on_g.set_value();
    EXPECT_TRUE(was_left_g.get_future().get());
    EXPECT_EQ(facts.machine, "");
}

TEST(probe_watch, hands_on_that_memory_ran_out)
{
    machine_facts facts;
    EXPECT_THROW((void)probe_within(for_ever, facts, run_out_of_memory), std::bad_alloc);
}

} // namespace nvl
