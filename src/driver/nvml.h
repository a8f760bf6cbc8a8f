// SPDX-License-Identifier: BSD-3-Clause
//
// NVML as a table of typed function pointers, filled once from libnvidia-ml.so.1. Nothing links
// to it, and its absence is a state: what NVML would tell is then unknown, and nothing else is
// lost. Called by topo/probe and nvlink_info; calls only library.h.
#ifndef NVLINK_DRIVER_NVML_H
#define NVLINK_DRIVER_NVML_H

#include "driver/nvml_abi.h"

#include <string>

namespace nvl {

enum class nvml_presence {
    missing, // no library, or one that lacks what we need
    stub,    // the library of the toolkit that only answers "not found"
    failing, // nvmlInit fails otherwise
    ready,
};

// Lets a function pointer's type stand in front of the member's name.
template<typename T> using nvml_function = T;

struct nvml_api {
#define NVL_NVML(_need, _name, ...) nvml_function<__VA_ARGS__> _name = nullptr;
#include "driver/nvml_symbols.def"
#undef NVL_NVML

    // The table, filled at the first call; all pointers are null when there is no library.
    // Any thread.
    static const nvml_api &get();

    // The name of a function of the table.
    template<typename F> const char *name_of(F function) const noexcept
    {
        const auto is = [&](auto member) {
            return reinterpret_cast<void (*)()>(member) == reinterpret_cast<void (*)()>(function);
        };
#define NVL_NVML(_need, _name, ...) \
    if (is(_name)) {                \
        return #_name;              \
    }
#include "driver/nvml_symbols.def"
#undef NVL_NVML
        return "";
    }

    bool        complete = false; // every function that is needed is there
    std::string why;              // not complete: the reason, for people
};

// NVML initialised for a scope; only when ready() may the table's functions be called.
class nvml_session {
public:
    nvml_session() noexcept;
    ~nvml_session();

    nvml_session(const nvml_session &)            = delete;
    nvml_session &operator=(const nvml_session &) = delete;

    bool ready() const noexcept
    {
        return presence_ == nvml_presence::ready;
    }

    nvml_presence presence() const noexcept
    {
        return presence_;
    }

    // What nvmlInit answered.
    nvml_return code() const noexcept
    {
        return code_;
    }

    const nvml_api &api() const noexcept
    {
        return *api_;
    }

    const nvml_api *operator->() const noexcept
    {
        return api_;
    }

private:
    const nvml_api *api_      = nullptr;
    nvml_return     code_     = nvml_library_not_found;
    nvml_presence   presence_ = nvml_presence::missing;
};

} // namespace nvl

#endif
