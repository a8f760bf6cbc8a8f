// SPDX-License-Identifier: BSD-3-Clause
//
// dlopen and dlsym, once.
#include "driver/library.h"

#include <dlfcn.h>

namespace nvl {

library::library(std::initializer_list<const char *> names)
{
    for (const char *name : names) {
        handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) {
            error_.clear();
            return;
        }
        const char *why = dlerror();
        error_          = (why != nullptr) ? why : name;
    }
}

void *library::symbol(const char *name) const noexcept
{
    return (handle_ != nullptr) ? dlsym(handle_, name) : nullptr;
}

void keep_loaded(const void *code) noexcept
{
    Dl_info info;
    // The program itself is not found by its name, and need not be.
    if (dladdr(code, &info) != 0) {
        (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

} // namespace nvl
