// SPDX-License-Identifier: BSD-3-Clause
//
// See faults.h.
#include "faults.h"
#include "driver.h"
#include "fault_rule.h"
#include "older.h"
#include "symbol_table.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <unistd.h>

namespace emu {
namespace {

struct plan {
    std::mutex                 mutex;
    std::vector<rule>          rules;
    std::atomic<bool>          any{false};
    std::atomic<unsigned long> copies{0};
    std::atomic<unsigned long> peer_copies{0};
    std::atomic<unsigned long> kernel_pieces{0};
};

plan &the_plan()
{
    static plan *only = new plan;
    return *only;
}

// A name of symbols.def that no call has a frame under: of an older form, whose calls are those of
// the newer one, or of a function that is not written here. *instead: the names to use.
bool is_never_called(const std::string &where, std::string *instead)
{
    if (const char *newer = newer_form_of(where.c_str())) {
        *instead = newer;
        return true;
    }
    const symbol *found = nullptr;
    for (unsigned i = 0; i < fn_count && found == nullptr; i++) {
        if (where == symbols[i].name)
            found = &symbols[i];
    }
    if (found == nullptr || found->implemented)
        return false;
    for (unsigned i = 0; i < fn_count; i++) {
        const symbol &other = symbols[i];
        if (other.implemented && strcmp(other.base, found->base) == 0 &&
            other.variant == found->variant && newer_form_of(other.name) == nullptr)
            *instead += (instead->empty() ? "" : " or ") + std::string(other.name);
    }
    return true;
}

bool is_known(const std::string &where)
{
    if (where == "*" || where == "copy" || where == "peer" || where == "kernel")
        return true;
    for (unsigned i = 0; i < fn_count; i++) {
        if (where == name_of(static_cast<fn>(i)))
            return true;
    }
    return false;
}

// Is a parameter of this type where a call leaves its answer? What void * points to is not told apart.
template<class P> constexpr bool is_answer = false;
template<class T>
constexpr bool is_answer<T *> =
    !std::is_const_v<T> &&
    (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T> ||
     std::is_same_v<T, CUuuid> || std::is_same_v<T, CUipcMemHandle> ||
     std::is_same_v<T, CUipcEventHandle> || std::is_same_v<T, CUmemAllocationProp> ||
     std::is_same_v<T, CUmemPoolPtrExportData> || std::is_same_v<T, CUstreamAttrValue>);

template<class... P> constexpr bool has_answer(CUresult (*)(P...))
{
    return (is_answer<P> || ...);
}

constexpr bool has_answers[] = {
#define EMU_FN(base, symbol, since, variant) has_answer(&::symbol),
#define EMU_NO(base, symbol, since, variant) false,
#include "symbols.def"
#undef EMU_FN
#undef EMU_NO
};

// A caller takes what it left uninitialised for an answer where such a call does nothing.
bool gives_back(const std::string &where)
{
    const auto has = [&](const char *part) { return where.find(part) != std::string::npos; };
    if (has("cuLaunch") || has("Batch") || has("cuCtxPopCurrent"))
        return false; // lists that are read, and what may be left out
    if (has("GetAttribute") || has("Export") || has("HandleForAddressRange"))
        return true; // by void *
    for (unsigned i = 0; i < fn_count; i++) {
        if (where == name_of(static_cast<fn>(i)))
            return has_answers[i];
    }
    return false;
}

// Can this go wrong there?
bool suits(action what, const std::string &where)
{
    bool is_copy = where == "copy" || where == "peer", is_kernel = where == "kernel";
    switch (what) {
    case action::drop:
    case action::nothing:
    case action::late:
        return is_copy;
    case action::garble:
        return is_copy || is_kernel;
    case action::lost:
        return where.compare(0, 13, "cuEventRecord") == 0;
    case action::astray:
        return where == "cuCtxPushCurrent_v2" || where == "cuCtxSetCurrent";
    case action::skip:
        return !is_copy && !is_kernel && where != "*" && !gives_back(where);
    case action::code:
        return !is_kernel;
    default:
        return true;
    }
}

bool is_good(const rule &r, std::string *why)
{
    if (r.where.compare(0, 4, "nvml") == 0)
        return true; // for libnvidia-ml, which has a look at it
    std::string instead;
    if (is_never_called(r.where, &instead)) {
        *why = instead.empty() ? r.where + " is not emulated" : "the name to use is " + instead;
        return false;
    }
    return is_known(r.where) && suits(r.what, r.where);
}

void load_environment()
{
    plan                   &p     = the_plan();
    const std::vector<rule> rules = rules_of_environment(is_good);
    std::lock_guard         lock(p.mutex);
    const char             *delay = getenv("NVL_EMU_COPY_DELAY_US");
    if (delay != nullptr && delay[0] != '\0') {
        rule r; // without text: nothing that went wrong
        r.where = "copy";
        r.what  = action::sleep;
        r.value = strtoul(delay, nullptr, 10);
        p.rules.push_back(r);
    }
    // Behind the delay: what is planned has its way.
    p.rules.insert(p.rules.end(), rules.begin(), rules.end());
    p.any = !p.rules.empty();
}

void ensure_loaded()
{
    static const bool loaded = (load_environment(), true);
    (void)loaded;
}

} // namespace

void hang_for_ever() noexcept
{
    for (;;)
        pause();
}

bool add_faults(const char *rules) noexcept
{
    std::vector<rule> parsed;
    std::string       bad;
    if (!parse_rules(rules, is_good, &parsed, &bad))
        return false;
    plan           &p = the_plan();
    std::lock_guard lock(p.mutex);
    p.rules.insert(p.rules.end(), parsed.begin(), parsed.end());
    p.any = !p.rules.empty();
    return true;
}

void clear_faults() noexcept
{
    ensure_loaded();
    plan           &p = the_plan();
    std::lock_guard lock(p.mutex);
    p.rules.clear();
    p.any           = false;
    p.copies        = 0;
    p.peer_copies   = 0;
    p.kernel_pieces = 0;
}

bool faults_are_planned() noexcept
{
    ensure_loaded();
    return the_plan().any.load(std::memory_order_relaxed);
}

call_fault fault_of_call(fn id, unsigned long count, unsigned long thread_count) noexcept
{
    const char *name = name_of(id);
    rule        found;
    bool        any = false;
    {
        plan           &p = the_plan();
        std::lock_guard lock(p.mutex);
        for (const rule &r : p.rules) {
            if ((r.where == name || r.where == "*") &&
                matches(r, r.per_thread ? thread_count : count)) {
                found = r;
                any   = true;
                break;
            }
        }
    }
    call_fault fault;
    if (!any)
        return fault;
    note(found, found.per_thread ? thread_count : count);
    switch (found.what) {
    case action::sleep:
        usleep(static_cast<useconds_t>(found.value));
        break;
    case action::hang:
        hang_for_ever();
    case action::kill:
        kill(getpid(), SIGKILL);
        hang_for_ever();
    case action::skip:
        fault.skip = true;
        break;
    case action::lost:
        fault.lost = true;
        break;
    case action::astray:
        fault.astray = true;
        break;
    default:
        fault.code = static_cast<CUresult>(found.value);
    }
    return fault;
}

namespace {

void add_to(copy_fault *fault, const rule &r)
{
    switch (r.what) {
    case action::sleep:
        fault->delay_us = r.value;
        break;
    case action::hang:
        fault->hang = true;
        break;
    case action::kill:
        kill(getpid(), SIGKILL);
        break;
    case action::garble:
        fault->garble = true;
        break;
    case action::drop:
        fault->drop = true;
        break;
    case action::nothing:
        fault->nothing = true;
        break;
    case action::late:
        fault->late_us = r.value;
        break;
    default:
        fault->code = static_cast<CUresult>(r.value);
    }
}

copy_fault next_fault_of(const char *where, std::atomic<unsigned long> plan::*counter) noexcept
{
    copy_fault fault;
    if (!faults_are_planned())
        return fault;
    plan           &p     = the_plan();
    unsigned long   count = ++(p.*counter);
    std::lock_guard lock(p.mutex);
    for (const rule &r : p.rules) {
        if (r.where == where && matches(r, count)) {
            if (!r.text.empty())
                note(r, count);
            add_to(&fault, r);
        }
    }
    return fault;
}

} // namespace

copy_fault next_copy_fault(bool between_gpus) noexcept
{
    copy_fault any  = next_fault_of("copy", &plan::copies);
    copy_fault peer = between_gpus ? next_fault_of("peer", &plan::peer_copies) : copy_fault();
    return peer.is_any() ? peer : any;
}

copy_fault next_kernel_fault() noexcept
{
    return next_fault_of("kernel", &plan::kernel_pieces);
}

} // namespace emu
