// SPDX-License-Identifier: BSD-3-Clause
//
// What the parts of raw_limits have in common: settings, two GPUs with memory and streams, and the
// table of what was measured. Called by raw_limits.cpp and the parts; calls the driver's table alone.
#ifndef NVLINK_BENCH_RAW_MACHINE_H
#define NVLINK_BENCH_RAW_MACHINE_H

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "driver/cuda.h"

namespace nvl {

constexpr size_t kib = 1 << 10;
constexpr size_t mib = 1 << 20;

struct raw_settings {
    int                   gpus[2]          = {0, 1};
    unsigned              repeats          = 5;
    double                figure_us        = 8000; // of one figure in one repeat
    double                deadline_s       = 2;    // a kernel leaves then in any case
    size_t                largest          = 256 * mib;
    unsigned              list_blocks      = 2048;
    unsigned              most_ops         = 20000; // of a stream
    std::vector<unsigned> blocks           = {8, 16, 32};
    unsigned              threads          = 512;   // a block of workers
    bool                  shares_processor = false; // gives way while it waits, to emulated GPUs
    std::string           only             = "engines,host,polls,workers";
};

double now_us();
double median(std::vector<double> values);
double mean(const std::vector<double> &values);

[[noreturn]] void raw_die(const std::string &why);

// `limit name way size value unit low high`: the median of the repeats and how far they lie apart.
class raw_table {
public:
    void add(const std::string &name, const std::string &way, size_t size_bytes, double value,
             const std::string &unit);

    // A stream of operations: its bandwidth, and its rate where that is what matters.
    void add_stream(const std::string &name, const std::string &way, size_t size_bytes, double ops,
                    double us);

    // Prints what has come since the last time.
    void print();

private:
    using key = std::tuple<std::string, std::string, size_t, std::string>;

    std::vector<key>                   order_;
    std::map<key, std::vector<double>> values_;
};

// One GPU: sources in the first half of its memory, targets in the second.
struct raw_gpu {
    CUdevice    device  = 0;
    CUcontext   context = nullptr;
    CUdeviceptr sources = 0;
    CUdeviceptr targets = 0;
    CUstream    stream  = nullptr;
    CUstream    second  = nullptr;
};

class raw_machine {
public:
    explicit raw_machine(const raw_settings &wanted);

    // Makes the context of a GPU current; of GPU 0 unless a part says otherwise.
    void enter(unsigned gpu) const;
    void need(CUresult code, const char *call) const;
    void sync(CUstream stream) const;

    // One turn of waiting.
    void idle() const
    {
        if (wanted_.shares_processor) {
            sched_yield();
        }
    }

    // Page-locked memory, for the life of the process.
    void *host_alloc(size_t size_bytes) const;

    // A function that the table of the plugin does not have; null if this driver has none.
    void *find(const char *name, int version) const;

    const raw_settings &wanted() const
    {
        return wanted_;
    }

    const cuda_api &cuda() const
    {
        return cuda_;
    }

    const raw_gpu &gpu(unsigned index) const
    {
        return gpus_[index];
    }

    // `largest` bytes of page-locked memory, with what the sources of both GPUs hold.
    uint8_t *host() const
    {
        return host_;
    }

private:
    raw_settings    wanted_;
    const cuda_api &cuda_;
    raw_gpu         gpus_[2];
    uint8_t        *host_ = nullptr;
};

#define NVL_RAW(_machine, _call, ...) (_machine).need((_machine).cuda()._call(__VA_ARGS__), #_call)

// From where to where, seen from GPU 0, which does the work.
struct raw_way {
    const char *name;
    CUdeviceptr dst, src;
};

std::vector<raw_way> gpu_ways(const raw_machine &machine);  // push, pull
std::vector<raw_way> host_ways(const raw_machine &machine); // page-locked memory to and from a GPU

// Blocks in no order, every second one of the memory: (target, source) as offsets.
std::vector<std::pair<size_t, size_t>> scattered_places(unsigned blocks, size_t block_bytes);

// The parts; each prints what it found, or why it was skipped.
void measure_engines(const raw_machine &machine, raw_table &table);
void measure_host(const raw_machine &machine, raw_table &table);
void measure_kernels(const raw_machine &machine, raw_table &table, bool polls, bool workers);

} // namespace nvl

#endif
