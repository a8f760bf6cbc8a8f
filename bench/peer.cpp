// SPDX-License-Identifier: BSD-3-Clause
//
// How two processes meet: a socket pair, then UCX's worker addresses and memory keys through it.
#include "peer.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nvl {

namespace {

[[noreturn]] void give_up(const char *what, const char *why)
{
    fprintf(stderr, "[%d] %s: %s\n", getpid(), what, why);
    fflush(stdout);
    _Exit(2);
}

void need(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        give_up(what, ucp_functions::get().status_text(status));
    }
}

void *open_library(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        give_up("LD_LIBRARY_PATH must lead to UCX", dlerror());
    }
    return library;
}

ucp_functions open_ucx()
{
    ucp_functions functions;
    void         *library = open_library("libucp.so.0");
#define NVL_BENCH_LOAD(_function)                                                    \
    functions._function =                                                            \
        reinterpret_cast<decltype(functions._function)>(dlsym(library, #_function)); \
    if (functions._function == nullptr) {                                            \
        give_up("libucp.so.0 lacks", #_function);                                    \
    }
    NVL_BENCH_UCP(NVL_BENCH_LOAD)
#undef NVL_BENCH_LOAD
    functions.status_text = reinterpret_cast<decltype(functions.status_text)>(
        dlsym(open_library("libucs.so.0"), "ucs_status_string"));
    if (functions.status_text == nullptr) {
        give_up("libucs.so.0 lacks", "ucs_status_string");
    }
    return functions;
}

} // namespace

double seconds_now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

const ucp_functions &ucp_functions::get()
{
    static const ucp_functions functions = open_ucx();
    return functions;
}

namespace {

// Each word of NVL_SECOND_ENV is a variable of this process from now on.
void take_second_environment()
{
    const char        *text = getenv("NVL_SECOND_ENV");
    std::istringstream words(text != nullptr ? text : "");
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        setenv(word.substr(0, equals).c_str(), word.substr(equals + 1).c_str(), 1);
    }
}

} // namespace

channel channel::open(int *rank, int *child)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        give_up("socketpair", strerror(errno));
    }
    *child = fork();
    if (*child < 0) {
        give_up("fork", strerror(errno));
    }
    *rank = *child == 0 ? 1 : 0;
    if (*rank == 1) {
        // Whatever ends the first process: the second one does not stay behind.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        take_second_environment();
    }
    close(ends[1 - *rank]);
    return channel(ends[*rank]);
}

void channel::send(const void *data, size_t size) const
{
    const char *from = static_cast<const char *>(data);
    while (size > 0) {
        ssize_t count = ::send(fd_, from, size, MSG_NOSIGNAL);
        if (count < 0 && errno != EINTR) {
            give_up("the other process is gone", strerror(errno));
        }
        if (count > 0) {
            from += count;
            size -= static_cast<size_t>(count);
        }
    }
}

void channel::receive(void *data, size_t size) const
{
    char *to = static_cast<char *>(data);
    while (size > 0) {
        ssize_t count = recv(fd_, to, size, 0);
        if (count == 0 || (count < 0 && errno != EINTR)) {
            give_up("the other process is gone", count == 0 ? "end of file" : strerror(errno));
        }
        if (count > 0) {
            to += count;
            size -= static_cast<size_t>(count);
        }
    }
}

bool channel::try_receive(uint8_t *value) const
{
    ssize_t count = recv(fd_, value, 1, MSG_DONTWAIT);
    if (count == 0) {
        give_up("the other process is gone", "end of file");
    }
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
        give_up("the other process is gone", strerror(errno));
    }
    return count == 1;
}

void channel::send_block(const std::vector<uint8_t> &block) const
{
    uint64_t size = block.size();
    send(&size, sizeof(size));
    send(block.data(), block.size());
}

std::vector<uint8_t> channel::receive_block() const
{
    uint64_t size = 0;
    receive(&size, sizeof(size));
    std::vector<uint8_t> block(size);
    receive(block.data(), size);
    return block;
}

namespace {

void on_alarm(int)
{
    static const char text[] = "a call of UCX does not return\n";
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    _Exit(2);
}

} // namespace

peer::peer(const channel &line, int rank, double patience_s, uint64_t more_features)
    : line_(line), rank_(rank), patience_s_(patience_s)
{
    signal(SIGALRM, on_alarm);
    const ucp_functions &ucp    = ucp_functions::get();
    ucp_config_t        *config = nullptr;
    need(ucp.ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t params = {};
    params.field_mask   = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features =
        UCP_FEATURE_RMA | UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_STREAM | more_features;
    params.estimated_num_eps = 1;
    need(ucp.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_),
         "ucp_init");
    ucp.ucp_config_release(config);

    ucp_worker_params_t worker_params = {};
    worker_params.field_mask          = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode         = UCS_THREAD_MODE_SINGLE;
    need(ucp.ucp_worker_create(context_, &worker_params, &worker_), "ucp_worker_create");
    connect();
}

void peer::connect()
{
    const ucp_functions &ucp     = ucp_functions::get();
    ucp_address_t       *address = nullptr;
    size_t               size    = 0;
    need(ucp.ucp_worker_get_address(worker_, &address, &size), "ucp_worker_get_address");
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(address);
    line_.send_block(std::vector<uint8_t>(bytes, bytes + size));
    ucp.ucp_worker_release_address(worker_, address);

    std::vector<uint8_t> remote = line_.receive_block();
    ucp_ep_params_t      params = {};
    params.field_mask           = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address              = reinterpret_cast<const ucp_address_t *>(remote.data());
    need(ucp.ucp_ep_create(worker_, &params, &endpoint_), "ucp_ep_create");
    flush();
    barrier();
}

peer::~peer()
{
    const ucp_functions &ucp = ucp_functions::get();
    barrier();
    ucp_request_param_t params = {};
    (void)wait(ucp.ucp_ep_close_nbx(endpoint_, &params), "ucp_ep_close_nbx");
    barrier();
    ucp.ucp_worker_destroy(worker_);
    ucp.ucp_cleanup(context_);
}

void peer::progress() const
{
    ucp_functions::get().ucp_worker_progress(worker_);
}

shared_region peer::share(void *pointer, size_t size, ucs_memory_type_t type) const
{
    const ucp_functions &ucp    = ucp_functions::get();
    shared_region        region = {};
    ucp_mem_map_params_t params = {};
    params.field_mask           = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    params.address     = pointer;
    params.length      = size;
    params.memory_type = type;
    need(ucp.ucp_mem_map(context_, &params, &region.memory), "ucp_mem_map");

    void  *key      = nullptr;
    size_t key_size = 0;
    need(ucp.ucp_rkey_pack(context_, region.memory, &key, &key_size), "ucp_rkey_pack");
    uint64_t address = reinterpret_cast<uint64_t>(pointer);
    line_.send(&address, sizeof(address));
    const uint8_t *bytes = static_cast<const uint8_t *>(key);
    line_.send_block(std::vector<uint8_t>(bytes, bytes + key_size));
    ucp.ucp_rkey_buffer_release(key);

    line_.receive(&region.remote_address, sizeof(region.remote_address));
    std::vector<uint8_t> remote = line_.receive_block();
    need(ucp.ucp_ep_rkey_unpack(endpoint_, remote.data(), &region.remote_key),
         "ucp_ep_rkey_unpack");
    return region;
}

void peer::unshare(const shared_region &region) const
{
    const ucp_functions &ucp = ucp_functions::get();
    ucp.ucp_rkey_destroy(region.remote_key);
    // Nobody may unmap what the other still has a key for.
    barrier();
    need(ucp.ucp_mem_unmap(context_, region.memory), "ucp_mem_unmap");
}

ucs_status_t peer::wait(ucs_status_ptr_t request, const char *what) const
{
    const ucp_functions &ucp = ucp_functions::get();
    if (request == nullptr) {
        return UCS_OK;
    }
    if (UCS_PTR_IS_ERR(request)) {
        return UCS_PTR_STATUS(request);
    }
    // The clock is not for free: what is done already, and most turns of the loop, go without it.
    constexpr unsigned turns_a_look = 256;
    double             start        = 0;
    ucs_status_t       status;
    for (unsigned turn = 0; (status = ucp.ucp_request_check_status(request)) == UCS_INPROGRESS;
         ++turn) {
        progress();
        if (turn % turns_a_look == turns_a_look - 1) {
            start = (start == 0) ? seconds_now() : start;
            lose_patience(start, what);
        }
    }
    ucp.ucp_request_free(request);
    return status;
}

void peer::flush() const
{
    ucp_request_param_t params = {};
    need(wait(ucp_functions::get().ucp_ep_flush_nbx(endpoint_, &params), "ucp_ep_flush_nbx"),
         "ucp_ep_flush_nbx");
}

void peer::barrier() const
{
    // Against calls that never come back, where nobody can lose patience. Long operations meet often.
    alarm(2 * static_cast<unsigned>(patience_s_) + 10);
    uint8_t value = 1;
    line_.send(&value, 1);
    double start = seconds_now();
    while (!line_.try_receive(&value)) {
        progress();
        lose_patience(start, "the other process at a meeting point");
    }
}

void peer::lose_patience(double since, const std::string &what) const
{
    // Emulated GPUs are threads, and want the processor.
    static const bool is_emulated = getenv("NVL_EMU_MACHINE") != nullptr;
    if (is_emulated) {
        sched_yield();
    }
    if (seconds_now() - since > patience_s_) {
        give_up(("waited too long for " + what).c_str(), "no completion");
    }
}

} // namespace nvl
