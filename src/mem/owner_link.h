// SPDX-License-Identifier: BSD-3-Clause
//
// What this process has of another one whose memory it opens: its life page, and
// the ways to its descriptors (pidfd_getfd, else the socket). Every way checks
// by the random token that the process is the one that made the key, since pids
// are used again and each container has its own. Called by importer and
// map_cache; calls descriptor_wire and the system.
#ifndef NVLINK_MEM_OWNER_LINK_H
#define NVLINK_MEM_OWNER_LINK_H

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <sys/un.h>
#include <vector>

#include "base/status.h"
#include "mem/export_record.h"
#include "mem/life_page.h"
#include "mem/wire_key.h"

namespace nvl {

// An export's record as it came; a chunk's `fd` is an index into `fds`, or -1.
struct fetched_record {
    export_record          record;
    std::vector<unique_fd> fds;
};

struct socket_name {
    sockaddr_un address{};
    socklen_t   length = 0;
};

// Any thread. Not to be asked while a lock is held: may wait for the owner, up to
// descriptor_timeout_ms.
class owner_link {
public:
    // Never null but for lack of memory; what cannot be reached is found out at
    // fetch(). `page_fd` is the key's, `folder` UCX_NVLINK_SOCKET_DIR.
    static std::shared_ptr<owner_link> open(const process_identity &owner, uint16_t page_fd,
                                            const std::string &folder) noexcept;

    // To a process of another host, of which nothing is seen from here: its pid
    // and its socket's name would be somebody else's.
    static std::shared_ptr<owner_link> to_other_host(const process_identity &owner) noexcept;

    // UCS_ERR_UNREACHABLE with the reasons in *why.
    ucs_status_t fetch(uint64_t serial, fetched_record *got, std::string *why) const;

    // True if the owner shows what is alive.
    bool has_page() const noexcept
    {
        return page_ != nullptr;
    }

    // False: the owner has let go of that export. Without a page: true.
    bool is_alive(uint64_t serial) const noexcept
    {
        return (page_ == nullptr) || page_->is_alive(serial);
    }

    uint64_t changes() const noexcept
    {
        return (page_ == nullptr) ? 0 : page_->changes();
    }

    // See life_view; false without a page.
    bool sample(unsigned gpu, uint8_t (&packed)[key_packed_size_most]) const noexcept
    {
        return (page_ != nullptr) && page_->sample(gpu, packed);
    }

    // The process has ended, as far as that can be seen from here. A system call.
    bool is_gone() const noexcept;

private:
    owner_link() = default;
    unique_fd    take(int fd_there) const noexcept;
    unique_fd    take_file(int fd_there) const noexcept;
    bool         has_left_its_name() const noexcept;
    ucs_status_t fetch_by_pidfd(uint64_t serial, fetched_record *got, std::string *why) const;
    ucs_status_t fetch_by_socket(uint64_t serial, fetched_record *got, std::string *why) const;

    process_identity             owner_;
    std::string                  folder_;
    unique_fd                    pidfd_;   // by the owner's number
    unique_fd                    process_; // by the socket: says when it ends, and no more
    std::unique_ptr<socket_name> name_;    // asked where the kernel gives no process_
    std::unique_ptr<life_view>   page_;

    // When the name is to be asked next.
    mutable std::atomic<std::chrono::steady_clock::rep> ask_after_{0};
};

} // namespace nvl

#endif
