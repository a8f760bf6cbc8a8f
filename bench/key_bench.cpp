// SPDX-License-Identifier: BSD-3-Clause
//
// What it costs the processor to unpack and to release a key that this process has unpacked before,
// as UCP does for every rendezvous, by Google Benchmark on the emulated driver (make key-bench). The
// memory is that of other processes, which run this program as "--owner SOCKET". The result is for
// bench/compare_ops.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <spawn.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/clock.h"
#include "batch_clock.h"
#include "mem/export.h"
#include "uct/md.h"

extern char **environ;

namespace nvl {

namespace {

constexpr uint64_t host_id         = 1;
constexpr size_t   region_size     = 1 << 20;
constexpr unsigned keys_of_owner   = 8;
constexpr unsigned batch           = 64;
constexpr unsigned owners_most     = 7; // of a machine with 8 GPUs
constexpr unsigned registered_from = 1; // the GPU whose memory it is; the other copies

using wire_key = std::array<uint8_t, key_packed_size_most>;

[[noreturn]] void give_up(const char *what)
{
    fprintf(stderr, "key_bench: %s\n", what);
    exit(1);
}

places &all_places()
{
    std::string why;
    places     *where = places::get(&why);
    if ((where == nullptr) || (where->gpus().size() < 2)) {
        give_up("no driver with two GPUs: run it by make key-bench");
    }
    return *where;
}

// ---- an owner ----------------------------------------------------------------------------------

wire_key make_key(places &where)
{
    const cuda_api &cuda = where.cuda();
    context_guard guard(cuda, where.primary(where.gpus()[registered_from].device).value()->context);
    CUdeviceptr   address = 0;
    if (cuda.cuMemAlloc(&address, region_size) != CUDA_SUCCESS) {
        give_up("no memory");
    }
    auto     made = registration::create(where, reinterpret_cast<void *>(address), region_size);
    wire_key packed{};
    if (!made.ok() || (made.value()->pack_key(process_self(host_id), address, region_size,
                                              packed.data()) != UCS_OK)) {
        give_up("no key");
    }
    (void)made.value().release(); // as long as the process
    return packed;
}

int serve(int socket)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    places &where = all_places();
    for (unsigned i = 0; i < keys_of_owner; ++i) {
        wire_key packed = make_key(where);
        if (write(socket, packed.data(), packed.size()) != static_cast<ssize_t>(packed.size())) {
            return 1;
        }
    }
    char none;
    return (read(socket, &none, 1) == 0) ? 0 : 1; // until the other end is closed
}

class owner {
public:
    owner()
    {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
            give_up("no socket");
        }
        (void)fcntl(ends[1], F_SETFD, 0);
        std::string name = "/proc/self/exe", flag = "--owner", number = std::to_string(ends[1]);
        char       *arguments[] = {name.data(), flag.data(), number.data(), nullptr};
        if (posix_spawn(&pid_, name.c_str(), nullptr, nullptr, arguments, environ) != 0) {
            give_up("no second process");
        }
        close(ends[1]);
        socket_ = ends[0];
        for (wire_key &one : keys) {
            if (recv(socket_, one.data(), one.size(), MSG_WAITALL) !=
                static_cast<ssize_t>(one.size())) {
                give_up("the second process is gone");
            }
        }
    }

    ~owner()
    {
        close(socket_);
        waitpid(pid_, nullptr, 0);
    }

    owner(const owner &)            = delete;
    owner &operator=(const owner &) = delete;

    std::array<wire_key, keys_of_owner> keys;

private:
    pid_t pid_    = 0;
    int   socket_ = -1;
};

std::vector<std::unique_ptr<owner>> owners_g;

// ---- this side ---------------------------------------------------------------------------------

// As UCX's loader would have it: only what unpack asks of it.
component &the_component()
{
    static host_binding host;
    static component    one{};
    if (one.host == nullptr) {
        host.api.ucs_get_system_id = []() -> uint64_t { return host_id; };
        one.host                   = &host;
        for (size_t i = 0; i < one.sys_devices.size(); ++i) {
            one.sys_devices[i].store(static_cast<int>(i), std::memory_order_relaxed);
        }
    }
    return one;
}

uct_rkey_t unpack(const wire_key &key)
{
    uct_rkey_unpack_params_t params{};
    uct_rkey_t               rkey   = 0;
    void                    *handle = nullptr;
    params.field_mask               = UCT_RKEY_UNPACK_FIELD_SYS_DEVICE;
    params.sys_device               = 1 - registered_from;
    if (nvl_rkey_unpack(&the_component().super, key.data(), &params, &rkey, &handle) != UCS_OK) {
        give_up("a key was refused");
    }
    return rkey;
}

void release(uct_rkey_t rkey)
{
    (void)nvl_rkey_release(&the_component().super, rkey, nullptr);
}

uint64_t calls_made()
{
    static auto *count = reinterpret_cast<long (*)(const char *)>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "emu_call_count"));
    if (count == nullptr) {
        give_up("not on the emulated driver: run it by make key-bench");
    }
    long sum = 0;
#define EMU_FN(_base, _exported, _version, _stream) sum += count(#_exported);
#define EMU_NO(_base, _exported, _version, _stream)
#include "emulator/symbols.def"
#undef EMU_FN
#undef EMU_NO
    return static_cast<uint64_t>(sum);
}

// So many owners have something open here, before and while it is measured.
void open_all(unsigned count)
{
    while (owners_g.size() < count) {
        owners_g.push_back(std::make_unique<owner>());
    }
    for (unsigned i = 0; i < count; ++i) {
        for (const wire_key &one : owners_g[i]->keys) {
            release(unpack(one));
        }
    }
}

// `next` says which key is the i-th.
template<typename F> void measure(benchmark::State &state, F &&next)
{
    batch_clock clock(state, batch);
    uint64_t    before = calls_made();
    for (auto _ : state) {
        uint64_t start = clock_ticks();
        for (unsigned i = 0; i < batch; ++i) {
            release(unpack(next(i)));
        }
        clock.add(clock_ticks() - start);
    }
    clock.report(calls_made() - before);
}

void known_key_idle(benchmark::State &state)
{
    open_all(static_cast<unsigned>(state.range(0)));
    measure(state, [](unsigned) -> const wire_key & { return owners_g[0]->keys[0]; });
}

void known_key_in_use(benchmark::State &state)
{
    open_all(static_cast<unsigned>(state.range(0)));
    uct_rkey_t other = unpack(owners_g[0]->keys[0]);
    measure(state, [](unsigned) -> const wire_key & { return owners_g[0]->keys[0]; });
    release(other);
}

// Each time another one, of another owner.
void known_keys_in_turn(benchmark::State &state)
{
    auto count = static_cast<unsigned>(state.range(0));
    open_all(count);
    measure(state, [&](unsigned i) -> const wire_key & {
        return owners_g[i % count]->keys[i / count % keys_of_owner];
    });
}

// Owners only become more.
BENCHMARK(known_key_idle)->Arg(1)->UseManualTime();
BENCHMARK(known_key_in_use)->Arg(1)->UseManualTime();
BENCHMARK(known_keys_in_turn)->Arg(1)->UseManualTime();
BENCHMARK(known_key_idle)->Arg(owners_most)->UseManualTime();
BENCHMARK(known_key_in_use)->Arg(owners_most)->UseManualTime();
BENCHMARK(known_keys_in_turn)->Arg(owners_most)->UseManualTime();

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    if ((argc == 3) && (std::strcmp(argv[1], "--owner") == 0)) {
        return nvl::serve(std::atoi(argv[2]));
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
        return 1;
    }
    benchmark::RunSpecifiedBenchmarks();
    nvl::owners_g.clear();
    return 0;
}
