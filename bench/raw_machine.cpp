// SPDX-License-Identifier: BSD-3-Clause
//
// The machine and the table of raw_limits.
#include "raw_machine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "driver/library.h"

namespace nvl {

namespace {

using get_proc_address = CUresult (*)(const char *, void **, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult *);

const cuda_api &load()
{
    std::string     why;
    const cuda_api *cuda = cuda_api::load(&why);
    if (cuda == nullptr) {
        fmt::print("skipped: {}\n", why);
        exit(77);
    }
    return *cuda;
}

} // namespace

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

double mean(const std::vector<double> &values)
{
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void raw_die(const std::string &why)
{
    fmt::print(stderr, "raw_limits: {}\n", why);
    exit(1);
}

void raw_table::add(const std::string &name, const std::string &way, size_t size_bytes,
                    double value, const std::string &unit)
{
    key                  at{name, way, size_bytes, unit};
    std::vector<double> &values = values_[at];
    if (values.empty()) {
        order_.push_back(at);
    }
    values.push_back(value);
}

void raw_table::add_stream(const std::string &name, const std::string &way, size_t size_bytes,
                           double ops, double us)
{
    add(name, way, size_bytes, ops * static_cast<double>(size_bytes) / us / 1e3, "GB/s");
    if (size_bytes <= 64 * kib) {
        add(name, way, size_bytes, ops / us, "Mop/s");
    }
}

void raw_table::print()
{
    for (const key &at : order_) {
        const std::vector<double> &values = values_[at];
        const auto [low, high]            = std::minmax_element(values.begin(), values.end());
        fmt::print("limit {} {} {} {:.5g} {} {:.5g} {:.5g}\n", std::get<0>(at), std::get<1>(at),
                   std::get<2>(at), median(values), std::get<3>(at), *low, *high);
    }
    fflush(stdout);
    order_.clear();
    values_.clear();
}

raw_machine::raw_machine(const raw_settings &wanted) : wanted_(wanted), cuda_(load())
{
    int count = 0;
    NVL_RAW(*this, cuDeviceGetCount, &count);
    if (std::max(wanted.gpus[0], wanted.gpus[1]) >= count) {
        fmt::print("skipped: two GPUs are needed, {} there\n", count);
        exit(77);
    }
    const size_t half = std::max(wanted.largest, 2ul * wanted.list_blocks * 64 * kib);
    for (unsigned i = 0; i < 2; ++i) {
        raw_gpu &it = gpus_[i];
        NVL_RAW(*this, cuDeviceGet, &it.device, wanted.gpus[i]);
        NVL_RAW(*this, cuDevicePrimaryCtxRetain, &it.context, it.device);
        NVL_RAW(*this, cuCtxPushCurrent, it.context);
        NVL_RAW(*this, cuMemAlloc, &it.sources, 2 * half);
        it.targets = it.sources + half;
        NVL_RAW(*this, cuStreamCreateWithPriority, &it.stream, CU_STREAM_NON_BLOCKING, 0);
        NVL_RAW(*this, cuStreamCreateWithPriority, &it.second, CU_STREAM_NON_BLOCKING, 0);
        NVL_RAW(*this, cuMemsetD8Async, it.sources, 0, 2 * half, it.stream);
        sync(it.stream);
        char name[96] = "";
        NVL_RAW(*this, cuDeviceGetName, name, sizeof(name), it.device);
        fmt::print("# GPU {}: {}\n", wanted.gpus[i], name);
    }
    fmt::print("# driver {}.{}\n", cuda_.version / 1000, cuda_.version % 1000 / 10);
    // One GPU in both places: what a machine with a single one can tell.
    for (unsigned i = 0; (i < 2) && (wanted.gpus[0] != wanted.gpus[1]); ++i) {
        int reaches = 0;
        NVL_RAW(*this, cuDeviceCanAccessPeer, &reaches, gpus_[i].device, gpus_[1 - i].device);
        if (reaches == 0) {
            fmt::print("skipped: GPU {} does not reach the other one's memory\n", wanted.gpus[i]);
            exit(77);
        }
        enter(i);
        CUresult code = cuda_.cuCtxEnablePeerAccess(gpus_[1 - i].context, 0);
        if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            need(code, "cuCtxEnablePeerAccess");
        }
    }
    enter(0);
    host_ = static_cast<uint8_t *>(host_alloc(wanted.largest));
    std::mt19937_64 random(7);
    for (size_t at = 0; at < wanted.largest; at += sizeof(uint64_t)) {
        const uint64_t word = random();
        memcpy(host_ + at, &word, sizeof(word));
    }
    for (const raw_gpu &it : gpus_) {
        NVL_RAW(*this, cuMemcpyAsync, it.sources, reinterpret_cast<CUdeviceptr>(host_),
                wanted.largest, gpus_[0].stream);
    }
    sync(gpus_[0].stream);
}

void raw_machine::enter(unsigned gpu) const
{
    // In place of the one before: the stack must not grow with the figures.
    CUcontext before;
    NVL_RAW(*this, cuCtxPopCurrent, &before);
    NVL_RAW(*this, cuCtxPushCurrent, gpus_[gpu].context);
}

void raw_machine::need(CUresult code, const char *call) const
{
    if (code != CUDA_SUCCESS) {
        raw_die(fmt::format("{}: {}", call, cuda_.error_text(code)));
    }
}

void raw_machine::sync(CUstream stream) const
{
    NVL_RAW(*this, cuStreamSynchronize, stream);
}

void *raw_machine::host_alloc(size_t size_bytes) const
{
    void *block = nullptr;
    NVL_RAW(*this, cuMemHostAlloc, &block, size_bytes, CU_MEMHOSTALLOC_PORTABLE);
    std::fill_n(static_cast<uint8_t *>(block), size_bytes, static_cast<uint8_t>(0));
    return block;
}

void *raw_machine::find(const char *name, int version) const
{
    static const library driver{"libcuda.so.1"};
    auto  get   = reinterpret_cast<get_proc_address>(driver.symbol("cuGetProcAddress_v2"));
    void *found = nullptr;
    CUdriverProcAddressQueryResult result;
    if ((get == nullptr) ||
        (get(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &result) != CUDA_SUCCESS)) {
        return nullptr;
    }
    return found;
}

std::vector<raw_way> gpu_ways(const raw_machine &machine)
{
    const raw_gpu &mine = machine.gpu(0), &peer = machine.gpu(1);
    return {{"push", peer.targets, mine.sources}, {"pull", mine.targets, peer.sources}};
}

std::vector<raw_way> host_ways(const raw_machine &machine)
{
    const raw_gpu    &mine = machine.gpu(0), &peer = machine.gpu(1);
    const CUdeviceptr host = reinterpret_cast<CUdeviceptr>(machine.host());
    return {{"host_to_own", mine.targets, host},
            {"host_to_peer", peer.targets, host},
            {"own_to_host", host, mine.sources},
            {"peer_to_host", host, peer.sources}};
}

std::vector<std::pair<size_t, size_t>> scattered_places(unsigned blocks, size_t block_bytes)
{
    std::mt19937_64     random(block_bytes);
    std::vector<size_t> to, from;
    for (unsigned i = 0; i < blocks; ++i) {
        from.push_back(2 * i * block_bytes);
    }
    to = from;
    std::shuffle(from.begin(), from.end(), random);
    std::shuffle(to.begin(), to.end(), random);
    std::vector<std::pair<size_t, size_t>> places;
    for (unsigned i = 0; i < blocks; ++i) {
        places.emplace_back(to[i], from[i]);
    }
    return places;
}

} // namespace nvl
