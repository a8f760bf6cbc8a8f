// SPDX-License-Identifier: BSD-3-Clause
//
// See log_watch.h.
#include "uct/log_watch.h"

#include "uct/ucx.h"

#include <algorithm>
#include <cstdio>
#include <gtest/gtest.h>
#include <mutex>

namespace nvl::test {

namespace {

std::mutex               mutex_g; // UCX logs from any thread
std::vector<std::string> expected_g;
std::vector<log_line>    lines_g;
std::vector<std::string> surprises_g;

// As UCX's handlers answer: go on with the next one, or not.
enum : int { log_stop = 0, log_continue = 1 };

bool contains(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

__attribute__((format(printf, 6, 0))) int keep_line(const char *file, unsigned line, const char *,
                                                    int level, const void *, const char *format,
                                                    va_list args)
{
    char    text[2048];
    va_list copy;
    va_copy(copy, args);
    std::vsnprintf(text, sizeof(text), format, copy);
    va_end(copy);

    std::lock_guard<std::mutex> guard(mutex_g);
    std::string                 from = file;
    from                             = from.substr(from.rfind('/') + 1);
    lines_g.push_back({level, from, text});
    bool is_expected = std::any_of(expected_g.begin(), expected_g.end(),
                                   [&](const std::string &part) { return contains(text, part); });
    if (is_expected) {
        return log_stop;
    }
    if (level <= UCS_LOG_LEVEL_WARN) {
        surprises_g.push_back(from + ":" + std::to_string(line) + ": " + text);
    }
    return log_continue;
}

class log_judge : public testing::EmptyTestEventListener {
    void OnTestStart(const testing::TestInfo &) override
    {
        std::lock_guard<std::mutex> guard(mutex_g);
        expected_g.clear();
        lines_g.clear();
        surprises_g.clear();
    }

    void OnTestEnd(const testing::TestInfo &) override
    {
        std::lock_guard<std::mutex> guard(mutex_g);
        for (const std::string &surprise : surprises_g) {
            ADD_FAILURE() << "logged without being expected: " << surprise;
        }
    }
};

} // namespace

void expect_log(const std::string &part)
{
    std::lock_guard<std::mutex> guard(mutex_g);
    expected_g.push_back(part);
}

std::vector<log_line> logged()
{
    std::lock_guard<std::mutex> guard(mutex_g);
    return lines_g;
}

size_t times_logged(const std::string &part)
{
    std::lock_guard<std::mutex> guard(mutex_g);
    return static_cast<size_t>(
        std::count_if(lines_g.begin(), lines_g.end(),
                      [&](const log_line &line) { return contains(line.text, part); }));
}

void watch_log()
{
    ucx().ucs_log_push_handler(keep_line);
    // First of the listeners, so that a failure here belongs to the test that ends.
    testing::UnitTest::GetInstance()->listeners().Append(new log_judge);
}

} // namespace nvl::test
