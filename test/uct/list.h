// SPDX-License-Identifier: BSD-3-Clause
//
// The arguments of UCT's list operation, gathered element by element.
#ifndef NVLINK_TEST_UCT_LIST_H
#define NVLINK_TEST_UCT_LIST_H

#include "uct/connection.h"

namespace nvl::test {

struct list {
    std::vector<void *>     buffers;
    std::vector<size_t>     lengths, counts, strides;
    std::vector<uct_mem_h>  memhs;
    std::vector<uint64_t>   remote_addrs;
    std::vector<uct_rkey_t> rkeys;

    void add(const connection &c, uint64_t local, size_t length, uint64_t remote, size_t count = 1,
             size_t stride = 0)
    {
        add(reinterpret_cast<void *>(local), c.local_registration.memh(), length, remote, c.rkey(),
            count, stride);
    }

    void add(void *local, uct_mem_h memh, size_t length, uint64_t remote, uct_rkey_t rkey,
             size_t count = 1, size_t stride = 0)
    {
        buffers.push_back(local);
        lengths.push_back(length);
        memhs.push_back(memh);
        remote_addrs.push_back(remote);
        rkeys.push_back(rkey);
        counts.push_back(count);
        strides.push_back(stride);
    }

    ucs_status_t put(const connection &c, completion *done, bool with_counts = true) const
    {
        return ucx().uct_ep_put_sgl_zcopy(
            c.ep.get(), buffers.data(), lengths.data(), memhs.data(), remote_addrs.data(),
            rkeys.data(), with_counts ? counts.data() : nullptr,
            with_counts ? strides.data() : nullptr, buffers.size(), &done->super);
    }
};

} // namespace nvl::test

#endif
