// SPDX-License-Identifier: BSD-3-Clause
//
// See side.h. The far side in another process. A request is a header and bytes; so is an answer.
#include "uct/side.h"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

extern char **environ;

namespace nvl::test {

namespace {

enum what : uint64_t {
    ask_address,
    ask_allocate,
    ask_release,
    ask_key,
    ask_write,
    ask_read,
    ask_put,
    ask_get,
    ask_add,
    ask_replace_chunk,
    ask_unmap_chunk,
    ask_register_part,
    ask_part_key,
    ask_release_part,
    ask_open_fds,
    ask_calls_made
};

struct request {
    uint64_t what;
    uint64_t allocation; // or the GPU
    uint64_t offset;     // or the remote address
    uint64_t size;
    uint64_t device_size, iface_size; // of the addresses in front of the bytes
    uint64_t bytes;
};

struct answer {
    int64_t  status;
    uint64_t value;
    uint64_t bytes;
};

bool send_all(int socket, const void *from, size_t size)
{
    auto *at = static_cast<const char *>(from);
    while (size > 0) {
        ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
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

bool receive_all(int socket, void *to, size_t size)
{
    auto *at = static_cast<char *>(to);
    while (size > 0) {
        ssize_t got = recv(socket, at, size, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        size -= static_cast<size_t>(got);
    }
    return true;
}

answer ask(int socket, request what, const bytes &payload, bytes *back)
{
    answer got{};
    what.bytes = payload.size();
    if (!send_all(socket, &what, sizeof(what)) ||
        !send_all(socket, payload.data(), payload.size()) ||
        !receive_all(socket, &got, sizeof(got))) {
        throw set_up_failed("the other process is gone");
    }
    back->resize(got.bytes);
    if (!receive_all(socket, back->data(), back->size())) {
        throw set_up_failed("the other process is gone");
    }
    return got;
}

answer ask(int socket, request what, const bytes &payload = {})
{
    bytes back;
    return ask(socket, what, payload, &back);
}

bytes joined(std::initializer_list<const bytes *> parts)
{
    bytes all;
    for (const bytes *part : parts) {
        all.insert(all.end(), part->begin(), part->end());
    }
    return all;
}

// The addresses that stand before the key.
addresses split(const request &asked, bytes *payload)
{
    addresses with;
    auto      device = payload->begin() + static_cast<ptrdiff_t>(asked.device_size);
    auto      iface  = device + static_cast<ptrdiff_t>(asked.iface_size);
    with.device.assign(payload->begin(), device);
    with.iface.assign(device, iface);
    payload->erase(payload->begin(), iface);
    return with;
}

void answer_address(local_side *self, answer *reply, bytes *back)
{
    addresses mine = self->address();
    reply->value   = mine.device.size();
    *back          = joined({&mine.device, &mine.iface});
}

answer obey(local_side *self, const request &asked, bytes *payload, bytes *back)
{
    answer    reply{};
    addresses with;
    switch (asked.what) {
    case ask_address:
        answer_address(self, &reply, back);
        break;
    case ask_allocate:
        reply.value = self->allocate_kind(static_cast<memory_kind>(asked.offset),
                                          static_cast<int>(asked.allocation), asked.size);
        break;
    case ask_release:
        self->release(asked.allocation);
        break;
    case ask_key:
        *back = self->key(asked.allocation);
        break;
    case ask_write:
        self->write(asked.allocation, asked.offset, *payload);
        break;
    case ask_read:
        *back = self->read(asked.allocation, asked.offset, asked.size);
        break;
    case ask_put:
        with         = split(asked, payload);
        reply.status = self->put(asked.allocation, asked.size, with, asked.offset, *payload);
        break;
    case ask_get:
        with         = split(asked, payload);
        reply.status = self->get(asked.allocation, asked.size, with, asked.offset, *payload);
        break;
    case ask_add:
        with         = split(asked, payload);
        reply.status = self->add(asked.size, with, asked.offset, *payload);
        break;
    case ask_replace_chunk:
        self->replace_chunk(asked.allocation, asked.offset);
        break;
    case ask_unmap_chunk:
        self->unmap_chunk(asked.allocation, asked.offset);
        break;
    case ask_register_part:
        reply.value = self->register_part(asked.allocation, asked.offset, asked.size);
        break;
    case ask_part_key:
        *back = self->part_key(asked.allocation);
        break;
    case ask_release_part:
        self->release_part(asked.allocation);
        break;
    case ask_open_fds:
        reply.value = self->open_fds();
        break;
    case ask_calls_made:
        reply.value = self->calls_made(std::string(payload->begin(), payload->end()));
        break;
    default:
        reply.status = UCS_ERR_INVALID_PARAM;
    }
    return reply;
}

// By name: /proc/self is somebody else behind a wrapper.
std::string program_path()
{
    char    path[4096];
    ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
    return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

// With NVL_TEST_REFUSE_PIDFD the kernel refuses pidfd_getfd to this process, as the seccomp filters of container
// runtimes do, and is too old to tell who is behind a socket (SO_PEERPIDFD).
void refuse_pidfd_if_asked()
{
    if (std::getenv("NVL_TEST_REFUSE_PIDFD") == nullptr) {
        return;
    }
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog program{sizeof(rules) / sizeof(rules[0]), rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        std::perror("seccomp");
        std::abort();
    }
}

} // namespace

int serve_peer(int socket)
{
    refuse_pidfd_if_asked();
    // Whatever happens to the test, nothing of it stays behind.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    local_side self;
    for (;;) {
        request asked{};
        if (!receive_all(socket, &asked, sizeof(asked))) {
            return 0;
        }
        bytes payload(asked.bytes), back;
        if (!receive_all(socket, payload.data(), payload.size())) {
            return 1;
        }
        answer reply{};
        try {
            reply = obey(&self, asked, &payload, &back);
        } catch (const set_up_failed &failed) {
            std::fprintf(stderr, "the other process: %s\n", failed.what());
            reply.status = UCS_ERR_IO_ERROR;
        }
        reply.bytes = back.size();
        if (!send_all(socket, &reply, sizeof(reply)) ||
            !send_all(socket, back.data(), back.size())) {
            return 1;
        }
    }
}

peer_side::peer_side(const std::vector<std::string> &environment,
                     const std::vector<std::string> &wrapper)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        throw set_up_failed("socketpair");
    }
    std::string              number = std::to_string(ends[1]);
    std::vector<std::string> words  = wrapper;
    words.insert(words.end(), {program_path(), "--peer", number});
    std::vector<char *> arguments;
    for (std::string &word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    std::vector<std::string> kept = environment;
    // UCX's memory hooks take a second to install; the peer needs none, and nobody tests it with them.
    std::string         no_events = "UCX_MEM_EVENTS=n";
    std::vector<char *> variables = {no_events.data()};
    for (char **one = environ; *one != nullptr; ++one) {
        variables.push_back(*one);
    }
    // The last one of a name would not win everywhere: in front.
    for (std::string &one : kept) {
        variables.insert(variables.begin(), one.data());
    }
    variables.push_back(nullptr);

    // Open in the child alone.
    fcntl(ends[1], F_SETFD, 0);
    int code =
        posix_spawnp(&pid_, arguments[0], nullptr, nullptr, arguments.data(), variables.data());
    close(ends[1]);
    socket_ = ends[0];
    if (code != 0) {
        pid_ = -1;
        throw set_up_failed("posix_spawn");
    }
}

peer_side::~peer_side()
{
    close(socket_);
    if (pid_ > 0) {
        // What it left behind and what a sanitizer saw in it shows in how it ends.
        int status = 0;
        waitpid(pid_, &status, 0);
        EXPECT_EQ(status, 0) << "how the other process ended";
    }
}

void peer_side::kill()
{
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

addresses peer_side::address()
{
    bytes     back;
    answer    got = ask(socket_, {ask_address, 0, 0, 0, 0, 0, 0}, {}, &back);
    addresses theirs;
    auto      middle = back.begin() + static_cast<ptrdiff_t>(got.value);
    theirs.device.assign(back.begin(), middle);
    theirs.iface.assign(middle, back.end());
    return theirs;
}

uint64_t peer_side::allocate_kind(memory_kind kind, int gpu, size_t size)
{
    return ask(socket_, {ask_allocate, static_cast<uint64_t>(gpu), static_cast<uint64_t>(kind),
                         size, 0, 0, 0})
        .value;
}

void peer_side::replace_chunk(uint64_t allocation, size_t index)
{
    ask(socket_, {ask_replace_chunk, allocation, index, 0, 0, 0, 0});
}

void peer_side::unmap_chunk(uint64_t allocation, size_t index)
{
    ask(socket_, {ask_unmap_chunk, allocation, index, 0, 0, 0, 0});
}

uint64_t peer_side::register_part(uint64_t allocation, size_t offset, size_t size)
{
    return ask(socket_, {ask_register_part, allocation, offset, size, 0, 0, 0}).value;
}

bytes peer_side::part_key(uint64_t part)
{
    bytes back;
    ask(socket_, {ask_part_key, part, 0, 0, 0, 0, 0}, {}, &back);
    return back;
}

void peer_side::release_part(uint64_t part)
{
    ask(socket_, {ask_release_part, part, 0, 0, 0, 0, 0});
}

uint64_t peer_side::open_fds()
{
    return ask(socket_, {ask_open_fds, 0, 0, 0, 0, 0, 0}).value;
}

uint64_t peer_side::calls_made(const std::string &name)
{
    return ask(socket_, {ask_calls_made, 0, 0, 0, 0, 0, 0}, bytes(name.begin(), name.end())).value;
}

void peer_side::release(uint64_t allocation)
{
    ask(socket_, {ask_release, allocation, 0, 0, 0, 0, 0});
}

bytes peer_side::key(uint64_t allocation)
{
    bytes back;
    ask(socket_, {ask_key, allocation, 0, 0, 0, 0, 0}, {}, &back);
    return back;
}

void peer_side::write(uint64_t allocation, size_t offset, const bytes &from)
{
    ask(socket_, {ask_write, allocation, offset, 0, 0, 0, 0}, from);
}

bytes peer_side::read(uint64_t allocation, size_t offset, size_t size)
{
    bytes back;
    ask(socket_, {ask_read, allocation, offset, size, 0, 0, 0}, {}, &back);
    return back;
}

ucs_status_t peer_side::copy(uint64_t what, uint64_t allocation, size_t size, const addresses &with,
                             uint64_t remote_address, const bytes &key)
{
    request asked{what, allocation, remote_address, size, with.device.size(), with.iface.size(), 0};
    return static_cast<ucs_status_t>(
        ask(socket_, asked, joined({&with.device, &with.iface, &key})).status);
}

ucs_status_t peer_side::put(uint64_t allocation, size_t size, const addresses &to,
                            uint64_t remote_address, const bytes &key)
{
    return copy(ask_put, allocation, size, to, remote_address, key);
}

ucs_status_t peer_side::add(size_t count, const addresses &to, uint64_t remote_address,
                            const bytes &key)
{
    return copy(ask_add, 0, count, to, remote_address, key);
}

ucs_status_t peer_side::get(uint64_t allocation, size_t size, const addresses &from,
                            uint64_t remote_address, const bytes &key)
{
    return copy(ask_get, allocation, size, from, remote_address, key);
}

} // namespace nvl::test
