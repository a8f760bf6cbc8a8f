// SPDX-License-Identifier: BSD-3-Clause
//
// See job.h.
#include "ucp/job.h"

#include <arpa/inet.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <netinet/in.h>
#include <random>
#include <sstream>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

namespace nvl::test {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Between two looks at another process; nothing is timed by it.
void pause()
{
    std::this_thread::sleep_for(milliseconds(5));
}

std::string trimmed(const std::string &text)
{
    size_t first = text.find_first_not_of(' ');
    return first == std::string::npos ? ""
                                      : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

} // namespace

std::string runner(run_as how)
{
    const char *const names[] = {"NVL_RUN_WITH", "NVL_RUN_WITHOUT", "NVL_RUN_HOST_WITH",
                                 "NVL_RUN_HOST_WITHOUT"};
    if (how == run_as::alone) {
        return "";
    }
    const char *value = std::getenv(names[static_cast<int>(how)]);
    return value == nullptr ? "" : value;
}

job::job(run_as how, const std::string &command, const std::string &variables)
{
    char name[]      = "/tmp/nvl-ucp-XXXXXX";
    int  file        = mkstemp(name);
    path_            = name;
    std::string line = fmt::format("exec env {} {} {}", variables, runner(how), command);
    pid_             = fork();
    if (pid_ == 0) {
        setpgid(0, 0);
        dup2(file, 1);
        dup2(file, 2);
        close(file);
        execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char *>(nullptr));
        _exit(127);
    }
    setpgid(pid_, pid_);
    close(file);
}

job::~job()
{
    kill();
    unlink(path_.c_str());
}

bool job::poll_end()
{
    int raw = 0;
    if (!ended_ && waitpid(pid_, &raw, WNOHANG) == pid_) {
        ended_  = true;
        status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + WTERMSIG(raw);
    }
    return ended_;
}

bool job::is_running()
{
    return !poll_end();
}

int job::wait(int limit)
{
    auto end = steady_clock::now() + seconds(limit);
    while (!poll_end()) {
        if (steady_clock::now() > end) {
            kill();
            return -1;
        }
        pause();
    }
    return status_;
}

void job::kill()
{
    if (!poll_end()) {
        ::kill(-pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        ended_  = true;
        status_ = 1000 + SIGKILL;
    }
}

std::string job::output() const
{
    std::ifstream     file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

bool job::says(const std::string &text, int limit)
{
    auto end = steady_clock::now() + seconds(limit);
    while (output().find(text) == std::string::npos) {
        if (poll_end() || steady_clock::now() > end) {
            return output().find(text) != std::string::npos;
        }
        pause();
    }
    return true;
}

int free_port()
{
    // Below those that the kernel hands out by itself: it would give this one to somebody else before it is used.
    std::random_device            random;
    std::uniform_int_distribution among(20000, 31999);
    for (;;) {
        int         port      = among(random);
        int         socket_fd = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family      = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port        = htons(static_cast<uint16_t>(port));
        bool is_free =
            bind(socket_fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) == 0;
        close(socket_fd);
        if (is_free) {
            return port;
        }
    }
}

bool wait_for_listener(int port, job *server)
{
    // ucx_perftest takes one connection, so that a trial would use it up: the kernel is asked.
    const std::string wanted = fmt::format(":{:04X} ", port);
    auto              end    = steady_clock::now() + seconds(60);
    while (server->is_running() && steady_clock::now() < end) {
        for (const char *path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
            std::ifstream sockets(path);
            for (std::string line; std::getline(sockets, line);) {
                // "0: 00000000:1F90 00000000:0000 0A ...": the first address, and state 0A is listening.
                if (line.find(wanted) != std::string::npos &&
                    line.find(" 0A ") != std::string::npos) {
                    return true;
                }
            }
        }
        pause();
    }
    return false;
}

perftest_result perftest(run_as how, const std::string &arguments, const std::string &variables)
{
    int         port    = free_port();
    std::string command = fmt::format("ucx_perftest -p {} {}", port, arguments);
    job         server(how, command, variables);
    if (!wait_for_listener(port, &server)) {
        return {-1, server.wait(1), "the server: " + server.output(), ""};
    }
    job client(how, fmt::format("ucx_perftest -p {} 127.0.0.1 {}", port, arguments), variables);
    perftest_result result;
    result.status        = client.wait();
    result.output        = client.output();
    result.server_status = server.wait(20);
    result.server_output = server.output();
    return result;
}

std::vector<protocol_table> protocol_tables(const std::string &output)
{
    std::vector<protocol_table> tables;
    std::istringstream          lines(output);
    bool                        in_title = false;
    for (std::string line; std::getline(lines, line);) {
        size_t first = line.find('|');
        if (first == std::string::npos) {
            continue;
        }
        std::vector<std::string> cells;
        std::istringstream       parts(line.substr(first + 1));
        for (std::string cell; std::getline(parts, cell, '|');) {
            cells.push_back(trimmed(cell));
        }
        // A title has one cell, on one line or two; a row has three.
        if (cells.size() == 1) {
            if (!in_title) {
                tables.emplace_back();
            }
            tables.back().title += cells[0] + " ";
        } else if (cells.size() == 3 && !tables.empty() && cells[0] != "Range") {
            tables.back().rows.push_back({cells[0], cells[1], cells[2]});
        }
        in_title = cells.size() == 1;
    }
    return tables;
}

std::string config_of_large(const std::vector<protocol_table> &tables,
                            const std::vector<std::string>    &parts)
{
    std::string found;
    for (const protocol_table &table : tables) {
        bool fits = true;
        for (const std::string &part : parts) {
            fits = fits && table.title.find(part) != std::string::npos;
        }
        if (fits && !table.rows.empty()) {
            found = table.rows.back().config;
        }
    }
    return found;
}

} // namespace nvl::test
