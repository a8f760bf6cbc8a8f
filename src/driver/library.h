// SPDX-License-Identifier: BSD-3-Clause
//
// A shared library opened at run time. The only dlopen of the driver's
// libraries goes through here; the handle stays open for the process's life,
// because the driver keeps threads and atexit work of its own.
#ifndef NVLINK_DRIVER_LIBRARY_H
#define NVLINK_DRIVER_LIBRARY_H

#include <string>

namespace nvl {

class library {
public:
    library() = default;

    // Opens the first of `names` that can be; on failure is_open() is false and
    // error() says why in the loader's words. Any thread.
    explicit library(std::initializer_list<const char *> names);

    bool is_open() const noexcept
    {
        return handle_ != nullptr;
    }

    void *symbol(const char *name) const noexcept;

    const std::string &error() const noexcept
    {
        return error_;
    }

private:
    void       *handle_ = nullptr;
    std::string error_;
};

// The library that holds `code` stays in the process from now on, whoever closes it: for threads
// that cannot be ended. Any thread.
void keep_loaded(const void *code) noexcept;

} // namespace nvl

#endif
