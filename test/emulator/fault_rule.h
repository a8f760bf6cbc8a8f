// SPDX-License-Identifier: BSD-3-Clause
//
// One rule of NVL_EMU_FAULTS: its grammar (README.md) and when it applies. libcuda and libnvidia-ml
// read the same variables, each for its own functions.
#ifndef NVLINK_EMULATOR_FAULT_RULE_H
#define NVLINK_EMULATOR_FAULT_RULE_H

#include <string>
#include <vector>

namespace emu {

enum class action { code, sleep, hang, kill, skip, lost, astray, garble, drop, nothing, late };

// "cuMemcpyAsync:3=719", "copy:/7=drop"
struct rule {
    std::string   text;
    std::string   where; // an exported name, "*" for any function, "copy", "peer", "kernel"
    unsigned long first = 1, last = ~0ul, step = 1;
    bool          per_thread = false;
    action        what       = action::code;
    unsigned long value      = 0; // the code, or microseconds
};

// May refuse a rule, and say why.
using rule_check = bool (*)(const rule &, std::string *why);

// Appends the rules of a text. False at the first that is not understood, or that `is_good` refuses;
// *bad is that one then, and why if that is known, and nothing is appended.
bool parse_rules(const char *text, rule_check is_good, std::vector<rule> *rules, std::string *bad);

// Those of NVL_EMU_FAULTS and of the file NVL_EMU_FAULTS_FILE. What is not understood ends the
// process with status 99 and a line that says where it stands.
std::vector<rule> rules_of_environment(rule_check is_good);

// Does it apply at this number?
bool matches(const rule &r, unsigned long count);

// One line in NVL_EMU_FAULTS_LOG: the rule has its way now. Any thread.
void note(const rule &r, unsigned long count);

} // namespace emu

#endif
