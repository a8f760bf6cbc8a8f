// SPDX-License-Identifier: BSD-3-Clause
//
// What the copy kernel costs the work beside it, and what an application's kernel that holds the
// whole GPU costs a copy. Without UCX: two GPUs in this process. Each kind of work runs beside no
// copy kernel, a kernel of one warp that does nothing (what staying costs whoever stays), a copy
// kernel that waits for work (small and large launch) and one that is busy, in turns; a figure is
// the median. Run by hand or by test/gpu/measure_on_gpus; needs libcuda.so.1, and
// libcublas for the GEMM. Prints `work state value unit ratio` a line; --help.
#include <dlfcn.h>
#include <getopt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "beside_image.h"
#include "driver/cuda.h"
#include "driver/handles.h"
#include "engine/ring/ring_engine.h"
#include "route/gpu_engine.h"

namespace nvl {

namespace {

constexpr size_t   mib           = 1 << 20;
constexpr size_t   gemm_rank     = 8192; // of square bf16 matrices, 128 MiB each
constexpr unsigned block_threads = 256;
constexpr unsigned block_shared  = 200 << 10; // of an SM's 228 KiB: one block an SM

struct settings {
    int      gpus[2] = {0, 1};
    unsigned repeats = 9;
    size_t   bytes   = 256 * mib; // of host copies and of the memory-bound kernel
    bool     gemm    = true;
};

double now_us()
{
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

[[noreturn]] void die(const std::string &why)
{
    fmt::print(stderr, "beside: {}\n", why);
    exit(1);
}

const cuda_api &cuda()
{
    static const cuda_api &api = []() -> const cuda_api & {
        std::string     why;
        const cuda_api *loaded = cuda_api::load(&why);
        if (loaded == nullptr) {
            die(why);
        }
        return *loaded;
    }();
    return api;
}

void need(CUresult code, const char *call)
{
    if (code != CUDA_SUCCESS) {
        die(fmt::format("{}: {}", call, cuda().error_text(code)));
    }
}

#define NVL_NEED(_call, ...) need(cuda()._call(__VA_ARGS__), #_call)

// ---- cuBLAS, if it is there --------------------------------------------------

// Only what one GEMM needs; values of library_types.h and cublas_api.h.
class blas {
public:
    explicit blas(CUstream stream)
    {
        for (const char *name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
            if ((library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) {
                break;
            }
        }
        if (library_ == nullptr) {
            return;
        }
        auto create = find<int (*)(void **)>("cublasCreate_v2");
        auto set    = find<int (*)(void *, CUstream)>("cublasSetStream_v2");
        gemm_       = find<gemm_function>("cublasGemmEx");
        if ((create == nullptr) || (set == nullptr) || (gemm_ == nullptr) ||
            (create(&handle_) != 0) || (set(handle_, stream) != 0)) {
            gemm_ = nullptr;
        }
    }

    bool is_there() const
    {
        return gemm_ != nullptr;
    }

    void gemm(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c) const
    {
        constexpr int no_transpose = 0, bf16 = 14, compute_f32 = 68, default_algorithm = -1;
        const float   one = 1, zero = 0;
        const int     n = gemm_rank;
        if (gemm_(handle_, no_transpose, no_transpose, n, n, n, &one, to_pointer(a), bf16, n,
                  to_pointer(b), bf16, n, &zero, to_pointer(c), bf16, n, compute_f32,
                  default_algorithm) != 0) {
            die("cublasGemmEx failed");
        }
    }

private:
    using gemm_function = int (*)(void *, int, int, int, int, int, const void *, const void *, int,
                                  int, const void *, int, int, const void *, void *, int, int, int,
                                  int);

    static void *to_pointer(CUdeviceptr address)
    {
        return reinterpret_cast<void *>(address);
    }

    template<typename function> function find(const char *name) const
    {
        return reinterpret_cast<function>(dlsym(library_, name));
    }

    void         *library_ = nullptr; // stays open
    void         *handle_  = nullptr;
    gemm_function gemm_    = nullptr;
};

// ---- the machine -------------------------------------------------------------

struct gpu_place {
    CUdevice    device  = 0;
    CUcontext   context = nullptr;
    CUdeviceptr memory  = 0;
    CUstream    stream  = nullptr;
};

enum class state { nothing, one_warp, small, large, busy };
constexpr state   states[]      = {state::nothing, state::one_warp, state::small, state::large,
                                   state::busy};
const char *const state_names[] = {"alone", "beside_one_warp", "beside_small", "beside_large",
                                   "beside_busy"};

class bench {
public:
    explicit bench(const settings &wanted);
    void beside();
    void under_held_sms();

private:
    struct work {
        const char           *name;
        const char           *unit;
        std::function<void()> start;  // on stream(), not waited for
        double                amount; // of `unit` times microseconds
        std::function<bool()> is_there;
    };

    CUstream stream() const
    {
        return gpus_[0].stream;
    }

    std::vector<work> kinds();
    void              copy_memory(unsigned threads);
    CUfunction        kernel(const char *name);
    void              launch(const char *name, unsigned blocks, unsigned threads, unsigned shared,
                             std::vector<void *> arguments, CUstream where = nullptr);
    void              enter(state which);
    void              leave();
    void              hold(unsigned blocks, unsigned threads, CUstream where);
    void              let_go(CUstream where);
    void              keep_busy();
    double            time_of(const work &what);
    double            copy_time(gpu_engine &engine);

    settings                     wanted_;
    gpu_place                    gpus_[2];
    void                        *host_         = nullptr;
    void                        *words_        = nullptr; // what hold() waits for and says
    CUstream                     other_stream_ = nullptr;
    CUmodule                     module_       = nullptr;
    int                          sms_          = 0;
    std::unique_ptr<blas>        blas_;
    std::unique_ptr<lane>        lane_;
    std::unique_ptr<ring_engine> ring_;
    std::thread                  feeder_;
    std::atomic<bool>            feeding_{false};
    std::atomic<uint64_t>        fed_bytes_{0};
};

bench::bench(const settings &wanted) : wanted_(wanted)
{
    const size_t matrix = gemm_rank * gemm_rank * 2;
    const size_t size   = std::max(2 * wanted.bytes, 3 * matrix);
    for (int i = 0; i < 2; ++i) {
        gpu_place &it = gpus_[i];
        NVL_NEED(cuDeviceGet, &it.device, wanted.gpus[i]);
        NVL_NEED(cuDevicePrimaryCtxRetain, &it.context, it.device);
        NVL_NEED(cuCtxPushCurrent, it.context);
        NVL_NEED(cuMemAlloc, &it.memory, size);
        NVL_NEED(cuStreamCreateWithPriority, &it.stream, CU_STREAM_NON_BLOCKING, 0);
        NVL_NEED(cuMemsetD8Async, it.memory, 1, size, it.stream);
        NVL_NEED(cuStreamSynchronize, it.stream);
    }
    NVL_NEED(cuCtxPushCurrent, gpus_[0].context);
    if (gpus_[0].device != gpus_[1].device) {
        CUresult code = cuda().cuCtxEnablePeerAccess(gpus_[1].context, 0);
        if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            need(code, "cuCtxEnablePeerAccess");
        }
    }
    NVL_NEED(cuMemHostAlloc, &host_, wanted.bytes, CU_MEMHOSTALLOC_PORTABLE);
    NVL_NEED(cuMemHostAlloc, &words_, 4096, CU_MEMHOSTALLOC_PORTABLE);
    NVL_NEED(cuStreamCreateWithPriority, &other_stream_, CU_STREAM_NON_BLOCKING, 0);
    NVL_NEED(cuDeviceGetAttribute, &sms_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
             gpus_[0].device);
    if ((beside_image_size_bytes == 0) ||
        (cuda().cuModuleLoadData(&module_, beside_image) != CUDA_SUCCESS)) {
        fmt::print("# no kernels of an application: this build or this driver has none\n");
        module_ = nullptr;
    }
    if (wanted.gemm) {
        blas_ = std::make_unique<blas>(stream());
    }
    auto made = lane::create(cuda(), gpus_[0].context, lane_config());
    if (!made.ok()) {
        die("no copy engine lane");
    }
    lane_ = std::move(made.value());
}

CUfunction bench::kernel(const char *name)
{
    CUfunction function = nullptr;
    NVL_NEED(cuModuleGetFunction, &function, module_, name);
    if (cuda().cuFuncLoad != nullptr) {
        NVL_NEED(cuFuncLoad, function);
    }
    // As the copy kernel: one that stays must not take the room for others' shared memory.
    NVL_NEED(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
             CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    return function;
}

void bench::launch(const char *name, unsigned blocks, unsigned threads, unsigned shared,
                   std::vector<void *> arguments, CUstream where)
{
    static std::map<std::string, CUfunction> known;
    CUfunction                              &function = known[name];
    if (function == nullptr) {
        function = kernel(name);
        if (shared > (48 << 10)) {
            NVL_NEED(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                     static_cast<int>(shared));
        }
    }
    NVL_NEED(cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, shared,
             (where != nullptr) ? where : stream(), arguments.data(), nullptr);
}

// A kernel that stays until let_go(), 10 s at most; returns once all its blocks run.
void bench::hold(unsigned blocks, unsigned threads, CUstream where)
{
    auto *release = static_cast<uint32_t *>(words_);
    auto *started = release + 64;
    __atomic_store_n(release, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(started, 0, __ATOMIC_SEQ_CST);
    CUdeviceptr at = reinterpret_cast<CUdeviceptr>(release), begun = at + 256;
    uint64_t    most_ns = 10000000000;
    launch("nvl_beside_hold", blocks, threads, 0, {&at, &begun, &most_ns}, where);
    for (double start = now_us();
         (__atomic_load_n(started, __ATOMIC_SEQ_CST) != blocks) && (now_us() - start < 1e6);) {
    }
}

void bench::let_go(CUstream where)
{
    __atomic_store_n(static_cast<uint32_t *>(words_), 1, __ATOMIC_SEQ_CST);
    NVL_NEED(cuStreamSynchronize, where);
}

void bench::copy_memory(unsigned threads)
{
    CUdeviceptr from = gpus_[0].memory, to = from + wanted_.bytes;
    uint64_t    lines = wanted_.bytes / 16;
    launch("nvl_beside_memory", static_cast<unsigned>(8 * sms_), threads, 0, {&to, &from, &lines});
}

std::vector<bench::work> bench::kinds()
{
    const CUdeviceptr a       = gpus_[0].memory;
    const CUdeviceptr matrix  = gemm_rank * gemm_rank * 2;
    const CUdeviceptr host    = reinterpret_cast<CUdeviceptr>(host_);
    const double      bytes   = static_cast<double>(wanted_.bytes);
    const auto        always  = [] { return true; };
    const auto        kernels = [this] { return module_ != nullptr; };
    const double      rank    = gemm_rank;
    return {
        {"host_to_gpu", "GB/s", [=] { NVL_NEED(cuMemcpyAsync, a, host, wanted_.bytes, stream()); },
         bytes / 1e3, always},
        {"gpu_to_host", "GB/s", [=] { NVL_NEED(cuMemcpyAsync, host, a, wanted_.bytes, stream()); },
         bytes / 1e3, always},
        {"memory_bound_kernel", "GB/s", [=] { copy_memory(2 * block_threads); }, 2 * bytes / 1e3,
         kernels},
        // As many threads as the GPU holds at once: one warp elsewhere, and a block comes later.
        {"memory_bound_kernel_that_fills_all", "GB/s", [=] { copy_memory(block_threads); },
         2 * bytes / 1e3, kernels},
        {"one_block_an_sm", "1/ms",
         [=] {
             CUdeviceptr out   = a;
             uint32_t    turns = 400000;
             launch("nvl_beside_block", static_cast<unsigned>(sms_), block_threads, block_shared,
                    {&out, &turns});
         },
         1e3, kernels},
        {"gemm_8192_bf16", "TFLOP/s", [=] { blas_->gemm(a, a + matrix, a + 2 * matrix); },
         2 * rank * rank * rank / 1e6, [this] { return (blas_ != nullptr) && blas_->is_there(); }},
    };
}

// ---- the copy kernel's states --------------------------------------------------

void bench::enter(state which)
{
    if (which == state::nothing) {
        return;
    }
    if (which == state::one_warp) {
        hold(1, 32, other_stream_);
        return;
    }
    ring_config config;
    config.idle_ns     = 10e9;
    config.stay_ns     = 60e9;
    config.patience_ns = 1e9;
    auto made = ring_engine::create(cuda(), gpus_[0].context, gpus_[0].device, *lane_, config);
    if (!made.ok()) {
        die("no copy kernel");
    }
    ring_        = std::move(made.value());
    size_t size  = (which == state::small) ? 8 : 65536;
    double start = now_us();
    while (!ring_->ready() || (now_us() - start < 100)) {
        ring_->summon(size);
        if (now_us() - start > 2e6) {
            die("the copy kernel does not report in");
        }
    }
    if (which == state::busy) {
        feeding_.store(true);
        fed_bytes_.store(0);
        feeder_ = std::thread([this] { keep_busy(); });
    }
}

// Pushes of 64 KiB, some dozens in flight.
void bench::keep_busy()
{
    constexpr size_t size = 65536;
    need(cuda().cuCtxPushCurrent(gpus_[0].context), "cuCtxPushCurrent");
    uct_completion_t done = {[](uct_completion_t *) {}, 1 << 30, UCS_OK};
    copy_piece       piece{gpus_[1].memory, gpus_[0].memory + 2 * wanted_.bytes - size, size};
    while (feeding_.load(std::memory_order_relaxed)) {
        done.count = 1 << 30;
        if (ring_->submit(&piece, 1, op_end{&done, nullptr}) == UCS_INPROGRESS) {
            fed_bytes_.fetch_add(size, std::memory_order_relaxed);
        }
        (void)ring_->poll(64);
    }
    while (ring_->in_flight() != 0) {
        (void)ring_->poll(64);
    }
}

void bench::leave()
{
    if (feeder_.joinable()) {
        feeding_.store(false);
        feeder_.join();
    }
    ring_.reset();
    if (module_ != nullptr) {
        let_go(other_stream_);
    }
}

// ---- measuring -----------------------------------------------------------------

double bench::time_of(const work &what)
{
    double start = now_us();
    what.start();
    NVL_NEED(cuStreamSynchronize, stream());
    return now_us() - start;
}

void bench::beside()
{
    std::vector<work>                                       all = kinds();
    std::map<std::pair<size_t, state>, std::vector<double>> times;
    double                                                  fed_gb_s = 0;
    for (unsigned repeat = 0; repeat < wanted_.repeats; ++repeat) {
        for (state which : states) {
            if ((which == state::one_warp) && (module_ == nullptr)) {
                continue;
            }
            enter(which);
            double start = now_us();
            for (size_t i = 0; i < all.size(); ++i) {
                if (all[i].is_there()) {
                    if (repeat == 0) {
                        (void)time_of(all[i]); // what is loaded at first use
                    }
                    times[{i, which}].push_back(time_of(all[i]));
                }
            }
            if (which == state::busy) {
                fed_gb_s = static_cast<double>(fed_bytes_.load()) / (now_us() - start) / 1e3;
            }
            leave();
        }
    }
    for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].is_there()) {
            fmt::print("# {}: not measured, what it needs is not here\n", all[i].name);
            continue;
        }
        double alone = median(times[{i, state::nothing}]);
        for (state which : states) {
            if (times[{i, which}].empty()) {
                continue;
            }
            double time = median(times[{i, which}]);
            fmt::print("{} {} {:.3f} {} {:.4f}\n", all[i].name,
                       state_names[static_cast<size_t>(which)], all[i].amount / time, all[i].unit,
                       alone / time);
        }
    }
    fmt::print("# the busy copy kernel moved {:.1f} GB/s\n", fed_gb_s);
}

double bench::copy_time(gpu_engine &engine)
{
    uct_completion_t done  = {[](uct_completion_t *) {}, 1, UCS_OK};
    copy_piece       piece = {gpus_[1].memory, gpus_[0].memory, 8};
    done.count             = 2; // never called
    double start           = now_us();
    if (engine.copy(direction::push, 1, &piece, 1, op_end{&done, nullptr}, true) !=
        UCS_INPROGRESS) {
        die("not posted");
    }
    while (done.count == 2) {
        (void)engine.poll(16);
        if (now_us() - start > 5e6) {
            die("a copy did not end while an application's kernel ran");
        }
    }
    return now_us() - start;
}

// A kernel on every SM, then copies one at a time, with and without the copy kernel.
void bench::under_held_sms()
{
    if ((module_ == nullptr) || (gpus_[0].device == gpus_[1].device)) {
        fmt::print("# copy while all SMs are held: not measured, no kernels or one GPU\n");
        return;
    }
    std::map<bool, std::vector<double>> times;
    for (unsigned repeat = 0; repeat < wanted_.repeats; ++repeat) {
        for (bool use_ring : {false, true}) {
            gpu_engine_config config;
            config.use_ring = use_ring;
            auto made       = gpu_engine::create(cuda(), gpus_[0].device, gpus_[0].context, config);
            if (!made.ok()) {
                die("no engine");
            }
            hold(static_cast<unsigned>(2 * sms_), 1024, stream()); // 2 x 1024 threads fill an SM
            std::vector<double> some;
            for (int i = 0; i < 200; ++i) {
                some.push_back(copy_time(*made.value()));
            }
            times[use_ring].push_back(median(some));
            let_go(stream());
        }
    }
    double engine = median(times[false]), both = median(times[true]);
    fmt::print("copy_8B_while_all_sms_are_held copy_engine_only {:.3f} us 1.0000\n", engine);
    fmt::print("copy_8B_while_all_sms_are_held both_engines {:.3f} us {:.4f}\n", both,
               engine / both);
}

[[noreturn]] void usage(int code)
{
    fmt::print("usage: beside [--gpus A,B] [--repeats N] [--bytes BYTES] [--no-gemm]\n"
               "  ratio: the figure's rate over the rate alone; 1 is no loss\n");
    exit(code);
}

settings parse(int argc, char **argv)
{
    static const option names[] = {
        {"gpus", required_argument, nullptr, 'g'},  {"repeats", required_argument, nullptr, 'r'},
        {"bytes", required_argument, nullptr, 'b'}, {"no-gemm", no_argument, nullptr, 'n'},
        {"help", no_argument, nullptr, 'h'},        {nullptr, 0, nullptr, 0}};
    settings wanted;
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
        case 'n':
            wanted.gemm = false;
            break;
        case 'b':
            wanted.bytes = std::max<size_t>(strtoull(optarg, nullptr, 0), 65536);
            break;
        default:
            usage(key == 'h' ? 0 : 2);
        }
    }
    return wanted;
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    nvl::bench it(nvl::parse(argc, argv));
    it.beside();
    it.under_held_sms();
    return 0;
}
