// SPDX-License-Identifier: BSD-3-Clause
//
// One shared object that the process has loaded: its path, its symbols, and the addresses that its own
// relocations were bound to. An object holds a reference of its own, so it stays loaded as long as this
// lives. Called by binding.cpp alone; uses the dynamic linker, never loads anything.

#ifndef NVLINK_HOST_LOADED_OBJECT_H
#define NVLINK_HOST_LOADED_OBJECT_H

#include <cstddef>
#include <string>
#include <vector>

namespace nvl {

class loaded_object {
public:
    loaded_object() noexcept = default;
    ~loaded_object();
    loaded_object(loaded_object &&other) noexcept;
    loaded_object &operator=(loaded_object &&other) noexcept;

    // The object that contains `address`; empty when no loaded object does.
    static loaded_object at_address(const void *address);

    // Empty when nothing is loaded under that path.
    static loaded_object at_path(const char *path);

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    const std::string &path() const noexcept
    {
        return path_;
    }

    const void *base() const noexcept
    {
        return base_;
    }

    // Looks in this object and in its dependencies, never in the global scope.
    void *symbol(const char *name) const noexcept;

    // True when symbol() comes from this very object.
    bool defines(const char *name) const noexcept;

    // Size in the symbol table, 0 when unknown.
    size_t symbol_size(const char *name) const noexcept;

    // The address that this object itself uses for `name`. It differs from symbol() when the program has
    // a copy of the variable (copy relocation), or when an earlier library takes the symbol over.
    // Null when this object does not refer to `name` through its relocation table.
    void *bound_address(const char *name) const noexcept;

private:
    loaded_object(void *handle, const void *base, std::string path);

    void       *handle_ = nullptr;
    const void *base_   = nullptr;
    std::string path_;
};

// Base of the object that contains `address`, null when none does.
const void *object_base(const void *address) noexcept;

// True when `address` lies in the program itself.
bool in_main_program(const void *address) noexcept;

// Paths of the loaded objects whose file name starts with `prefix`, in load order.
std::vector<std::string> loaded_paths(const char *prefix);

} // namespace nvl

#endif
