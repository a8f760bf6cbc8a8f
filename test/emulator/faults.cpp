// SPDX-License-Identifier: BSD-3-Clause
//
// See faults.h.
#include "faults.h"
#include "driver.h"
#include "report.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace emu {
namespace {

enum class action { code, sleep, hang, kill, skip, lost, astray, garble, drop, nothing, late };

// "cuMemcpyAsync:3=719", "copy:every 7=drop"
struct rule {
    std::string   text;
    std::string   where; // an exported name, "*" for any function, "copy", "peer", "kernel"
    unsigned long first = 1, last = ~0ul, step = 1;
    bool          per_thread = false;
    action        what       = action::code;
    unsigned long value      = 0; // the code, or microseconds
};

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

bool matches(const rule &r, unsigned long count)
{
    return count >= r.first && count <= r.last && (count - r.first) % r.step == 0;
}

bool parse_number(const std::string &text, unsigned long *value)
{
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
        return false;
    *value = std::stoul(text);
    return true;
}

// "3" the third, "3+" from the third on, "3-5" the third to the fifth, "/3" every third,
// "" every one; a "t" in front counts in each thread by itself.
bool parse_when(std::string text, rule *r)
{
    if (!text.empty() && text[0] == 't') {
        r->per_thread = true;
        text          = text.substr(1);
    }
    if (text.empty() || text == "*")
        return true;
    if (text[0] == '/') {
        bool good = parse_number(text.substr(1), &r->step) && r->step > 0;
        r->first  = r->step;
        return good;
    }
    if (text.back() == '+')
        return parse_number(text.substr(0, text.size() - 1), &r->first);
    size_t dash = text.find('-');
    if (dash != std::string::npos)
        return parse_number(text.substr(0, dash), &r->first) &&
               parse_number(text.substr(dash + 1), &r->last);
    bool good = parse_number(text, &r->first);
    r->last   = r->first;
    return good;
}

// "sleep100": a word and microseconds.
bool parse_timed(const std::string &text, const char *word, action what, rule *r)
{
    size_t length = strlen(word);
    if (text.compare(0, length, word) != 0)
        return false;
    r->what = what;
    return parse_number(text.substr(length), &r->value);
}

bool parse_what(const std::string &text, rule *r)
{
    if (parse_number(text, &r->value))
        return true;
    if (parse_timed(text, "sleep", action::sleep, r) || parse_timed(text, "late", action::late, r))
        return true;
    const std::pair<const char *, action> words[] = {
        {"hang", action::hang}, {"kill", action::kill},      {"skip", action::skip},
        {"lost", action::lost}, {"astray", action::astray},  {"garble", action::garble},
        {"drop", action::drop}, {"nothing", action::nothing}};
    for (auto &[word, what] : words) {
        if (text == word) {
            r->what = what;
            return true;
        }
    }
    return false;
}

bool is_known(const std::string &where)
{
    // Those of NVML are for libnvidia-ml, which reads the same variable.
    if (where == "*" || where == "copy" || where == "peer" || where == "kernel" ||
        where.compare(0, 4, "nvml") == 0)
        return true;
    for (unsigned i = 0; i < fn_count; i++) {
        if (where == name_of(static_cast<fn>(i)))
            return true;
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
        return !is_copy && !is_kernel && where != "*";
    case action::code:
        return !is_kernel;
    default:
        return true;
    }
}

bool parse_rule(const std::string &text, rule *r)
{
    size_t equals = text.find('=');
    if (equals == std::string::npos)
        return false;
    std::string head  = text.substr(0, equals);
    size_t      colon = head.find(':');
    r->text           = text;
    r->where          = head.substr(0, colon);
    if (colon != std::string::npos && !parse_when(head.substr(colon + 1), r))
        return false;
    return parse_what(text.substr(equals + 1), r) && is_known(r->where) && suits(r->what, r->where);
}

// One line in NVL_EMU_FAULTS_LOG for each time that a rule has its way.
void note(const rule &r, unsigned long count)
{
    static std::mutex *only = new std::mutex;
    std::lock_guard    lock(*only);
    if (FILE *file = open_report("NVL_EMU_FAULTS_LOG")) {
        fprintf(file, "emulated driver: process %d: planned fault %s at number %lu\n", getpid(),
                r.text.c_str(), count);
        close_report(file);
    }
}

void load_environment()
{
    std::string rules;
    if (const char *text = getenv("NVL_EMU_FAULTS"))
        rules = text;
    if (const char *path = getenv("NVL_EMU_FAULTS_FILE")) {
        std::ifstream     file(path);
        std::stringstream all;
        all << file.rdbuf();
        rules += "\n" + all.str();
    }
    if (const char *delay = getenv("NVL_EMU_COPY_DELAY_US")) {
        rule r; // without text: nothing that went wrong
        r.where = "copy";
        r.what  = action::sleep;
        r.value = strtoul(delay, nullptr, 10);
        the_plan().rules.push_back(r);
    }
    if (!add_faults(rules.c_str())) {
        fprintf(stderr, "emulated driver: NVL_EMU_FAULTS is not understood: %s\n", rules.c_str());
        _exit(99);
    }
}

void ensure_loaded()
{
    static const bool loaded = (load_environment(), true);
    (void)loaded;
}

[[noreturn]] void hang()
{
    for (;;)
        pause();
}

} // namespace

bool add_faults(const char *rules) noexcept
{
    std::vector<rule> parsed;
    std::string       text = rules, word;
    for (char &c : text)
        c = c == ';' || c == ',' || c == '\n' ? ' ' : c;
    std::istringstream words(text);
    while (words >> word) {
        rule r;
        if (!parse_rule(word, &r))
            return false;
        parsed.push_back(r);
    }
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
        hang();
    case action::kill:
        kill(getpid(), SIGKILL);
        hang();
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
        fault->delay_us = ~0ul;
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
