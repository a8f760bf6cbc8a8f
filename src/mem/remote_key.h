// SPDX-License-Identifier: BSD-3-Clause
//
// A peer's registered memory: the unpacked key that operations go through.
// Whatever comes from a peer is checked before it is used. Called by uct
// (unpack, operations); calls map_cache.
#ifndef NVLINK_MEM_REMOTE_KEY_H
#define NVLINK_MEM_REMOTE_KEY_H

#include "engine/op.h"
#include "mem/map_cache.h"
#include "mem/wire_key.h"

namespace nvl {

// An unpacked key. Lives until its owner has let go and the last operation
// through it has ended.
class remote_key : public op_use {
public:
    // Opens the memory in the place `from`. UCS_ERR_UNREACHABLE, with the reason
    // logged, if this process cannot reach it.
    static result<remote_key *> unpack(places &where, map_cache &cache, const key_fields &fields,
                                       const process_identity &self, const place &from) noexcept;

    // True, with *local set, if [remote_addr, +size) lies inside the region and
    // the place can reach it without a question to the driver.
    bool lookup(unsigned place_id, uint64_t remote_addr, size_t size_bytes,
                uint64_t *local) const noexcept
    {
        uint64_t offset = remote_addr - fields_.base;
        if (__builtin_expect((remote_addr < fields_.base) || (offset > fields_.size_bytes) ||
                                 (size_bytes > fields_.size_bytes - offset),
                             0)) {
            return false;
        }
        // acquire: partner is the store in connect().
        uint64_t mapped = mapped_[place_id].load(std::memory_order_acquire);
        *local          = mapped + offset;
        return mapped != 0;
    }

    bool contains(uint64_t remote_addr, size_t size_bytes) const noexcept
    {
        return (remote_addr >= fields_.base) &&
               (remote_addr - fields_.base <= fields_.size_bytes) &&
               (size_bytes <= fields_.size_bytes - (remote_addr - fields_.base));
    }

    // Makes the region reachable from another place of the process: the first
    // use from a GPU that unpack() did not know of. Calls the driver.
    ucs_status_t connect(const place &from) noexcept;

    const key_fields &fields() const noexcept
    {
        return fields_;
    }

    // Does a place do atomic operations there? Not known to do so until allow_atomics()
    // says it. Any thread.
    bool has_atomics(unsigned place_id) const noexcept
    {
        return ((atomics_.load(std::memory_order_relaxed) >> place_id) & 1) != 0;
    }

    void allow_atomics(unsigned place_id) noexcept
    {
        atomics_.fetch_or(1ull << place_id, std::memory_order_relaxed);
    }

    // A small number for the GPU on the other side, for choosing a lane.
    unsigned peer_index() const noexcept
    {
        return peer_index_;
    }

private:
    remote_key(places &where, map_cache &cache, const key_fields &fields, bool same_process,
               const process_identity &self) noexcept;
    static void  last(op_use *self) noexcept;
    ucs_status_t connect_local(const place &from) noexcept;

    places                                       &places_;
    map_cache                                    &cache_;
    key_fields                                    fields_;
    bool                                          same_process_;
    bool                                          other_host_;
    unsigned                                      peer_index_;
    process_identity                              self_;
    std::mutex                                    mutex_; // of connect()
    std::array<std::atomic<uint64_t>, max_places> mapped_{};
    std::atomic<uint64_t>                         atomics_{0}; // a bit for each place
    std::vector<mapping *>                        imports_;
};

static_assert(max_places <= 64, "a bit for each place");

} // namespace nvl

#endif
