// SPDX-License-Identifier: BSD-3-Clause
//
// What an owner of memory and its peers say to each other over the socket by
// which descriptors travel: one question, one answer, and the end. Called by
// descriptor_server and owner_link; calls the system.
#ifndef NVLINK_MEM_DESCRIPTOR_WIRE_H
#define NVLINK_MEM_DESCRIPTOR_WIRE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/un.h>
#include <vector>

#include "base/unique_fd.h"

namespace nvl {

enum class descriptor_ask : uint32_t {
    record = 1, // the record of an export, and its descriptors in the order of the chunks
    page   = 2  // the life page's descriptor
};

struct descriptor_question {
    static constexpr uint32_t expected_magic = 0x51444c4e; // "NLDQ"

    uint32_t magic  = expected_magic;
    uint32_t ask    = 0;
    uint64_t token  = 0; // of the process that is asked, who checks it
    uint64_t serial = 0;
};

struct descriptor_answer {
    static constexpr uint32_t expected_magic = 0x41444c4e; // "NLDA"

    uint32_t magic    = expected_magic;
    int32_t  status   = 0; // ucs_status_t
    uint64_t token    = 0;
    uint64_t bytes    = 0; // that follow
    uint64_t fd_count = 0; // that follow them
};

// How long an importer waits for an owner, and an owner for one of its peers: the
// others wait behind that one.
constexpr int descriptor_timeout_ms      = 2000;
constexpr int descriptor_peer_timeout_ms = 200;

// The address in the abstract name space; with a folder, a socket file there.
// False if the path is too long.
bool descriptor_address(uint64_t token, const std::string &folder, sockaddr_un *address,
                        socklen_t *length) noexcept;

void descriptor_timeouts(int socket, int limit_ms) noexcept;
bool descriptor_send(int socket, const void *from, size_t size) noexcept;
bool descriptor_receive(int socket, void *to, size_t size) noexcept;
bool descriptor_send_fds(int socket, const std::vector<unique_fd> &fds) noexcept;
// All of them are close-on-exec.
bool descriptor_receive_fds(int socket, size_t count, std::vector<unique_fd> *fds);

// True if the process at the other end runs as our user.
bool descriptor_peer_is_us(int socket) noexcept;

} // namespace nvl

#endif
