// SPDX-License-Identifier: BSD-3-Clause
//
// nvlink_info --json: the same report for programs. Rates in bytes per second, times in seconds;
// what is not known is null. "format" grows with every change that a reader must know of.

#include "info.h"

#include <fmt/format.h>

namespace nvl {

namespace {

constexpr int format_version = 1;

std::string quote(const std::string &text)
{
    std::string out = "\"";

    for (char c : valid_utf8(text)) {
        const unsigned char byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20) {
            out += fmt::format("\\u{:04x}", byte);
        } else {
            out += c;
        }
    }
    return out + "\"";
}

// Objects and arrays, indented; the caller keeps begin and end in pairs.
class json_writer {
public:
    void begin_object(const char *key = nullptr)
    {
        begin(key, '{', '}');
    }
    void begin_array(const char *key = nullptr)
    {
        begin(key, '[', ']');
    }

    void end()
    {
        const char close = closers_.back();
        closers_.pop_back();
        if (!first_) {
            out_ += "\n" + std::string(2 * closers_.size(), ' ');
        }
        out_ += close;
        first_ = false;
    }

    void raw(const char *key, const std::string &value)
    {
        begin_item(key);
        out_ += value;
    }

    void text(const char *key, const std::string &value)
    {
        raw(key, quote(value));
    }

    void text_or_null(const char *key, const std::string &value)
    {
        raw(key, value.empty() ? "null" : quote(value));
    }

    void number(const char *key, double value)
    {
        raw(key, fmt::format("{:.10g}", value));
    }
    void integer(const char *key, long long value)
    {
        raw(key, fmt::format("{}", value));
    }

    void integer_or_null(const char *key, int value)
    {
        raw(key, value < 0 ? "null" : fmt::format("{}", value));
    }

    void boolean(const char *key, bool value)
    {
        raw(key, value ? "true" : "false");
    }

    std::string take()
    {
        return std::move(out_) + "\n";
    }

private:
    void begin_item(const char *key)
    {
        if (!closers_.empty()) {
            out_ += (first_ ? "\n" : ",\n") + std::string(2 * closers_.size(), ' ');
        }
        first_ = false;
        if (key != nullptr) {
            out_ += quote(key) + ": ";
        }
    }

    void begin(const char *key, char open, char close)
    {
        begin_item(key);
        out_ += open;
        closers_.push_back(close);
        first_ = true;
    }

    std::string out_;
    std::string closers_;
    bool        first_ = true;
};

void write_links(json_writer &json, const gpu_facts &gpu)
{
    json.begin_array("links");
    for (const auto &link : gpu.links) {
        json.begin_object();
        json.integer("index", link.index);
        json.boolean("up", link.active);
        json.integer_or_null("version", link.version);
        json.integer_or_null("speed_mb_s", link.speed_mb_s);
        json.text("remote", to_text(link.remote));
        json.text_or_null("remote_pci", link.remote_pci);
        json.end();
    }
    json.end();
}

void write_gpu(json_writer &json, const gpu_facts &gpu, size_t position)
{
    json.begin_object();
    json.integer("position", static_cast<long long>(position));
    json.integer_or_null("cuda", gpu.cuda);
    json.integer_or_null("nvml", gpu.nvml);
    json.text("uuid", gpu.mig == mig_mode::instance ? gpu.mig_uuid : gpu.uuid);
    json.text("pci", gpu.pci);
    json.text("name", gpu.name);
    json.text("compute", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor));
    json.integer("memory_bytes", static_cast<long long>(gpu.memory_bytes));
    json.integer_or_null("numa", gpu.numa);
    json.integer_or_null("pcie_generation", gpu.pcie_gen);
    json.integer_or_null("pcie_width", gpu.pcie_width);
    json.text("mig", to_text(gpu.mig));
    json.text("virtualization", to_text(gpu.virt));
    json.begin_object("fabric");
    json.text("state", to_text(gpu.fabric.state));
    json.integer("status", gpu.fabric.status);
    json.text_or_null("cluster", gpu.fabric.cluster_uuid);
    json.integer("clique", gpu.fabric.clique);
    json.end();
    write_links(json, gpu);
    json.end();
}

void write_pair(json_writer &json, const graph &pairs, size_t from, size_t to)
{
    const pair_path &path = pairs.path(from, to);

    json.begin_object();
    json.integer("from", static_cast<long long>(from));
    json.integer("to", static_cast<long long>(to));
    json.text("kind", to_text(path.kind));
    json.integer("links", path.links);
    json.text("pcie", to_text(path.pcie));
    json.boolean("native_atomics", path.native_atomics);
    json.boolean("degraded", path.degraded);
    json.number("push_bytes_s", path.push_bytes_s);
    json.number("pull_bytes_s", path.pull_bytes_s);
    json.number("push_latency_s", path.push_latency_s);
    json.number("pull_latency_s", path.pull_latency_s);
    json.text("reason", path.reason);
    json.end();
}

void write_measurements(json_writer &json, const machine_report &report)
{
    json.begin_array("measured");
    for (const auto &one : report.measurements) {
        json.begin_object();
        json.integer("from", static_cast<long long>(one.from));
        json.integer("to", static_cast<long long>(one.to));
        json.text_or_null("error", one.error);
        json.number("push_bytes_s", one.push_bytes_s);
        json.number("pull_bytes_s", one.pull_bytes_s);
        json.number("push_latency_s", one.push_latency_s);
        json.number("pull_latency_s", one.pull_latency_s);
        json.end();
    }
    json.end();
}

void write_module(json_writer &json, const char *key, const module_check &module)
{
    json.begin_object(key);
    json.text("name", module.name);
    json.text_or_null("path", module.path);
    json.text_or_null("error", module.error);
    json.end();
}

void write_ucx(json_writer &json, const machine_report &report)
{
    json.begin_array("ucx");
    for (const auto &ucx : report.ucx) {
        json.begin_object();
        json.text("found_by", ucx.found_by);
        json.text("library", ucx.library);
        json.text_or_null("version", ucx.version);
        json.text_or_null("error", ucx.error);
        json.text_or_null("plugin_suffix", ucx.suffix);
        json.begin_array("modules");
        for (const auto &module : ucx.modules) {
            write_module(json, nullptr, module);
        }
        json.end();
        write_module(json, "plugin", ucx.plugin);
        json.boolean("offers_nvlink", ucx.offers_nvlink);
        json.integer("nvlink_domains", ucx.nvlink_domains);
        json.end();
    }
    json.end();
}

} // namespace

std::string json_report(const machine_report &report)
{
    const machine_facts &facts = report.pairs.facts();
    json_writer          json;

    json.begin_object();
    json.integer("format", format_version);
    json.text("machine", facts.machine);
    json.text("origin", report.origin);
    json.boolean("emulated", report.emulated);
    json.text_or_null("driver", facts.driver);
    json.integer("cuda_version", facts.cuda_version);
    json.text_or_null("cuda_error", report.cuda_error);
    json.text("nvml", to_text(facts.nvml));
    json.integer("numa_nodes", facts.numa_nodes);
    json.boolean("imex", facts.imex);
    json.begin_array("gpus");
    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        write_gpu(json, facts.gpus[i], i);
    }
    json.end();
    json.begin_array("pairs");
    for (size_t a = 0; a < report.pairs.size(); ++a) {
        for (size_t b = 0; b < report.pairs.size(); ++b) {
            if (a != b) {
                write_pair(json, report.pairs, a, b);
            }
        }
    }
    json.end();
    if (report.measured) {
        write_measurements(json, report);
    }
    if (report.ucx_checked) {
        write_ucx(json, report);
    }
    json.begin_array("findings");
    for (const auto &found : report.problems) {
        json.begin_object();
        json.text("level", found.level == severity::note     ? "note"
                           : found.level == severity::slower ? "slower"
                                                             : "broken");
        json.text("what", found.what);
        json.text_or_null("mend", found.mend);
        json.end();
    }
    json.end();
    json.end();
    return json.take();
}

} // namespace nvl
