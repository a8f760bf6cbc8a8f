// SPDX-License-Identifier: BSD-3-Clause
//
// A peer's registered memory: the unpacked key that operations go through.
// Whatever comes from a peer is checked before it is used. Made and kept by
// key_table, called by uct (operations); calls map_cache.
#ifndef NVLINK_MEM_REMOTE_KEY_H
#define NVLINK_MEM_REMOTE_KEY_H

#include "base/linked_list.h"
#include "engine/op.h"
#include "mem/map_cache.h"
#include "mem/wire_key.h"

namespace nvl {

class key_table;

// An unpacked key. In use until all who unpacked it have let go and the last operation
// through it has ended; then the table decides. One whose memory its owner has freed may be
// closed before, while it is only held: its place in the driver is needed by what the owner
// has put at that address. It reaches nothing any more then.
class remote_key : public op_use {
public:
    // A key that is connected to no place yet, with one use. `wire` is what `fields` were
    // parsed from. UCS_ERR_UNREACHABLE, with the reason logged, if this process cannot
    // reach that memory anyhow.
    static result<remote_key *> create(key_table &home, places &where, map_cache &cache,
                                       const key_fields &fields, const uint8_t *wire,
                                       const process_identity &self,
                                       void (*when_unused)(op_use *)) noexcept;
    ~remote_key()                             = default;
    remote_key(const remote_key &)            = delete;
    remote_key &operator=(const remote_key &) = delete;

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

    // For each operation on an address that lookup() gave, before it is posted; its end pays
    // back with release(). False, and nothing is to be paid back: closed meanwhile.
    bool begin_use() noexcept
    {
        // seq_cst: either close_freed() sees the use, or this sees that it has closed.
        count.fetch_add(1, std::memory_order_seq_cst);
        if (__builtin_expect(is_closed_.load(std::memory_order_seq_cst), 0)) {
            release();
            return false;
        }
        return true;
    }

    // Whoever unpacked it needs it no more. Any thread.
    void let_go() noexcept
    {
        users_.fetch_sub(1, std::memory_order_seq_cst); // first, see close_freed()
        release();
    }

    // lookup() for somebody who keeps the address until he lets go: it stays good.
    bool lend(unsigned place_id, uint64_t remote_addr, uint64_t *local) noexcept
    {
        is_lent_.store(true, std::memory_order_seq_cst); // as in begin_use()
        return !is_closed_.load(std::memory_order_seq_cst) &&
               lookup(place_id, remote_addr, 1, local);
    }

    bool contains(uint64_t remote_addr, size_t size_bytes) const noexcept
    {
        return (remote_addr >= fields_.base) &&
               (remote_addr - fields_.base <= fields_.size_bytes) &&
               (size_bytes <= fields_.size_bytes - (remote_addr - fields_.base));
    }

    // Makes the region reachable from a place of the process, if it is not yet: at
    // unpack, and at the first use from a GPU that nobody knew of then. May call the driver.
    ucs_status_t connect(const place &from) noexcept
    {
        return is_connected(from) ? UCS_OK : connect_slow(from);
    }

    // acquire: as in lookup().
    bool is_connected(const place &from) const noexcept
    {
        return mapped_[from.id()].load(std::memory_order_acquire) != 0;
    }

    // False: its owner has let go of the memory that it is connected to. Only for a user.
    bool is_alive() const noexcept
    {
        // acquire: partner is the store in remember().
        const owner_link *link = link_.load(std::memory_order_acquire);
        return (link == nullptr) || link->is_alive(name_.serial);
    }

    // False: a question is open that the next unpack has to ask again, see pair_check.h.
    bool is_settled() const noexcept
    {
        return settled_.load(std::memory_order_relaxed);
    }

    // The bytes it was made of, zeros behind them.
    const uint8_t *wire() const noexcept
    {
        return wire_;
    }

    const key_fields &fields() const noexcept
    {
        return fields_;
    }

    // Does a place do atomic operations there? Not known to do so until allow_atomics()
    // says it. Any thread.
    bool has_atomics(unsigned place_id) const noexcept
    {
        return (place_id != no_place) &&
               (((atomics_.load(std::memory_order_relaxed) >> place_id) & 1) != 0);
    }

    // Of a number that is a place's, see places::while_numbered().
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
    friend class key_table;

    // What the table knows of a key, under its lock; see key_table.cpp.
    struct table_row {
        remote_key *next      = nullptr; // of one bucket
        unsigned    crossed   = 0;
        bool        is_listed = false;
        bool        is_idle   = false;
    };

    // An import and the place whose way it is.
    struct opened_import {
        mapping     *opened;
        uint64_t     given_back; // while the key is idle
        const place *from;
    };

    remote_key(key_table &home, places &where, map_cache &cache, const key_fields &fields,
               const uint8_t *wire, const process_identity &self,
               void (*when_unused)(op_use *)) noexcept;
    ucs_status_t connect_slow(const place &from) noexcept;
    ucs_status_t connect_local(const place &from) noexcept;
    ucs_status_t connect_import(const place &from, uint64_t *mapped) noexcept;
    void         forget_gone() noexcept;
    void         remember(mapping *opened, const place &from) noexcept;

    // For the table, of a key without a user. The imports go back to the cache, and what it
    // closes to *closed; false: nothing stays open that the next user could have.
    bool give_back(map_cache::closed *closed) noexcept;
    // For the table: the number is to be another place's.
    void forget_place(unsigned id) noexcept
    {
        mapped_[id].store(0, std::memory_order_relaxed);
        atomics_.fetch_and(~(1ull << id), std::memory_order_relaxed);
    }
    // The other way round; connected is what was not closed in between.
    void take_again() noexcept;
    // For the table: gives back the imports of memory that its owner has let go of, unless an
    // operation is under way through them; none begins any more. True if it did.
    bool close_freed(map_cache::closed *closed) noexcept;

    // What an unpack of a known key looks at comes first.
    table_row                       row_;
    list_link<remote_key>           in_all_;
    list_link<remote_key>           in_idle_;
    key_name                        name_;
    std::atomic<const owner_link *> link_{nullptr}; // of an import, while in use
    std::atomic<bool>               settled_{true};
    std::atomic<bool>               is_closed_{false}; // by close_freed()
    std::atomic<bool>               is_lent_{false};
    std::atomic<uint32_t>           users_{1}; // of `count`, those who unpacked it
    uint8_t                         wire_[key_packed_size_most] = {};

    key_table                      &home_;
    places                         &places_;
    map_cache                      &cache_;
    key_fields                      fields_;
    bool                            same_process_;
    bool                            other_host_;
    unsigned                        peer_index_;
    process_identity                self_;
    std::mutex                      mutex_; // of connect_slow()
    by_place<std::atomic<uint64_t>> mapped_{};
    std::atomic<uint64_t>           atomics_{0}; // a bit for each place
    std::vector<opened_import>      imports_;
    std::shared_ptr<owner_link>     freed_link_; // what link_ was of, once closed
};

static_assert(max_places <= 64, "a bit for each place");

} // namespace nvl

#endif
