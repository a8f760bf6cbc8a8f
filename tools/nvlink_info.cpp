// SPDX-License-Identifier: BSD-3-Clause
//
// nvlink_info: what the transport makes of this machine, and what keeps it from working. Reads
// options, gathers a report, prints it. What it shows of pairs is what the transport decides,
// since both ask topo/graph.

#include "info.h"

#include "topo/probe.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <getopt.h>

#ifdef HAVE_CONFIG_H
#include "build_config.h"
#endif

#include <fmt/format.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "(unversioned build)"
#endif

namespace nvl {

namespace {

enum exit_code {
    exit_fine     = 0,
    exit_problems = 1,
    exit_usage    = 2,
    exit_file     = 3,
};

constexpr char help_text[] = R"(NAME
    nvlink_info - show how UCX's nvlink transport sees this machine's GPUs

SYNOPSIS
    nvlink_info [OPTION]...

DESCRIPTION
    Shows for each ordered pair of GPUs the path of a copy, what it is worth and why; looks for
    UCX and for what is missing or broken around it; and says how to mend it. Run it first when
    data does not go over NVLink.

    A push is a copy run by the source's GPU, a pull one run by the target's. Estimates are for
    large copies by a copy engine.

OPTIONS
    --json          the whole report for programs, on standard output
    --svg FILE      a picture of GPUs, links, switches and NUMA nodes ("-": standard output)
    --dump FILE     the facts that were found, in the form of test/machines/README.md; send this
                    file with a report of a problem ("-": standard output)
    --from FILE     show the machine of such a file instead of this one; no GPU is needed
    --measure       copy between the GPUs and print true rates beside the estimates; allocates
                    memory on each GPU and disturbs what runs there
    --size MIB      size of the large copies of --measure (default 256)
    --ucx DIR       look at this UCX (its prefix or its lib folder), not at those that the
                    loader's search path and python3's packages have
    --no-ucx        do not look for UCX
    --short         the matrix without the list of pairs
    --version       the version of this program
    --help          this text

MATRIX
    Rows are the GPUs that run the copy. NV2: two NVLinks straight to the peer; SW18: eighteen
    through a switch; PIX, PXB, PHB, NODE, SYS: peer access over PCIe, in the words of
    nvidia-smi topo -m; -: no peer access; "!": slower than the hardware is made for.

ENVIRONMENT
    CUDA_VISIBLE_DEVICES   as for every CUDA program: GPUs that it hides are shown as hidden
    UCX_PLUGIN_PATH        folders in which UCX looks for libuct_nvlink
    UCX_TLS                checked for whether it lets nvlink in

EXIT STATUS
    0   nothing is broken or slower than it should be (notes do not count)
    1   at least one finding at the end says "broken" or "slower"
    2   an option is not understood
    3   a file cannot be read, written or understood

EXAMPLES
    nvlink_info                             is everything in order?
    nvlink_info --measure                   are the links as fast as they should be?
    nvlink_info --dump my.machine           write down this machine
    nvlink_info --from my.machine --svg my.svg
)";

struct options {
    bool        json    = false;
    bool        measure = false;
    bool        ucx     = true;
    bool        shorter = false;
    std::string ucx_dir;
    std::string svg;
    std::string dump;
    std::string from;
    size_t      measure_bytes = 256ull << 20;
};

struct usage_error {
    std::string text;
};

struct file_error {
    std::string text;
};

size_t parse_size(const char *text)
{
    char      *end  = nullptr;
    const long size = std::strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0' || size < 1 || size > 65536) {
        throw usage_error{fmt::format("--size {}: a number of MiB from 1 to 65536", text)};
    }
    return static_cast<size_t>(size) << 20;
}

// Returns false when the program is done (help, version).
bool parse_options(int argc, char **argv, options &chosen)
{
    enum { json = 1, svg, dump, from, measure, size, ucx, no_ucx, shorter, version, help };
    static constexpr option known[] = {
        {"json", no_argument, nullptr, json},       {"svg", required_argument, nullptr, svg},
        {"dump", required_argument, nullptr, dump}, {"from", required_argument, nullptr, from},
        {"measure", no_argument, nullptr, measure}, {"size", required_argument, nullptr, size},
        {"ucx", required_argument, nullptr, ucx},   {"no-ucx", no_argument, nullptr, no_ucx},
        {"short", no_argument, nullptr, shorter},   {"version", no_argument, nullptr, version},
        {"help", no_argument, nullptr, help},       {nullptr, 0, nullptr, 0},
    };
    int found;

    while ((found = getopt_long(argc, argv, "h", known, nullptr)) != -1) {
        switch (found) {
        case json:
            chosen.json = true;
            break;
        case svg:
            chosen.svg = optarg;
            break;
        case dump:
            chosen.dump = optarg;
            break;
        case from:
            chosen.from = optarg;
            break;
        case measure:
            chosen.measure = true;
            break;
        case size:
            chosen.measure_bytes = parse_size(optarg);
            break;
        case ucx:
            chosen.ucx_dir = optarg;
            break;
        case no_ucx:
            chosen.ucx = false;
            break;
        case shorter:
            chosen.shorter = true;
            break;
        case version:
            std::puts("nvlink_info " PACKAGE_VERSION);
            return false;
        case help:
        case 'h':
            std::fputs(help_text, stdout);
            return false;
        default:
            throw usage_error{}; // getopt has said what
        }
    }
    if (optind < argc) {
        throw usage_error{fmt::format("unexpected argument '{}'", argv[optind])};
    }
    if (chosen.measure && !chosen.from.empty()) {
        throw usage_error{"--measure needs the machine itself, not --from"};
    }
    if ((chosen.json ? 1 : 0) + (chosen.dump == "-" ? 1 : 0) + (chosen.svg == "-" ? 1 : 0) > 1) {
        throw usage_error{"only one of --json, --dump - and --svg - can have standard output"};
    }
    return true;
}

void write_file(const std::string &path, const std::string &text)
{
    FILE *file = path == "-" ? stdout : std::fopen(path.c_str(), "we");

    if (file == nullptr) {
        throw file_error{fmt::format("{}: {}", path, std::strerror(errno))};
    }
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if ((file == stdout ? std::fflush(file) : std::fclose(file)) != 0 || !written) {
        throw file_error{fmt::format("{}: cannot be written", path)};
    }
}

// The emulated driver of the tests has functions that no real one has.
bool driver_is_emulated()
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver != nullptr && dlsym(driver, "emu_call_count") != nullptr;
}

// A dump has no CUDA version where CUDA did not start, and then no GPU from CUDA; else nothing.
std::string why_no_driver(const machine_facts &facts)
{
    const bool shown = std::any_of(facts.gpus.begin(), facts.gpus.end(),
                                   [](const auto &gpu) { return gpu.cuda >= 0; });

    if (facts.cuda_version > 0 || shown) {
        return "";
    }
    return facts.driver.empty()
               ? "there was no CUDA driver where this file was written"
               : fmt::format("the CUDA driver did not work where this file was written (kernel "
                             "driver {})",
                             facts.driver);
}

machine_report report_of_file(const options &chosen)
{
    machine_report report;
    machine_facts  facts;
    std::string    error;

    if (facts_read(chosen.from.c_str(), &facts, &error) != facts_result::ok) {
        throw file_error{error};
    }
    report.cuda_error = why_no_driver(facts);
    report.pairs      = graph(std::move(facts));
    report.origin     = chosen.from;
    check_machine(report, false);
    return report;
}

machine_report report_of_this_machine(const options &chosen)
{
    machine_report report;

    // Before CUDA: the children that look at a UCX could not use a driver that was initialised
    // before they were forked.
    if (chosen.ucx) {
        report.ucx_checked = true;
        report.ucx         = find_ucx(chosen.ucx_dir);
    }
    const cuda_api *cuda = cuda_api::load(&report.cuda_error);

    if (cuda != nullptr) {
        report.cuda_error.clear();
    }
    report.pairs    = graph(probe_machine(cuda, probe_depth::full));
    report.origin   = "this machine";
    report.emulated = driver_is_emulated();
    check_machine(report, true);
    if (chosen.measure && cuda != nullptr) {
        report.measured       = true;
        report.measured_bytes = chosen.measure_bytes;
        report.measurements   = measure_pairs(*cuda, report.pairs, chosen.measure_bytes);
        check_estimates(report);
    }
    if (chosen.ucx) {
        check_ucx(report);
    }
    return report;
}

int run(const options &chosen)
{
    const machine_report report =
        chosen.from.empty() ? report_of_this_machine(chosen) : report_of_file(chosen);

    if (!chosen.dump.empty()) {
        write_file(chosen.dump, facts_print(report.pairs.facts()));
    }
    if (!chosen.svg.empty()) {
        write_file(chosen.svg, svg_picture(report));
    }
    if (chosen.json) {
        write_file("-", json_report(report));
    } else if (chosen.dump != "-" && chosen.svg != "-") {
        write_file("-", text_report(report, !chosen.shorter));
    }
    for (const auto &found : report.problems) {
        if (found.level != severity::note) {
            return exit_problems;
        }
    }
    return exit_fine;
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    try {
        nvl::options chosen;
        return nvl::parse_options(argc, argv, chosen) ? nvl::run(chosen) : nvl::exit_fine;
    } catch (const nvl::usage_error &error) {
        if (!error.text.empty()) {
            std::fprintf(stderr, "nvlink_info: %s\n", error.text.c_str());
        }
        std::fputs("Try 'nvlink_info --help'.\n", stderr);
        return nvl::exit_usage;
    } catch (const nvl::file_error &error) {
        std::fprintf(stderr, "nvlink_info: %s\n", error.text.c_str());
        return nvl::exit_file;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "nvlink_info: %s\n", error.what());
        return nvl::exit_problems;
    }
}
