// SPDX-License-Identifier: BSD-3-Clause
//
// Files of the emulated host in place of those of the machine: a path that also lies under the folder
// NVL_EMU_FILES is opened there. So two processes of one machine can be two hosts, with a boot id and IMEX
// channels of their own (host_files.h). Preloaded by run_emulated where NVL_EMU_FILES is set; the variable is
// looked at in each call, so that a program can give its child another host.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// The path to use instead, in `buffer` or as it is.
const char *host_path(const char *path, char (&buffer)[4096])
{
    const char *root = getenv("NVL_EMU_FILES");
    if (root == nullptr || root[0] == '\0' || path == nullptr || path[0] != '/')
        return path;
    int size = snprintf(buffer, sizeof(buffer), "%s%s", root, path);
    // By the system call: access() is ours.
    bool there = size > 0 && static_cast<size_t>(size) < sizeof(buffer) &&
                 syscall(SYS_faccessat, AT_FDCWD, buffer, F_OK) == 0;
    return there ? buffer : path;
}

template<typename F> F *next(F *, const char *name)
{
    return reinterpret_cast<F *>(dlsym(RTLD_NEXT, name));
}

// What open() takes beside, if it takes it.
mode_t mode_of(int flags, va_list arguments)
{
    bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
    return has_mode ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

} // namespace

#define EMU_HOST_FUNCTION extern "C" __attribute__((visibility("default")))

#define EMU_HOST_OPEN(_name)                                                             \
    EMU_HOST_FUNCTION int _name(const char *path, int flags, ...)                        \
    {                                                                                    \
        static auto *const real = next(static_cast<decltype(_name) *>(nullptr), #_name); \
        char               buffer[4096];                                                 \
        va_list            arguments;                                                    \
        va_start(arguments, flags);                                                      \
        mode_t mode = mode_of(flags, arguments);                                         \
        va_end(arguments);                                                               \
        return real(host_path(path, buffer), flags, mode);                               \
    }

EMU_HOST_OPEN(open)
EMU_HOST_OPEN(open64)

EMU_HOST_FUNCTION FILE *fopen(const char *path, const char *mode)
{
    static auto *const real = next(&fopen, "fopen");
    char               buffer[4096];
    return real(host_path(path, buffer), mode);
}

EMU_HOST_FUNCTION FILE *fopen64(const char *path, const char *mode)
{
    static auto *const real = next(&fopen64, "fopen64");
    char               buffer[4096];
    return real(host_path(path, buffer), mode);
}

EMU_HOST_FUNCTION DIR *opendir(const char *path)
{
    static auto *const real = next(&opendir, "opendir");
    char               buffer[4096];
    return real(host_path(path, buffer));
}

EMU_HOST_FUNCTION int access(const char *path, int mode) noexcept
{
    static auto *const real = next(&access, "access");
    char               buffer[4096];
    return real(host_path(path, buffer), mode);
}
