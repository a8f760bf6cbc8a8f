// SPDX-License-Identifier: BSD-3-Clause
//
// See exporter.h.
#include "exporter.h"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <spawn.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

#include "mem/export.h"

extern char **environ;

namespace nvl::test {

namespace {

struct request {
    uint64_t address; // to free, or 0
    uint64_t size_bytes;
};

struct answer {
    wire_key key;
};

// What was allocated here, by address.
std::map<uint64_t, std::unique_ptr<registration>> registered_g;

[[noreturn]] void give_up(const char *what)
{
    std::perror(what);
    std::abort();
}

template<typename T> bool receive(int socket, T *to)
{
    return recv(socket, to, sizeof(*to), MSG_WAITALL) == static_cast<ssize_t>(sizeof(*to));
}

template<typename T> bool say(int socket, const T &what)
{
    return send(socket, &what, sizeof(what), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(what));
}

answer allocate_here(places &where, uint64_t size_bytes)
{
    const cuda_api &cuda = where.cuda();
    context_guard   guard(cuda, where.primary(where.gpus()[1].device).value()->context);
    CUdeviceptr     address = 0;
    if (cuda.cuMemAlloc(&address, size_bytes) != CUDA_SUCCESS) {
        give_up("cuMemAlloc");
    }
    auto made = registration::create(where, reinterpret_cast<void *>(address), size_bytes);
    if (!made.ok()) {
        give_up("registration");
    }
    answer back{};
    if (made.value()->pack_key(process_self(1), address, size_bytes, back.key.data()) != UCS_OK) {
        give_up("pack_key");
    }
    registered_g[address] = std::move(made.value());
    return back;
}

} // namespace

int serve_exporter(int socket)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string why;
    places     *where = places::get(&why);
    if (where == nullptr) {
        std::fprintf(stderr, "exporter: %s\n", why.c_str());
        return 1;
    }
    for (request asked{}; receive(socket, &asked);) {
        answer back{};
        if (asked.address != 0) {
            context_guard guard(where->cuda(),
                                where->primary(where->gpus()[1].device).value()->context);
            registered_g.erase(asked.address);
            (void)where->cuda().cuMemFree(asked.address);
        } else {
            back = allocate_here(*where, asked.size_bytes);
        }
        if (!say(socket, back)) {
            return 1;
        }
    }
    return 0;
}

exporter::exporter()
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        give_up("socketpair");
    }
    fcntl(ends[1], F_SETFD, 0);
    std::string name = "/proc/self/exe", flag = "--exporter", number = std::to_string(ends[1]);
    char       *arguments[] = {name.data(), flag.data(), number.data(), nullptr};
    if (posix_spawn(&pid_, name.c_str(), nullptr, nullptr, arguments, environ) != 0) {
        give_up("posix_spawn");
    }
    close(ends[1]);
    socket_ = ends[0];
}

exporter::~exporter()
{
    close(socket_);
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_EQ(status, 0) << "how the exporter ended";
}

wire_key exporter::allocate_key(size_t size_bytes)
{
    answer got{};
    if (!say(socket_, request{0, size_bytes}) || !receive(socket_, &got)) {
        give_up("the exporter is gone");
    }
    return got.key;
}

import_key exporter::allocate(size_t size_bytes, unsigned from)
{
    key_fields fields;
    if (key_parse(allocate_key(size_bytes).data(), &fields) != UCS_OK) {
        give_up("key_parse");
    }
    return {fields, from};
}

CUdeviceptr open_handle(const cuda_api &cuda, const import_key &key)
{
    CUipcMemHandle raw;
    CUdeviceptr    mapped = 0;
    std::memcpy(&raw, key.handle.bytes, sizeof(raw));
    EXPECT_EQ(cuda.cuIpcOpenMemHandle(&mapped, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_SUCCESS);
    return mapped;
}

void exporter::free(uint64_t base)
{
    answer got{};
    if (!say(socket_, request{base, 0}) || !receive(socket_, &got)) {
        give_up("the exporter is gone");
    }
}

} // namespace nvl::test
