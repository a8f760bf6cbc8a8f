// SPDX-License-Identifier: BSD-3-Clause
//
// Two processes, one GPU each, that do through stock UCP what takes a few bytes of the host: small puts of every size at
// any address, and every atomic operation on 4 and 8 bytes, on GPU memory of the other one. Contents and results are
// compared; then each adds to a counter of the other. With UCX_PROTO_INFO=y UCX says what it has chosen. --reset: at the
// end each resets its GPU, as cudaDeviceReset does, before it closes UCP.
// Usage: ucp_short [--puts-only] [--reset] [--count N]
// Exit: 0 good, 1 wrong bytes, 2 something failed. Linked with neither UCX nor CUDA.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "gpu.h"
#include "peer.h"

namespace nvl {

namespace {

constexpr size_t size       = 64 << 10;
constexpr double patience_s = 60;

class tester {
public:
    tester(const peer &other, int count) : other_(other), count_(count), mine_(size)
    {
        region_ = other.share(mine_.pointer(), size, UCS_MEMORY_TYPE_CUDA);
    }

    ~tester()
    {
        other_.unshare(region_);
    }

    tester(const tester &)            = delete;
    tester &operator=(const tester &) = delete;

    // The first process puts, the other one compares.
    void put()
    {
        std::vector<uint8_t> expected(size, 0xcd);
        mine_.copy_in(0, expected.data(), size);
        other_.barrier();
        size_t at = 1;
        for (size_t length = 1; length <= 130; ++length, at += length + 5) {
            std::vector<uint8_t> bytes(length);
            for (size_t i = 0; i < length; ++i) {
                bytes[i] = static_cast<uint8_t>(length + 3 * i);
            }
            std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<ptrdiff_t>(at));
            if (other_.rank() == 0) {
                ucp_request_param_t params = {};
                finish(ucp_.ucp_put_nbx(other_.endpoint(), bytes.data(), length,
                                        region_.remote_address + at, region_.remote_key, &params),
                       "put");
                std::fill(bytes.begin(), bytes.end(), 0xee);
            }
        }
        if (other_.rank() == 0) {
            other_.flush();
        }
        other_.barrier();
        std::vector<uint8_t> found(size);
        mine_.copy_out(0, found.data(), size);
        expect((other_.rank() == 0) || (found == expected), "small puts");
        other_.barrier();
    }

    template<typename word> void operations()
    {
        const word before  = static_cast<word>(0xf0e1d2c3b4a59687ull);
        const word operand = static_cast<word>(0x123456789abcdef1ull);
        struct row {
            ucp_atomic_op_t what;
            const char     *name;
            word            after;
            bool            has_post;
            word            reply; // what the reply buffer holds before: what to compare with
        };
        const row rows[] = {
            {UCP_ATOMIC_OP_ADD, "add", static_cast<word>(before + operand), true, 0},
            {UCP_ATOMIC_OP_AND, "and", static_cast<word>(before & operand), true, 0},
            {UCP_ATOMIC_OP_OR, "or", static_cast<word>(before | operand), true, 0},
            {UCP_ATOMIC_OP_XOR, "xor", static_cast<word>(before ^ operand), true, 0},
            {UCP_ATOMIC_OP_SWAP, "swap", operand, false, 0},
            // The buffer says what to compare with, the reply buffer what to write.
            {UCP_ATOMIC_OP_CSWAP, "cswap", operand, false, operand},
        };
        for (const row &one : rows) {
            for (bool fetch : {false, true}) {
                if (!fetch && !one.has_post) {
                    continue;
                }
                word now = before;
                mine_.copy_in(128, &now, sizeof(now));
                other_.barrier();
                if (other_.rank() == 0) {
                    bool is_cswap = one.what == UCP_ATOMIC_OP_CSWAP;
                    word value    = is_cswap ? before : operand;
                    word reply    = one.reply;
                    atomic(one.what, value, fetch ? &reply : nullptr, 128);
                    expect(!fetch || (reply == before), one.name);
                    other_.flush();
                }
                other_.barrier();
                mine_.copy_out(128, &now, sizeof(now));
                expect((other_.rank() == 0) || (now == one.after), one.name);
                other_.barrier();
            }
        }
    }

    // Each adds to the other's counter, both at once; one of them without a reply every second time.
    void count()
    {
        uint64_t counter = 0;
        mine_.copy_in(0, &counter, sizeof(counter));
        other_.barrier();
        for (int i = 0; i < count_; ++i) {
            uint64_t one = 1;
            if (other_.rank() == 0) {
                atomic(UCP_ATOMIC_OP_ADD, one, (i % 2 == 0) ? &counter : nullptr, 0);
            } else {
                uint64_t last = counter;
                atomic(UCP_ATOMIC_OP_ADD, one, &counter, 0);
                expect((i == 0) || (counter == last + 1), "nobody else adds here");
            }
        }
        other_.flush();
        other_.barrier();
        mine_.copy_out(0, &counter, sizeof(counter));
        expect(counter == static_cast<uint64_t>(count_), "sum");
        other_.barrier();
    }

    bool wrong() const
    {
        return wrong_;
    }

private:
    template<typename word> void atomic(ucp_atomic_op_t what, word value, word *reply, size_t at)
    {
        ucp_request_param_t params = {};
        params.op_attr_mask        = UCP_OP_ATTR_FIELD_DATATYPE;
        params.datatype            = ucp_dt_make_contig(sizeof(word));
        if (reply != nullptr) {
            params.op_attr_mask |= UCP_OP_ATTR_FIELD_REPLY_BUFFER;
            params.reply_buffer = reply;
        }
        finish(ucp_.ucp_atomic_op_nbx(other_.endpoint(), what, &value, 1,
                                      region_.remote_address + at, region_.remote_key, &params),
               "atomic operation");
    }

    void finish(ucs_status_ptr_t request, const char *words) const
    {
        ucs_status_t status = other_.wait(request, words);
        if (status != UCS_OK) {
            std::fprintf(stderr, "%s: %s\n", words, ucp_.status_text(status));
            _Exit(2);
        }
    }

    void expect(bool is_right, const char *words)
    {
        if (!is_right) {
            std::fprintf(stderr, "%s: wrong\n", words);
            wrong_ = true;
        }
    }

    const ucp_functions &ucp_ = ucp_functions::get();
    const peer          &other_;
    int                  count_;
    gpu_memory           mine_;
    shared_region        region_;
    bool                 wrong_ = false;
};

int run(bool puts_only, bool reset, int count, const channel &line, int rank)
{
    // What UCX says of its own accord goes to standard output; the tables of two would mix.
    if ((rank == 1) && (std::freopen("/dev/null", "w", stdout) == nullptr)) {
        return 2;
    }
    gpu  here(rank);
    peer other(line, rank, patience_s, puts_only ? 0 : (UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64));
    bool wrong = false;
    {
        tester all(other, count);
        all.put();
        if (!puts_only) {
            all.operations<uint32_t>();
            all.operations<uint64_t>();
            all.count();
        }
        wrong = all.wrong();
    }
    if (reset) {
        other.barrier(); // each has unmapped what the other one owns
        here.reset();
    }
    return wrong ? 1 : 0;
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    bool puts_only = false;
    bool reset     = false;
    int  count     = 300;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--puts-only") == 0) {
            puts_only = true;
        } else if (std::strcmp(argv[i], "--reset") == 0) {
            reset = true;
        } else if ((std::strcmp(argv[i], "--count") == 0) && (i + 1 < argc)) {
            count = std::atoi(argv[++i]);
        } else {
            std::fputs("ucp_short [--puts-only] [--reset] [--count N]\n", stderr);
            return 2;
        }
    }
    int          rank = 0, child = 0, status = 0;
    nvl::channel line   = nvl::channel::open(&rank, &child);
    int          result = nvl::run(puts_only, reset, count, line, rank);
    std::fflush(stdout);
    if (rank == 0) {
        waitpid(child, &status, 0);
        int other = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
        result    = std::max(result, other);
        std::puts(result == 0 ? "all right" : "not right");
    }
    return result;
}
