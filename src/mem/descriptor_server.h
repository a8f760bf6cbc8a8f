// SPDX-License-Identifier: BSD-3-Clause
//
// Hands descriptors of exported memory to peers over a unix socket: the way
// that is left where pidfd_getfd is refused or the peer lives in another PID
// namespace. One thread, started with the first export that needs it; it never
// calls CUDA. Called by exports; calls descriptor_wire.
#ifndef NVLINK_MEM_DESCRIPTOR_SERVER_H
#define NVLINK_MEM_DESCRIPTOR_SERVER_H

#include <functional>
#include <string>
#include <vector>

#include "mem/descriptor_wire.h"

namespace nvl {

// What a question is answered with; the descriptors are copies, which go with it.
struct descriptor_reply {
    std::vector<uint8_t>   bytes;
    std::vector<unique_fd> fds;
};

class descriptor_server {
public:
    // False: there is no such export. Called by the server's thread; does not throw.
    using answer_function = std::function<bool(const descriptor_question &, descriptor_reply *)>;

    // Starts to serve as the process with `token`; also on a socket file in
    // `folder` unless that is empty. Later calls do nothing. The thread ends with
    // the process; in a forked child there is none, and no socket.
    static void start(uint64_t token, const std::string &folder, answer_function answer) noexcept;
};

} // namespace nvl

#endif
