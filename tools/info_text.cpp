// SPDX-License-Identifier: BSD-3-Clause
//
// nvlink_info's report for people: the machine, the matrix, the pairs with reasons, UCX, findings.

#include "info.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

namespace nvl {

namespace {

std::string cell(const pair_path &path)
{
    switch (path.kind) {
    case path_kind::none:
        return "-";
    case path_kind::same_gpu:
        return "X";
    case path_kind::nvlink:
        return path.links > 0 ? fmt::format("NV{}", path.links) : "NV";
    case path_kind::nvswitch:
        return fmt::format("SW{}", path.links);
    case path_kind::fabric:
        return fmt::format("FB{}", path.links);
    case path_kind::pcie:
        break;
    }
    switch (path.pcie) {
    case pcie_level::internal:
    case pcie_level::single:
        return "PIX";
    case pcie_level::multiple:
        return "PXB";
    case pcie_level::hostbridge:
        return "PHB";
    case pcie_level::node:
        return "NODE";
    case pcie_level::system:
        return "SYS";
    case pcie_level::unknown:
        break;
    }
    return "PCIE";
}

struct legend_entry {
    const char *cell; // without the number of links
    const char *words;
};

constexpr legend_entry legend[] = {
    {"X", "the GPU itself"},
    {"NV", "this many NVLinks straight to the peer"},
    {"SW", "this many NVLinks through a switch"},
    {"PIX", "peer access over PCIe, at most one switch"},
    {"PXB", "peer access over PCIe, several switches"},
    {"PHB", "peer access over PCIe, through one host bridge"},
    {"NODE", "peer access over PCIe, between host bridges of one NUMA node"},
    {"SYS", "peer access over PCIe, across NUMA nodes"},
    {"PCIE", "peer access over PCIe, the path is not known"},
    {"-", "no peer access: the transport refuses the pair"},
    {"!", "slower than this hardware is made for, see below"},
};

std::string link_summary(const gpu_facts &gpu, nvml_state nvml)
{
    std::map<int, int> up; // by speed
    int                down = 0;

    for (const auto &link : gpu.links) {
        if (link.active) {
            ++up[link.speed_mb_s];
        } else {
            ++down;
        }
    }
    if (gpu.links.empty()) {
        const bool told =
            gpu.mig == mig_mode::instance || (gpu.nvml >= 0 && nvml == nvml_state::present);
        return told ? "no NVLink" : "NVLinks not known";
    }
    std::string text;
    for (const auto &[speed, count] : up) {
        text +=
            fmt::format("{}{} NVLink{}", text.empty() ? "" : ", ", count, count == 1 ? "" : "s");
        if (speed > 0) {
            text += fmt::format(" x {:.1f} GB/s", speed / 1000.0);
        }
    }
    if (down > 0) {
        text +=
            fmt::format("{}{} NVLink{} down", text.empty() ? "" : ", ", down, down == 1 ? "" : "s");
    }
    return text;
}

std::string machine_text(const machine_report &report)
{
    const machine_facts &facts = report.pairs.facts();
    std::string          text  = fmt::format("Machine  {} ({}{})\n", facts.machine, report.origin,
                                   report.emulated ? ", emulated driver" : "");

    text += fmt::format("         driver {}, CUDA {}.{}, NVML {}{}, {} NUMA node{}\n",
                        facts.driver.empty() ? "unknown" : facts.driver, facts.cuda_version / 1000,
                        facts.cuda_version % 1000 / 10, to_text(facts.nvml),
                        facts.nvml == nvml_state::failing   ? fmt::format(" ({})", facts.nvml_code)
                        : facts.nvml == nvml_state::hanging ? fmt::format(" ({})", facts.nvml_call)
                                                            : "",
                        facts.numa_nodes, facts.numa_nodes == 1 ? "" : "s");
    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        const gpu_facts &gpu = facts.gpus[i];
        text += fmt::format("GPU {:<4} {}  {}  {}  {} GiB", i, short_name(gpu), gpu.pci,
                            gpu.mig == mig_mode::instance ? gpu.mig_uuid : gpu.uuid,
                            (gpu.memory_bytes + (1ull << 29)) >> 30);
        if (gpu.numa >= 0) {
            text += fmt::format("  NUMA {}", gpu.numa);
        }
        text += "  " + link_summary(gpu, facts.nvml);
        if (gpu.cuda != static_cast<int>(i)) {
            text += gpu.cuda < 0 ? "  hidden from CUDA" : fmt::format("  CUDA {}", gpu.cuda);
        }
        if (gpu.nvml >= 0 && gpu.nvml != gpu.cuda && gpu.cuda >= 0) {
            text += fmt::format("  NVML {}", gpu.nvml);
        }
        if (gpu.mig == mig_mode::enabled) {
            text += "  cut into MIG instances";
        }
        text += "\n";
    }
    return text;
}

std::string matrix_text(const graph &pairs)
{
    std::set<std::string> used;
    std::string           text = "\nHow a copy run by the GPU of a row reaches the memory of the "
                                 "GPU of a column\n\n       ";

    for (size_t b = 0; b < pairs.size(); ++b) {
        text += fmt::format("{:>6}", fmt::format("GPU{}", b));
    }
    text += "\n";
    for (size_t a = 0; a < pairs.size(); ++a) {
        text += fmt::format("{:<7}", fmt::format("GPU{}", a));
        for (size_t b = 0; b < pairs.size(); ++b) {
            const pair_path  &path = pairs.path(a, b);
            const std::string name = cell(path);
            text += fmt::format("{:>6}", name + (path.degraded ? "!" : ""));
            used.insert(name.substr(0, name.find_first_of("0123456789")));
            if (path.degraded) {
                used.insert("!");
            }
        }
        text += "\n";
    }
    text += "\n";
    for (const auto &entry : legend) {
        if (used.count(entry.cell) > 0) {
            const bool counted = entry.cell == std::string("NV") || entry.cell == std::string("SW");
            text += fmt::format("  {:<5}{}\n", std::string(entry.cell) + (counted ? "#" : ""),
                                entry.words);
        }
    }
    return text;
}

using pair_list = std::vector<std::pair<size_t, size_t>>;

// "0 <-> 1-3, 4 -> 5"
std::string pair_list_text(const pair_list &list, size_t gpus)
{
    const std::set<std::pair<size_t, size_t>>              present(list.begin(), list.end());
    std::map<std::pair<size_t, bool>, std::vector<size_t>> rows; // from, both ways -> to

    if (list.size() == gpus * (gpus - 1) && gpus > 2) {
        return "all pairs";
    }
    for (const auto &[a, b] : list) {
        const bool both = present.count({b, a}) > 0;
        if (!both || a < b) {
            rows[{a, both}].push_back(b);
        }
    }
    std::string text;
    for (const auto &[key, to] : rows) {
        text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", key.first,
                            key.second ? "<->" : "->", list_text(to));
    }
    return text;
}

std::string path_line(const pair_path &path)
{
    if (!path.reachable()) {
        return "not reachable";
    }
    return fmt::format("{}, push {} GB/s, pull {} GB/s, {:.1f} and {:.1f} us{}", to_text(path.kind),
                       gb_s(path.push_bytes_s), gb_s(path.pull_bytes_s), path.push_latency_s * 1e6,
                       path.pull_latency_s * 1e6, path.native_atomics ? ", atomics" : "");
}

std::string pairs_text(const graph &pairs)
{
    std::vector<std::pair<std::string, pair_list>> groups; // text of the path, in order of sight

    for (size_t a = 0; a < pairs.size(); ++a) {
        for (size_t b = 0; b < pairs.size(); ++b) {
            if (a == b) {
                continue;
            }
            const pair_path  &path  = pairs.path(a, b);
            const std::string text  = fmt::format("    {}\n    {}\n", path_line(path), path.reason);
            const auto        known = std::find_if(groups.begin(), groups.end(),
                                                   [&](const auto &g) { return g.first == text; });
            if (known == groups.end()) {
                groups.push_back({text, {{a, b}}});
            } else {
                known->second.emplace_back(a, b);
            }
        }
    }
    std::string text = groups.empty() ? "" : "\nPairs (estimates for large copies)\n";
    for (const auto &[path, list] : groups) {
        text += fmt::format("  {}\n{}", pair_list_text(list, pairs.size()), path);
    }
    return text;
}

std::string measured_text(const machine_report &report)
{
    std::string text = fmt::format(
        "\nMeasured with copies of {} MiB and of 16 bytes{}; in brackets the part of the estimate\n"
        "  pair          push GB/s         pull GB/s      push us   pull us\n",
        report.measured_bytes >> 20, report.emulated ? " (EMULATED: no speed of any GPU)" : "");

    for (const auto &one : report.measurements) {
        const pair_path &path = report.pairs.path(one.from, one.to);
        text += fmt::format("  {:<10}", fmt::format("{} -> {}", one.from, one.to));
        if (!one.error.empty()) {
            text += "  " + one.error + "\n";
            continue;
        }
        text += fmt::format("{:>9} ({:>3.0f} %) {:>9} ({:>3.0f} %) {:>9.1f} {:>9.1f}\n",
                            gb_s(one.push_bytes_s), 100 * one.push_bytes_s / path.push_bytes_s,
                            gb_s(one.pull_bytes_s), 100 * one.pull_bytes_s / path.pull_bytes_s,
                            one.push_latency_s * 1e6, one.pull_latency_s * 1e6);
    }
    return text;
}

std::string ucx_text(const machine_report &report)
{
    std::string text = "\nUCX\n";

    if (report.ucx.empty()) {
        text += "  none found\n";
    }
    for (const auto &ucx : report.ucx) {
        text +=
            fmt::format("  {} {} ({})\n", ucx.version.empty() ? "cannot be loaded:" : ucx.version,
                        ucx.library, ucx.found_by);
        if (!ucx.error.empty()) {
            text += "    " + ucx.error + "\n";
        }
        for (const auto &module : ucx.modules) {
            text += fmt::format("    {:<14} {}\n", module.name,
                                module.path.empty()    ? "is not there"
                                : module.error.empty() ? "loads"
                                                       : "does not load: " + module.error);
        }
        if (!ucx.version.empty()) {
            text += fmt::format("    {:<14} {}\n", "plugin",
                                ucx.plugin.path.empty() ? "not found"
                                : ucx.plugin.error.empty()
                                    ? ucx.plugin.path
                                    : ucx.plugin.path + " does not load: " + ucx.plugin.error);
            text += fmt::format("    {:<14} {}\n", "transport",
                                !ucx.offers_nvlink        ? "not offered"
                                : ucx.nvlink_domains == 0 ? "known, but without a GPU"
                                                          : "offered");
        }
    }
    return text;
}

const char *words(severity level)
{
    switch (level) {
    case severity::note:
        return "note: ";
    case severity::slower:
        return "slower: ";
    case severity::broken:
        break;
    }
    return "broken: ";
}

std::string problems_text(const std::vector<problem> &problems)
{
    std::string text   = problems.empty() ? "\nNo problems found.\n" : "\nFindings\n";
    int         number = 0;

    for (const auto &found : problems) {
        text += fmt::format("  {}. {}{}\n", ++number, words(found.level), found.what);
        if (!found.mend.empty()) {
            text += "     -> " + found.mend + "\n";
        }
    }
    return text;
}

} // namespace

std::string gb_s(double bytes_per_s)
{
    const double value = bytes_per_s / 1e9;
    return value < 100 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

namespace {

// The bytes of the character that begins the text, 0 if it is none.
size_t utf8_length(std::string_view text)
{
    const auto   lead   = static_cast<unsigned char>(text[0]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    uint32_t     value  = lead & (0xffu >> (length + 1));

    if (length < 2 || text.size() < length) {
        return length == 1 ? 1 : 0;
    }
    for (size_t i = 1; i < length; ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if ((byte & 0xc0) != 0x80) {
            return 0;
        }
        value = value << 6 | (byte & 0x3f);
    }
    // Longer than it need be, half of a pair of UTF-16, above the last.
    const bool odd = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000) ||
                     (value >= 0xd800 && value < 0xe000) || value > 0x10ffff;
    return odd ? 0 : length;
}

} // namespace

std::string valid_utf8(const std::string &text)
{
    std::string out;

    for (std::string_view rest = text; !rest.empty();) {
        const size_t length = utf8_length(rest);
        out += length == 0 ? "?" : rest.substr(0, length);
        rest.remove_prefix(std::max<size_t>(length, 1));
    }
    return out;
}

std::string short_name(const gpu_facts &gpu)
{
    static constexpr std::string_view vendor = "NVIDIA ";

    if (gpu.name.empty()) {
        return "GPU";
    }
    return gpu.name.compare(0, vendor.size(), vendor) == 0 ? gpu.name.substr(vendor.size())
                                                           : gpu.name;
}

std::string list_text(const std::vector<size_t> &sorted)
{
    std::string text;

    for (size_t i = 0; i < sorted.size();) {
        size_t last = i;
        while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) {
            ++last;
        }
        text += fmt::format("{}{}", text.empty() ? "" : ",", sorted[i]);
        if (last > i) {
            text += fmt::format("{}{}", last == i + 1 ? "," : "-", sorted[last]);
        }
        i = last + 1;
    }
    return text;
}

std::string text_report(const machine_report &report, bool with_reasons)
{
    std::string text = machine_text(report);

    if (!report.cuda_error.empty()) {
        text += "CUDA     not usable: " + report.cuda_error + "\n";
    }
    if (report.pairs.size() > 0) {
        text += matrix_text(report.pairs);
    }
    if (with_reasons) {
        text += pairs_text(report.pairs);
    }
    if (report.measured) {
        text += measured_text(report);
    }
    if (report.ucx_checked) {
        text += ucx_text(report);
    }
    return text + problems_text(report.problems);
}

} // namespace nvl
