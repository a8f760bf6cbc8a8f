// SPDX-License-Identifier: BSD-3-Clause
//
// What a kernel of the GPU reaches that takes its orders from host memory: the least that it needs for
// one operation, by the number of polls in flight, what its single steps cost, and one poller with
// workers behind it. Called by raw_limits.cpp; the kernels are in raw_limits_kernels.cu.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "raw_limits_image.h"
#include "raw_limits_words.h"
#include "raw_machine.h"

namespace nvl {

namespace {

// What the host shares with the kernels.
struct shared_words {
    raw_slot slots[raw_polls][raw_slots];
    uint32_t done[raw_slots];
    alignas(256) uint8_t zeros[raw_polls][256]; // read by the GPU, not written
    alignas(256) uint32_t tail;
    alignas(256) uint32_t word; // written by the GPU
    alignas(256) raw_answer answer;
};

constexpr size_t most_bytes = mib; // of one operation

struct piece {
    CUdeviceptr dst, src;
    uint32_t    size_bytes;
};

class kernels {
public:
    kernels(const raw_machine &machine, raw_table &table);

    bool are_there() const
    {
        return module_ != nullptr;
    }

    void costs();
    void polls();
    void workers();

private:
    enum class pause { none, random };

    CUfunction function(const char *name);
    template<typename argument>
    void launch(const char *name, unsigned blocks, unsigned threads, argument &with);
    void start_ring(const char *name, unsigned blocks, unsigned threads, uint32_t count,
                    uint32_t gap_cycles = 0, uint32_t apart_bytes = 0);
    void end_ring();
    void clear(const raw_way &way, size_t size_bytes) const;
    void compare(const raw_way &way, size_t size_bytes, const char *name) const;

    raw_answer cost(raw_cost what, uint32_t count, CUdeviceptr data);
    raw_answer reads(unsigned in_flight, uint32_t gap_cycles, bool apart);

    void                post(const piece &what, unsigned copies = 1);
    void                tell();
    void                wait(uint32_t number) const;
    std::vector<double> poll_times(const raw_way &way, uint32_t size_bytes, unsigned in_flight,
                                   bool apart, pause between);
    void                poll_rows(const raw_way &way, uint32_t size_bytes);

    std::string cut_name(const char *name, size_t chunk, unsigned blocks) const;
    void        worker_one(const raw_way &way, size_t size, size_t chunk, unsigned blocks);
    void        worker_stream(const char *name, const raw_way &way, size_t size, size_t chunk,
                              unsigned blocks, unsigned window);
    void        worker_list(const raw_way &way, size_t block_bytes, unsigned blocks);
    double      stream(const std::vector<piece> &pieces, unsigned pieces_an_op, unsigned blocks,
                       uint32_t window);
    void        post_op(const raw_way &way, size_t size, size_t chunk);

    unsigned ops_of_one() const
    {
        return std::min(200u, wanted_.most_ops);
    }

    const raw_machine                &machine_;
    const cuda_api                   &cuda_;
    raw_table                        &table_;
    const raw_settings               &wanted_;
    CUmodule                          module_ = nullptr;
    std::map<std::string, CUfunction> functions_;
    shared_words                     *shared_            = nullptr;
    uint8_t                          *arrived_           = nullptr; // for compare()
    CUdeviceptr                       published_         = 0;
    uint64_t                          most_cycles_       = 0;
    uint32_t                          round_trip_cycles_ = 0;
    uint32_t                          number_            = 0; // last posted, of all kernels so far
};

CUdeviceptr gpu_address(const void *of_host)
{
    return reinterpret_cast<CUdeviceptr>(of_host);
}

kernels::kernels(const raw_machine &machine, raw_table &table)
    : machine_(machine), cuda_(machine.cuda()), table_(table), wanted_(machine.wanted())
{
    if (raw_limits_image_size_bytes == 0) {
        fmt::print("skipped: polls, workers: built without nvcc\n");
        return;
    }
    if ((cuda_.cuModuleLoadData == nullptr) || (cuda_.cuLaunchKernel == nullptr) ||
        (cuda_.cuModuleLoadData(&module_, raw_limits_image) != CUDA_SUCCESS)) {
        fmt::print("skipped: polls, workers: this driver does not load the kernels\n");
        module_ = nullptr;
        return;
    }
    if (function("nvl_raw_stream") == nullptr) {
        fmt::print("skipped: polls, workers: this driver does not find the kernels\n");
        module_ = nullptr;
        return;
    }
    shared_  = static_cast<shared_words *>(machine_.host_alloc(sizeof(shared_words)));
    arrived_ = static_cast<uint8_t *>(machine_.host_alloc(most_bytes));
    NVL_RAW(machine_, cuMemAlloc, &published_, 256);
    NVL_RAW(machine_, cuMemsetD8Async, published_, 0, 256, machine_.gpu(0).stream);
    machine_.sync(machine_.gpu(0).stream);
    int khz = 0;
    NVL_RAW(machine_, cuDeviceGetAttribute, &khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
            machine_.gpu(0).device);
    most_cycles_ = static_cast<uint64_t>(wanted_.deadline_s * 1e3 * std::max(khz, 1000000));
}

CUfunction kernels::function(const char *name)
{
    auto found = functions_.find(name);
    if (found != functions_.end()) {
        return found->second;
    }
    CUfunction made = nullptr;
    if (cuda_.cuModuleGetFunction(&made, module_, name) != CUDA_SUCCESS) {
        return nullptr;
    }
    // Not at the first launch, in the middle of a figure.
    if (cuda_.cuFuncLoad != nullptr) {
        NVL_RAW(machine_, cuFuncLoad, made);
    }
    return functions_[name] = made;
}

template<typename argument>
void kernels::launch(const char *name, unsigned blocks, unsigned threads, argument &with)
{
    void *arguments[] = {&with};
    NVL_RAW(machine_, cuLaunchKernel, function(name), blocks, 1, 1, threads, 1, 1, 0,
            machine_.gpu(0).stream, arguments, nullptr);
}

// ---- what the steps cost --------------------------------------------------------

raw_answer kernels::cost(raw_cost what, uint32_t count, CUdeviceptr data)
{
    raw_cost_launch with = {};
    with.word            = gpu_address(&shared_->word);
    with.data            = data;
    with.answer          = gpu_address(&shared_->answer);
    with.what            = what;
    with.count           = count;
    launch("nvl_raw_cost", 1, 32, with);
    machine_.sync(machine_.gpu(0).stream);
    return shared_->answer;
}

raw_answer kernels::reads(unsigned in_flight, uint32_t gap_cycles, bool apart)
{
    raw_cost_launch with = {};
    with.word            = gpu_address(shared_->zeros);
    with.answer          = gpu_address(&shared_->answer);
    with.count           = std::min(2000u, wanted_.most_ops);
    with.gap_cycles      = gap_cycles;
    with.apart_bytes     = apart ? sizeof(shared_->zeros[0]) : 0;
    launch("nvl_raw_read", 1, 32 * in_flight, with);
    machine_.sync(machine_.gpu(0).stream);
    return shared_->answer;
}

void kernels::costs()
{
    const uint32_t count = std::min(2000u, wanted_.most_ops);
    auto           each  = [](const raw_answer &answer, double n) {
        return static_cast<double>(answer.ns) / n;
    };

    raw_answer alone   = reads(1, 0, false);
    round_trip_cycles_ = static_cast<uint32_t>(alone.cycles / count);
    table_.add("gpu_reads_host_1", "same", 32, each(alone, count), "ns");
    for (unsigned n = 2; n <= raw_polls; ++n) {
        for (bool apart : {false, true}) {
            table_.add(fmt::format("gpu_reads_host_{}", n), apart ? "apart" : "same", 32,
                       each(reads(n, 0, apart), static_cast<double>(count) * n), "ns");
        }
    }
    raw_answer timer = cost(raw_cost_globaltimer, 10 * count, 0);
    table_.add("gpu_globaltimer", "read", 8, each(timer, 10.0 * count), "ns");
    table_.add("gpu_globaltimer", "step", 8, static_cast<double>(timer.step_ns), "ns");
    table_.add("gpu_clock", "read", 8, each(cost(raw_cost_clock, 10 * count, 0), 10.0 * count),
               "ns");
    table_.add("gpu_store", "host", 4, each(cost(raw_cost_store, count, 0), count), "ns");
    table_.add("gpu_release", "host", 4, each(cost(raw_cost_release, count, 0), count), "ns");
    for (const raw_way &way : gpu_ways(machine_)) {
        table_.add("gpu_store_release", way.name, 8,
                   each(cost(raw_cost_store_release, count, way.dst), count), "ns");
    }
}

// ---- orders ---------------------------------------------------------------------

void kernels::start_ring(const char *name, unsigned blocks, unsigned threads, uint32_t count,
                         uint32_t gap_cycles, uint32_t apart_bytes)
{
    raw_ring_launch with = {};
    with.slots           = gpu_address(shared_->slots);
    with.done            = gpu_address(shared_->done);
    with.tail            = gpu_address(&shared_->tail);
    with.published       = published_;
    with.most_cycles     = most_cycles_;
    with.first           = number_ + 1;
    with.last            = number_ + count;
    with.gap_cycles      = gap_cycles;
    with.apart_bytes     = apart_bytes;
    launch(name, blocks, threads, with);
}

void kernels::end_ring()
{
    machine_.sync(machine_.gpu(0).stream);
}

void kernels::clear(const raw_way &way, size_t size_bytes) const
{
    CUstream stream = machine_.gpu(0).stream;
    NVL_RAW(machine_, cuMemsetD8Async, way.dst, 0, size_bytes, stream);
    machine_.sync(stream);
}

// A limit that does not move the bytes would be none.
void kernels::compare(const raw_way &way, size_t size_bytes, const char *name) const
{
    CUstream stream = machine_.gpu(0).stream;
    NVL_RAW(machine_, cuMemcpyAsync, gpu_address(arrived_), way.dst, size_bytes, stream);
    machine_.sync(stream);
    if (memcmp(arrived_, machine_.host(), size_bytes) != 0) {
        raw_die(fmt::format("{} {} {}: wrong bytes", name, way.name, size_bytes));
    }
}

// The numbers go last: where they fit, the rest is there.
void kernels::post(const piece &what, unsigned copies)
{
    ++number_;
    for (unsigned k = 0; k < copies; ++k) {
        raw_slot &slot  = shared_->slots[k][number_ % raw_slots];
        slot.dst        = what.dst;
        slot.size_bytes = what.size_bytes;
        slot.src        = what.src;
        __atomic_store_n(&slot.number_again, number_, __ATOMIC_RELEASE);
        __atomic_store_n(&slot.number, number_, __ATOMIC_RELEASE);
    }
}

void kernels::tell()
{
    __atomic_store_n(&shared_->tail, number_, __ATOMIC_RELEASE);
}

void kernels::wait(uint32_t number) const
{
    constexpr unsigned turns_per_look = 4096; // at the clock, which costs as much as a turn
    const uint32_t    &word           = shared_->done[number % raw_slots];
    double             start          = 0;
    for (unsigned turns = 0; __atomic_load_n(&word, __ATOMIC_ACQUIRE) != number; ++turns) {
        machine_.idle();
        if (turns % turns_per_look == turns_per_look - 1) {
            start = (start == 0) ? now_us() : start;
            if (now_us() - start > (wanted_.deadline_s + 3) * 1e6) {
                raw_die("a kernel has left before its work was done");
            }
        }
    }
}

// ---- one operation at a time ------------------------------------------------------

std::vector<double> kernels::poll_times(const raw_way &way, uint32_t size_bytes, unsigned in_flight,
                                        bool apart, pause between)
{
    constexpr unsigned  warm_ups = 10;
    const unsigned      count    = ops_of_one();
    const unsigned      copies   = apart ? in_flight : 1;
    std::vector<double> times;
    std::mt19937        random(size_bytes + in_flight);
    // A little less than an even share: the round trips are not all alike.
    const uint32_t gap = round_trip_cycles_ * 9 / 10 / in_flight;
    clear(way, size_bytes);
    start_ring((in_flight == 1) ? "nvl_raw_poll" : "nvl_raw_poll_several", 1, 32 * in_flight,
               warm_ups + count, gap, apart ? sizeof(shared_->slots[0]) : 0);
    for (unsigned i = 0; i < warm_ups + count; ++i) {
        if (between == pause::random) {
            const double until = now_us() + static_cast<double>(random() % 4000) / 1e3;
            while (now_us() < until) {
            }
        }
        double start = now_us();
        post({way.dst, way.src, size_bytes}, copies);
        wait(number_);
        if (i >= warm_ups) {
            times.push_back(now_us() - start);
        }
    }
    end_ring();
    compare(way, size_bytes, "poll");
    return times;
}

void kernels::poll_rows(const raw_way &way, uint32_t size_bytes)
{
    for (unsigned n = 1; n <= raw_polls; ++n) {
        for (bool apart : {false, true}) {
            if (apart && ((n == 1) || (size_bytes != 8))) {
                continue;
            }
            const std::string   name   = fmt::format("poll{}{}", n, apart ? "_apart" : "");
            std::vector<double> steady = poll_times(way, size_bytes, n, apart, pause::none);
            std::vector<double> spaced = poll_times(way, size_bytes, n, apart, pause::random);
            table_.add(name, way.name, size_bytes, median(steady), "us");
            table_.add(name + "_mean", way.name, size_bytes, mean(steady), "us");
            table_.add(name + "_spaced", way.name, size_bytes, median(spaced), "us");
            table_.add(name + "_spaced_mean", way.name, size_bytes, mean(spaced), "us");
        }
    }
}

void kernels::polls()
{
    for (const raw_way &way : gpu_ways(machine_)) {
        for (uint32_t size : {8u, 64u, 1024u, 4096u, 8192u}) {
            poll_rows(way, size);
        }
    }
}

// ---- a poller and workers -----------------------------------------------------------

std::string kernels::cut_name(const char *name, size_t chunk, unsigned blocks) const
{
    return fmt::format("{}_chunk{}K_blocks{}", name, chunk / kib, blocks);
}

void kernels::post_op(const raw_way &way, size_t size, size_t chunk)
{
    for (size_t at = 0; at < size; at += chunk) {
        post({way.dst + at, way.src + at, static_cast<uint32_t>(std::min(chunk, size - at))});
    }
    tell();
}

void kernels::worker_one(const raw_way &way, size_t size, size_t chunk, unsigned blocks)
{
    constexpr unsigned  warm_ups = 5;
    const unsigned      count    = ops_of_one() / 2;
    const unsigned      pieces   = static_cast<unsigned>((size + chunk - 1) / chunk);
    std::vector<double> times;
    clear(way, size);
    start_ring("nvl_raw_stream", blocks, wanted_.threads, pieces * (warm_ups + count));
    for (unsigned i = 0; i < warm_ups + count; ++i) {
        const uint32_t first = number_ + 1;
        double         start = now_us();
        post_op(way, size, chunk);
        for (uint32_t k = first; k != number_ + 1; ++k) {
            wait(k);
        }
        if (i >= warm_ups) {
            times.push_back(now_us() - start);
        }
    }
    end_ring();
    compare(way, size, "workers_one");
    table_.add(cut_name("workers_one", chunk, blocks), way.name, size, median(times), "us");
}

// Microseconds for all of them, `window` pieces in flight at most; the first one, which waits for the
// kernel to come, does not count.
double kernels::stream(const std::vector<piece> &pieces, unsigned pieces_an_op, unsigned blocks,
                       uint32_t window)
{
    const uint32_t count = static_cast<uint32_t>(pieces.size());
    start_ring("nvl_raw_stream", blocks, wanted_.threads, count + 1);
    post(pieces[0]);
    tell();
    wait(number_);

    const uint32_t first  = number_ + 1;
    uint32_t       posted = 0;
    double         start  = now_us();
    for (uint32_t finished = 0; finished < count;) {
        while ((posted < count) && (posted + pieces_an_op - finished <= window)) {
            for (unsigned k = 0; k < pieces_an_op; ++k) {
                post(pieces[posted++]);
            }
            tell();
        }
        // Whatever has come meanwhile, at least one.
        wait(first + finished++);
        while ((finished < posted) &&
               (__atomic_load_n(&shared_->done[(first + finished) % raw_slots], __ATOMIC_ACQUIRE) ==
                first + finished)) {
            ++finished;
        }
    }
    double us = now_us() - start;
    end_ring();
    return us;
}

void kernels::worker_stream(const char *name, const raw_way &way, size_t size, size_t chunk,
                            unsigned blocks, unsigned window)
{
    const unsigned     pieces_an_op = static_cast<unsigned>((size + chunk - 1) / chunk);
    const size_t       most         = wanted_.most_ops;
    const size_t       ops = std::min(most, std::max<size_t>(2 * wanted_.largest / size, 64));
    std::vector<piece> pieces;
    for (size_t i = 0; i < ops; ++i) {
        for (size_t at = 0; at < size; at += chunk) {
            pieces.push_back(
                {way.dst + at, way.src + at, static_cast<uint32_t>(std::min(chunk, size - at))});
        }
    }
    clear(way, size);
    double us =
        stream(pieces, pieces_an_op, blocks, std::min<uint32_t>(window * pieces_an_op, raw_slots));
    compare(way, size, name);
    table_.add_stream(cut_name(name, chunk, blocks), way.name, size, static_cast<double>(ops), us);
}

void kernels::worker_list(const raw_way &way, size_t block_bytes, unsigned blocks)
{
    constexpr unsigned lists = 3;
    std::vector<piece> pieces;
    for (unsigned i = 0; i < lists; ++i) {
        for (const auto &[to, from] : scattered_places(wanted_.list_blocks, block_bytes)) {
            pieces.push_back({way.dst + to, way.src + from, static_cast<uint32_t>(block_bytes)});
        }
    }
    double us = stream(pieces, 1, blocks, raw_slots / 2);
    table_.add_stream(cut_name("workers_list", block_bytes, blocks), way.name, block_bytes,
                      static_cast<double>(pieces.size()), us);
}

void kernels::workers()
{
    constexpr unsigned few = 64, many = 1024;
    for (const raw_way &way : gpu_ways(machine_)) {
        for (unsigned blocks : wanted_.blocks) {
            for (size_t chunk : {4 * kib, 8 * kib, 16 * kib}) {
                for (size_t size : {16 * kib, 64 * kib, 256 * kib, mib}) {
                    if (size <= wanted_.largest) {
                        worker_one(way, size, chunk, blocks);
                    }
                }
                for (size_t size :
                     {8ul, 64ul, kib, 4 * kib, 8 * kib, 16 * kib, 64 * kib, 256 * kib, mib}) {
                    // What fits into the smallest chunk is not cut by any.
                    if ((size <= wanted_.largest) && ((size > 4 * kib) || (chunk == 4 * kib))) {
                        worker_stream("workers", way, size, chunk, blocks, few);
                        worker_stream("workers_deep", way, size, chunk, blocks, many);
                    }
                }
            }
            for (size_t block : {4 * kib, 16 * kib}) {
                worker_list(way, block, blocks);
            }
        }
    }
}

} // namespace

void measure_kernels(const raw_machine &machine, raw_table &table, bool polls, bool workers)
{
    kernels it(machine, table);
    if (!it.are_there()) {
        return;
    }
    if (polls) {
        for (unsigned repeat = 0; repeat < machine.wanted().repeats; ++repeat) {
            it.costs();
            it.polls();
        }
        table.print();
    }
    if (workers) {
        for (unsigned repeat = 0; repeat < machine.wanted().repeats; ++repeat) {
            it.workers();
        }
        table.print();
    }
}

} // namespace nvl
