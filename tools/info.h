// SPDX-License-Identifier: BSD-3-Clause
//
// What the parts of nvlink_info hand to each other: the machine, what was measured on it, the
// UCXs that were found, and the problems. nvlink_info.cpp fills it, info_*.cpp ask and show.
#ifndef NVLINK_TOOLS_INFO_H
#define NVLINK_TOOLS_INFO_H

#include "driver/cuda.h"
#include "topo/graph.h"

#include <string>
#include <vector>

namespace nvl {

enum class severity {
    note,   // as the hardware is; does not change the exit status
    slower, // works, and could be faster
    broken, // something does not work
};

struct problem {
    severity    level = severity::note;
    std::string what;
    std::string mend;
};

// One ordered pair, by positions in the graph.
struct measurement {
    size_t      from           = 0;
    size_t      to             = 0;
    double      push_bytes_s   = 0;
    double      pull_bytes_s   = 0;
    double      push_latency_s = 0;
    double      pull_latency_s = 0;
    std::string error; // not measured: why
};

struct module_check {
    std::string name;  // "libuct_cuda"
    std::string path;  // empty: not there
    std::string error; // the loader's words, empty: loads
};

// A UCX on this machine, looked at from a process of its own.
struct ucx_found {
    std::string               found_by; // "library search path", "PyPI package libucx", ...
    std::string               library;  // path of libucs
    std::string               version;  // empty: cannot be loaded
    std::string               error;
    std::string               module_dir;
    std::string               suffix; // that plugins must have: ".so.0"
    std::vector<module_check> modules;
    module_check              plugin;
    bool                      offers_nvlink  = false; // its component is registered
    unsigned                  nvlink_domains = 0;     // memory domains, 0: it found no GPU
};

struct machine_report {
    graph                    pairs;
    std::string              origin;     // "this machine", or the file
    std::string              cuda_error; // why there is no driver; empty: there is
    bool                     emulated       = false;
    bool                     measured       = false;
    size_t                   measured_bytes = 0;
    std::vector<measurement> measurements;
    bool                     ucx_checked = false;
    std::vector<ucx_found>   ucx;
    std::vector<problem>     problems;
};

// The true push and pull of every pair that the process may use, by copy engine.
std::vector<measurement> measure_pairs(const cuda_api &cuda, const graph &pairs, size_t bytes);

// UCXs found by the loader's search path, by python3's packages, and in `dir` unless empty.
std::vector<ucx_found> find_ucx(const std::string &dir);

// What is wrong with this machine and how to mend it. The second needs report.ucx.
void check_machine(machine_report &report, bool live);
void check_ucx(machine_report &report);
// The same for report.measurements: those that are far from the estimate.
void check_estimates(machine_report &report);

std::string text_report(const machine_report &report, bool with_reasons);
std::string json_report(const machine_report &report);
std::string svg_picture(const machine_report &report);

// Helpers of the texts.
std::string gb_s(double bytes_per_s);                     // "393.5"
std::string short_name(const gpu_facts &gpu);             // without the vendor
std::string valid_utf8(const std::string &text);          // "?" for what is not
std::string list_text(const std::vector<size_t> &sorted); // "0-3,7"

} // namespace nvl

#endif
