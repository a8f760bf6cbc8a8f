// SPDX-License-Identifier: BSD-3-Clause
//
// The keys that this process has unpacked, since UCP unpacks one for every rendezvous: the
// same key is handed out again as long as its bytes are the same. It is found by its
// owner's token and the export's serial, which name an export for good, and trusted only
// if its head, which has a checksum over the rest, equals that of the key that was checked when
// it came first; another one under that name is checked like a new key and gets an unpacked
// key of its own. Before a key is handed
// out again, its owner's life page is asked whether the memory is still there.
// While somebody uses a key its imports are open. Then they go back to map_cache, which
// closes them when it likes or when their owner lets go of the memory; the key stays
// for the next unpack, within a bound, least recently used out, and holds nothing open.
// Keys of this process's own memory are not kept: whether that was freed, the driver is
// asked each time. Called by uct (unpack); calls remote_key and map_cache.
#ifndef NVLINK_MEM_KEY_TABLE_H
#define NVLINK_MEM_KEY_TABLE_H

#include <mutex>
#include <vector>

#include "mem/remote_key.h"

namespace nvl {

class key_table final : private place_watcher {
public:
    // As many as map_cache keeps imports open for by default; 1.2 KiB each.
    static constexpr size_t idle_most = 1024;

    key_table(places &where, map_cache &cache);
    ~key_table();
    key_table(const key_table &)            = delete;
    key_table &operator=(const key_table &) = delete;

    // The process's, never destroyed.
    static key_table &get(places &where);

    // The key that was unpacked from these bytes before, connected to `from`.
    // UCS_ERR_NO_ELEM: there is none, and `wire` may be anything. UCS_ERR_UNREACHABLE,
    // with the reason logged: its memory is no more, or not reached from there. With the key in
    // use and connected: one lock, no allocation, no driver call. Any thread.
    result<remote_key *> find(const uint8_t *wire, const place &from) noexcept;

    // Unpacks a key that find() did not know; `fields` are what key_parse() made of `wire`.
    // The caller pays either back with remote_key::let_go(). Any thread; calls the driver.
    result<remote_key *> add(const uint8_t *wire, const key_fields &fields,
                             const process_identity &self, const place &from) noexcept;

    // Of other keys whose memory their owner has freed, closes those that are in the way of
    // `wanted`, which is at the same address, and that nothing but their holders uses. True if
    // there was one. The caller holds no lock of those keys. Any thread; calls the driver.
    bool close_freed(const remote_key &wanted) noexcept;

    // Forgets what nobody uses.
    void purge() noexcept;

    // For tests.
    size_t idle_count() const noexcept;

private:
    static void                 last_out(op_use *self) noexcept;
    static result<remote_key *> connected(remote_key *key, const place &from) noexcept;
    remote_key                 *take(const uint8_t *wire) noexcept;
    void                        rest(remote_key *key) noexcept;
    void                        list(remote_key *key) noexcept;
    size_t                      bucket_of(const key_name &name) const noexcept;
    remote_key                 *look_up(const key_name &name) const noexcept;
    void                        grow() noexcept;
    void                        unlist(remote_key *key) noexcept;
    void                        begin_idle(remote_key *key) noexcept;
    void                        end_idle(remote_key *key) noexcept;
    void                        forget_place(unsigned id) noexcept override;

    places            &places_;
    map_cache         &cache_;
    mutable std::mutex mutex_;          // of all that follows and of the keys' rows; map_cache's is
                                        // taken under it, the driver is not called
    std::vector<remote_key *> buckets_; // a power of two of them, or none yet
    size_t                    listed_count_ = 0;

    linked_list<remote_key, &remote_key::in_idle_> idle_; // the oldest first
    linked_list<remote_key, &remote_key::in_all_>  all_;
};

} // namespace nvl

#endif
