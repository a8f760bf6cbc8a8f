// SPDX-License-Identifier: BSD-3-Clause
//
// Log lines, in the levels of UCX. Until a UCX has loaded the plugin they go
// nowhere; host/ sets the sink that passes them to that UCX. Called by
// everybody, from any thread; never throws.
#ifndef NVLINK_BASE_LOG_H
#define NVLINK_BASE_LOG_H

#include <atomic>
#include <cstdarg>

namespace nvl {

// The numbers are those of UCX's ucs_log_level_t.
enum class log_level : int {
    fatal = 0,
    error = 1,
    warn  = 2,
    diag  = 3,
    info  = 4,
    debug = 5,
    trace = 6
};

// `message` is complete, without a newline. Must not throw.
using log_sink = void (*)(log_level level, const char *file, unsigned line, const char *function,
                          const char *message);

void log_set_sink(log_sink sink) noexcept;

// The highest level that is wanted; levels above it are not even formatted.
void log_set_level(log_level level) noexcept;

bool log_enabled(log_level level) noexcept;

__attribute__((format(printf, 5, 6))) void log_write(log_level level, const char *file,
                                                     unsigned line, const char *function,
                                                     const char *format, ...) noexcept;

} // namespace nvl

#define NVL_LOG(_level, ...)                                                         \
    do {                                                                             \
        const ::nvl::log_level nvl_level_ = (_level);                                \
        if (::nvl::log_enabled(nvl_level_)) {                                        \
            ::nvl::log_write(nvl_level_, __FILE__, __LINE__, __func__, __VA_ARGS__); \
        }                                                                            \
    } while (0)

#define NVL_ERROR(...) NVL_LOG(::nvl::log_level::error, __VA_ARGS__)
#define NVL_WARN(...)  NVL_LOG(::nvl::log_level::warn, __VA_ARGS__)
#define NVL_DIAG(...)  NVL_LOG(::nvl::log_level::diag, __VA_ARGS__)
#define NVL_INFO(...)  NVL_LOG(::nvl::log_level::info, __VA_ARGS__)
#define NVL_DEBUG(...) NVL_LOG(::nvl::log_level::debug, __VA_ARGS__)
#define NVL_TRACE(...) NVL_LOG(::nvl::log_level::trace, __VA_ARGS__)

#endif
