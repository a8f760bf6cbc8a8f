// SPDX-License-Identifier: BSD-3-Clause
//
// Opens, shares, evicts and closes imports. The driver is never called under
// the lock: opening and closing can wait for the whole device.
#include "mem/map_cache.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

namespace nvl {

namespace {

// How soon freed memory of a peer is let go of when nothing else happens here:
// short for a person and for the peer's next large allocation, rare enough not
// to be felt (some loads from memory).
constexpr std::chrono::milliseconds watch_every{50};

} // namespace

map_cache::map_cache(places &where)
    : importer_(where, [this](const import_key &key) { return is_in_use(key); })
{
}

map_cache::~map_cache()
{
    stop_watch();
}

map_cache &map_cache::get(places &where)
{
    // Never destroyed: at exit the driver may be gone already.
    static map_cache *const cache = new map_cache(where);
    static const pid_t      pid   = getpid();
    // Registered behind the driver's own, so it runs before that. A forked child
    // has no such thread.
    static const int registered = std::atexit([] {
        if (getpid() == pid) {
            cache->stop_watch();
        }
    });
    (void)registered;
    return *cache;
}

void map_cache::set_socket_folder(const char *folder)
{
    std::lock_guard<std::mutex> guard(mutex_);
    folder_ = (folder != nullptr) ? folder : "";
}

void map_cache::set_limits(const map_cache_limits &limits) noexcept
{
    closed out; // closed after the lock is gone
    try {
        std::lock_guard<std::mutex> guard(mutex_);
        limits_ = limits;
        trim(out);
    } catch (const std::bad_alloc &) {
        NVL_WARN("no memory to close imports; they stay open");
    }
}

bool map_cache::is_in_use(const import_key &key)
{
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto &that : table_) {
        if ((that.second.users != 0) && (that.second.status == UCS_OK) &&
            that.first.overlaps(key)) {
            return true;
        }
    }
    return false;
}

// Whoever waits for the result gets one, whatever happens.
ucs_status_t map_cache::open_guarded(const import_key                  &key,
                                     const std::shared_ptr<owner_link> &known,
                                     const std::string &folder, std::unique_ptr<mapping> *opened,
                                     std::shared_ptr<owner_link> *link) noexcept
{
    try {
        *link = known;
        if (!*link) {
            *link = key.other_host ? owner_link::to_other_host(key.owner)
                                   : owner_link::open(key.owner, key.page_fd, folder);
        }
        return *link ? importer_.open(key, *link, opened) : UCS_ERR_NO_MEMORY;
    } catch (const std::exception &) {
        return UCS_ERR_NO_MEMORY;
    }
}

// The caller holds the lock, also in all that follows.
void map_cache::forget(map_entry &gone) noexcept
{
    import_key key = *gone.key;
    table_.erase(key);
}

void map_cache::take_out(map_entry &gone, closed &out)
{
    out.push_back(std::move(gone.opened));
    ++closings_;
    unused_bytes_ -= gone.key->size_bytes;
    unused_.erase(gone.at);
    forget(gone);
}

// An allocation of the same owner that overlaps in address but is another one:
// the old one was freed. Its import must go before the new one is opened, unless
// somebody still uses it.
void map_cache::drop_stale(const import_key &key, closed &out)
{
    for (auto i = unused_.begin(); i != unused_.end();) {
        map_entry &old = **i++;
        if (old.key->overlaps(key) && !(*old.key == key)) {
            take_out(old, out);
        }
    }
}

// What owners have let go of since the last look.
void map_cache::drop_dead(closed &out, bool look_for_gone)
{
    for (auto row = owners_.begin(); row != owners_.end();) {
        std::shared_ptr<owner_link> link = row->second.link.lock();
        if (!link) {
            row = owners_.erase(row);
            continue;
        }
        uint64_t changes = link->changes();
        bool     gone    = look_for_gone && link->is_gone();
        if ((changes != row->second.seen) || gone) {
            row->second.seen = changes;
            for (auto i = unused_.begin(); i != unused_.end();) {
                map_entry &old = **i++;
                if ((old.key->owner.token == row->first) &&
                    (gone || !old.opened->link_->is_alive(old.key->serial))) {
                    take_out(old, out);
                }
            }
        }
        ++row;
    }
}

// What other hosts own and nobody has used for a while.
void map_cache::drop_far(closed &out)
{
    auto before = std::chrono::steady_clock::now() - limits_.far_for;
    for (auto i = unused_.begin(); i != unused_.end();) {
        map_entry &old = **i++;
        if (old.key->other_host && (old.unused_since <= before)) {
            take_out(old, out);
        }
    }
}

void map_cache::trim(closed &out)
{
    while (!unused_.empty() &&
           ((unused_.size() > limits_.count) || (unused_bytes_ > limits_.size_bytes))) {
        take_out(*unused_.front(), out);
    }
}

// True also of what is being opened: who opens it looks.
bool map_cache::is_alive(const map_entry &entry) noexcept
{
    return !entry.opened || entry.opened->link_->is_alive(entry.key->serial);
}

void map_cache::use(map_entry &found) noexcept
{
    if ((found.status == UCS_OK) && (found.users == 0)) {
        found.node.splice(found.node.end(), unused_, found.at);
        unused_bytes_ -= found.key->size_bytes;
    }
    ++found.users;
}

result<mapping *> map_cache::share(std::unique_lock<std::mutex> &lock, map_entry &found) noexcept
{
    use(found);
    opened_.wait(lock, [&] { return found.status != UCS_INPROGRESS; });
    if (found.status == UCS_OK) {
        return found.opened.get();
    }

    ucs_status_t status = found.status;
    if (--found.users == 0) {
        forget(found);
    }
    return status;
}

result<mapping *> map_cache::open_new(std::unique_lock<std::mutex> &lock, const import_key &key,
                                      closed &stale)
{
    drop_stale(key, stale);
    owner_row                  &owner  = owners_[key.owner.token];
    std::shared_ptr<owner_link> known  = owner.link.lock();
    std::string                 folder = folder_;

    auto made =
        table_
            .emplace(std::piecewise_construct, std::forward_as_tuple(key), std::forward_as_tuple())
            .first;
    map_entry &entry = made->second;
    entry.key        = &made->first;
    entry.users      = 1;
    try {
        entry.node.push_back(&entry);
        entry.at = entry.node.begin();
    } catch (const std::bad_alloc &) {
        forget(entry);
        throw;
    }

    std::unique_ptr<mapping>    opened;
    std::shared_ptr<owner_link> link;
    lock.unlock();
    stale.clear(); // closes
    ucs_status_t status = open_guarded(key, known, folder, &opened, &link);
    lock.lock();

    if (status == UCS_OK) {
        try {
            owner_row &row = owners_[key.owner.token]; // a look in between may have dropped it
            // One link for all that is open of an owner: the one that is watched.
            std::shared_ptr<owner_link> first = row.link.lock();
            if (first && (first->has_page() || !link->has_page())) {
                link = std::move(first);
            } else {
                row.link = link;
            }
            if (link->has_page() || key.other_host) {
                start_watch();
            }
            opened->link_ = std::move(link);
            opened->home_ = &entry;
            entry.opened  = std::move(opened);
        } catch (const std::exception &) {
            status = UCS_ERR_NO_MEMORY; // whoever waits is told so
            lock.unlock();
            opened.reset(); // closes
            lock.lock();
        }
    }
    entry.status = status;
    opened_.notify_all();
    if (status != UCS_OK) {
        if (--entry.users == 0) {
            forget(entry);
        }
        return status;
    }
    return entry.opened.get();
}

result<mapping *> map_cache::acquire(const import_key &key) noexcept
{
    closed dead; // closed after the lock is gone
    try {
        std::unique_lock<std::mutex> lock(mutex_);
        auto                         found    = table_.find(key);
        bool                         is_known = found != table_.end();
        if (is_known && is_alive(found->second)) {
            return share(lock, found->second);
        }
        // Only who opens something pays for a look at all owners.
        drop_dead(dead, false);
        return is_known ? tell_freed(key.base) : open_new(lock, key, dead);
    } catch (const std::bad_alloc &) {
        return UCS_ERR_NO_MEMORY;
    }
}

// False: the entry is no more.
bool map_cache::let_go(map_entry &entry, closed &out)
{
    if (--entry.users != 0) {
        return true;
    }
    unused_.splice(unused_.end(), entry.node, entry.at);
    unused_bytes_ += entry.key->size_bytes;
    if (entry.key->other_host) {
        entry.unused_since = std::chrono::steady_clock::now();
    }
    if (!is_alive(entry)) {
        take_out(entry, out);
        return false;
    }
    trim(out);
    return !unused_.empty() && (unused_.back() == &entry);
}

void map_cache::release(mapping *used) noexcept
{
    closed out; // closed after the lock is gone
    (void)give_back(used, &out);
}

uint64_t map_cache::give_back(mapping *used, closed *out) noexcept
{
    try {
        std::lock_guard<std::mutex> guard(mutex_);
        return let_go(*used->home_, *out) ? closings_ : 0;
    } catch (const std::bad_alloc &) {
        NVL_WARN("no memory to close an import; it stays open");
        return 0;
    }
}

bool map_cache::take_again(mapping *used, uint64_t given_back) noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    if ((given_back != closings_) || !is_alive(*used->home_)) {
        return false;
    }
    use(*used->home_);
    return true;
}

void map_cache::sweep() noexcept
{
    closed out;
    try {
        std::lock_guard<std::mutex> guard(mutex_);
        drop_dead(out, true);
        drop_far(out);
    } catch (const std::bad_alloc &) {
        NVL_WARN("no memory to close imports; they stay open");
    }
}

// ---- the thread that looks -----------------------------------------------------

// The caller holds the lock.
void map_cache::start_watch()
{
    if (watcher_.joinable() || stop_) {
        wake_.notify_all();
        return;
    }
    watcher_ = start_quiet_thread("nvlink-watch", [this] { watch(); });
}

void map_cache::watch() noexcept
{
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
        closed out;
        try {
            drop_dead(out, true);
            drop_far(out);
        } catch (const std::bad_alloc &) {
            NVL_DEBUG("no memory to look for what peers have freed");
        }
        if (!out.empty()) {
            // Closing can wait for the whole GPU: nobody else is to wait for that.
            closing_ = true;
            lock.unlock();
            out.clear();
            lock.lock();
            closing_ = false;
            closed_.notify_all();
        } else if (owners_.empty()) {
            wake_.wait(lock);
        } else {
            wake_.wait_for(lock, watch_every);
        }
    }
}

// The process exits: the thread must be out of the driver before that goes.
void map_cache::stop_watch() noexcept
{
    {
        std::unique_lock<std::mutex> lock(mutex_);
        stop_ = true;
        wake_.notify_all();
        if (!closed_.wait_for(lock, std::chrono::seconds(1), [this] { return !closing_; })) {
            return; // it waits for the GPU, for ever perhaps
        }
    }
    if (watcher_.joinable()) {
        watcher_.join();
    }
}

void map_cache::purge() noexcept
{
    closed out;
    try {
        std::lock_guard<std::mutex> guard(mutex_);
        while (!unused_.empty()) {
            take_out(*unused_.front(), out);
        }
    } catch (const std::bad_alloc &) {
        NVL_WARN("no memory to close imports; they stay open");
    }
}

size_t map_cache::open_count() const noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    return table_.size();
}

} // namespace nvl
