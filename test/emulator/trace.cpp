// SPDX-License-Identifier: BSD-3-Clause
//
// See trace.h.
#include "trace.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/syscall.h>
#include <unistd.h>

namespace emu {
namespace {

struct trace_file {
    std::mutex mutex;
    FILE      *file = nullptr;
};

// NVL_EMU_TRACE names the file; "%p" in it becomes the process id.
trace_file *open_trace()
{
    const char *path = getenv("NVL_EMU_TRACE");
    if (path == nullptr || path[0] == '\0')
        return nullptr;
    std::string name = path;
    size_t      at   = name.find("%p");
    if (at != std::string::npos)
        name.replace(at, 2, std::to_string(getpid()));
    auto *trace = new trace_file;
    trace->file = name == "-" ? stderr : fopen(name.c_str(), "ae");
    return trace->file == nullptr ? nullptr : trace;
}

trace_file *the_trace()
{
    static trace_file *only = open_trace();
    return only;
}

} // namespace

bool trace_is_on() noexcept
{
    return the_trace() != nullptr;
}

std::string text_of_address(const volatile void *address)
{
    if (address == nullptr)
        return "0";
    char text[32];
    snprintf(text, sizeof(text), "0x%llx",
             static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(address)));
    return text;
}

std::string text_of_string(const char *text)
{
    return text == nullptr ? "0" : "\"" + std::string(text).substr(0, 80) + "\"";
}

namespace {

std::string text_of_end(const char *name, CUmemorytype type, const void *host, CUdeviceptr device,
                        size_t x, size_t y, size_t pitch)
{
    const bool  is_host = type == CU_MEMORYTYPE_HOST;
    std::string text = std::string(name) + " type " + std::to_string(static_cast<int>(type)) + " " +
                       text_of_address(is_host ? host : reinterpret_cast<const void *>(device));
    return text + " x " + std::to_string(x) + " y " + std::to_string(y) + " pitch " +
           std::to_string(pitch);
}

template<class Copy> std::string text_of_ends(const Copy &copy)
{
    return text_of_end("dst", copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes,
                       copy.dstY, copy.dstPitch) +
           ", " +
           text_of_end("src", copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes,
                       copy.srcY, copy.srcPitch) +
           ", width " + std::to_string(copy.WidthInBytes) + " height " +
           std::to_string(copy.Height);
}

template<class Copy> std::string text_of_planes(const Copy &copy)
{
    return "{" + text_of_ends(copy) + " depth " + std::to_string(copy.Depth) + ", dst z " +
           std::to_string(copy.dstZ) + " of height " + std::to_string(copy.dstHeight) + ", src z " +
           std::to_string(copy.srcZ) + " of height " + std::to_string(copy.srcHeight) + "}";
}

} // namespace

std::string text_of_box(const CUDA_MEMCPY2D &copy)
{
    return "{" + text_of_ends(copy) + "}";
}

std::string text_of_box(const CUDA_MEMCPY3D &copy)
{
    return text_of_planes(copy);
}

std::string text_of_box(const CUDA_MEMCPY3D_PEER &copy)
{
    return text_of_planes(copy);
}

std::string next_name(const char **names)
{
    const char *at = *names;
    while (*at == '(' || *at == ' ' || *at == ',')
        at++;
    const char *end = at;
    while (*end != '\0' && *end != ',' && *end != ')')
        end++;
    *names = end;
    return std::string(at, end);
}

void trace_line(const char *function, const std::string &arguments, CUresult code) noexcept
{
    trace_file *trace = the_trace();
    if (trace == nullptr)
        return;
    auto now = std::chrono::duration_cast<std::chrono::microseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count();
    std::lock_guard lock(trace->mutex);
    fprintf(trace->file, "%lld.%06lld %d/%ld %s(%s) = %d\n", static_cast<long long>(now / 1000000),
            static_cast<long long>(now % 1000000), getpid(), syscall(SYS_gettid), function,
            arguments.c_str(), static_cast<int>(code));
    fflush(trace->file);
}

} // namespace emu
