// SPDX-License-Identifier: BSD-3-Clause
//
// Who has a key, and who gets it again.
//
// A key's uses are counted without the lock, so whoever took the count to nought may
// still be on the way to rest() while take() hands the key out again. take() notes that in
// `crossed`: of the calls of rest() that are to come, so many are overtaken. Only the one
// that is left makes the key idle or destroys it, and only idle keys are destroyed
// elsewhere: no call comes to a key that is gone.
#include "mem/key_table.h"

#include <new>

namespace nvl {

namespace {

constexpr size_t buckets_first = 256;

} // namespace

key_table::key_table(places &where, map_cache &cache) : places_(where), cache_(cache)
{
    places_.add_watcher(this);
}

key_table::~key_table()
{
    places_.remove_watcher(this);
    purge();
}

key_table &key_table::get(places &where)
{
    // Never destroyed: as map_cache.
    static key_table *const only = new key_table(where, map_cache::get(where));
    return *only;
}

size_t key_table::idle_count() const noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    return idle_.size();
}

// ---- unpack and release --------------------------------------------------------

// Takes over the caller's use.
result<remote_key *> key_table::connected(remote_key *key, const place &from) noexcept
{
    ucs_status_t status = key->is_alive() ? key->connect(from) : tell_freed(key->fields().base);
    // BUSY passes: by the first operation the older mapping may be gone, since UCP
    // hands the same key to cuda_ipc after us, which lets go of its own, and operations
    // through an older key end.
    if ((status != UCS_OK) && (status != UCS_ERR_BUSY)) {
        key->let_go();
        return status;
    }
    return key;
}

result<remote_key *> key_table::find(const uint8_t *wire, const place &from) noexcept
{
    remote_key *key = take(wire);
    return (key != nullptr) ? connected(key, from) : UCS_ERR_NO_ELEM;
}

result<remote_key *> key_table::add(const uint8_t *wire, const key_fields &fields,
                                    const process_identity &self, const place &from) noexcept
{
    result<remote_key *> made =
        remote_key::create(*this, places_, cache_, fields, wire, self, &key_table::last_out);
    if (!made.ok()) {
        return made.status();
    }
    {
        std::lock_guard<std::mutex> guard(mutex_);
        all_.add(*made.value());
    }
    made = connected(made.value(), from);
    if (made.ok() && !(fields.owner == self)) {
        list(made.value());
    }
    return made;
}

// A use of the key with these bytes, or null.
remote_key *key_table::take(const uint8_t *wire) noexcept
{
    key_name name;
    if (!key_name_of(wire, &name)) {
        return nullptr;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    remote_key                 *key = look_up(name);
    if ((key == nullptr) || !key_equal(wire, key->wire()) || !key->is_settled()) {
        return nullptr;
    }
    if (key->row_.is_idle) {
        end_idle(key);
        key->count.store(1, std::memory_order_relaxed);
        key->take_again();
    } else if (key->count.fetch_add(1, std::memory_order_acquire) == 0) {
        ++key->row_.crossed;
    }
    key->users_.fetch_add(1, std::memory_order_relaxed);
    return key;
}

void key_table::last_out(op_use *self) noexcept
{
    auto *key = static_cast<remote_key *>(self);
    key->home_.rest(key);
}

// The key's count has come to nought; by now it may be in use again.
void key_table::rest(remote_key *key) noexcept
{
    map_cache::closed closed; // after the lock is gone
    remote_key       *gone = nullptr;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (key->row_.crossed != 0) {
            --key->row_.crossed;
            return;
        }
        bool stays = key->give_back(&closed) && key->row_.is_listed && key->is_settled();
        if (stays) {
            begin_idle(key);
        }
        gone = !stays ? key : (idle_.size() > idle_most) ? idle_.first() : nullptr;
        if (gone != nullptr) {
            unlist(gone);
        }
    }
    delete gone;
}

bool key_table::close_freed(const remote_key &wanted) noexcept
{
    map_cache::closed closed; // after the lock is gone
    bool              any = false;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (remote_key *key = all_.first(); key != nullptr; key = all_.behind(*key)) {
            if ((key != &wanted) && !key->row_.is_idle &&
                overlaps(key->fields(), wanted.fields())) {
                any = key->close_freed(&closed) || any;
            }
        }
    }
    return any;
}

void key_table::purge() noexcept
{
    for (;;) {
        remote_key *gone;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            gone = idle_.first();
            if (gone == nullptr) {
                return;
            }
            unlist(gone);
        }
        delete gone;
    }
}

// Idle ones, too: they keep what was mapped for the next user.
void key_table::forget_place(unsigned id) noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    for (remote_key *key = all_.first(); key != nullptr; key = all_.behind(*key)) {
        key->forget_place(id);
    }
}

// ---- the table -------------------------------------------------------------------

// From now on take() finds it, unless somebody uses another key of that name. One that is
// not found lives as long as it is used.
void key_table::list(remote_key *key) noexcept
{
    remote_key *gone = nullptr;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (listed_count_ >= buckets_.size()) {
            grow();
        }
        remote_key *known = look_up(key->name_);
        if (buckets_.empty() || ((known != nullptr) && !known->row_.is_idle)) {
            return;
        }
        if (known != nullptr) {
            gone = known;
            unlist(known);
        }
        remote_key *&first  = buckets_[bucket_of(key->name_)];
        key->row_.next      = first;
        key->row_.is_listed = true;
        first               = key;
        ++listed_count_;
    }
    delete gone;
}

// The caller holds the lock, also in all that follows.
size_t key_table::bucket_of(const key_name &name) const noexcept
{
    uint64_t hash =
        (name.token ^ (name.serial << 20) ^ (name.serial >> 32)) * 0x9e3779b97f4a7c15ull;
    return (hash >> 32) & (buckets_.size() - 1);
}

remote_key *key_table::look_up(const key_name &name) const noexcept
{
    remote_key *key = buckets_.empty() ? nullptr : buckets_[bucket_of(name)];
    while ((key != nullptr) && !(key->name_ == name)) {
        key = key->row_.next;
    }
    return key;
}

void key_table::grow() noexcept
try {
    std::vector<remote_key *> before(buckets_.empty() ? buckets_first : 2 * buckets_.size());
    before.swap(buckets_);
    for (remote_key *key : before) {
        while (key != nullptr) {
            remote_key  *next  = key->row_.next;
            remote_key *&first = buckets_[bucket_of(key->name_)];
            key->row_.next     = first;
            first              = key;
            key                = next;
        }
    }
} catch (const std::bad_alloc &) {
    // Longer chains.
}

// For whoever is about to destroy it.
void key_table::unlist(remote_key *key) noexcept
{
    all_.remove(*key);
    if (key->row_.is_idle) {
        end_idle(key);
    }
    if (!key->row_.is_listed) {
        return;
    }
    remote_key **at = &buckets_[bucket_of(key->name_)];
    while (*at != key) {
        at = &(*at)->row_.next;
    }
    *at                 = key->row_.next;
    key->row_.is_listed = false;
    --listed_count_;
}

void key_table::begin_idle(remote_key *key) noexcept
{
    key->row_.is_idle = true;
    idle_.add(*key);
}

void key_table::end_idle(remote_key *key) noexcept
{
    key->row_.is_idle = false;
    idle_.remove(*key);
}

} // namespace nvl
