// SPDX-License-Identifier: BSD-3-Clause
//
// The fixture of most tests: an entity on this side, a far side of one of three kinds, and memory on both.
#ifndef NVLINK_TEST_UCT_CONNECTION_H
#define NVLINK_TEST_UCT_CONNECTION_H

#include "uct/side.h"

#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>

namespace nvl::test {

enum class far_kind { same_worker, other_worker, other_process };

inline const char *to_text(far_kind kind)
{
    switch (kind) {
    case far_kind::same_worker:
        return "same_worker";
    case far_kind::other_worker:
        return "other_worker";
    default:
        return "other_process";
    }
}

// Both sides of one test: `here` posts, `far` holds the memory behind the key.
struct connection {
    connection(far_kind kind, int here_gpu, int far_gpu, size_t size, const settings &with = {})
        : here(with),
          far(make_far(kind)),
          local(here_gpu, size),
          local_registration(here, local.address(), size),
          remote(far->allocate(far_gpu, size)),
          remote_key(std::make_unique<unpacked>(far->key(remote))),
          ep(here, far->address())
    {
    }

    uct_rkey_t rkey() const
    {
        return remote_key->rkey();
    }

    uct_iov_t iov(size_t offset, size_t size) const
    {
        return {reinterpret_cast<void *>(local.address() + offset), size, local_registration.memh(),
                0, 1};
    }

    ucs_status_t put(size_t from, size_t to, size_t size, completion *done) const
    {
        uct_iov_t one = iov(from, size);
        return uct_ep_put_zcopy(ep.get(), &one, 1, remote + to, rkey(),
                                done == nullptr ? nullptr : &done->super);
    }

    ucs_status_t get(size_t to, size_t from, size_t size, completion *done) const
    {
        uct_iov_t one = iov(to, size);
        return uct_ep_get_zcopy(ep.get(), &one, 1, remote + from, rkey(),
                                done == nullptr ? nullptr : &done->super);
    }

    // How long an operation may take; NVL_TEST_PATIENCE_S is for tests that wait for one that is lost.
    static std::chrono::seconds patience()
    {
        const char *text = std::getenv("NVL_TEST_PATIENCE_S");
        return std::chrono::seconds(text != nullptr ? std::atoi(text) : 30);
    }

    // Progresses until `done`; false after that time.
    template<typename F> bool wait(F done) const
    {
        // Emulated GPUs are threads, and want the processor.
        constexpr unsigned polls_at_once = 64;
        auto               end           = std::chrono::steady_clock::now() + patience();
        for (unsigned polls = 1; !done(); ++polls) {
            here.progress();
            if ((polls % polls_at_once == 0) && (emulator() != nullptr)) {
                std::this_thread::yield();
            }
            if (std::chrono::steady_clock::now() > end) {
                return false;
            }
        }
        return true;
    }

    bool wait(const completion &done) const
    {
        return wait([&] { return done.called != 0; });
    }

    // Until everything has ended.
    bool drain() const
    {
        return wait([&] { return uct_iface_flush(here.iface(), 0, nullptr) == UCS_OK; });
    }

    entity                    here;
    std::unique_ptr<side>     far;
    gpu_memory                local;
    registered                local_registration;
    uint64_t                  remote;
    std::unique_ptr<unpacked> remote_key;
    endpoint                  ep;

private:
    std::unique_ptr<side> make_far(far_kind kind)
    {
        switch (kind) {
        case far_kind::same_worker:
            return std::make_unique<local_side>(here);
        case far_kind::other_worker:
            return std::make_unique<local_side>();
        default:
            return std::make_unique<peer_side>();
        }
    }
};

// What most tests are run with.
struct pair_case {
    far_kind kind;
    int      here_gpu, far_gpu;
};

class every_pair : public testing::TestWithParam<pair_case> {};

inline std::string name_of(const testing::TestParamInfo<pair_case> &info)
{
    return std::string(to_text(info.param.kind)) + "_gpu_" + std::to_string(info.param.here_gpu) +
           "_to_" + std::to_string(info.param.far_gpu);
}

inline auto all_pairs()
{
    return testing::Values(
        pair_case{far_kind::same_worker, 0, 0}, pair_case{far_kind::same_worker, 0, 1},
        pair_case{far_kind::other_worker, 0, 0}, pair_case{far_kind::other_worker, 0, 1},
        pair_case{far_kind::other_worker, 1, 0}, pair_case{far_kind::other_process, 0, 0},
        pair_case{far_kind::other_process, 0, 1}, pair_case{far_kind::other_process, 1, 0});
}

} // namespace nvl::test

#endif
