// SPDX-License-Identifier: BSD-3-Clause
//
// Two processes, one GPU each, that let UCP choose: put, get, tag and active messages between GPU and host memory, two
// sizes each, every byte compared. With UCX_PROTO_INFO=y UCX writes what it has chosen, for all sizes; each process
// leaves its output in a file of its own. test_choices reads those.
// Usage: ucp_choices [--gpus A,B] [--gpu-only] [--memory KIND] [--env0 NAME=VALUE] [--env1 NAME=VALUE] LOG0 LOG1
// --gpu-only: from GPU memory to GPU memory and nothing else. --memory: as ucp_check has it.
// Exit: 0 good, 1 wrong bytes, 2 something failed. Linked with neither UCX nor CUDA.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <getopt.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "peer.h"

namespace nvl {

namespace {

constexpr size_t   sizes[]    = {8, 5000, 300000, 3000000};
constexpr size_t   most       = 3000000;
constexpr unsigned am_id      = 7;
constexpr double   patience_s = 60;

struct settings {
    int                      gpus[2] = {0, 1};
    std::vector<std::string> env[2];
    std::string              log[2];
    bool                     gpu_only = false;
    allocate_as              memory   = allocate_as::alloc;
};

// Memory of one kind, and what the peer has of it.
class buffer {
public:
    buffer(const peer &other, bool on_gpu, size_t size, allocate_as as) : other_(other)
    {
        if (on_gpu) {
            device_  = std::make_unique<gpu_memory>(size, as);
            pointer_ = device_->pointer();
        } else {
            host_.resize(size);
            pointer_ = host_.data();
        }
        region_ = other.share(pointer_, size, on_gpu ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST);
    }
    ~buffer()
    {
        other_.unshare(region_);
    }
    buffer(const buffer &)            = delete;
    buffer &operator=(const buffer &) = delete;

    void *pointer() const
    {
        return pointer_;
    }
    const shared_region &region() const
    {
        return region_;
    }
    void write(const std::vector<uint8_t> &bytes)
    {
        if (device_) {
            device_->copy_in(0, bytes.data(), bytes.size());
        } else {
            std::memcpy(pointer_, bytes.data(), bytes.size());
        }
    }
    std::vector<uint8_t> read(size_t size) const
    {
        std::vector<uint8_t> bytes(size);
        if (device_) {
            device_->copy_out(0, bytes.data(), size);
        } else {
            std::memcpy(bytes.data(), pointer_, size);
        }
        return bytes;
    }

private:
    const peer                 &other_;
    std::unique_ptr<gpu_memory> device_;
    std::vector<uint8_t>        host_;
    void                       *pointer_ = nullptr;
    shared_region               region_;
};

std::vector<uint8_t> pattern(size_t size, unsigned seed)
{
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<uint8_t>(seed + i * 7 + (i >> 8));
    }
    return bytes;
}

struct arrival {
    const peer      *other;
    void            *to;
    size_t           size;
    ucs_status_ptr_t request;
    bool             here;
};

ucs_status_t on_message(void *arg, const void *, size_t, void *data, size_t size,
                        const ucp_am_recv_param_t *param)
{
    auto                *self   = static_cast<arrival *>(arg);
    const ucp_functions &ucp    = ucp_functions::get();
    ucp_request_param_t  params = {};
    self->here                  = true;
    self->request = ucp.ucp_am_recv_data_nbx(self->other->worker(), data, self->to, size, &params);
    return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 ? UCS_INPROGRESS : UCS_OK;
}

class chooser {
public:
    chooser(const peer &other, int rank) : other_(other), rank_(rank)
    {
        ucp_am_handler_param_t handler = {};
        handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                             UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
        handler.id    = am_id;
        handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
        handler.cb    = on_message;
        handler.arg   = &arrival_;
        (void)ucp_.ucp_worker_set_am_recv_handler(other.worker(), &handler);
        other.barrier();
    }

    // `ours` is this process's buffer, `theirs` says where the target's is; the first process starts the operation.
    void run(const char *operation, const char *words, buffer &ours, const shared_region &theirs,
             size_t size)
    {
        std::string what   = operation;
        bool        reads  = what == "get";
        bool        source = (rank_ == 0) != reads;
        auto        bytes  = pattern(size, ++seed_);
        ours.write(source ? bytes : std::vector<uint8_t>(size, 0xee));
        arrival_ = {&other_, ours.pointer(), size, nullptr, false};
        other_.barrier();

        ucs_status_ptr_t    request = nullptr;
        ucp_request_param_t params  = {};
        ucp_ep_h            ep      = other_.endpoint();
        if (rank_ == 0) {
            if (what == "put") {
                request = ucp_.ucp_put_nbx(ep, ours.pointer(), size, theirs.remote_address,
                                           theirs.remote_key, &params);
            } else if (what == "get") {
                request = ucp_.ucp_get_nbx(ep, ours.pointer(), size, theirs.remote_address,
                                           theirs.remote_key, &params);
            } else if (what == "tag") {
                request = ucp_.ucp_tag_send_nbx(ep, ours.pointer(), size, 1, &params);
            } else {
                request =
                    ucp_.ucp_am_send_nbx(ep, am_id, nullptr, 0, ours.pointer(), size, &params);
            }
        } else if (what == "tag") {
            request = ucp_.ucp_tag_recv_nbx(other_.worker(), ours.pointer(), size, 1, 1, &params);
        } else if (what == "am") {
            while (!arrival_.here) {
                other_.progress();
            }
            request = arrival_.request;
        }
        finish(request, words);
        if (rank_ == 0) {
            other_.flush();
        }
        other_.barrier();
        if (!source && ours.read(size) != bytes) {
            std::fprintf(stderr, "%s of %zu bytes: wrong bytes\n", words, size);
            wrong_ = true;
        }
        other_.barrier();
    }

    bool wrong() const
    {
        return wrong_;
    }

private:
    void finish(ucs_status_ptr_t request, const char *words) const
    {
        ucs_status_t status = other_.wait(request, words);
        if (status != UCS_OK) {
            std::fprintf(stderr, "%s: %s\n", words, ucp_.status_text(status));
            _Exit(2);
        }
    }

    const ucp_functions &ucp_ = ucp_functions::get();
    const peer          &other_;
    int                  rank_;
    unsigned             seed_    = 0;
    bool                 wrong_   = false;
    arrival              arrival_ = {};
};

int run(const settings &wanted, const channel &line, int rank)
{
    for (const std::string &variable : wanted.env[rank]) {
        size_t equals = variable.find('=');
        setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
    // What UCX says of its own accord goes to standard output.
    if (std::freopen(wanted.log[rank].c_str(), "w", stdout) == nullptr) {
        std::perror(wanted.log[rank].c_str());
        return 2;
    }
    gpu     here(wanted.gpus[rank]);
    peer    other(line, rank, patience_s);
    chooser choose(other, rank);
    {
        buffer device(other, true, most, wanted.memory);
        buffer host(other, false, most, wanted.memory);
        // Origin's memory, target's memory.
        const bool kinds[][2] = {{true, true}, {false, true}, {true, false}};
        for (const char *operation : {"put", "get", "tag", "am"}) {
            for (const auto &kind : kinds) {
                if (wanted.gpu_only && !(kind[0] && kind[1])) {
                    continue;
                }
                std::string words = std::string(operation) + (kind[0] ? " cuda" : " host") +
                                    (kind[1] ? " cuda" : " host");
                std::printf("@@ %s\n", words.c_str());
                std::fflush(stdout);
                buffer       &mine   = kind[rank] ? device : host;
                const buffer &target = kind[1] ? device : host;
                for (size_t size : sizes) {
                    choose.run(operation, words.c_str(), mine, target.region(), size);
                }
            }
        }
    }
    return choose.wrong() ? 1 : 0;
}

void usage(FILE *to)
{
    std::fputs("ucp_choices [--gpus A,B] [--gpu-only] [--memory KIND] [--env0 NAME=VALUE] "
               "[--env1 NAME=VALUE] LOG0 LOG1\n",
               to);
}

bool parse(int argc, char **argv, settings *wanted)
{
    static const option options[] = {
        {"gpus", required_argument, nullptr, 'g'},   {"gpu-only", no_argument, nullptr, 'o'},
        {"memory", required_argument, nullptr, 'm'}, {"env0", required_argument, nullptr, '0'},
        {"env1", required_argument, nullptr, '1'},   {nullptr, 0, nullptr, 0}};
    for (int letter; (letter = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
        if (letter == 'g') {
            if (std::sscanf(optarg, "%d,%d", &wanted->gpus[0], &wanted->gpus[1]) != 2) {
                return false;
            }
        } else if (letter == 'o') {
            wanted->gpu_only = true;
        } else if (letter == 'm') {
            if (!parse_allocate_as(optarg, &wanted->memory)) {
                return false;
            }
        } else if ((letter == '0') || (letter == '1')) {
            wanted->env[letter - '0'].emplace_back(optarg);
        } else {
            return false;
        }
    }
    if (argc - optind != 2) {
        return false;
    }
    wanted->log[0] = argv[optind];
    wanted->log[1] = argv[optind + 1];
    return true;
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    nvl::settings wanted;
    if (!nvl::parse(argc, argv, &wanted)) {
        nvl::usage(stderr);
        return 2;
    }
    int          rank = 0, child = 0, status = 0;
    nvl::channel line   = nvl::channel::open(&rank, &child);
    int          result = nvl::run(wanted, line, rank);
    if (rank == 0) {
        waitpid(child, &status, 0);
        int other = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
        result    = std::max(result, other);
    }
    return result;
}
