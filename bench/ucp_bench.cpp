// SPDX-License-Identifier: BSD-3-Clause
//
// What ucx_perftest cannot measure, between two processes with a GPU each, through UCP's public
// API: writes both ways at once, and scattered blocks as one list (UCP's scatter-gather list) or as
// single operations posted in a loop. Prints `name block-size GB/s` a line; what arrived is compared
// outside of the timed part. Called by bench/run_gpu; which transport is used is up to UCX's
// environment.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <getopt.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "peer.h"

namespace nvl {

namespace {

constexpr size_t kib = 1 << 10;
constexpr size_t mib = 1 << 20;

struct settings {
    size_t   large       = 256 * mib; // of the writes both ways
    unsigned large_count = 150;       // of them, about 0.1 s
    unsigned blocks      = 2048;
    unsigned repeats     = 5;
    double   patience_s  = 30;
};

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

class bench {
public:
    bench(const settings &wanted, const channel &line, int rank)
        : wanted_(wanted),
          ucp_(ucp_functions::get()),
          gpu_(rank),
          sources_(bytes()),
          targets_(bytes()),
          peer_(line, rank, wanted.patience_s)
    {
        pattern_.resize(bytes());
        std::mt19937_64 random(7);
        for (size_t i = 0; i + sizeof(uint64_t) <= pattern_.size(); i += sizeof(uint64_t)) {
            uint64_t word = random();
            memcpy(&pattern_[i], &word, sizeof(word));
        }
        sources_.copy_in(0, pattern_.data(), pattern_.size());
        targets_.fill(0, 0, targets_.size());
        gpu_.synchronize();
        sources_region_ = peer_.share(sources_.pointer(), sources_.size(), UCS_MEMORY_TYPE_CUDA);
        targets_region_ = peer_.share(targets_.pointer(), targets_.size(), UCS_MEMORY_TYPE_CUDA);
        peer_.barrier();
    }

    ~bench()
    {
        peer_.unshare(targets_region_);
        peer_.unshare(sources_region_);
    }

    void both_ways();
    // Blocks to and from places in no order.
    void scattered(size_t block);
    bool is_wrong() const
    {
        return is_wrong_;
    }

private:
    enum class way { as_list, puts, gets };

    struct list {
        std::vector<void *>     buffers;
        std::vector<size_t>     lengths;
        std::vector<uint64_t>   addresses;
        std::vector<ucp_mem_h>  memories;
        std::vector<ucp_rkey_h> keys;
        ucp_dt_local_sgl_t      local  = {};
        ucp_dt_remote_sgl_t     remote = {};
    };

    size_t bytes() const
    {
        return std::max(wanted_.large, 2 * wanted_.blocks * 16 * kib);
    }

    void   choose_places(size_t block);
    bool   takes_lists();
    double run(way how, size_t block);
    void   make_list(size_t block);
    bool   post_list();
    void   post_singles(bool is_put, size_t block);
    void   compare(const char *name, way how, size_t block);
    void   say(const char *name, size_t block, double gb_per_s) const;

    settings              wanted_;
    const ucp_functions  &ucp_;
    gpu                   gpu_;
    gpu_memory            sources_;
    gpu_memory            targets_;
    peer                  peer_;
    shared_region         sources_region_;
    shared_region         targets_region_;
    std::vector<uint8_t>  pattern_;
    std::vector<uint32_t> from_, to_; // places of the blocks
    list                  list_;
    bool                  is_wrong_ = false;
};

void bench::say(const char *name, size_t block, double gb_per_s) const
{
    if (peer_.rank() == 0) {
        printf("%s %zu %.3f\n", name, block, gb_per_s);
        fflush(stdout);
    }
}

void bench::both_ways()
{
    constexpr unsigned            window = 4;
    std::vector<double>           sums;
    std::vector<ucs_status_ptr_t> slots(window);
    ucp_request_param_t           params = {};
    params.op_attr_mask                  = UCP_OP_ATTR_FIELD_MEMH;
    params.memh                          = sources_region_.memory;
    for (unsigned repeat = 0; repeat < wanted_.repeats; ++repeat) {
        peer_.barrier();
        double start = seconds_now();
        for (unsigned i = 0; i < wanted_.large_count; ++i) {
            ucs_status_ptr_t &slot = slots[i % window];
            (void)peer_.wait(slot, "a large put");
            slot = ucp_.ucp_put_nbx(peer_.endpoint(), sources_.pointer(), wanted_.large,
                                    targets_region_.remote_address, targets_region_.remote_key,
                                    &params);
        }
        for (ucs_status_ptr_t &slot : slots) {
            (void)peer_.wait(slot, "a large put");
            slot = nullptr;
        }
        peer_.flush();
        double mine =
            static_cast<double>(wanted_.large) * wanted_.large_count / (seconds_now() - start);
        double theirs = 0;
        peer_.barrier();
        peer_.line().send(&mine, sizeof(mine));
        peer_.line().receive(&theirs, sizeof(theirs));
        sums.push_back((mine + theirs) / 1e9);
    }
    std::vector<uint8_t> copy(wanted_.large);
    targets_.copy_out(0, copy.data(), copy.size());
    if (memcmp(copy.data(), pattern_.data(), copy.size()) != 0) {
        fprintf(stderr, "[%d] both_ways: what arrived is wrong\n", peer_.rank());
        is_wrong_ = true;
    }
    say("both_ways", wanted_.large, median(sums));
}

// Every second block of the memory, in two random orders.
void bench::choose_places(size_t block)
{
    std::mt19937_64 random(block);
    from_.resize(wanted_.blocks);
    for (uint32_t i = 0; i < wanted_.blocks; ++i) {
        from_[i] = static_cast<uint32_t>(2 * i * block);
    }
    to_ = from_;
    std::shuffle(from_.begin(), from_.end(), random);
    std::shuffle(to_.begin(), to_.end(), random);
}

// The arrays of a list are its user's, who has them before: not timed.
void bench::make_list(size_t block)
{
    list_ = list();
    list_.lengths.assign(from_.size(), block);
    list_.memories.assign(from_.size(), sources_region_.memory);
    list_.keys.assign(from_.size(), targets_region_.remote_key);
    for (size_t i = 0; i < from_.size(); ++i) {
        list_.buffers.push_back(sources_.pointer(from_[i]));
        list_.addresses.push_back(targets_region_.remote_address + to_[i]);
    }
    list_.local.field_mask = UCP_DT_LOCAL_SGL_FIELD_BUFFERS | UCP_DT_LOCAL_SGL_FIELD_LENGTHS |
                             UCP_DT_LOCAL_SGL_FIELD_MEMHS;
    list_.local.buffers     = list_.buffers.data();
    list_.local.lengths     = list_.lengths.data();
    list_.local.memhs       = list_.memories.data();
    list_.remote.field_mask = UCP_DT_REMOTE_SGL_FIELD_REMOTE_ADDRS |
                              UCP_DT_REMOTE_SGL_FIELD_LENGTHS | UCP_DT_REMOTE_SGL_FIELD_RKEYS;
    list_.remote.remote_addrs = list_.addresses.data();
    list_.remote.lengths      = list_.lengths.data();
    list_.remote.rkeys        = list_.keys.data();
}

bool bench::post_list()
{
    ucp_request_param_t params = {};
    params.op_attr_mask        = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REMOTE_DATATYPE |
                          UCP_OP_ATTR_FIELD_REMOTE | UCP_OP_ATTR_FIELD_REMOTE_COUNT;
    params.datatype        = ucp_dt_make_sgl();
    params.remote_datatype = ucp_dt_make_sgl();
    params.remote          = &list_.remote;
    params.remote_count    = list_.buffers.size();
    ucs_status_ptr_t request =
        ucp_.ucp_put_nbx(peer_.endpoint(), &list_.local, list_.buffers.size(),
                         UCP_REMOTE_ADDR_INVALID, UCP_RKEY_INVALID, &params);
    return peer_.wait(request, "a list") == UCS_OK;
}

void bench::post_singles(bool is_put, size_t block)
{
    std::vector<ucs_status_ptr_t> requests(from_.size());
    ucp_request_param_t           params = {};
    params.op_attr_mask                  = UCP_OP_ATTR_FIELD_MEMH;
    params.memh                          = is_put ? sources_region_.memory : targets_region_.memory;
    for (size_t i = 0; i < from_.size(); ++i) {
        requests[i] = is_put ? ucp_.ucp_put_nbx(peer_.endpoint(), sources_.pointer(from_[i]), block,
                                                targets_region_.remote_address + to_[i],
                                                targets_region_.remote_key, &params)
                             : ucp_.ucp_get_nbx(peer_.endpoint(), targets_.pointer(to_[i]), block,
                                                sources_region_.remote_address + from_[i],
                                                sources_region_.remote_key, &params);
    }
    for (ucs_status_ptr_t request : requests) {
        is_wrong_ |= peer_.wait(request, "a block") != UCS_OK;
    }
}

bool bench::takes_lists()
{
    choose_places(64);
    uint8_t answer = 0;
    // Nobody writes what the other one still compares.
    peer_.barrier();
    if (peer_.rank() == 0) {
        make_list(64);
        answer = post_list() ? 1 : 0;
        peer_.line().send(&answer, 1);
    } else {
        // The other one may need this one's progress.
        while (!peer_.line().try_receive(&answer)) {
            peer_.progress();
        }
    }
    return answer == 1;
}

// Rank 0 moves the blocks, several times; the median in GB/s.
double bench::run(way how, size_t block)
{
    std::vector<double> speeds = {0};
    targets_.fill(0, 0, targets_.size());
    gpu_.synchronize();
    peer_.barrier();
    if (peer_.rank() == 0) {
        make_list(block);
        speeds.clear();
        for (unsigned repeat = 0; repeat < 4 * wanted_.repeats; ++repeat) {
            double start = seconds_now();
            if (how == way::as_list) {
                is_wrong_ |= !post_list();
            } else {
                post_singles(how == way::puts, block);
            }
            peer_.flush();
            speeds.push_back(static_cast<double>(block) * static_cast<double>(from_.size()) /
                             (seconds_now() - start) / 1e9);
        }
    }
    peer_.barrier();
    return median(speeds);
}

void bench::compare(const char *name, way how, size_t block)
{
    // Puts arrive at rank 1, gets at rank 0.
    if (peer_.rank() == (how == way::gets ? 1 : 0)) {
        return;
    }
    std::vector<uint8_t> copy(2 * block * from_.size());
    targets_.copy_out(0, copy.data(), copy.size());
    for (size_t i = 0; i < from_.size(); ++i) {
        if (memcmp(&copy[to_[i]], &pattern_[from_[i]], block) != 0) {
            fprintf(stderr, "%s %zu: block %zu is wrong\n", name, block, i);
            is_wrong_ = true;
            return;
        }
    }
}

void bench::scattered(size_t block)
{
    struct {
        const char *name;
        way         how;
    } const ways[] = {
        {"list_put", way::as_list}, {"scattered_put", way::puts}, {"scattered_get", way::gets}};
    for (const auto &each : ways) {
        if (each.how == way::as_list && !takes_lists()) {
            continue;
        }
        choose_places(block);
        double speed = run(each.how, block);
        compare(each.name, each.how, block);
        say(each.name, block, speed);
    }
}

settings parse(int argc, char **argv)
{
    static const option names[] = {{"large", required_argument, nullptr, 'l'},
                                   {"count", required_argument, nullptr, 'c'},
                                   {"blocks", required_argument, nullptr, 'b'},
                                   {"repeats", required_argument, nullptr, 'r'},
                                   {nullptr, 0, nullptr, 0}};
    settings            wanted;
    for (int key; (key = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
        switch (key) {
        case 'l':
            wanted.large = strtoull(optarg, nullptr, 0);
            break;
        case 'c':
            wanted.large_count = static_cast<unsigned>(atoi(optarg));
            break;
        case 'b':
            wanted.blocks = static_cast<unsigned>(atoi(optarg));
            break;
        case 'r':
            wanted.repeats = static_cast<unsigned>(atoi(optarg));
            break;
        default:
            printf("usage: %s [--large BYTES] [--count N] [--blocks N] [--repeats N]\n", argv[0]);
            exit(2);
        }
    }
    return wanted;
}

int main_of(int argc, char **argv)
{
    settings wanted = parse(argc, argv);
    int      rank = 0, child = 0;
    channel  line     = channel::open(&rank, &child);
    bool     is_wrong = false;
    {
        bench b(wanted, line, rank);
        b.both_ways();
        b.scattered(4 * kib);
        b.scattered(16 * kib);
        is_wrong = b.is_wrong();
    }
    if (rank == 1) {
        return is_wrong ? 1 : 0;
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (is_wrong || status != 0) {
        fprintf(stderr, "ucp_bench: something was wrong (the other process: 0x%x)\n",
                static_cast<unsigned>(status));
        return 1;
    }
    return 0;
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    return nvl::main_of(argc, argv);
}
