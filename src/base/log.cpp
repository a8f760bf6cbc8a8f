// SPDX-License-Identifier: BSD-3-Clause
//
// Formats a line on the stack and hands it to the sink.
#include "base/log.h"

#include <cstdio>

namespace nvl {

namespace {

std::atomic<log_sink> sink_g{nullptr};
std::atomic<int>      level_g{static_cast<int>(log_level::warn)};

} // namespace

void log_set_sink(log_sink sink) noexcept
{
    sink_g.store(sink, std::memory_order_release);
}

void log_set_level(log_level level) noexcept
{
    level_g.store(static_cast<int>(level), std::memory_order_relaxed);
}

bool log_enabled(log_level level) noexcept
{
    return static_cast<int>(level) <= level_g.load(std::memory_order_relaxed);
}

void log_write(log_level level, const char *file, unsigned line, const char *function,
               const char *format, ...) noexcept
{
    log_sink sink = sink_g.load(std::memory_order_acquire);
    if (sink == nullptr) {
        return;
    }

    char    message[1024];
    va_list args;
    va_start(args, format);
    std::vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    sink(level, file, line, function, message);
}

} // namespace nvl
