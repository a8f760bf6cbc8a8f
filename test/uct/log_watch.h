// SPDX-License-Identifier: BSD-3-Clause
//
// What UCX logs while a test runs. A warning or an error that no test said it expects is a failure of that test.
#ifndef NVLINK_TEST_UCT_LOG_WATCH_H
#define NVLINK_TEST_UCT_LOG_WATCH_H

#include <string>
#include <vector>

namespace nvl::test {

struct log_line {
    int         level; // nvl::log_level's number
    std::string file, text;
};

// Lines of the plugin, and warnings and errors of everybody, are kept; those of the test are expected from now on to
// the end of the test if they contain `part`, and are not printed.
void expect_log(const std::string &part);

// All that was kept since the test began.
std::vector<log_line> logged();

// How many kept lines contain `part`.
size_t times_logged(const std::string &part);

// Called once by main.
void watch_log();

} // namespace nvl::test

#endif
