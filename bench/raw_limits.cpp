// SPDX-License-Identifier: BSD-3-Clause
//
// The raw limits of this machine: what its copy engines and a minimal kernel reach between two GPUs,
// in one process, without UCX and without anything of the plugin but its table of driver functions.
// Two machines of a kind differ by a quarter: a figure of UCX is only held against a limit that was
// measured beside it. Called by bench/run_gpu and test/gpu/measure_on_gpus, or by hand; needs
// libcuda.so.1. Prints `limit name way size value unit low high` a line: the median of the repeats,
// the lowest and the highest. What is not measured is a line `skipped: what: why`; without two GPUs
// the exit status is 77. --help; the names are in doc/performance.md.
#include <getopt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "raw_machine.h"

namespace nvl {

namespace {

[[noreturn]] void usage(int code)
{
    fmt::print(
        "usage: raw_limits [--gpus A,B] [--repeats N] [--only PARTS] [--quick] [--smoke]\n"
        "  --only   of engines,host,polls,workers\n"
        "  --quick  two repeats\n"
        "  --smoke  everything once and small: a test of the program, its figures mean nothing\n");
    exit(code);
}

void make_small(raw_settings &wanted)
{
    wanted.repeats     = 1;
    wanted.figure_us   = 200;
    wanted.deadline_s  = 30;
    wanted.largest     = 64 * kib;
    wanted.list_blocks = 8;
    wanted.most_ops    = 16;
    wanted.blocks      = {2};
    wanted.threads     = 64;

    wanted.shares_processor = true;
}

raw_settings parse(int argc, char **argv)
{
    static const option names[] = {{"gpus", required_argument, nullptr, 'g'},
                                   {"repeats", required_argument, nullptr, 'r'},
                                   {"only", required_argument, nullptr, 'o'},
                                   {"quick", no_argument, nullptr, 'q'},
                                   {"smoke", no_argument, nullptr, 's'},
                                   {"help", no_argument, nullptr, 'h'},
                                   {nullptr, 0, nullptr, 0}};
    raw_settings        wanted;
    for (int key; (key = getopt_long(argc, argv, "h", names, nullptr)) != -1;) {
        switch (key) {
        case 'g':
            if (sscanf(optarg, "%d,%d", &wanted.gpus[0], &wanted.gpus[1]) != 2) {
                usage(2);
            }
            break;
        case 'r':
            wanted.repeats = static_cast<unsigned>(std::max(1, atoi(optarg)));
            break;
        case 'o':
            wanted.only = optarg;
            break;
        case 'q':
            wanted.repeats = 2;
            break;
        case 's':
            make_small(wanted);
            break;
        default:
            usage(key == 'h' ? 0 : 2);
        }
    }
    return wanted;
}

void run(const raw_settings &wanted)
{
    auto wants = [&](const std::string &part) {
        return ("," + wanted.only + ",").find("," + part + ",") != std::string::npos;
    };
    const double start = now_us();
    raw_machine  machine(wanted);
    raw_table    table;
    if (wants("engines")) {
        measure_engines(machine, table);
    }
    if (wants("host")) {
        measure_host(machine, table);
    }
    if (wants("polls") || wants("workers")) {
        measure_kernels(machine, table, wants("polls"), wants("workers"));
    }
    fmt::print("# {:.1f} s\n", (now_us() - start) / 1e6);
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    try {
        setvbuf(stdout, nullptr, _IOLBF, 0);
        nvl::run(nvl::parse(argc, argv));
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "raw_limits: %s\n", error.what());
        return 1;
    }
}
