// SPDX-License-Identifier: BSD-3-Clause
//
// What the copy engines reach, without anybody in between: between two GPUs, within one, and to and
// from page-locked host memory. Called by raw_limits.cpp.
#include <algorithm>
#include <functional>

#include "raw_machine.h"

namespace nvl {

namespace {

// cuMemcpyBatchAsync as CUDA 12.8 has it, which newer drivers keep; older headers have no type for it.
struct batch_attributes {
    int order;
    struct {
        int type, id;
    } source, target;
    unsigned flags;
};
using memcpy_batch = CUresult (*)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                  batch_attributes *, size_t *, size_t, size_t *, CUstream);
#if CUDA_VERSION >= 12080
static_assert(sizeof(batch_attributes) == sizeof(CUmemcpyAttributes));
#endif

class copies {
public:
    copies(const raw_machine &machine, raw_table &table)
        : machine_(machine), cuda_(machine.cuda()), table_(table), wanted_(machine.wanted())
    {
        NVL_RAW(machine_, cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
        word_  = static_cast<uint32_t *>(machine_.host_alloc(4096));
        batch_ = reinterpret_cast<memcpy_batch>(machine_.find("cuMemcpyBatchAsync", 12080));
    }

    void engines();
    void host();

    bool has_batch() const
    {
        return batch_ != nullptr;
    }

private:
    std::vector<size_t> sizes(std::vector<size_t> all) const
    {
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [this](size_t size) { return size > wanted_.largest; }),
                  all.end());
        return all;
    }

    void copy(const raw_way &way, size_t size_bytes, CUstream stream) const
    {
        NVL_RAW(machine_, cuMemcpyAsync, way.dst, way.src, size_bytes, stream);
    }

    double one(const std::function<void()> &operation) const;
    void   ended_by_event() const;
    void   ended_by_word();
    double post(const raw_way &way, size_t size_bytes, bool with_event) const;
    double stream(const raw_way &way, size_t size_bytes, unsigned count) const;
    void   list(const raw_way &way, size_t block_bytes);
    void   both(const char *name, unsigned other);

    unsigned count_of(size_t size_bytes) const
    {
        const size_t most = std::min<size_t>(512, wanted_.most_ops);
        return static_cast<unsigned>(std::clamp<size_t>(8 * wanted_.largest / size_bytes, 8, most));
    }

    const raw_machine  &machine_;
    const cuda_api     &cuda_;
    raw_table          &table_;
    const raw_settings &wanted_;
    CUevent             event_ = nullptr;
    uint32_t           *word_  = nullptr;
    uint32_t            last_  = 0;
    memcpy_batch        batch_ = nullptr;
};

// The median of as many as fit into the time of a figure.
double copies::one(const std::function<void()> &operation) const
{
    constexpr size_t    fewest = 5, most = 300;
    std::vector<double> times;
    operation();
    for (double first = now_us();
         (times.size() < fewest) ||
         ((times.size() < most) && (now_us() - first < wanted_.figure_us));) {
        double start = now_us();
        operation();
        times.push_back(now_us() - start);
    }
    return median(std::move(times));
}

void copies::ended_by_event() const
{
    NVL_RAW(machine_, cuEventRecord, event_, machine_.gpu(0).stream);
    CUresult code;
    while ((code = cuda_.cuEventQuery(event_)) == CUDA_ERROR_NOT_READY) {
        machine_.idle();
    }
    machine_.need(code, "cuEventQuery");
}

void copies::ended_by_word()
{
    ++last_;
    NVL_RAW(machine_, cuStreamWriteValue32, machine_.gpu(0).stream,
            reinterpret_cast<CUdeviceptr>(word_), last_, 0);
    while (__atomic_load_n(word_, __ATOMIC_ACQUIRE) != last_) {
        machine_.idle();
    }
}

// What the processor pays for a call; few in flight, so that none waits for room.
double copies::post(const raw_way &way, size_t size_bytes, bool with_event) const
{
    constexpr unsigned batch  = 32;
    CUstream           stream = machine_.gpu(0).stream;
    double             spent  = 0;
    unsigned           posted = 0;
    for (double first = now_us();
         (posted < 2 * batch) || (now_us() - first < wanted_.figure_us / 4);) {
        double start = now_us();
        for (unsigned i = 0; i < batch; ++i) {
            copy(way, size_bytes, stream);
            if (with_event) {
                NVL_RAW(machine_, cuEventRecord, event_, stream);
            }
        }
        spent += now_us() - start;
        posted += batch;
        machine_.sync(stream);
    }
    return spent / posted;
}

double copies::stream(const raw_way &way, size_t size_bytes, unsigned count) const
{
    CUstream stream = machine_.gpu(0).stream;
    copy(way, size_bytes, stream);
    machine_.sync(stream);
    double start = now_us();
    for (unsigned i = 0; i < count; ++i) {
        copy(way, size_bytes, stream);
    }
    machine_.sync(stream);
    return now_us() - start;
}

void copies::list(const raw_way &way, size_t block_bytes)
{
    constexpr unsigned       lists  = 3;
    CUstream                 stream = machine_.gpu(0).stream;
    std::vector<CUdeviceptr> dst, src;
    std::vector<size_t>      sizes(wanted_.list_blocks, block_bytes);
    for (const auto &[to, from] : scattered_places(wanted_.list_blocks, block_bytes)) {
        dst.push_back(way.dst + to);
        src.push_back(way.src + from);
    }
    auto singles = [&] {
        for (size_t i = 0; i < dst.size(); ++i) {
            NVL_RAW(machine_, cuMemcpyAsync, dst[i], src[i], block_bytes, stream);
        }
    };
    auto batch = [&] {
        batch_attributes in_stream_order = {1, {0, 0}, {0, 0}, 0};
        size_t           first = 0, failed = 0;
        machine_.need(batch_(dst.data(), src.data(), sizes.data(), dst.size(), &in_stream_order,
                             &first, 1, &failed, stream),
                      "cuMemcpyBatchAsync");
    };
    auto timed = [&](const char *name, const std::function<void()> &post) {
        post();
        machine_.sync(stream);
        double start = now_us();
        for (unsigned i = 0; i < lists; ++i) {
            post();
        }
        machine_.sync(stream);
        table_.add_stream(name, way.name, block_bytes, lists * static_cast<double>(dst.size()),
                          now_us() - start);
    };
    timed("engine_list", singles);
    if (batch_ != nullptr) {
        timed("engine_batch", batch);
    }
}

// Each direction on a stream of its own: of the other GPU, or both of GPU 0.
void copies::both(const char *name, unsigned other)
{
    constexpr unsigned count  = 8;
    const size_t       size   = wanted_.largest;
    const raw_way      there  = gpu_ways(machine_)[0];
    const raw_way      back   = gpu_ways(machine_)[1];
    CUstream           first  = machine_.gpu(0).stream;
    CUstream           second = machine_.gpu(other).second;
    double             start  = 0;
    for (unsigned i = 0; i < count + 1; ++i) {
        if (i == 1) {
            machine_.sync(first);
            machine_.sync(second);
            start = now_us();
        }
        machine_.enter(0);
        copy(there, size, first);
        machine_.enter(other);
        copy(back, size, second);
    }
    machine_.sync(first);
    machine_.sync(second);
    double us = now_us() - start;
    machine_.enter(0);
    table_.add("engine_both", name, size, 2.0 * count * static_cast<double>(size) / us / 1e3,
               "GB/s");
}

void copies::engines()
{
    std::vector<raw_way> ways = gpu_ways(machine_);
    ways.push_back({"own", machine_.gpu(0).targets, machine_.gpu(0).sources});
    CUstream stream_of_own = machine_.gpu(0).stream;
    bool     has_word      = cuda_.cuStreamWriteValue32 != nullptr;
    for (const raw_way &way : ways) {
        for (size_t size : sizes({8, 64, kib, 4 * kib, 8 * kib, 16 * kib, 64 * kib, 256 * kib, mib,
                                  4 * mib, 16 * mib, 64 * mib, 256 * mib})) {
            table_.add("engine_one", way.name, size, one([&] {
                           copy(way, size, stream_of_own);
                           ended_by_event();
                       }),
                       "us");
            if (has_word && (size <= mib)) {
                table_.add("engine_one_word", way.name, size, one([&] {
                               copy(way, size, stream_of_own);
                               ended_by_word();
                           }),
                           "us");
            }
            const unsigned count = count_of(size);
            table_.add_stream("engine_stream", way.name, size, count, stream(way, size, count));
        }
        for (size_t size : sizes({8, 64 * kib})) {
            table_.add("engine_post", way.name, size, post(way, size, false), "us");
            table_.add("engine_post_event", way.name, size, post(way, size, true), "us");
        }
    }
    for (const raw_way &way : gpu_ways(machine_)) {
        for (size_t block : {4 * kib, 16 * kib, 64 * kib}) {
            list(way, block);
        }
    }
    both("two_gpus", 1);
    both("one_gpu", 0);
}

void copies::host()
{
    for (const raw_way &way : host_ways(machine_)) {
        for (size_t size : sizes({4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 4 * mib, 16 * mib,
                                  64 * mib, 256 * mib})) {
            table_.add("host_one", way.name, size, one([&] {
                           copy(way, size, machine_.gpu(0).stream);
                           ended_by_event();
                       }),
                       "us");
            // A tenth of NVLink's speed: fewer will do.
            const unsigned count = std::max(3u, count_of(size) / 8);
            table_.add_stream("host_stream", way.name, size, count, stream(way, size, count));
        }
    }
}

} // namespace

void measure_engines(const raw_machine &machine, raw_table &table)
{
    copies it(machine, table);
    if (!it.has_batch()) {
        fmt::print("skipped: engine_batch: this driver has no cuMemcpyBatchAsync\n");
    }
    for (unsigned repeat = 0; repeat < machine.wanted().repeats; ++repeat) {
        it.engines();
    }
    table.print();
}

void measure_host(const raw_machine &machine, raw_table &table)
{
    copies it(machine, table);
    for (unsigned repeat = 0; repeat < machine.wanted().repeats; ++repeat) {
        it.host();
    }
    table.print();
}

} // namespace nvl
