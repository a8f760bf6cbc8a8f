// SPDX-License-Identifier: BSD-3-Clause
//
// dlopen is only ever called with RTLD_NOLOAD, and not from inside dl_iterate_phdr's callback, which
// holds the loader's lock.

#include "host/loaded_object.h"

#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <utility>

namespace nvl {

namespace {

#if defined(__x86_64__)
constexpr unsigned reloc_glob_dat = R_X86_64_GLOB_DAT;
constexpr unsigned reloc_absolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr unsigned reloc_glob_dat = R_AARCH64_GLOB_DAT;
constexpr unsigned reloc_absolute = R_AARCH64_ABS64;
#else
#error "relocation types of this architecture are not known"
#endif

const char *file_name(const char *path) noexcept
{
    const char *slash = std::strrchr(path, '/');
    return slash == nullptr ? path : slash + 1;
}

// The tables that a relocation scan needs, out of the object's dynamic section.
struct dynamic_tables {
    const ElfW(Rela) *rela   = nullptr;
    size_t rela_size         = 0;
    const ElfW(Sym) *symbols = nullptr;
    const char *strings      = nullptr;

    explicit dynamic_tables(const link_map *map) noexcept
    {
        for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
            switch (entry->d_tag) {
            case DT_RELA:
                rela = at<ElfW(Rela)>(map, entry);
                break;
            case DT_RELASZ:
                rela_size = entry->d_un.d_val;
                break;
            case DT_SYMTAB:
                symbols = at<ElfW(Sym)>(map, entry);
                break;
            case DT_STRTAB:
                strings = at<char>(map, entry);
                break;
            default:
                break;
            }
        }
    }

private:
    // glibc relocates these in place on most machines and leaves them as offsets on some.
    template<typename T> static const T *at(const link_map *map, const ElfW(Dyn) * entry) noexcept
    {
        ElfW(Addr) address = entry->d_un.d_ptr;
        return reinterpret_cast<const T *>(address < map->l_addr ? address + map->l_addr : address);
    }
};

} // namespace

loaded_object::loaded_object(void *handle, const void *base, std::string path)
    : handle_(handle), base_(base), path_(std::move(path))
{
}

loaded_object::~loaded_object()
{
    if (handle_ != nullptr) {
        dlclose(handle_);
    }
}

loaded_object::loaded_object(loaded_object &&other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      base_(std::exchange(other.base_, nullptr)),
      path_(std::move(other.path_))
{
}

loaded_object &loaded_object::operator=(loaded_object &&other) noexcept
{
    std::swap(handle_, other.handle_);
    std::swap(base_, other.base_);
    std::swap(path_, other.path_);
    return *this;
}

loaded_object loaded_object::at_address(const void *address)
{
    Dl_info   info;
    link_map *map = nullptr;
    if (dladdr1(address, &info, reinterpret_cast<void **>(&map), RTLD_DL_LINKMAP) == 0 ||
        map == nullptr) {
        return {};
    }

    // The program itself has an empty name, and dlopen knows it under a null one.
    bool  is_program = map->l_name[0] == '\0';
    void *handle     = dlopen(is_program ? nullptr : map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) {
        return {};
    }

    return {handle, info.dli_fbase, is_program ? info.dli_fname : map->l_name};
}

loaded_object loaded_object::at_path(const char *path)
{
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) {
        return {};
    }

    link_map *map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) {
        dlclose(handle);
        return {};
    }

    return {handle, object_base(map->l_ld), path};
}

void *loaded_object::symbol(const char *name) const noexcept
{
    return dlsym(handle_, name);
}

bool loaded_object::defines(const char *name) const noexcept
{
    const void *address = symbol(name);
    return address != nullptr && object_base(address) == base_;
}

size_t loaded_object::symbol_size(const char *name) const noexcept
{
    const void *address = symbol(name);
    Dl_info     info;
    const ElfW(Sym) *entry = nullptr;
    if (address == nullptr ||
        dladdr1(address, &info, const_cast<void **>(reinterpret_cast<const void **>(&entry)),
                RTLD_DL_SYMENT) == 0 ||
        entry == nullptr || info.dli_saddr != address) {
        return 0;
    }

    return entry->st_size;
}

void *loaded_object::bound_address(const char *name) const noexcept
{
    link_map *map = nullptr;
    if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) {
        return nullptr;
    }

    dynamic_tables tables(map);
    if (tables.rela == nullptr || tables.symbols == nullptr || tables.strings == nullptr) {
        return nullptr;
    }

    size_t count = tables.rela_size / sizeof(*tables.rela);
    for (size_t i = 0; i < count; ++i) {
        const ElfW(Rela) &rela = tables.rela[i];
        unsigned long type     = ELF64_R_TYPE(rela.r_info);
        unsigned long symbol   = ELF64_R_SYM(rela.r_info);
        if ((type != reloc_glob_dat && type != reloc_absolute) || symbol == 0 ||
            std::strcmp(tables.strings + tables.symbols[symbol].st_name, name) != 0) {
            continue;
        }

        char *value = *reinterpret_cast<char *const *>(map->l_addr + rela.r_offset);
        return type == reloc_absolute ? value - rela.r_addend : value;
    }

    return nullptr;
}

const void *object_base(const void *address) noexcept
{
    Dl_info info;
    return dladdr(address, &info) == 0 ? nullptr : info.dli_fbase;
}

bool in_main_program(const void *address) noexcept
{
    Dl_info   info;
    link_map *map = nullptr;
    return dladdr1(address, &info, reinterpret_cast<void **>(&map), RTLD_DL_LINKMAP) != 0 &&
           map != nullptr && map->l_name[0] == '\0';
}

std::vector<std::string> loaded_paths(const char *prefix)
{
    struct walk {
        const char              *prefix;
        std::vector<std::string> paths;
    } state{prefix, {}};

    auto visit = [](dl_phdr_info *info, size_t, void *arg) -> int {
        auto *found = static_cast<walk *>(arg);
        if (std::strncmp(file_name(info->dlpi_name), found->prefix, std::strlen(found->prefix)) ==
            0) {
            found->paths.emplace_back(info->dlpi_name);
        }
        return 0;
    };

    dl_iterate_phdr(visit, &state);
    return std::move(state.paths);
}

} // namespace nvl
