// SPDX-License-Identifier: BSD-3-Clause
//
// The facts' text form, written: equal links become one line, and so do equal pairs.
// Called by nvlink_info and by tests. Calls nothing but the C++ library.

#include "topo/facts.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <new>

namespace nvl {

namespace {

[[gnu::format(printf, 2, 3)]] void append(std::string &out, const char *format, ...)
{
    char    buffer[512];
    va_list arguments;

    va_start(arguments, format);
    std::vsnprintf(buffer, sizeof(buffer), format, arguments);
    va_end(arguments);
    out += buffer;
}

// "0-3,7"
std::string list_text(const std::vector<int> &sorted)
{
    std::string text;

    for (size_t i = 0; i < sorted.size();) {
        size_t last = i;
        while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) {
            ++last;
        }
        text += (text.empty() ? "" : ",") + std::to_string(sorted[i]);
        if (last > i) {
            text += "-" + std::to_string(sorted[last]);
        }
        i = last + 1;
    }
    return text;
}

const char *yes_or_no(bool value)
{
    return value ? "yes" : "no";
}

std::string number_or_hidden(int value)
{
    return value >= 0 ? std::to_string(value) : std::string("hidden");
}

// An empty word could not be read back.
const char *word_or_unknown(const std::string &word)
{
    return word.empty() ? "unknown" : word.c_str();
}

// On one line.
std::string one_line(std::string text)
{
    for (char &c : text) {
        c = static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
    return text;
}

void print_machine(std::string &out, const machine_facts &facts)
{
    append(out, "machine %s\n", facts.machine.c_str());
    std::string_view rest = facts.source;
    while (!rest.empty()) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        out += "source " + std::string(line) + "\n";
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    }
    if (!facts.host.empty()) {
        append(out, "host %s\n", facts.host.c_str());
    }
    if (!facts.driver.empty()) {
        append(out, "driver %s\n", facts.driver.c_str());
    }
    append(out, "cuda_version %d\n", facts.cuda_version);
    append(out, "nvml_state %s", to_text(facts.nvml));
    if (facts.nvml == nvml_state::failing) {
        append(out, " %d", facts.nvml_code);
    } else if (facts.nvml == nvml_state::hanging) {
        append(out, " %s", facts.nvml_call.c_str());
    }
    if (facts.nvml_untold > 0) {
        append(out, "\nnvml_untold %d", facts.nvml_untold);
    }
    append(out, "\nnuma_nodes %d\npeer_limit %d\nimex %s\n", facts.numa_nodes, facts.peer_limit,
           yes_or_no(facts.imex));
}

std::string link_text(const link_facts &link)
{
    std::string text = link.active ? "up" : "down";

    if (link.version >= 0) {
        append(text, " version %d", link.version);
    }
    if (link.speed_mb_s >= 0) {
        append(text, " speed %d", link.speed_mb_s);
    }
    append(text, " remote %s", to_text(link.remote));
    if (!link.remote_pci.empty()) {
        text += " " + link.remote_pci;
    }
    return text;
}

void print_links(std::string &out, const std::vector<link_facts> &links)
{
    std::vector<std::pair<std::string, std::vector<int>>> groups; // in the order of first sight

    for (const auto &link : links) {
        const std::string text  = link_text(link);
        const auto        known = std::find_if(groups.begin(), groups.end(),
                                               [&](const auto &group) { return group.first == text; });
        if (known == groups.end()) {
            groups.push_back({text, {link.index}});
        } else {
            known->second.push_back(link.index);
        }
    }
    for (auto &group : groups) {
        std::sort(group.second.begin(), group.second.end());
        out += "    links " + list_text(group.second) + " " + group.first + "\n";
    }
}

void print_fabric(std::string &out, const fabric_facts &fabric)
{
    append(out, "    fabric %s status %d", to_text(fabric.state), fabric.status);
    if (!fabric.cluster_uuid.empty()) {
        append(out, " cluster %s", fabric.cluster_uuid.c_str());
    }
    append(out, " clique %u\n", fabric.clique);
}

void print_gpu(std::string &out, const gpu_facts &gpu, size_t position)
{
    append(out, "\ngpu %zu\n    cuda %s\n    nvml %s\n    uuid %s\n    pci %s\n", position,
           number_or_hidden(gpu.cuda).c_str(), number_or_hidden(gpu.nvml).c_str(),
           word_or_unknown(gpu.uuid), word_or_unknown(gpu.pci));
    if (!gpu.name.empty()) {
        out += "    name " + one_line(gpu.name) + "\n";
    }
    if (gpu.compute_major > 0) {
        append(out, "    compute %d.%d\n", gpu.compute_major, gpu.compute_minor);
    }
    append(out, "    memory %llu\n    sms %d\n    copy_engines %d\n    numa %d\n",
           static_cast<unsigned long long>(gpu.memory_bytes), gpu.sm_count, gpu.copy_engines,
           gpu.numa);
    if (gpu.pcie_gen > 0 && gpu.pcie_width > 0) {
        append(out, "    pcie %d %d\n", gpu.pcie_gen, gpu.pcie_width);
    }
    append(out, "    mig %s", to_text(gpu.mig));
    if (gpu.mig == mig_mode::instance) {
        append(out, " %s %d", word_or_unknown(gpu.mig_uuid), gpu.mig_parent);
    }
    append(out, "\n    virtualization %s\n", to_text(gpu.virt));
    print_fabric(out, gpu.fabric);
    append(out, "    handles%s%s%s%s\n", gpu.legacy_ipc ? " legacy_ipc" : "",
           gpu.posix_fd ? " posix_fd" : "", gpu.fabric_ipc ? " fabric" : "",
           gpu.legacy_ipc || gpu.posix_fd || gpu.fabric_ipc ? "" : " none");
    append(out, "    integrated %s\n    coherent %s\n", yes_or_no(gpu.integrated),
           yes_or_no(gpu.coherent));
    for (const auto &attribute : gpu.attributes) {
        append(out, "    attribute %d %d\n", attribute.first, attribute.second);
    }
    print_links(out, gpu.links);
}

void print_speed(std::string &out, const char *key, const emulated_speed &speed)
{
    if (speed.rate_gb_s > 0 || speed.latency_us > 0) {
        append(out, " %s %.10g %.10g", key, speed.rate_gb_s, speed.latency_us);
    }
}

std::string pair_text(const pair_facts &pair)
{
    std::string text;

    append(text, " access %s atomics %s rank %d pcie %s", yes_or_no(pair.peer_access),
           yes_or_no(pair.native_atomics), pair.perf_rank, to_text(pair.pcie));
    append(text, " nvml_read %s nvml_write %s nvml_nvlink %s nvml_atomics %s",
           to_text(pair.nvml_read), to_text(pair.nvml_write), to_text(pair.nvml_nvlink),
           to_text(pair.nvml_atomics));
    if (pair.hwloc_mb_s >= 0) {
        append(text, " hwloc %d", pair.hwloc_mb_s);
    }
    print_speed(text, "push", pair.push);
    print_speed(text, "pull", pair.pull);
    return text;
}

// The commonest value holds for all, then each row names its exceptions. An exception without
// optional keys cannot take them back, so the commonest value is only used when it has none.
void print_pairs(std::string &out, const machine_facts &facts)
{
    const size_t                                         count = facts.gpus.size();
    std::vector<std::map<std::string, std::vector<int>>> rows(count);
    std::map<std::string, size_t>                        uses;

    for (size_t a = 0; a < count; ++a) {
        for (size_t b = 0; b < count; ++b) {
            if (a != b) {
                const std::string text = pair_text(facts.pair(a, b));
                rows[a][text].push_back(static_cast<int>(b));
                ++uses[text];
            }
        }
    }
    std::string common;
    for (const auto &use : uses) {
        if (common.empty() || use.second > uses[common]) {
            common = use.first;
        }
    }
    const bool optional_keys =
        common.find(" nvml_atomics") != std::string::npos &&
        (common.find(" hwloc ") != std::string::npos ||
         common.find(" push ") != std::string::npos || common.find(" pull ") != std::string::npos);
    if (uses.size() > 1 && optional_keys) {
        common.clear();
    }
    if (!common.empty()) {
        out += "\npair * -> *" + common + "\n";
    }
    for (size_t a = 0; a < count; ++a) {
        for (const auto &entry : rows[a]) {
            if (entry.first != common) {
                out += "pair " + std::to_string(a) + " -> " + list_text(entry.second) +
                       entry.first + "\n";
            }
        }
    }
}

} // namespace

std::string facts_print(const machine_facts &facts) noexcept
try {
    std::string out;

    print_machine(out, facts);
    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        print_gpu(out, facts.gpus[i], i);
    }
    if (facts.pairs.size() == facts.gpus.size() * facts.gpus.size()) {
        print_pairs(out, facts);
    }
    return out;
} catch (const std::bad_alloc &) {
    return {};
}

} // namespace nvl
