// SPDX-License-Identifier: BSD-3-Clause
//
// The local side of memory: a registration owns what is needed to copy from or
// to a local buffer and, once a peer asks, its share of the export by which the
// peer opens it. Called by uct's memory domain; calls region and exports.
#ifndef NVLINK_MEM_EXPORT_H
#define NVLINK_MEM_EXPORT_H

#include <memory>
#include <mutex>

#include "mem/exports.h"

namespace nvl {

// A registered local buffer. Created by mem_reg, destroyed by mem_dereg; read by
// any thread in between.
class registration {
public:
    static result<std::unique_ptr<registration>> create(places &where, void *address,
                                                        size_t size_bytes) noexcept;

    // Where copies from and to this buffer run. Null for host memory.
    const place *where() const noexcept
    {
        return place_;
    }

    uint64_t address() const noexcept
    {
        return address_;
    }

    size_t size_bytes() const noexcept
    {
        return size_bytes_;
    }

    const region &allocation() const noexcept
    {
        return region_;
    }

    // The key for peers, key_wire_size() bytes, made at the first call and kept; it
    // reaches [address, +size) as far as that is mapped, at least what was
    // registered. Of memory that cannot be exported, which is logged, the key is
    // good for this process alone. Any thread.
    ucs_status_t pack_key(const process_identity &self, uint64_t address, size_t size_bytes,
                          uint8_t *packed) noexcept;

private:
    registration(places &where, const region &found, const place *at, uint64_t address,
                 size_t size_bytes) noexcept;

    places                                &places_;
    region                                 region_;
    const place                           *place_;
    uint64_t                               address_;
    size_t                                 size_bytes_;
    std::mutex                             mutex_; // of what follows
    std::vector<std::shared_ptr<exported>> exports_;
    uint8_t                                packed_[key_packed_size_most]; // of the last one
};

} // namespace nvl

#endif
