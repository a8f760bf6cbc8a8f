// SPDX-License-Identifier: BSD-3-Clause
//
// Log lines, clock and results.
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <cstring>
#include <ctime>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

namespace nvl::test {

namespace {

std::vector<std::string> lines_g;
log_level                last_level_g;

void keep(log_level level, const char *, unsigned, const char *, const char *message)
{
    last_level_g = level;
    lines_g.emplace_back(message);
}

class log_test : public testing::Test {
protected:
    log_test()
    {
        lines_g.clear();
        log_set_sink(keep);
        log_set_level(log_level::warn);
    }

    ~log_test() override
    {
        log_set_sink(nullptr);
        log_set_level(log_level::warn);
    }
};

int evaluations_g = 0;

int evaluated()
{
    return ++evaluations_g;
}

} // namespace

TEST_F(log_test, passes_on_what_is_wanted)
{
    NVL_WARN("%s and %d", "text", 7);
    ASSERT_EQ(lines_g.size(), 1u);
    EXPECT_EQ(lines_g[0], "text and 7");
    EXPECT_EQ(last_level_g, log_level::warn);
}

TEST_F(log_test, does_not_even_evaluate_what_is_not_wanted)
{
    evaluations_g = 0;
    NVL_DEBUG("%d", evaluated());
    EXPECT_EQ(evaluations_g, 0);
    EXPECT_TRUE(lines_g.empty());
    log_set_level(log_level::debug);
    NVL_DEBUG("%d", evaluated());
    EXPECT_EQ(evaluations_g, 1);
    EXPECT_EQ(lines_g.size(), 1u);
}

// As a level that says "once a warning, then for debugging".
TEST_F(log_test, asks_for_its_level_once)
{
    evaluations_g = 0;
    for (int i = 0; i < 2; ++i) {
        NVL_LOG(evaluated() == 1 ? log_level::warn : log_level::debug, "now and then");
    }
    EXPECT_EQ(evaluations_g, 2);
    ASSERT_EQ(lines_g.size(), 1u);
    EXPECT_EQ(last_level_g, log_level::warn);
}

TEST_F(log_test, cuts_a_line_that_is_too_long)
{
    std::string endless(100000, 'x');
    NVL_ERROR("%s", endless.c_str());
    ASSERT_EQ(lines_g.size(), 1u);
    EXPECT_LT(lines_g[0].size(), endless.size());
    EXPECT_GT(lines_g[0].size(), 500u);
}

TEST_F(log_test, goes_nowhere_without_a_ucx)
{
    log_set_sink(nullptr);
    NVL_ERROR("nobody listens");
    EXPECT_TRUE(lines_g.empty());
}

TEST(clock, runs_at_the_rate_that_it_says)
{
    double   rate = clock_rate();
    timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t ticks = clock_ticks();
    double   ns    = 0;
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
        ns = static_cast<double>(now.tv_sec - start.tv_sec) * 1e9 +
             static_cast<double>(now.tv_nsec - start.tv_nsec);
    } while (ns < 20e6);
    double measured = static_cast<double>(clock_ticks() - ticks) / ns;
    EXPECT_NEAR(measured / rate, 1.0, 0.05);
    EXPECT_EQ(clock_from_ns(1000), static_cast<uint64_t>(1000 * rate));
}

TEST(result, holds_a_value_or_a_reason)
{
    result<std::unique_ptr<int>> good(std::make_unique<int>(3));
    ASSERT_TRUE(good.ok());
    EXPECT_EQ(*good.value(), 3);
    EXPECT_EQ(good.status(), UCS_OK);
    result<std::unique_ptr<int>> bad(UCS_ERR_NO_MEMORY);
    EXPECT_FALSE(bad.ok());
    EXPECT_EQ(bad.status(), UCS_ERR_NO_MEMORY);
}

} // namespace nvl::test
