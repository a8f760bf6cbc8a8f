// SPDX-License-Identifier: BSD-3-Clause
//
// Imports: the peer's memory opened in a place of this process. An allocation is
// opened once per place and shared by all keys that name it; unused imports stay
// for the next key, within bounds, least recently used out, until their owner
// lets go of the memory: that is seen when the import is asked for, when another is
// opened, and by a thread that looks now and then while imports are open. An owner
// on another host cannot be seen, so what is open of it is closed when it has been
// unused for a while; until then the import itself holds the memory, which nobody
// else can get. Called by remote_key and pair_check; calls importer.
#ifndef NVLINK_MEM_MAP_CACHE_H
#define NVLINK_MEM_MAP_CACHE_H

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mem/importer.h"

namespace nvl {

struct import_key_hash {
    size_t operator()(const import_key &key) const noexcept
    {
        uint64_t hash = (key.owner.token ^ key.base ^ (key.serial << 20) ^ key.place_id) *
                        0x9e3779b97f4a7c15ull;
        return hash ^ (hash >> 32);
    }
};

using map_list = std::list<map_entry *>;

struct map_entry {
    const import_key        *key = nullptr;
    std::unique_ptr<mapping> opened;
    ucs_status_t             status = UCS_INPROGRESS; // while one thread opens
    unsigned                 users  = 0;
    map_list                 node; // this entry's own list node, while it is in use
    map_list::iterator       at;

    std::chrono::steady_clock::time_point unused_since;
};

struct map_cache_limits {
    size_t count      = 1024;        // unused imports that are kept
    size_t size_bytes = 16ull << 30; // and their bytes

    // How long those of other hosts are kept: a thousand times what it takes to open
    // one anew, and short for the owner, who misses the memory.
    std::chrono::milliseconds far_for{1000};
};

class map_cache {
public:
    explicit map_cache(places &where);
    ~map_cache();
    map_cache(const map_cache &)            = delete;
    map_cache &operator=(const map_cache &) = delete;

    // The process's cache.
    static map_cache &get(places &where);

    void set_limits(const map_cache_limits &limits) noexcept;

    // UCX_NVLINK_SOCKET_DIR.
    void set_socket_folder(const char *folder);

    // Opens the memory, or shares what is open; one open at a time per
    // allocation, the others wait for its result. Every acquire that succeeds is
    // paid back by release(). Any thread; takes a lock, may call the driver.
    // UCS_ERR_UNREACHABLE: this process cannot open it, or its owner has let go of
    // it. UCS_ERR_BUSY: the driver still has an older allocation open at that
    // address, because another user of this process (UCX's cuda_ipc) or an
    // operation in flight holds it; later it may be gone.
    result<mapping *> acquire(const import_key &key) noexcept;

    // Of what the caller has acquired.
    static const std::shared_ptr<owner_link> &link_of(const mapping &used) noexcept
    {
        return used.link_;
    }

    // The caller's use has ended; never fails. Any thread.
    void release(mapping *used) noexcept;

    // What was closed; destroyed where the driver may be called.
    using closed = std::vector<std::unique_ptr<mapping>>;

    // release() for who holds a lock, and may want the import back: what is to be
    // closed goes to *out. Returns what take_again() wants to know, 0 if it is no use
    // to ask: the import is closed.
    uint64_t give_back(mapping *used, closed *out) noexcept;

    // As acquire(), of what was given back; calls no driver. False, and `used` is not
    // looked at, if something was closed in between and that may be it; false too if
    // its owner has let go of it. Any thread.
    bool take_again(mapping *used, uint64_t given_back) noexcept;

    // Closes everything that is unused.
    void purge() noexcept;

    // Closes what is unused and whose owner has let go of it, has ended, or is on
    // another host and was not asked for for a while.
    void sweep() noexcept;

    size_t open_count() const noexcept;

private:
    using table = std::unordered_map<import_key, map_entry, import_key_hash>;

    // Another process, as long as something of it is open.
    struct owner_row {
        std::weak_ptr<owner_link> link;
        uint64_t                  seen = 0; // its page's changes() at the last look
    };

    result<mapping *> share(std::unique_lock<std::mutex> &lock, map_entry &found) noexcept;
    result<mapping *> open_new(std::unique_lock<std::mutex> &lock, const import_key &key,
                               closed &stale);
    void              drop_stale(const import_key &key, closed &out);
    void              drop_dead(closed &out, bool look_for_gone);
    void              drop_far(closed &out);
    void              trim(closed &out);
    void              take_out(map_entry &gone, closed &out);
    static bool       is_alive(const map_entry &entry) noexcept;
    void              use(map_entry &found) noexcept;
    bool              let_go(map_entry &entry, closed &out);
    void              forget(map_entry &gone) noexcept;
    ucs_status_t      open_guarded(const import_key &key, const std::shared_ptr<owner_link> &known,
                                   const std::string &folder, std::unique_ptr<mapping> *opened,
                                   std::shared_ptr<owner_link> *link) noexcept;
    bool              is_in_use(const import_key &key);
    void              start_watch();
    void              watch() noexcept;
    void              stop_watch() noexcept;

    importer                importer_;
    mutable std::mutex      mutex_;
    std::condition_variable opened_;
    table                   table_;
    map_list                unused_; // least recently used first
    size_t                  unused_bytes_ = 0;
    uint64_t                closings_     = 1; // what was closed so far, and one
    map_cache_limits        limits_;
    std::string             folder_;

    std::unordered_map<uint64_t, owner_row> owners_; // by token

    // The thread that looks. It closes without the lock.
    std::thread             watcher_;
    std::condition_variable wake_;
    bool                    stop_    = false;
    bool                    closing_ = false; // it calls the driver
    std::condition_variable closed_;
};

} // namespace nvl

#endif
