// SPDX-License-Identifier: BSD-3-Clause
//
// The stock UCX under the tests, as a table of its functions. Nothing is linked: the same program runs with every
// UCX whose libraries the loader finds, and says so where there is none. The plugin comes in as users get it, from
// UCX_PLUGIN_PATH.
#ifndef NVLINK_TEST_UCT_UCX_H
#define NVLINK_TEST_UCT_UCX_H

#include <cstdarg>
#include <string>

#include "host/abi.h"

namespace nvl::test {

using ucs_log_handler = int (*)(const char *file, unsigned line, const char *function, int level,
                                const void *component, const char *format, va_list args);

struct ucx_functions {
#define NVL_UCX(_library, _name, ...) \
    using _name##_type = __VA_ARGS__; \
    _name##_type _name = nullptr;
#include "uct/ucx.def"
#undef NVL_UCX
};

// Loads UCX at the first call, and its modules with it; ends the process if there is none.
const ucx_functions &ucx();

// The reason why there is no UCX here, or "".
std::string ucx_missing();

// A status in words, for failure messages.
std::string words(ucs_status_t status);

} // namespace nvl::test

#endif
