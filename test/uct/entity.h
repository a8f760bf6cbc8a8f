// SPDX-License-Identifier: BSD-3-Clause
//
// One side of a connection, as UCP would hold it: a memory domain of nvlink, a worker, an interface, and endpoints to
// others. Owners of what UCT hands out; whatever fails in making them ends the test.
#ifndef NVLINK_TEST_UCT_ENTITY_H
#define NVLINK_TEST_UCT_ENTITY_H

#include "uct/bytes.h"
#include "uct/ucx.h"

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace nvl::test {

// Something that a test needs and did not get; gtest reports it as a failure.
struct set_up_failed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void expect_ok(ucs_status_t status, const char *call);

// Settings as UCX_NVLINK_<name>=<value> would make them, and unlike those for one entity.
using settings = std::vector<std::pair<const char *, const char *>>;

struct addresses {
    bytes device, iface;
};

class entity {
public:
    explicit entity(const settings &with = {}, ucs_thread_mode_t mode = UCS_THREAD_MODE_SINGLE);
    ~entity();
    entity(const entity &)            = delete;
    entity &operator=(const entity &) = delete;

    uct_md_h md() const
    {
        return md_;
    }

    uct_worker_h worker() const
    {
        return worker_;
    }

    uct_iface_h iface() const
    {
        return iface_;
    }

    // Closes the interface and what is under it before the entity goes; what remains is the memory domain.
    void close_iface();

    // What the interface reported to the error handler, as "endpoint, status".
    std::vector<std::pair<uct_ep_h, ucs_status_t>> errors;

    unsigned progress() const
    {
        return uct_worker_progress(worker_);
    }

    addresses address() const;

    uct_iface_attr_t attributes() const;

private:
    void open_md(const settings &with);
    void open_iface(const settings &with);

    ucs_async_context_t *async_          = nullptr;
    uct_md_h             md_             = nullptr;
    uct_worker_h         worker_         = nullptr;
    uct_iface_h          iface_          = nullptr;
    size_t               settings_taken_ = 0;
};

// The component named nvlink, or null.
uct_component_h nvlink_component();

class endpoint {
public:
    endpoint(const entity &from, const addresses &to);
    ~endpoint();
    endpoint(const endpoint &)            = delete;
    endpoint &operator=(const endpoint &) = delete;

    uct_ep_h get() const
    {
        return ep_;
    }

private:
    uct_ep_h ep_ = nullptr;
};

// A registered piece of memory.
class registered {
public:
    registered(const entity &owner, uint64_t address, size_t size);
    ~registered();
    registered(const registered &)            = delete;
    registered &operator=(const registered &) = delete;

    uct_mem_h memh() const
    {
        return memh_;
    }

    bytes key() const;

private:
    uct_md_h  md_;
    uct_mem_h memh_ = nullptr;
};

// An unpacked key.
class unpacked {
public:
    // Unpacks with no word about where the local buffer is.
    explicit unpacked(const bytes &key);
    ~unpacked();
    unpacked(const unpacked &)            = delete;
    unpacked &operator=(const unpacked &) = delete;

    uct_rkey_t rkey() const
    {
        return bundle_.rkey;
    }

private:
    uct_rkey_bundle_t bundle_{};
};

// The status of unpacking; what was unpacked is released.
ucs_status_t try_unpack(const bytes &key);

// A completion that counts.
struct completion {
    uct_completion_t super{};
    int              called = 0;
    ucs_status_t     status = UCS_INPROGRESS;

    explicit completion(int count = 1);
};

} // namespace nvl::test

#endif
