// SPDX-License-Identifier: BSD-3-Clause
//
// The server's thread. A peer is served to its end before the next one: a
// question takes some microseconds, and one that stands still is left after the
// time limit.
#include "mem/descriptor_server.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <ucs/type/status.h>

#include "base/log.h"
#include "base/thread.h"

namespace nvl {

namespace {

struct server_state {
    uint64_t                           token = 0;
    descriptor_server::answer_function answer;
    int                                sockets[2] = {-1, -1};
    sockaddr_un                        file{}; // sun_path: to be unlinked at exit
    pid_t                              pid = 0;
};

// Never destroyed: the thread uses it until the process is gone.
server_state *server_g = nullptr;

int listen_at(const sockaddr_un &address, socklen_t length) noexcept
{
    unique_fd made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made || (bind(made.get(), reinterpret_cast<const sockaddr *>(&address), length) != 0) ||
        (listen(made.get(), 128) != 0)) {
        NVL_DIAG("no socket for peers in other containers: %s", std::strerror(errno));
        return -1;
    }
    return made.release();
}

void serve(const server_state &self, int peer)
{
    descriptor_timeouts(peer, descriptor_peer_timeout_ms);
    descriptor_question asked;
    if (!descriptor_peer_is_us(peer)) {
        NVL_DIAG("another user's process asked for descriptors of GPU memory and was refused");
        return;
    }
    if (!descriptor_receive(peer, &asked, sizeof(asked)) ||
        (asked.magic != descriptor_question::expected_magic)) {
        return;
    }
    descriptor_reply  reply;
    descriptor_answer head;
    head.token = self.token;
    if ((asked.token != self.token) || !self.answer(asked, &reply)) {
        head.status = UCS_ERR_NO_ELEM;
        (void)descriptor_send(peer, &head, sizeof(head));
        return;
    }
    head.bytes    = reply.bytes.size();
    head.fd_count = reply.fds.size();
    (void)(descriptor_send(peer, &head, sizeof(head)) &&
           descriptor_send(peer, reply.bytes.data(), reply.bytes.size()) &&
           descriptor_send_fds(peer, reply.fds));
}

// False if that is no listening socket any more: an application has closed what
// is not its own.
bool accept_one(const server_state &self, int listening)
{
    unique_fd peer(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer) {
        bool full = (errno == EMFILE) || (errno == ENFILE) || (errno == ENOMEM);
        (void)usleep(full ? 10000 : 0); // not in a tight loop
        return full || (errno == EINTR) || (errno == ECONNABORTED) || (errno == EAGAIN);
    }
    try {
        serve(self, peer.get());
    } catch (const std::exception &) {
        NVL_DEBUG("no memory to answer a peer");
    }
    return true;
}

void serve_all(const server_state &self) noexcept
{
    for (;;) {
        pollfd ready[2] = {{self.sockets[0], POLLIN, 0}, {self.sockets[1], POLLIN, 0}};
        if (poll(ready, 2, -1) < 0) {
            if (errno != EINTR) {
                return;
            }
            continue;
        }
        for (const pollfd &one : ready) {
            if ((one.revents != 0) && (!(one.revents & POLLIN) || !accept_one(self, one.fd))) {
                return;
            }
        }
    }
}

// The child of a fork has no thread that would answer: its copies of the sockets
// must not keep peers waiting once the parent is gone.
void close_in_child() noexcept
{
    for (int &one : server_g->sockets) {
        if (one >= 0) {
            (void)close(one);
            one = -1;
        }
    }
}

void unlink_at_exit() noexcept
{
    if ((server_g->file.sun_path[0] != '\0') && (server_g->pid == getpid())) {
        (void)unlink(server_g->file.sun_path);
    }
}

void start_once(uint64_t token, const std::string &folder,
                descriptor_server::answer_function answer)
{
    auto       *self = new server_state();
    sockaddr_un address;
    socklen_t   length = 0;
    self->token        = token;
    self->answer       = std::move(answer);
    self->pid          = getpid();
    if (descriptor_address(token, "", &address, &length)) {
        self->sockets[0] = listen_at(address, length);
    }
    if (!folder.empty()) {
        if (descriptor_address(token, folder, &address, &length)) {
            self->sockets[1] = listen_at(address, length);
        } else {
            NVL_WARN("UCX_NVLINK_SOCKET_DIR is too long for a socket's name: %s", folder.c_str());
        }
        if (self->sockets[1] >= 0) {
            (void)chmod(address.sun_path, S_IRUSR | S_IWUSR);
            self->file = address;
        }
    }
    server_g = self;
    (void)pthread_atfork(nullptr, nullptr, close_in_child);
    (void)std::atexit(unlink_at_exit);
    std::thread made = start_quiet_thread("nvlink-share", [self] { serve_all(*self); });
    if (made.joinable()) {
        made.detach();
    } else {
        NVL_DIAG("no thread for peers in other containers");
        close_in_child();
    }
}

} // namespace

void descriptor_server::start(uint64_t token, const std::string &folder,
                              answer_function answer) noexcept
{
    static std::once_flag once;
    try {
        std::call_once(once, [&] { start_once(token, folder, std::move(answer)); });
    } catch (const std::exception &) {
        NVL_DIAG("no memory for the socket by which peers get descriptors");
    }
}

} // namespace nvl
