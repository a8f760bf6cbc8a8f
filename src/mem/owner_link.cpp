// SPDX-License-Identifier: BSD-3-Clause
//
// Finds the owner, its page and its descriptors.
#include "mem/owner_link.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/log.h"
#include "mem/descriptor_wire.h"

// The numbers are the same on every architecture (Linux 5.3 and 5.6).
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
// Linux 6.5.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace nvl {

namespace {

void add_reason(std::string *why, const std::string &reason)
{
    *why += (why->empty() ? "" : "; ") + reason;
}

std::string system_reason(const char *what)
{
    return std::string(what) + ": " + std::strerror(errno);
}

// A connection to the owner's socket that has been told apart from anybody
// else's; empty, with the reason.
unique_fd connect_to(uint64_t token, const std::string &folder, std::string *why)
{
    sockaddr_un address;
    socklen_t   length = 0;
    unique_fd   made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made || !descriptor_address(token, folder, &address, &length)) {
        add_reason(why, system_reason("socket"));
        return {};
    }
    descriptor_timeouts(made.get(), descriptor_timeout_ms);
    if (connect(made.get(), reinterpret_cast<const sockaddr *>(&address), length) != 0) {
        add_reason(why, system_reason(folder.empty() ? "socket of the owner (is it in another "
                                                       "network namespace?)"
                                                     : "socket in UCX_NVLINK_SOCKET_DIR"));
        return {};
    }
    if (!descriptor_peer_is_us(made.get())) {
        add_reason(why, "socket: the owner is another user");
        return {};
    }
    return made;
}

// The process at the other end, whatever its number here; empty from an older kernel.
unique_fd process_behind(int socket) noexcept
{
    int       fd   = -1;
    socklen_t size = sizeof(fd);
    return unique_fd(getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0 ? fd : -1);
}

// The answer's head and bytes; the descriptors follow.
bool ask(int socket, const descriptor_question &question, descriptor_answer *head,
         std::vector<uint8_t> *bytes, std::string *why)
{
    if (!descriptor_send(socket, &question, sizeof(question)) ||
        !descriptor_receive(socket, head, sizeof(*head))) {
        add_reason(why, (errno == EAGAIN) ? "socket: the owner does not answer"
                                          : system_reason("socket"));
        return false;
    }
    if ((head->magic != descriptor_answer::expected_magic) || (head->token != question.token) ||
        (head->bytes > record_size_max) || (head->fd_count > record_size_max)) {
        add_reason(why, "socket: not the process that made the key");
        return false;
    }
    if (head->status != UCS_OK) {
        add_reason(why, "the owner has let go of that memory");
        return false;
    }
    bytes->resize(head->bytes);
    if (!descriptor_receive(socket, bytes->data(), bytes->size())) {
        add_reason(why, system_reason("socket"));
        return false;
    }
    return true;
}

bool read_all(int fd, std::vector<uint8_t> *bytes)
{
    struct stat what;
    if ((fstat(fd, &what) != 0) || !S_ISREG(what.st_mode) || (what.st_size <= 0) ||
        (static_cast<size_t>(what.st_size) > record_size_max)) {
        return false;
    }
    bytes->resize(static_cast<size_t>(what.st_size));
    return pread(fd, bytes->data(), bytes->size(), 0) == static_cast<ssize_t>(bytes->size());
}

} // namespace

// Of the process behind pidfd_: any kind of descriptor, if the kernel lets us.
unique_fd owner_link::take(int fd_there) const noexcept
{
    if (!pidfd_ || (fd_there < 0)) {
        errno = EBADF;
        return {};
    }
    return unique_fd(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd_.get(), fd_there, 0)));
}

// A plain file of the owner: where pidfd_getfd is refused (Yama's ptrace scope,
// seccomp), /proc may still open it.
unique_fd owner_link::take_file(int fd_there) const noexcept
{
    unique_fd got = take(fd_there);
    if (!got && pidfd_ && (fd_there >= 0)) {
        char path[64];
        std::snprintf(path, sizeof(path), "/proc/%u/fd/%d", owner_.pid, fd_there);
        got = unique_fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    }
    return got;
}

std::shared_ptr<owner_link> owner_link::open(const process_identity &owner, uint16_t page_fd,
                                             const std::string &folder) noexcept
try {
    std::shared_ptr<owner_link> made(new owner_link());
    made->owner_  = owner;
    made->folder_ = folder;
    // In another PID namespace the number means somebody else.
    uint32_t pid_ns = process_pid_namespace();
    if ((owner.pid_ns != 0) && (owner.pid_ns == pid_ns)) {
        made->pidfd_ = unique_fd(static_cast<int>(syscall(SYS_pidfd_open, owner.pid, 0)));
        if (made->pidfd_ && (page_fd != no_page_fd)) {
            unique_fd file = made->take_file(page_fd);
            made->page_    = file ? life_view::map(std::move(file), owner.token) : nullptr;
        }
        // Without the page nothing says that this pid is still the owner's.
        if (!made->page_) {
            made->pidfd_ = unique_fd();
        }
    }
    if (!made->page_) {
        std::string          why;
        descriptor_question  question;
        descriptor_answer    head;
        std::vector<uint8_t> none;
        question.ask   = static_cast<uint32_t>(descriptor_ask::page);
        question.token = owner.token;
        std::string by;
        unique_fd   socket = connect_to(owner.token, by, &why);
        if (!socket && !folder.empty()) {
            by     = folder;
            socket = connect_to(owner.token, by, &why);
        }
        std::vector<unique_fd> fds;
        if (socket && ask(socket.get(), question, &head, &none, &why) && (head.fd_count == 1) &&
            descriptor_receive_fds(socket.get(), 1, &fds)) {
            made->page_    = life_view::map(std::move(fds[0]), owner.token);
            made->process_ = process_behind(socket.get());
            if (!made->process_) {
                made->name_ = std::make_unique<socket_name>();
                (void)descriptor_address(owner.token, by, &made->name_->address,
                                         &made->name_->length);
            }
        }
        if (!made->page_) {
            NVL_DEBUG("no page of what is alive in process %u: %s", owner.pid, why.c_str());
        }
    }
    return made;
} catch (const std::exception &) {
    return nullptr;
}

std::shared_ptr<owner_link> owner_link::to_other_host(const process_identity &owner) noexcept
try {
    std::shared_ptr<owner_link> made(new owner_link());
    made->owner_ = owner;
    return made;
} catch (const std::exception &) {
    return nullptr;
}

ucs_status_t owner_link::fetch_by_pidfd(uint64_t serial, fetched_record *got,
                                        std::string *why) const
{
    std::vector<uint8_t> bytes;
    if (!pidfd_ || !page_) {
        add_reason(why, "pidfd_getfd: the owner is not visible here (another PID namespace)");
        return UCS_ERR_UNREACHABLE;
    }
    unique_fd file = take_file(page_->record_fd(serial));
    if (!file || !read_all(file.get(), &bytes)) {
        add_reason(why, page_->is_alive(serial) ? system_reason("pidfd_getfd")
                                                : "the owner has let go of that memory");
        return UCS_ERR_UNREACHABLE;
    }
    if (!record_parse(bytes, &got->record) || (got->record.token != owner_.token) ||
        (got->record.serial != serial)) {
        add_reason(why, "the owner has let go of that memory");
        return UCS_ERR_UNREACHABLE;
    }
    for (shared_chunk &chunk : got->record.chunks) {
        if (chunk.fd < 0) {
            continue;
        }
        unique_fd copy = take(chunk.fd);
        if (!copy) {
            add_reason(why, system_reason("pidfd_getfd"));
            return UCS_ERR_UNREACHABLE;
        }
        chunk.fd = static_cast<int>(got->fds.size());
        got->fds.push_back(std::move(copy));
    }
    // The owner closes descriptors after it has marked their export: what was
    // taken while the mark was not set was what the record means.
    if (!page_->is_alive(serial)) {
        add_reason(why, "the owner has let go of that memory");
        return UCS_ERR_UNREACHABLE;
    }
    return UCS_OK;
}

ucs_status_t owner_link::fetch_by_socket(uint64_t serial, fetched_record *got,
                                         std::string *why) const
{
    unique_fd socket = connect_to(owner_.token, "", why);
    if (!socket && !folder_.empty()) {
        socket = connect_to(owner_.token, folder_, why);
    }
    if (!socket) {
        return UCS_ERR_UNREACHABLE;
    }
    descriptor_question  question;
    descriptor_answer    head;
    std::vector<uint8_t> bytes;
    question.ask    = static_cast<uint32_t>(descriptor_ask::record);
    question.token  = owner_.token;
    question.serial = serial;
    if (!ask(socket.get(), question, &head, &bytes, why)) {
        return UCS_ERR_UNREACHABLE;
    }
    if (!record_parse(bytes, &got->record) || (got->record.token != owner_.token) ||
        (got->record.serial != serial)) {
        add_reason(why, "socket: a damaged record");
        return UCS_ERR_UNREACHABLE;
    }
    if (!descriptor_receive_fds(socket.get(), head.fd_count, &got->fds)) {
        add_reason(why, system_reason("descriptors over the socket"));
        return UCS_ERR_UNREACHABLE;
    }
    int next = 0;
    for (shared_chunk &chunk : got->record.chunks) {
        chunk.fd = (chunk.fd < 0) ? -1 : next++;
    }
    if (static_cast<size_t>(next) != got->fds.size()) {
        add_reason(why, "socket: a damaged record");
        return UCS_ERR_UNREACHABLE;
    }
    return UCS_OK;
}

ucs_status_t owner_link::fetch(uint64_t serial, fetched_record *got, std::string *why) const
{
    ucs_status_t status = fetch_by_pidfd(serial, got, why);
    if (status != UCS_OK) {
        *got   = fetched_record();
        status = fetch_by_socket(serial, got, why);
    }
    if (status != UCS_OK) {
        *got = fetched_record();
    }
    return status;
}

// Does nobody listen there any more? Asked now and then: each question wakes the
// owner's thread.
bool owner_link::has_left_its_name() const noexcept
{
    constexpr std::chrono::steady_clock::duration ask_every = std::chrono::seconds(1);
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (!name_ || (now.count() < ask_after_.load(std::memory_order_relaxed))) {
        return false;
    }
    ask_after_.store((now + ask_every).count(), std::memory_order_relaxed);
    unique_fd asking(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return asking &&
           (connect(asking.get(), reinterpret_cast<const sockaddr *>(&name_->address),
                    name_->length) != 0) &&
           ((errno == ECONNREFUSED) || (errno == ENOENT));
}

bool owner_link::is_gone() const noexcept
{
    // A pidfd is readable once the process has ended.
    pollfd process{(pidfd_ ? pidfd_ : process_).get(), POLLIN, 0};
    return (process.fd >= 0) ? (poll(&process, 1, 0) == 1) : has_left_its_name();
}

} // namespace nvl
