// SPDX-License-Identifier: BSD-3-Clause
//
// The two symbols of a fake libucs that the binding uses before it knows whom it is talking to: options with a
// log level, and a log that writes to standard error.

#include "host/abi.h"

#include <cstdarg>
#include <cstdio>

#define FAKE_EXPORT __attribute__((visibility("default")))

extern "C" {

FAKE_EXPORT ucs_global_opts_t ucs_global_opts;

__attribute__((constructor)) static void fill_options()
{
    ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_WARN;
}

FAKE_EXPORT void ucs_log_dispatch(const char *, unsigned, const char *, ucs_log_level_t level,
                                  ucs_log_component_config_t *component, const char *format, ...)
{
    if (level > component->log_level) {
        return;
    }

    va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "fake log %d: ", level);
    std::vfprintf(stderr, format, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
}
}
