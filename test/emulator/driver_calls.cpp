// SPDX-License-Identifier: BSD-3-Clause
//
// A fixed list of driver calls, many of them wrong, and the code that each gives. Runs on the
// emulated driver and on a real one (it opens libcuda.so.1 like any program and links none); the
// two outputs must be equal: driver_calls.expect. This keeps the emulated driver honest. Calls that a
// real driver does not survive (stale streams and events, a copy to a freed address, a null name) are
// not in the list; the emulated driver refuses them with a code.
//
// Usage: driver_calls             all sections, each in a process of its own
//        driver_calls SECTION...  only these, in this process (one) or in one each
#include "driver_calls.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <sys/wait.h>
#include <unistd.h>

namespace calls {
namespace {

const char *current_section = "";
int         talk_in = 0, talk_out = 1; // of a helper

[[noreturn]] void give_up(const char *label, const char *why)
{
    printf("%s %s: %s\n", current_section, label, why);
    fflush(stdout);
    _exit(3);
}

const section *find_section(const char *name)
{
    for (const section *list : {memory_sections, work_sections, sharing_sections}) {
        for (const section *s = list; s->name != nullptr; s++) {
            if (strcmp(s->name, name) == 0)
                return s;
        }
    }
    return nullptr;
}

} // namespace

void *symbol(const char *name)
{
    static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        give_up("libcuda.so.1", "cannot be opened");
    void *address = dlsym(library, name);
    if (address == nullptr)
        give_up(name, "is not in this driver");
    return address;
}

void report(const char *label, CUresult code)
{
    printf("%s %s: %d\n", current_section, label, static_cast<int>(code));
    fflush(stdout);
}

void report_value(const char *label, long long value)
{
    printf("%s %s = %lld\n", current_section, label, value);
    fflush(stdout);
}

void must(const char *label, CUresult code)
{
    if (code != CUDA_SUCCESS) {
        report(label, code);
        give_up(label, "was needed");
    }
}

CUcontext start(CUdevice device)
{
    CUcontext ctx = nullptr;
    must("cuInit", CU(cuInit)(0));
    must("cuDevicePrimaryCtxRetain", CU(cuDevicePrimaryCtxRetain)(&ctx, device));
    must("cuCtxSetCurrent", CU(cuCtxSetCurrent)(ctx));
    return ctx;
}

bool has_two_gpus()
{
    int count = 0, can = 0;
    must("cuInit", CU(cuInit)(0));
    must("cuDeviceGetCount", CU(cuDeviceGetCount)(&count));
    if (count < 2)
        return false;
    must("cuDeviceCanAccessPeer", CU(cuDeviceCanAccessPeer)(&can, 0, 1));
    return can != 0;
}

CUdeviceptr allocate(size_t size)
{
    CUdeviceptr pointer = 0;
    must("cuMemAlloc", CU(cuMemAlloc_v2)(&pointer, size));
    return pointer;
}

CUstream make_stream()
{
    CUstream stream = nullptr;
    must("cuStreamCreate", CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

helper::helper(const char *section_name)
{
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0)
        give_up(section_name, "no pipe");
    pid_ = fork();
    if (pid_ == 0) {
        char in[16], out[16];
        snprintf(in, sizeof(in), "%d", to[0]);
        snprintf(out, sizeof(out), "%d", from[1]);
        close(to[1]);
        close(from[0]);
        execl("/proc/self/exe", "driver_calls", section_name, in, out, nullptr);
        _exit(4);
    }
    close(to[0]);
    close(from[1]);
    to_   = to[1];
    from_ = from[0];
}

helper::~helper()
{
    finish();
}

void helper::finish()
{
    if (pid_ == 0)
        return;
    close(to_);
    int status = 0;
    waitpid(pid_, &status, 0);
    close(from_);
    pid_ = 0;
}

void helper::read_bytes(void *bytes, size_t size)
{
    if (read(from_, bytes, size) != static_cast<ssize_t>(size))
        give_up("helper", "said nothing");
}

void helper::write_bytes(const void *bytes, size_t size)
{
    if (write(to_, bytes, size) != static_cast<ssize_t>(size))
        give_up("helper", "does not listen");
}

void tell(const void *bytes, size_t size)
{
    if (write(talk_out, bytes, size) != static_cast<ssize_t>(size))
        _exit(5);
}

void hear(void *bytes, size_t size)
{
    if (read(talk_in, bytes, size) != static_cast<ssize_t>(size))
        _exit(0);
}

namespace {

int run_here(const section &s)
{
    current_section = s.name;
    s.run();
    fflush(stdout);
    return 0;
}

// In a process of its own: a section may end in an error that no call gets out of, or in a crash.
bool run_apart(const section &s)
{
    fflush(stdout);
    int pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "driver_calls", s.name, nullptr);
        _exit(4);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s died: signal %d\n", s.name, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run_all()
{
    bool good = true;
    for (const section *list : {memory_sections, work_sections, sharing_sections}) {
        for (const section *s = list; s->name != nullptr; s++) {
            if (!s->is_helper)
                good = run_apart(*s) && good;
        }
    }
    return good ? 0 : 1;
}

} // namespace
} // namespace calls

int main(int argc, char **argv)
{
    using namespace calls;
    if (argc == 1)
        return run_all();
    const section *s = find_section(argv[1]);
    if (s == nullptr) {
        fprintf(stderr, "driver_calls: no section %s\n", argv[1]);
        return 2;
    }
    if (s->is_helper && argc == 4) {
        talk_in  = atoi(argv[2]);
        talk_out = atoi(argv[3]);
    }
    return run_here(*s);
}
