// SPDX-License-Identifier: BSD-3-Clause
//
// Finds libnvidia-ml.so.1, fills the table, initialises and shuts down. Nothing here is worth
// more than a debug line: a machine without NVML is a machine that we know less about.

#include "driver/nvml.h"

#include "driver/library.h"

namespace nvl {

namespace {

constexpr bool R = true;
constexpr bool O = false;

template<typename T> bool resolve(const library &from, const char *name, bool needed, T &pointer)
{
    pointer = reinterpret_cast<T>(from.symbol(name));
    return (pointer != nullptr) || !needed;
}

nvml_api load()
{
    nvml_api api;
    library  nvml({"libnvidia-ml.so.1"});

    if (!nvml.is_open()) {
        api.why = nvml.error();
        return api;
    }
    api.complete = true;
#define NVL_NVML(_need, _name, ...)                       \
    if (!resolve(nvml, #_name, _need, api._name)) {       \
        api.complete = false;                             \
        api.why      = "libnvidia-ml.so.1 lacks " #_name; \
    }
#include "driver/nvml_symbols.def"
#undef NVL_NVML
    return api;
}

} // namespace

const nvml_api &nvml_api::get()
{
    // Never destroyed: a thread that NVML held for too long may come back while the process exits.
    static const nvml_api &api = *new nvml_api(load());
    return api;
}

nvml_session::nvml_session() noexcept
{
    try {
        api_ = &nvml_api::get();
    } catch (...) {
        return; // out of memory: as if it were not there
    }
    if (!api_->complete) {
        return;
    }
    code_ = api_->nvmlInit_v2();
    if (code_ == nvml_success) {
        presence_ = nvml_presence::ready;
    } else if (code_ == nvml_library_not_found) {
        presence_ = nvml_presence::stub;
    } else {
        presence_ = nvml_presence::failing;
    }
}

nvml_session::~nvml_session()
{
    if (ready()) {
        (void)api_->nvmlShutdown();
    }
}

} // namespace nvl
