// SPDX-License-Identifier: BSD-3-Clause
//
// The rules of NVL_EMU_FAULTS and NVL_EMU_FAULTS_FILE whose function starts with "nvml"; faults.cpp
// takes the rest.

#include "nvml_faults.h"
#include "fault_rule.h"

#include <algorithm>
#include <csignal>
#include <dlfcn.h>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace emu {

namespace {

bool is_for_nvml(const rule &r)
{
    return r.where.compare(0, 4, "nvml") == 0;
}

// "nvml*" stands for every function; else it has to be one of ours.
bool is_known(const std::string &name)
{
    Dl_info self = {};
    if (name == "nvml*" || dladdr(reinterpret_cast<void *>(&nvml_fault), &self) == 0)
        return true;
    void      *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    const bool is      = library != nullptr && dlsym(library, name.c_str()) != nullptr;
    if (library != nullptr)
        dlclose(library);
    return is;
}

bool is_good(const rule &r, std::string *)
{
    // Those of other names are for libcuda, which has a look at them.
    return !is_for_nvml(r) || ((r.what == action::code || r.what == action::sleep ||
                                r.what == action::hang || r.what == action::kill) &&
                               is_known(r.where));
}

std::vector<rule> load_rules()
{
    std::vector<rule> rules = rules_of_environment(is_good);
    rules.erase(
        std::remove_if(rules.begin(), rules.end(), [](const rule &r) { return !is_for_nvml(r); }),
        rules.end());
    return rules;
}

using call_counts = std::map<std::string, unsigned long>;

// The calling thread's own counts: freed when it ends, and begun anew for a call that comes after that, as UCX makes one.
call_counts &counts_of_thread()
{
    static thread_local call_counts *counts = nullptr;
    static thread_local struct owner {
        ~owner()
        {
            delete counts;
            counts = nullptr;
        }
    } frees_at_end;

    static_cast<void>(frees_at_end);
    if (counts == nullptr) {
        counts = new call_counts;
    }
    return *counts;
}

// What the rule does; true: the call fails with *code.
bool carry_out(const rule &planned, std::unique_lock<std::mutex> &lock, nvl::nvml_return *code)
{
    switch (planned.what) {
    case action::kill:
        kill(getpid(), SIGKILL);
        [[fallthrough]];
    case action::hang:
        lock.unlock();
        for (;;) {
            pause();
        }
    case action::sleep:
        usleep(static_cast<useconds_t>(planned.value));
        return false;
    default:
        *code = static_cast<nvl::nvml_return>(planned.value);
        return true;
    }
}

} // namespace

bool nvml_fault(const char *name, std::unique_lock<std::mutex> &lock, nvl::nvml_return *code)
{
    // Never destroyed: UCX shuts NVML down from a destructor of its library, after ours have run.
    static const auto &rules      = *new std::vector<rule>(load_rules());
    static auto       &in_process = *new call_counts; // under the caller's lock

    if (rules.empty()) {
        return false;
    }
    const unsigned long process_count = ++in_process[name];
    const unsigned long thread_count  = ++counts_of_thread()[name];
    for (const auto &planned : rules) {
        const unsigned long count = planned.per_thread ? thread_count : process_count;
        if ((planned.where == name || planned.where == "nvml*") && matches(planned, count)) {
            note(planned, count);
            return carry_out(planned, lock, code);
        }
    }
    return false;
}

} // namespace emu
