// SPDX-License-Identifier: BSD-3-Clause
//
// One of two processes that talk through UCP's public API: the line between them beside UCX, and an
// endpoint to the other one. Opens libucp.so.0 itself, so that a program needs no UCX to be linked
// with. Any failure that leaves nothing to go on with ends the process.
#ifndef NVLINK_BENCH_PEER_H
#define NVLINK_BENCH_PEER_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ucp/api/ucp.h>

namespace nvl {

#define NVL_BENCH_UCP(_row)                                                                        \
    _row(ucp_init_version) _row(ucp_cleanup) _row(ucp_get_version_string) _row(ucp_config_read)    \
        _row(ucp_config_release) _row(ucp_worker_create) _row(ucp_worker_destroy)                  \
            _row(ucp_worker_progress) _row(ucp_worker_get_address)                                 \
                _row(ucp_worker_release_address) _row(ucp_worker_set_am_recv_handler)              \
                    _row(ucp_ep_create) _row(ucp_ep_close_nbx) _row(ucp_ep_flush_nbx)              \
                        _row(ucp_ep_rkey_unpack) _row(ucp_rkey_destroy) _row(ucp_rkey_pack)        \
                            _row(ucp_rkey_buffer_release) _row(ucp_mem_map) _row(ucp_mem_unmap)    \
                                _row(ucp_put_nbx) _row(ucp_get_nbx) _row(ucp_tag_send_nbx)         \
                                    _row(ucp_tag_recv_nbx) _row(ucp_am_send_nbx)                   \
                                        _row(ucp_am_recv_data_nbx) _row(ucp_stream_send_nbx)       \
                                            _row(ucp_stream_recv_nbx)                              \
                                                _row(ucp_request_check_status)                     \
                                                    _row(ucp_request_free) _row(ucp_atomic_op_nbx) \
                                                        _row(ucp_worker_fence)

struct ucp_functions {
#define NVL_BENCH_MEMBER(_function) decltype(&::_function) _function = nullptr;
    NVL_BENCH_UCP(NVL_BENCH_MEMBER)
#undef NVL_BENCH_MEMBER
    const char *(*status_text)(ucs_status_t) = nullptr;

    static const ucp_functions &get();
};

// The line beside UCX: made before the processes part.
class channel {
public:
    // The other process is started here; `rank` is 0 in the caller and 1 in the new one, which takes
    // the variables that NVL_SECOND_ENV holds ("A=1 B=2").
    static channel open(int *rank, int *child);

    void send(const void *data, size_t size) const;
    void receive(void *data, size_t size) const;
    // One byte, without waiting; false when there is none yet.
    bool try_receive(uint8_t *value) const;

    void                 send_block(const std::vector<uint8_t> &block) const;
    std::vector<uint8_t> receive_block() const;

private:
    explicit channel(int fd) : fd_(fd)
    {
    }

    int fd_;
};

// Memory of this process that UCX knows, and the key of the other's.
struct shared_region {
    ucp_mem_h  memory         = nullptr;
    uint64_t   remote_address = 0;
    ucp_rkey_h remote_key     = nullptr;
};

// An endpoint to the other process. One thread.
class peer {
public:
    // `more_features`: beside put and get, tag, active messages and streams.
    peer(const channel &line, int rank, double patience_s, uint64_t more_features = 0);
    ~peer();
    peer(const peer &)            = delete;
    peer &operator=(const peer &) = delete;

    int rank() const
    {
        return rank_;
    }

    ucp_worker_h worker() const
    {
        return worker_;
    }

    ucp_ep_h endpoint() const
    {
        return endpoint_;
    }

    const channel &line() const
    {
        return line_;
    }

    void progress() const;
    // Both processes share a region: the n-th call here meets the n-th call there.
    shared_region share(void *pointer, size_t size, ucs_memory_type_t type) const;
    void          unshare(const shared_region &region) const;
    // Waits for a request, makes progress, frees it. What UCX gave back as an error is returned.
    ucs_status_t wait(ucs_status_ptr_t request, const char *what) const;
    // Everything written by this side is in place at the other one.
    void flush() const;
    // Both sides are here; progress is made while waiting.
    void barrier() const;
    // Ends the process when `since` lies too long ago.
    void lose_patience(double since, const std::string &what) const;

private:
    void connect();

    const channel &line_;
    int            rank_;
    double         patience_s_;
    ucp_context_h  context_  = nullptr;
    ucp_worker_h   worker_   = nullptr;
    ucp_ep_h       endpoint_ = nullptr;
};

double seconds_now();

} // namespace nvl

#endif
