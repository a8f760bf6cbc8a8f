// SPDX-License-Identifier: BSD-3-Clause
//
// Measures the lingering copy kernel alone, without UCX: two GPUs in this
// process, peer access both ways. Run by hand on a machine with GPUs (needs
// only libcuda.so.1); every line is `name key=value ...`. Options, all
// key=value: see usage().
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "driver/cuda.h"
#include "driver/handles.h"
#include "engine/lane.h"
#include "engine/ring/ring_engine.h"

namespace nvl {

namespace {

constexpr size_t arena_bytes = 1ull << 30;

double now_us()
{
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

[[noreturn]] void die(const std::string &why)
{
    fmt::print(stderr, "ring_probe: {}\n", why);
    exit(1);
}

void need(const cuda_api &cuda, CUresult code, const char *call)
{
    if (code != CUDA_SUCCESS) {
        die(fmt::format("{}: {}", call, cuda.error_text(code)));
    }
}

#define NVL_NEED(_call, ...) need(cuda_, cuda_._call(__VA_ARGS__), #_call)

// Words of the command line.
class options {
public:
    options(int argc, char **argv)
    {
        for (int i = 1; i < argc; ++i) {
            const char *equals = strchr(argv[i], '=');
            if (equals == nullptr) {
                usage();
            }
            words_[std::string(argv[i], static_cast<size_t>(equals - argv[i]))] = equals + 1;
        }
    }

    std::string text(const std::string &key, const std::string &otherwise) const
    {
        auto found = words_.find(key);
        return (found == words_.end()) ? otherwise : found->second;
    }

    double number(const std::string &key, double otherwise) const
    {
        auto found = words_.find(key);
        return (found == words_.end()) ? otherwise : atof(found->second.c_str());
    }

    bool wants(const std::string &part) const
    {
        std::string parts = "," + text("only", "lat,rate,cpu,life,soak") + ",";
        return parts.find("," + part + ",") != std::string::npos;
    }

    [[noreturn]] static void usage()
    {
        die("options: only=lat,rate,cpu,life,soak engine=both|ring|copy small_kernel=NAME "
            "large_kernel=NAME small_warps= "
            "small_blocks= large_blocks= warps= alone= chunk_small= chunk_large= chunk_stream= "
            "chunk_limit= stream_descriptors= idle_us= narrow_us= narrow_most_us= stay_us= "
            "hello_us= soak_s= seed= gpus=0,1 size=BYTES count=N window=OPERATIONS");
    }

private:
    std::map<std::string, std::string> words_;
};

ring_config config_of(const options &opts)
{
    ring_config config;
    auto        word = [&](const char *key, auto &field) {
        field = static_cast<std::decay_t<decltype(field)>>(
            opts.number(key, static_cast<double>(field)));
    };
    word("small_blocks", config.small_blocks);
    word("large_blocks", config.large_blocks);
    word("small_warps", config.small_warps);
    word("warps", config.large_warps);
    word("alone", config.alone_bytes);
    word("chunk_small", config.chunk_small_bytes);
    word("chunk_large", config.chunk_large_bytes);
    word("chunk_stream", config.chunk_stream_bytes);
    word("chunk_limit", config.chunk_limit_bytes);
    word("stream_descriptors", config.stream_descriptors);
    config.idle_ns           = opts.number("idle_us", config.idle_ns / 1e3) * 1e3;
    config.narrow_ns         = opts.number("narrow_us", config.narrow_ns / 1e3) * 1e3;
    config.narrow_most_ns    = opts.number("narrow_most_us", config.narrow_most_ns / 1e3) * 1e3;
    config.stay_ns           = opts.number("stay_us", config.stay_ns / 1e3) * 1e3;
    config.hello_timeout_ns  = opts.number("hello_us", config.hello_timeout_ns / 1e3) * 1e3;
    static std::string small = opts.text("small_kernel", config.small_kernel);
    static std::string large = opts.text("large_kernel", config.large_kernel);
    config.small_kernel      = small.c_str();
    config.large_kernel      = large.c_str();
    return config;
}

// One GPU: its context, an arena and a stream for what is not measured.
struct gpu {
    CUdevice    device  = 0;
    CUcontext   context = nullptr;
    CUdeviceptr arena   = 0;
    CUstream    stream  = nullptr;
};

// What is measured, behind one face.
struct engine {
    std::string                                                                     name;
    std::function<ucs_status_t(const copy_piece *pieces, size_t count, op_end end)> submit;
    std::function<unsigned(unsigned max)>                                           poll;
    std::function<void(size_t size_bytes)>                                          wake;
};

double percentile(std::vector<double> values, double part)
{
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

const char *const ways[] = {"push", "pull", "both"};

class probe {
public:
    explicit probe(const options &opts) : opts_(opts), cuda_(load())
    {
        std::string which = opts.text("gpus", "0,1");
        int         first = 0, second = 1;
        if (sscanf(which.c_str(), "%d,%d", &first, &second) != 2) {
            options::usage();
        }
        open_gpu(gpus_[0], first);
        open_gpu(gpus_[1], second);
        for (unsigned i = 0; (i < 2) && (first != second); ++i) {
            NVL_NEED(cuCtxPushCurrent, gpus_[i].context);
            CUresult code = cuda_.cuCtxEnablePeerAccess(gpus_[1 - i].context, 0);
            if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
                need(cuda_, code, "cuCtxEnablePeerAccess");
            }
            CUcontext popped;
            NVL_NEED(cuCtxPopCurrent, &popped);
        }
        NVL_NEED(cuCtxPushCurrent, gpus_[0].context);
        void *block = nullptr;
        NVL_NEED(cuMemHostAlloc, &block, host_bytes, CU_MEMHOSTALLOC_PORTABLE);
        host_ = static_cast<uint8_t *>(block);
        NVL_NEED(cuMemHostAlloc, &block, host_bytes, CU_MEMHOSTALLOC_PORTABLE);
        pattern_ = static_cast<uint8_t *>(block);
        std::mt19937_64 words(7);
        for (size_t i = 0; i < host_bytes; i += 8) {
            uint64_t word = words();
            memcpy(pattern_ + i, &word, 8);
        }
        auto made = lane::create(cuda_, gpus_[0].context, lane_config());
        if (!made.ok()) {
            die("no copy engine lane");
        }
        lane_ = std::move(made.value());
    }

    // The ring for the parts that measure it: stays while it is wanted.
    void open_ring(const ring_config &config)
    {
        ring_.reset();
        auto made = ring_engine::create(cuda_, gpus_[0].context, gpus_[0].device, *lane_, config);
        if (!made.ok()) {
            die(fmt::format("no ring: status {}", static_cast<int>(made.status())));
        }
        ring_ = std::move(made.value());
    }

    void close_ring()
    {
        ring_.reset();
    }

    std::vector<engine> engines()
    {
        std::vector<engine> all;
        std::string         wanted = opts_.text("engine", "both");
        if (wanted != "copy") {
            all.push_back({"ring",
                           [this](const copy_piece *pieces, size_t count, op_end end) {
                               return ring_->submit(pieces, count, end);
                           },
                           [this](unsigned max) { return ring_->poll(max); },
                           [this](size_t size_bytes) { wake(size_bytes); }});
        }
        if (wanted != "ring") {
            all.push_back({"copy",
                           [this](const copy_piece *pieces, size_t count, op_end end) {
                               return lane_->submit(pieces, count, end);
                           },
                           [this](unsigned max) { return lane_->poll(max); }, [](size_t) {}});
        }
        return all;
    }

    void latency();
    void rate();
    void lists();
    void processor();
    void life();
    void soak();

private:
    static constexpr size_t host_bytes = 256ull << 20;

    static const cuda_api &load()
    {
        std::string     why;
        const cuda_api *cuda = cuda_api::load(&why);
        if (cuda == nullptr) {
            die(why);
        }
        return *cuda;
    }

    void open_gpu(gpu &it, int index)
    {
        NVL_NEED(cuDeviceGet, &it.device, index);
        NVL_NEED(cuDevicePrimaryCtxRetain, &it.context, it.device);
        NVL_NEED(cuCtxPushCurrent, it.context);
        NVL_NEED(cuMemAlloc, &it.arena, arena_bytes);
        NVL_NEED(cuStreamCreateWithPriority, &it.stream, CU_STREAM_NON_BLOCKING, 0);
        NVL_NEED(cuMemsetD8Async, it.arena, static_cast<unsigned char>(index + 1), arena_bytes,
                 it.stream);
        NVL_NEED(cuStreamSynchronize, it.stream);
        CUcontext popped;
        NVL_NEED(cuCtxPopCurrent, &popped);
    }

    // Waits until a kernel has reported in.
    void wake(size_t size_bytes)
    {
        double start = now_us();
        // Twice: the larger launch may replace the one that is there.
        while (!ring_->ready() || (now_us() - start < 100)) {
            ring_->summon(size_bytes);
            if (now_us() - start > 2e6) {
                die("the kernel does not report in");
            }
        }
    }

    copy_piece piece(unsigned way, size_t offset, size_t size_bytes) const
    {
        CUdeviceptr mine = gpus_[0].arena + offset, peer = gpus_[1].arena + offset;
        return (way == 0) ? copy_piece{peer, mine, size_bytes} : copy_piece{mine, peer, size_bytes};
    }

    // Counts down; never reaches zero, so that nothing is called.
    struct counter {
        uct_completion_t comp;
    };

    static counter fresh()
    {
        counter all   = {};
        all.comp.func = [](uct_completion_t *) {};
        return all;
    }

    void wait(const engine &with, counter &all, int until);
    void rate_of(const engine &with, unsigned way, size_t size_bytes, uint32_t window);
    void soak_batch(std::mt19937_64 &random, uint64_t *bytes, uint64_t *errors);

    const options               &opts_;
    const cuda_api              &cuda_;
    gpu                          gpus_[2];
    uint8_t                     *host_           = nullptr;
    uint8_t                     *pattern_        = nullptr;
    uint64_t                     soaked_by_ring_ = 0;
    std::unique_ptr<lane>        lane_;
    std::unique_ptr<ring_engine> ring_;
};

// An operation ends by counting comp.count down: `until` is what it must reach.
void probe::wait(const engine &with, counter &all, int until)
{
    double start = now_us();
    while (all.comp.count > until) {
        if ((with.poll(64) == 0) && (now_us() - start > 5e6)) {
            die("no completion for 5 s");
        }
    }
    if (all.comp.status != UCS_OK) {
        die("an operation failed");
    }
}

void probe::latency()
{
    const int count = static_cast<int>(opts_.number("count", 1000));
    for (const engine &with : engines()) {
        for (unsigned way = 0; way < 2; ++way) {
            for (size_t size : {8ul, 1024ul, 4096ul, 8192ul, 16384ul, 32768ul, 65536ul, 131072ul,
                                262144ul, 1ul << 20}) {
                with.wake(size);
                std::vector<double> times;
                for (int i = 0; i < count; ++i) {
                    size_t     offset = (static_cast<size_t>(rand()) % (arena_bytes >> 20)) << 20;
                    copy_piece what   = piece(way, offset, size);
                    counter    all    = fresh();
                    all.comp.count    = 2;
                    double start      = now_us();
                    while (with.submit(&what, 1, op_end{&all.comp, nullptr}) != UCS_INPROGRESS) {
                        with.wake(size);
                        start = now_us();
                    }
                    wait(with, all, 1);
                    times.push_back(now_us() - start);
                }
                fmt::print("lat engine={} way={} size={} us_p10={:.2f} us_p50={:.2f} us_p90={:.2f} "
                           "us_p99={:.2f}\n",
                           with.name, ways[way], size, percentile(times, 0.1),
                           percentile(times, 0.5), percentile(times, 0.9), percentile(times, 0.99));
            }
        }
    }
}

void probe::rate_of(const engine &with, unsigned way, size_t size, uint32_t window)
{
    const uint64_t total =
        std::min<uint64_t>(static_cast<uint64_t>(opts_.number("count", 200000)),
                           std::max<uint64_t>(400, (8ull << 30) / std::max<size_t>(size, 16384)));
    const uint64_t most = (with.name == "copy") ? std::min<uint64_t>(total, 20000) : total;
    const size_t   step = std::max<size_t>(size, 16384);
    counter        all  = fresh();
    all.comp.count      = 1 << 30;
    uint64_t posted = 0, finished = 0, full = 0;

    with.wake(std::max<size_t>(size, 65536));
    double start = now_us();
    while (finished < most) {
        while ((posted < most) && (posted - finished < window)) {
            size_t     offset = (posted % (arena_bytes / step)) * step;
            copy_piece what   = piece((way == 2) ? posted % 2 : way, offset, size);
            if (with.submit(&what, 1, op_end{&all.comp, nullptr}) != UCS_INPROGRESS) {
                ++full;
                with.wake(std::max<size_t>(size, 65536));
                break;
            }
            ++posted;
        }
        finished += with.poll(256);
        if (now_us() - start > 20e6) {
            die("a stream takes more than 20 s");
        }
    }
    double us = now_us() - start;
    fmt::print("rate engine={} way={} size={} window={} us_per_op={:.4f} mops={:.3f} gbps={:.1f} "
               "refused={}\n",
               with.name, ways[way], size, window, us / static_cast<double>(most),
               static_cast<double>(most) / us,
               static_cast<double>(most) * static_cast<double>(size) / us / 1e3, full);
}

void probe::rate()
{
    std::vector<uint32_t> windows = {1, 8, 64, 256};
    if (auto only = static_cast<uint32_t>(opts_.number("window", 0))) {
        windows = {only};
    }
    for (const engine &with : engines()) {
        for (unsigned way = 0; way < 3; ++way) {
            for (uint32_t window : windows) {
                for (size_t size :
                     {8ul, 4096ul, 8192ul, 16384ul, 65536ul, 262144ul, 1ul << 20, 4ul << 20}) {
                    if ((size * window) <= arena_bytes / 2) {
                        rate_of(with, way, size, window);
                    }
                }
            }
        }
    }
}

// Lists of scattered blocks, one operation each.
void probe::lists()
{
    constexpr size_t blocks = 1024;
    for (const engine &with : engines()) {
        for (unsigned way = 0; way < 2; ++way) {
            for (size_t size : {512ul, 4096ul, 16384ul, 65536ul}) {
                std::vector<copy_piece> pieces;
                for (size_t i = 0; i < blocks; ++i) {
                    pieces.push_back(piece(way, (i * 7919 % blocks) * 2 * size, size));
                }
                with.wake(65536);
                std::vector<double> times;
                for (int i = 0; i < 30; ++i) {
                    counter all    = fresh();
                    all.comp.count = 2;
                    double start   = now_us();
                    while (with.submit(pieces.data(), blocks, op_end{&all.comp, nullptr}) !=
                           UCS_INPROGRESS) {
                        with.wake(65536);
                        start = now_us();
                    }
                    wait(with, all, 1);
                    times.push_back(now_us() - start);
                }
                double us = percentile(times, 0.5);
                fmt::print("list engine={} way={} size={} blocks={} us={:.2f} gbps={:.1f}\n",
                           with.name, ways[way], size, blocks, us,
                           static_cast<double>(size * blocks) / us / 1e3);
            }
        }
    }
}

// The processor's cost of a post and of a finished operation.
void probe::processor()
{
    for (const engine &with : engines()) {
        double     post_us = 0, poll_us = 0;
        const int  rounds = 200;
        unsigned   batch  = (with.name == "ring") ? 1024 : 128;
        copy_piece what   = piece(0, 0, 8);
        with.wake(65536);
        for (int round = 0; round < rounds; ++round) {
            counter all    = fresh();
            all.comp.count = 1 << 30;
            double start   = now_us();
            for (unsigned i = 0; i < batch; ++i) {
                while (with.submit(&what, 1, op_end{&all.comp, nullptr}) != UCS_INPROGRESS) {
                    with.wake(65536);
                }
            }
            post_us += now_us() - start;
            double pause = now_us();
            while (now_us() - pause < 1000) {
            }
            start             = now_us();
            unsigned finished = 0;
            while (finished < batch) {
                finished += with.poll(batch);
            }
            poll_us += now_us() - start;
        }
        fmt::print("cpu engine={} ns_per_post={:.1f} ns_per_finished={:.1f}\n", with.name,
                   post_us * 1e3 / (rounds * batch), poll_us * 1e3 / (rounds * batch));
    }
}

// How long a kernel takes to come, what asking for it costs, how long it stays.
void probe::life()
{
    std::vector<double> call, hello, leave;
    for (int i = 0; i < 50; ++i) {
        while (!ring_->quiet()) {
        }
        double start = now_us();
        do {
            ring_->summon(8);
            ring_->summon(8);
        } while (ring_->quiet()); // until it is allowed to launch again
        double launched = now_us();
        while (!ring_->ready()) {
        }
        double ready = now_us();
        while (!ring_->quiet()) {
        }
        call.push_back(launched - start);
        hello.push_back(ready - launched);
        leave.push_back(now_us() - ready);
    }
    fmt::print("life us_launch={:.2f} us_hello={:.2f} us_stay_without_work={:.2f}\n",
               percentile(call, 0.5), percentile(hello, 0.5), percentile(leave, 0.5));
}

// A few operations in pieces of the arena that nobody else uses, their sources
// new, their targets and what is around them wiped; every byte is compared.
void probe::soak_batch(std::mt19937_64 &random, uint64_t *bytes, uint64_t *errors)
{
    constexpr unsigned ops   = 24;
    constexpr size_t   place = 2ull << 20;
    struct one {
        unsigned way;
        size_t   size, src, dst, from;
    } all[ops];
    CUstream stream = gpus_[0].stream;

    for (unsigned i = 0; i < ops; ++i) {
        one &it         = all[i];
        it.way          = random() % 2;
        it.size         = 1 + random() % (1ull << (random() % 21));
        it.src          = i * place + 64 + random() % 64;
        it.dst          = arena_bytes / 2 + i * place + 64 + random() % 64;
        it.from         = random() % (host_bytes - place);
        CUdeviceptr src = gpus_[it.way].arena + it.src, dst = gpus_[1 - it.way].arena;
        NVL_NEED(cuMemcpyAsync, src, reinterpret_cast<CUdeviceptr>(pattern_ + it.from), it.size,
                 stream);
        NVL_NEED(cuMemsetD8Async, dst + it.dst - 64, 0xa5, it.size + 128, stream);
    }
    NVL_NEED(cuStreamSynchronize, stream);

    counter  done    = fresh();
    unsigned by_ring = 0;
    done.comp.count  = 1 << 30;
    for (one &it : all) {
        copy_piece what = {gpus_[1 - it.way].arena + it.dst, gpus_[it.way].arena + it.src, it.size};
        ring_->summon(it.size);
        op_end end{&done.comp, nullptr};
        if (ring_->submit(&what, 1, end) == UCS_INPROGRESS) {
            ++by_ring;
        } else if (lane_->submit(&what, 1, end) != UCS_INPROGRESS) {
            die("the lane takes nothing");
        }
        double until = now_us() + ((random() % 4 == 0) ? static_cast<double>(random() % 120) : 0);
        do {
            (void)ring_->poll(8);
            (void)lane_->poll(8);
        } while (now_us() < until);
    }
    double start = now_us();
    while (done.comp.count != (1 << 30) - static_cast<int>(ops)) {
        (void)ring_->poll(8);
        (void)lane_->poll(8);
        if (now_us() - start > 5e6) {
            die("soak: an operation is lost");
        }
    }
    soaked_by_ring_ += by_ring;

    for (one &it : all) {
        *bytes += it.size;
        NVL_NEED(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(host_),
                 gpus_[1 - it.way].arena + it.dst - 64, it.size + 128, stream);
        NVL_NEED(cuStreamSynchronize, stream);
        bool around = true;
        for (size_t k = 0; k < 64; ++k) {
            around = around && (host_[k] == 0xa5) && (host_[64 + it.size + k] == 0xa5);
        }
        if (!around || (memcmp(host_ + 64, pattern_ + it.from, it.size) != 0)) {
            ++*errors;
            fmt::print("soak_error way={} size={} src_offset={} dst_offset={} around={}\n",
                       ways[it.way], it.size, it.src % 64, it.dst % 64,
                       around ? "kept" : "written");
        }
    }
}

void probe::soak()
{
    std::mt19937_64 random(static_cast<uint64_t>(opts_.number("seed", 1)));
    double          end_us  = now_us() + opts_.number("soak_s", 20) * 1e6;
    uint64_t        batches = 0, bytes = 0, errors = 0;
    while ((now_us() < end_us) && (errors < 10)) {
        soak_batch(random, &bytes, &errors);
        ++batches;
    }
    const ring_counts &counts = ring_->counts();
    fmt::print("soak ops={} by_ring={} bytes={} errors={} launches={} handovers={} cancelled={} "
               "barren={} taken_back={} widened={}\n",
               batches * 24, soaked_by_ring_, bytes, errors, counts.launches, counts.handovers,
               counts.cancelled, counts.barren, counts.taken_back, counts.widened);
    if (errors != 0) {
        die("wrong bytes");
    }
}

void print_log(log_level level, const char *file, unsigned line, const char *, const char *message)
{
    fmt::print(stderr, "log level={} {}:{} {}\n", static_cast<int>(level), file, line, message);
}

void run(const options &opts)
{
    log_set_sink(print_log);
    log_set_level(static_cast<log_level>(static_cast<int>(opts.number("log", 5))));

    probe       it(opts);
    ring_config real = config_of(opts);
    // What is measured without the kernel's coming and going has it there.
    ring_config always  = real;
    always.idle_ns      = 200e6;
    always.stay_ns      = 2e9;
    always.patience_ns  = 1e9;
    ring_config &steady = (opts.number("real", 0) != 0) ? real : always;

    fmt::print("config kernel={} small_blocks={} large_blocks={} warps={} alone={} chunks={},{},{} "
               "idle_us={:.0f} stay_us={:.0f}\n",
               real.large_kernel, real.small_blocks, real.large_blocks, real.large_warps,
               real.alone_bytes, real.chunk_small_bytes, real.chunk_large_bytes,
               real.chunk_stream_bytes, steady.idle_ns / 1e3, steady.stay_ns / 1e3);
    it.open_ring(steady);
    if (opts.wants("lat")) {
        it.latency();
    }
    if (opts.wants("rate")) {
        it.rate();
        it.lists();
    }
    if (opts.wants("cpu")) {
        it.processor();
    }
    it.open_ring(real);
    if (opts.wants("life")) {
        it.life();
    }
    if (opts.wants("soak")) {
        it.soak();
    }
    it.close_ring();
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    nvl::run(nvl::options(argc, argv));
    return 0;
}
