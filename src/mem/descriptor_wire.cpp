// SPDX-License-Identifier: BSD-3-Clause
//
// Bytes and descriptors over a unix socket.
#include "mem/descriptor_wire.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/socket.h>
#include <sys/time.h>

namespace nvl {

namespace {

// The kernel takes 253 (SCM_MAX_FD) in one message.
constexpr size_t fds_a_message = 128;

} // namespace

bool descriptor_address(uint64_t token, const std::string &folder, sockaddr_un *address,
                        socklen_t *length) noexcept
{
    std::memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    // The first byte of an abstract name is 0.
    size_t first = folder.empty() ? 1 : 0;
    char  *path  = address->sun_path + first;
    size_t room  = sizeof(address->sun_path) - first;
    int    used  = std::snprintf(path, room, "%s%sucx-nvlink-%016llx", folder.c_str(),
                             folder.empty() ? "" : "/", static_cast<unsigned long long>(token));
    *length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + first + static_cast<size_t>(used));
    return (used > 0) && (static_cast<size_t>(used) < room);
}

void descriptor_timeouts(int socket, int limit_ms) noexcept
{
    timeval limit{limit_ms / 1000, (limit_ms % 1000) * 1000};
    (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

bool descriptor_send(int socket, const void *from, size_t size) noexcept
{
    auto *at = static_cast<const uint8_t *>(from);
    while (size > 0) {
        ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
        if ((sent < 0) && (errno == EINTR)) {
            continue;
        }
        if (sent <= 0) {
            return false;
        }
        at += sent;
        size -= static_cast<size_t>(sent);
    }
    return true;
}

bool descriptor_receive(int socket, void *to, size_t size) noexcept
{
    auto *at = static_cast<uint8_t *>(to);
    while (size > 0) {
        ssize_t got = recv(socket, at, size, 0);
        if ((got < 0) && (errno == EINTR)) {
            continue;
        }
        if (got <= 0) {
            errno = (got == 0) ? ECONNRESET : errno;
            return false;
        }
        at += got;
        size -= static_cast<size_t>(got);
    }
    return true;
}

bool descriptor_send_fds(int socket, const std::vector<unique_fd> &fds) noexcept
{
    for (size_t done = 0; done < fds.size();) {
        size_t                count = std::min(fds.size() - done, fds_a_message);
        alignas(cmsghdr) char room[CMSG_SPACE(fds_a_message * sizeof(int))] = {};
        char                  byte                                          = 0;
        iovec                 data{&byte, 1};
        msghdr                message{};
        message.msg_iov        = &data;
        message.msg_iovlen     = 1;
        message.msg_control    = room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        cmsghdr *head          = CMSG_FIRSTHDR(&message);
        head->cmsg_level       = SOL_SOCKET;
        head->cmsg_type        = SCM_RIGHTS;
        head->cmsg_len         = CMSG_LEN(count * sizeof(int));
        for (size_t i = 0; i < count; ++i) {
            int fd = fds[done + i].get();
            std::memcpy(CMSG_DATA(head) + i * sizeof(int), &fd, sizeof(fd));
        }
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if ((sent < 0) && (errno == EINTR)) {
            continue;
        }
        if (sent != 1) {
            return false;
        }
        done += count;
    }
    return true;
}

bool descriptor_receive_fds(int socket, size_t count, std::vector<unique_fd> *fds)
{
    fds->reserve(count);
    while (fds->size() < count) {
        alignas(cmsghdr) char room[CMSG_SPACE(fds_a_message * sizeof(int))];
        char                  byte = 0;
        iovec                 data{&byte, 1};
        msghdr                message{};
        message.msg_iov        = &data;
        message.msg_iovlen     = 1;
        message.msg_control    = room;
        message.msg_controllen = sizeof(room);
        ssize_t got            = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if ((got < 0) && (errno == EINTR)) {
            continue;
        }
        size_t here = 0;
        for (cmsghdr *head = CMSG_FIRSTHDR(&message); (got > 0) && (head != nullptr);
             head          = CMSG_NXTHDR(&message, head)) {
            if ((head->cmsg_level != SOL_SOCKET) || (head->cmsg_type != SCM_RIGHTS)) {
                continue;
            }
            size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < n; ++i, ++here) {
                int fd;
                std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
                fds->emplace_back(fd);
            }
        }
        // Truncated: this process has no room for more descriptors.
        if ((got <= 0) || (here == 0) || (message.msg_flags & MSG_CTRUNC)) {
            errno = ((got > 0) && (message.msg_flags & MSG_CTRUNC)) ? EMFILE : errno;
            return false;
        }
    }
    return fds->size() == count;
}

bool descriptor_peer_is_us(int socket) noexcept
{
    ucred     who{};
    socklen_t size = sizeof(who);
    return (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) &&
           (who.uid == geteuid());
}

} // namespace nvl
