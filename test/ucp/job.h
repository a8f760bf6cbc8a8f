// SPDX-License-Identifier: BSD-3-Clause
//
// Programs of UCX as jobs of a test: started, watched and ended. How a program is run on this machine, on emulated
// GPUs or real ones, with the plugin or without it, comes from the environment.
#ifndef NVLINK_TEST_UCP_JOB_H
#define NVLINK_TEST_UCP_JOB_H

#include <string>
#include <sys/types.h>
#include <vector>

namespace nvl::test {

// With the plugin or without it; on GPUs or on a machine that has none; alone: the command as it is.
enum class run_as { with_plugin, without_plugin, host_with_plugin, host_without_plugin, alone };

// The command that runs a program so, from NVL_RUN_WITH, NVL_RUN_WITHOUT, NVL_RUN_HOST_WITH, NVL_RUN_HOST_WITHOUT;
// empty if this machine cannot.
std::string runner(run_as how);

class job {
public:
    // A command line of the shell, with its output kept; `variables` as "A=1 B=2".
    job(run_as how, const std::string &command, const std::string &variables = "");
    ~job();
    job(const job &)            = delete;
    job &operator=(const job &) = delete;

    // The exit status; 1000 + the number of the signal that ended it; -1 if it did not end in time (it is killed).
    int wait(int seconds = 120);

    // kill -9 of all of it.
    void kill();

    bool is_running();

    std::string output() const;

    // True once the output contains `text`; false if it ends before, or after `seconds`.
    bool says(const std::string &text, int seconds = 60);

private:
    bool poll_end();

    pid_t       pid_    = -1;
    int         status_ = -1;
    bool        ended_  = false;
    std::string path_; // of the output
};

// A TCP port that nobody uses.
int free_port();

// True once somebody listens on the port.
bool wait_for_listener(int port, job *server);

// Two ucx_perftest: what the client said.
struct perftest_result {
    int         status; // of the client
    int         server_status;
    std::string output;
    std::string server_output;
};
perftest_result perftest(run_as how, const std::string &arguments, const std::string &variables);

// ---- what UCX says about its choice (UCX_PROTO_INFO=y) ---------------------------------------------------------------

struct protocol_row {
    std::string range, description, config;
};

struct protocol_table {
    std::string               title;
    std::vector<protocol_row> rows;
};

std::vector<protocol_table> protocol_tables(const std::string &output);

// The config of the row that goes to infinity, of the last table whose title contains all of `parts`; "" if none.
std::string config_of_large(const std::vector<protocol_table> &tables,
                            const std::vector<std::string>    &parts);

} // namespace nvl::test

#endif
