// SPDX-License-Identifier: BSD-3-Clause
//
// The rules of NVL_EMU_FAULTS and NVL_EMU_FAULTS_FILE whose function starts with "nvml"; the
// grammar is that of faults.cpp, which takes the rest. "nvml*" stands for every function.

#include "nvml_faults.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace emu {

namespace {

struct rule {
    std::string   where;
    unsigned long first      = 1;
    unsigned long last       = ~0ul;
    unsigned long step       = 1;
    bool          per_thread = false;
    std::string   what; // "999", "sleep1000", "hang", "kill"
};

// "", "*", "3", "3+", "3-5", "/3", each with a "t" in front for counting by thread.
void parse_when(std::string text, rule &parsed)
{
    const auto number = [](const std::string &digits) {
        return std::strtoul(digits.c_str(), nullptr, 10);
    };

    if (!text.empty() && text[0] == 't') {
        parsed.per_thread = true;
        text.erase(0, 1);
    }
    if (text.empty() || text == "*") {
        return;
    }
    if (text[0] == '/') {
        parsed.first = parsed.step = number(text.substr(1));
    } else if (text.find('-') != std::string::npos) {
        parsed.first = number(text);
        parsed.last  = number(text.substr(text.find('-') + 1));
    } else {
        parsed.first = number(text);
        parsed.last  = text.back() == '+' ? ~0ul : parsed.first;
    }
}

std::vector<rule> load_rules()
{
    std::vector<rule> rules;
    std::stringstream text;
    std::string       word;

    if (const char *rule_text = std::getenv("NVL_EMU_FAULTS")) {
        text << rule_text << '\n';
    }
    if (const char *path = std::getenv("NVL_EMU_FAULTS_FILE")) {
        text << std::ifstream(path).rdbuf();
    }
    std::string all = text.str();
    for (char &c : all) {
        c = (c == ';' || c == ',') ? ' ' : c;
    }
    std::istringstream words(all);
    while (words >> word) {
        const size_t equals = word.find('=');
        const size_t colon  = word.find(':');
        rule         parsed;
        if (word.compare(0, 4, "nvml") != 0 || equals == std::string::npos) {
            continue;
        }
        parsed.where = word.substr(0, std::min(colon, equals));
        parsed.what  = word.substr(equals + 1);
        if (colon < equals) {
            parse_when(word.substr(colon + 1, equals - colon - 1), parsed);
        }
        if (parsed.step > 0) {
            rules.push_back(parsed);
        }
    }
    return rules;
}

bool applies(const rule &planned, unsigned long count)
{
    return count >= planned.first && count <= planned.last &&
           (count - planned.first) % planned.step == 0;
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
    if (planned.what == "kill") {
        kill(getpid(), SIGKILL);
    }
    if (planned.what == "hang") {
        lock.unlock();
        for (;;) {
            pause();
        }
    }
    if (planned.what.compare(0, 5, "sleep") == 0) {
        usleep(static_cast<useconds_t>(std::strtoul(planned.what.c_str() + 5, nullptr, 10)));
        return false;
    }
    *code = std::atoi(planned.what.c_str());
    return true;
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
        if ((planned.where == name || planned.where == "nvml*") &&
            applies(planned, planned.per_thread ? thread_count : process_count)) {
            return carry_out(planned, lock, code);
        }
    }
    return false;
}

} // namespace emu
