// SPDX-License-Identifier: BSD-3-Clause
//
// See fault_rule.h.
#include "fault_rule.h"
#include "report_file.h"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unistd.h>

namespace emu {
namespace {

bool parse_number(const std::string &text, unsigned long *value)
{
    // So many digits are a number whatever they are.
    if (text.empty() || text.size() > 18 ||
        text.find_first_not_of("0123456789") != std::string::npos)
        return false;
    *value = std::stoul(text);
    return true;
}

// "3" the third, "3+" from the third on, "3-5" the third to the fifth, "/3" every third,
// "*" every one; a "t" in front counts in each thread by itself. Numbers begin with 1.
bool parse_when(std::string text, rule *r)
{
    if (!text.empty() && text[0] == 't') {
        r->per_thread = true;
        text          = text.substr(1);
    }
    if (text == "*")
        return true;
    if (text.empty())
        return false;
    if (text[0] == '/') {
        bool good = parse_number(text.substr(1), &r->step) && r->step > 0;
        r->first  = r->step;
        return good;
    }
    if (text.back() == '+')
        return parse_number(text.substr(0, text.size() - 1), &r->first) && r->first > 0;
    size_t dash = text.find('-');
    if (dash != std::string::npos)
        return parse_number(text.substr(0, dash), &r->first) && r->first > 0 &&
               parse_number(text.substr(dash + 1), &r->last) && r->last >= r->first;
    bool good = parse_number(text, &r->first) && r->first > 0;
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
        return r->value <= INT_MAX; // a code
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
    return parse_what(text.substr(equals + 1), r);
}

// Those of one source, which a bad one is told of by.
void add_or_end(const std::string &source, const std::string &text, rule_check is_good,
                std::vector<rule> *rules)
{
    std::string bad;
    if (!parse_rules(text.c_str(), is_good, rules, &bad)) {
        fprintf(stderr, "emulated driver: a rule of %s is not understood: %s\n", source.c_str(),
                bad.c_str());
        _exit(99);
    }
}

} // namespace

bool parse_rules(const char *text, rule_check is_good, std::vector<rule> *rules, std::string *bad)
{
    std::vector<rule> parsed;
    std::string       all = text, word;
    for (char &c : all)
        c = c == ';' || c == ',' || c == '\n' ? ' ' : c;
    std::istringstream words(all);
    while (words >> word) {
        rule        r;
        std::string why;
        if (!parse_rule(word, &r) || !is_good(r, &why)) {
            *bad = word + (why.empty() ? "" : ": " + why);
            return false;
        }
        parsed.push_back(r);
    }
    rules->insert(rules->end(), parsed.begin(), parsed.end());
    return true;
}

std::vector<rule> rules_of_environment(rule_check is_good)
{
    std::vector<rule> rules;
    if (const char *text = getenv("NVL_EMU_FAULTS"))
        add_or_end("NVL_EMU_FAULTS", text, is_good, &rules);
    const char *path = getenv("NVL_EMU_FAULTS_FILE");
    if (path != nullptr && path[0] != '\0') {
        std::ifstream     file(path);
        std::stringstream text;
        text << file.rdbuf();
        if (!file || !text) {
            fprintf(stderr,
                    "emulated driver: NVL_EMU_FAULTS_FILE cannot be read, or is empty: %s\n", path);
            _exit(99);
        }
        add_or_end(path, text.str(), is_good, &rules);
    }
    return rules;
}

bool matches(const rule &r, unsigned long count)
{
    return count >= r.first && count <= r.last && (count - r.first) % r.step == 0;
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

} // namespace emu
