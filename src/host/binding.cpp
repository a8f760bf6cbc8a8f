// SPDX-License-Identifier: BSD-3-Clause
//
// From the return address of ucs_module_global_init to a checked table of pointers. The order matters:
// nothing of the host is read before the check that makes reading it safe.

#include "host/binding.h"

#include "base/log.h"
#include "host/versions.h"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace nvl {

namespace {

// ---- finding the libraries ---------------------------------------------------------------------

// A libuct belongs to a libucs if it is the library that defines the list of components and if its own
// libucs symbols lead there. Modules such as libuct_cuda only reach that list through their dependency.
bool is_libuct_of(const loaded_object &object, const loaded_object &libucs)
{
    return object.defines("uct_components_list") &&
           object_base(object.symbol("ucs_global_opts")) == libucs.base();
}

loaded_object find_libuct(const loaded_object &libucs, const void *address)
{
    // A static build has everything in one object.
    if (libucs.defines("uct_components_list")) {
        return loaded_object::at_address(address);
    }

    for (const std::string &path : loaded_paths("libuct")) {
        loaded_object candidate = loaded_object::at_path(path.c_str());
        if (candidate && is_libuct_of(candidate, libucs)) {
            return candidate;
        }
    }

    return {};
}

std::string find_libraries(host_binding &host, const void *address)
{
    host.libucs = loaded_object::at_address(address);
    if (!host.libucs) {
        return "the caller is in no library that the dynamic linker knows";
    }

    if (!host.libucs.defines("ucs_global_opts") || !host.libucs.defines("ucs_log_dispatch")) {
        return "the caller, " + host.libucs.path() + ", is not a libucs";
    }

    host.libuct = find_libuct(host.libucs, address);
    if (!host.libuct) {
        return "no libuct in the process belongs to " + host.libucs.path();
    }

    return {};
}

// ---- taking the symbols ------------------------------------------------------------------------

// Where the host's own code sees a variable: in its library, or in the program that has a copy of it.
// Any other library means that two UCXs are mixed up in this process.
void *host_address(const loaded_object &library, const char *name, std::string &refusal)
{
    void *own   = library.symbol(name);
    void *bound = library.bound_address(name);
    if (own == nullptr || bound == nullptr || bound == own) {
        return own;
    }

    if (!in_main_program(bound)) {
        refusal = std::string("two UCXs are mixed up in this process: ") + library.path() +
                  " uses " + name + " of another library";
        return nullptr;
    }

    return bound;
}

class symbol_taker {
public:
    symbol_taker(const host_binding &host) : host_(host)
    {
    }

    template<typename Pointer>
    void function(bool is_uct, bool required, const char *name, Pointer &pointer)
    {
        pointer = reinterpret_cast<Pointer>(library(is_uct).symbol(name));
        demand(pointer != nullptr || !required, is_uct, name);
    }

    template<typename Type> void data(bool is_uct, bool required, const char *name, Type *&pointer)
    {
        pointer = static_cast<Type *>(host_address(library(is_uct), name, refusal_));
        demand(pointer != nullptr || !required, is_uct, name);
    }

    const std::string &refusal() const noexcept
    {
        return refusal_;
    }

private:
    const loaded_object &library(bool is_uct) const noexcept
    {
        return is_uct ? host_.libuct : host_.libucs;
    }

    void demand(bool satisfied, bool is_uct, const char *name)
    {
        if (!satisfied && refusal_.empty()) {
            refusal_ = library(is_uct).path() + " has no symbol " + name;
        }
    }

    const host_binding &host_;
    std::string         refusal_;
};

std::string take_symbols(host_binding &host)
{
    constexpr bool uct = true, ucs = false, required = true, optional = false;
    symbol_taker   taker(host);
    ucx_api       &api = host.api;

#define NVL_HOST_FUNCTION(library, need, name)   taker.function(library, need, #name, api.name);
#define NVL_HOST_DATA(library, need, type, name) taker.data(library, need, #name, api.name);
#include "host/symbols.def"
#undef NVL_HOST_DATA
#undef NVL_HOST_FUNCTION

    if (!taker.refusal().empty()) {
        return taker.refusal();
    }

    // The parser knows a sub-table by the address of this function, so it must be the one that it uses.
    std::string refusal;
    void       *table_reader = host_address(host.libucs, "ucs_config_sscanf_table", refusal);
    if (table_reader != nullptr) {
        api.ucs_config_sscanf_table =
            reinterpret_cast<decltype(api.ucs_config_sscanf_table)>(table_reader);
    }

    return refusal;
}

// ---- the log -----------------------------------------------------------------------------------

// One sink a process: the lines go to the UCX that bound last, whose own filter then applies.
struct log_target {
    decltype(&::ucs_log_dispatch) dispatch = nullptr;
    ucs_global_opts_t            *opts     = nullptr;
};

log_target       log_targets_g[2];
std::atomic<int> log_current_g{0};

void write_to_host(log_level level, const char *file, unsigned line, const char *function,
                   const char *message)
{
    const log_target &target = log_targets_g[log_current_g.load(std::memory_order_acquire)];
    target.dispatch(file, line, function, static_cast<ucs_log_level_t>(level),
                    &target.opts->log_component, "%s", message);
}

// Called under the lock of host_find's callers. A line written by another thread meanwhile still finds
// the former target whole, because only the slot that is not in use is written.
void log_to(decltype(&::ucs_log_dispatch) dispatch, ucs_global_opts_t *opts)
{
    int next            = 1 - log_current_g.load(std::memory_order_relaxed);
    log_targets_g[next] = {dispatch, opts};
    log_current_g.store(next, std::memory_order_release);
    log_set_level(static_cast<log_level>(opts->log_component.log_level));
    log_set_sink(write_to_host);
}

// A UCX that is refused still has a log: both symbols are as old as UCX itself. Our sink stays as it
// was, because after a refusal this module may be unloaded.
void log_refusal(const void *address, const std::string &refusal)
{
    loaded_object libucs = loaded_object::at_address(address);
    if (!libucs) {
        return;
    }

    std::string mixed;
    auto        dispatch =
        reinterpret_cast<decltype(&::ucs_log_dispatch)>(libucs.symbol("ucs_log_dispatch"));
    auto opts = static_cast<ucs_global_opts_t *>(host_address(libucs, "ucs_global_opts", mixed));
    if (opts == nullptr) {
        opts = static_cast<ucs_global_opts_t *>(libucs.symbol("ucs_global_opts"));
    }
    if (dispatch == nullptr || opts == nullptr ||
        opts->log_component.log_level < UCS_LOG_LEVEL_WARN) {
        return;
    }

    dispatch(__FILE__, __LINE__, __func__, UCS_LOG_LEVEL_WARN, &opts->log_component,
             "nvlink: not used: %s", refusal.c_str());
}

// ---- all hosts of this process -----------------------------------------------------------------

std::mutex hosts_lock_g;

// Never destroyed: UCX may still call us while static objects are being destroyed.
std::vector<std::unique_ptr<host_binding>> &hosts()
{
    static auto *all = new std::vector<std::unique_ptr<host_binding>>;
    return *all;
}

host_binding *find_known(const void *address)
{
    const void *base = object_base(address);
    for (const auto &host : hosts()) {
        if (host->libucs.base() == base) {
            return host.get();
        }
    }
    return nullptr;
}

std::string examine(host_binding &host, const void *address)
{
    std::string refusal = find_libraries(host, address);
    if (refusal.empty()) {
        refusal = check_age(host.libuct);
    }
    if (refusal.empty()) {
        refusal = take_symbols(host);
    }
    if (refusal.empty()) {
        refusal = check_layout(host);
    }
    if (refusal.empty()) {
        host.version = find_version(host.libucs);
        refusal      = check_version(host);
    }
    if (refusal.empty()) {
        refusal = check_classes(host.api);
    }
    if (refusal.empty()) {
        refusal = check_components(host.api);
    }
    if (refusal.empty()) {
        refusal = check_slots(host);
    }
    return refusal;
}

host_bind_result find_locked(const void *address)
{
    host_bind_result result;
    result.host = find_known(address);
    if (result.host != nullptr) {
        return result;
    }

    auto host      = std::make_unique<host_binding>();
    result.refusal = examine(*host, address);
    if (result.refusal.empty()) {
        result.host = host.get();
        hosts().push_back(std::move(host));
    }
    return result;
}

void log_success(const host_binding &host)
{
    const char *uct = host.libuct.path().c_str();
    const char *ucs = host.libucs.path().c_str();
    if (host.version.major == 0) {
        NVL_INFO("nvlink: in a UCX of the layout of %s, %s and %s", host.layout->name, uct, ucs);
    } else {
        NVL_INFO("nvlink: in UCX %u.%u.%u, layout of %s, %s and %s", host.version.major,
                 host.version.minor, host.version.release, host.layout->name, uct, ucs);
    }
}

} // namespace

host_bind_result host_find(const void *address)
{
    std::lock_guard<std::mutex> guard(hosts_lock_g);
    return find_locked(address);
}

host_binding *host_bind(const void *return_address) noexcept
{
    try {
        std::lock_guard<std::mutex> guard(hosts_lock_g);
        host_bind_result            result = find_locked(return_address);
        if (result.host != nullptr) {
            log_to(result.host->api.ucs_log_dispatch, result.host->api.ucs_global_opts);
            log_success(*result.host);
        } else {
            log_refusal(return_address, result.refusal);
        }
        return result.host;
    } catch (const std::exception &) {
        return nullptr;
    }
}

} // namespace nvl
