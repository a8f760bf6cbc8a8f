// SPDX-License-Identifier: BSD-3-Clause
//
// Connects keys to the places that use them.
#include "mem/remote_key.h"

#include <cinttypes>
#include <cstring>
#include <new>

#include "base/log.h"
#include "mem/access.h"
#include "mem/key_table.h"
#include "mem/pair_check.h"
#include "topo/path_log.h"

namespace nvl {

namespace {

unsigned uuid_index(const gpu_uuid &uuid) noexcept
{
    unsigned sum = 0;
    for (uint8_t byte : uuid) {
        sum = sum * 31 + byte;
    }
    return sum;
}

// A warning, once for the process: this is about how the peers allocate, and true
// of all their GPUs.
void tell_no_fabric_handle(const key_fields &fields) noexcept
{
    static std::atomic<bool> told{false};
    NVL_LOG(told.exchange(true) ? log_level::debug : log_level::warn,
            "GPU memory of another host at 0x%" PRIx64 " cannot be opened, so its bytes take "
            "another path: %s",
            fields.base,
            !fields.fabric.present ? "its owner has no IMEX channel or its driver no fabric handles"
            : (fields.kinds & handle_fabric)
                ? "it is of several chunks, and between hosts a range of one chunk is opened: "
                  "allocate it by one cuMemCreate"
                : "it has no fabric handle: allocate it by cuMemCreate, or from a pool, with "
                  "CU_MEM_HANDLE_TYPE_FABRIC");
}

} // namespace

remote_key::remote_key(key_table &home, places &where, map_cache &cache, const key_fields &fields,
                       const uint8_t *wire, const process_identity &self,
                       void (*when_unused)(op_use *)) noexcept
    : op_use(when_unused),
      name_{fields.owner.token, fields.serial},
      home_(home),
      places_(where),
      cache_(cache),
      fields_(fields),
      same_process_(fields.owner == self),
      other_host_(fields.owner.host_id != self.host_id),
      peer_index_(uuid_index(fields.uuid)),
      self_(self)
{
    std::memcpy(wire_, wire, key_size_of(wire));
}

result<remote_key *> remote_key::create(key_table &home, places &where, map_cache &cache,
                                        const key_fields &fields, const uint8_t *wire,
                                        const process_identity &self,
                                        void (*when_unused)(op_use *)) noexcept
{
    if (!(fields.owner == self) && (fields.kinds == handle_none)) {
        NVL_DIAG("the peer cannot share its memory at 0x%" PRIx64 " (its log says why): another "
                 "path is used",
                 fields.base);
        return UCS_ERR_UNREACHABLE;
    }

    if ((fields.owner.host_id != self.host_id) && !fields.crosses_hosts()) {
        tell_no_fabric_handle(fields);
        return UCS_ERR_UNREACHABLE;
    }

    auto *key = new (std::nothrow) remote_key(home, where, cache, fields, wire, self, when_unused);
    if (key == nullptr) {
        return UCS_ERR_NO_MEMORY;
    }
    return key;
}

ucs_status_t remote_key::connect_local(const place &from) noexcept
{
    // The owner's context is that of the address; its place is known since the
    // key was packed by a registration of this process.
    region found = region_query(places_, reinterpret_cast<const void *>(fields_.base));
    if ((found.gpu < 0) || (found.buffer_id != fields_.buffer_id)) {
        NVL_DIAG("the memory at 0x%" PRIx64 " was freed before its key was used", fields_.base);
        return UCS_ERR_UNREACHABLE;
    }

    // A key is a peer's word, also one that says that it is ours.
    region whole = region_mapped(places_, found, fields_.base, fields_.size_bytes);
    if ((whole.size_bytes != 0) &&
        ((fields_.base < whole.base) || (fields_.size_bytes > whole.size_bytes) ||
         (fields_.base - whole.base > whole.size_bytes - fields_.size_bytes))) {
        NVL_DIAG("a key for 0x%" PRIx64 " of this process is of more memory than there is",
                 fields_.base);
        return UCS_ERR_UNREACHABLE;
    }

    ucs_status_t status = allow_access(places_, found, fields_.base, fields_.size_bytes, from);
    if ((status != UCS_OK) || (static_cast<unsigned>(found.gpu) == from.gpu)) {
        return status;
    }
    result<const place *> owner = region_place(places_, found);
    bool sound = !owner.ok() || pair_check::get(places_).is_sound(from, *owner.value(), self_);
    return sound ? UCS_OK : UCS_ERR_UNREACHABLE;
}

// What was opened for places whose contexts are over. After remember(): link_ is another's.
void remote_key::forget_gone() noexcept
{
    for (size_t i = 0; i < imports_.size();) {
        if (imports_[i].from->id() != no_place) {
            ++i;
            continue;
        }
        freed_link_ = map_cache::link_of(*imports_[i].opened); // is_alive() may be asking it
        cache_.release(imports_[i].opened);
        imports_.erase(imports_.begin() + static_cast<ptrdiff_t>(i));
    }
}

// imports_ has room for it.
void remote_key::remember(mapping *opened, const place &from) noexcept
{
    imports_.push_back({opened, 0, &from});
    // Partner: the acquire in is_alive().
    link_.store(map_cache::link_of(*opened).get(), std::memory_order_release);
}

ucs_status_t remote_key::connect_import(const place &from, uint64_t *mapped) noexcept
{
    // The driver lets one context of a GPU open a peer's memory, for all of
    // them: the primary one, which no application destroys.
    result<const place *> opener = places_.primary(places_.gpus()[from.gpu].device);
    if (!opener.ok()) {
        return opener.status();
    }
    try {
        import_key id(fields_, opener.value()->id(), other_host_);
        imports_.reserve(imports_.size() + 1);

        bool              settled = true;
        result<mapping *> opened  = cache_.acquire(id);
        if ((opened.status() == UCS_ERR_BUSY) && home_.close_freed(*this)) {
            opened = cache_.acquire(id);
        }
        if (!opened.ok()) {
            return opened.status();
        }
        if (!other_host_ && !pair_check::get(places_).is_sound(from, fields_.uuid, cache_,
                                                               *opened.value(), &settled)) {
            cache_.release(opened.value());
            return UCS_ERR_UNREACHABLE;
        }
        if (!settled) {
            settled_.store(false, std::memory_order_relaxed);
        }
        remember(opened.value(), from);
        *mapped = opened.value()->mapped();
        forget_gone();
    } catch (const std::bad_alloc &) {
        return UCS_ERR_NO_MEMORY;
    }
    return UCS_OK;
}

ucs_status_t remote_key::connect_slow(const place &from) noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    const unsigned              id = from.id();
    if (id == no_place) {
        return tell_context_over();
    }
    if (mapped_[id].load(std::memory_order_relaxed) != 0) {
        return UCS_OK;
    }
    if (is_closed_.load(std::memory_order_relaxed)) {
        return tell_freed(fields_.base);
    }

    uint64_t     mapped = fields_.base;
    ucs_status_t status = same_process_ ? connect_local(from) : connect_import(from, &mapped);
    if (status != UCS_OK) {
        return status;
    }

    path_log_reached(places_.cuda(), places_.gpus()[from.gpu].ordinal,
                     gpu_of(fields_.uuid, fields_.fabric),
                     same_process_ ? peer_side::this_process
                     : other_host_ ? peer_side::other_host
                                   : peer_side::other_process);
    // Partner: the acquire in lookup().
    bool is_kept = places_.while_numbered(
        {{&from, id}}, [&] { mapped_[id].store(mapped, std::memory_order_release); });
    return is_kept ? UCS_OK : tell_context_over();
}

bool remote_key::give_back(map_cache::closed *closed) noexcept
{
    bool stays = false;
    for (opened_import &one : imports_) {
        one.given_back = cache_.give_back(one.opened, closed);
        stays          = stays || (one.given_back != 0);
    }
    link_.store(nullptr, std::memory_order_relaxed);
    return stays;
}

bool remote_key::close_freed(map_cache::closed *closed) noexcept
{
    // Not waited for: who connects calls the driver under it.
    std::unique_lock<std::mutex> guard(mutex_, std::try_to_lock);
    if (!guard.owns_lock() || imports_.empty() || is_alive()) {
        return false;
    }
    is_closed_.store(true, std::memory_order_seq_cst);
    for (const opened_import &one : imports_) {
        mapped_[one.from->id()].store(0, std::memory_order_relaxed);
    }
    // In this order: who lets go is out of users_ first, and nobody joins them, as the table is
    // locked. So a difference may be one that is gone already, but none is missed.
    uint32_t uses  = count.load(std::memory_order_seq_cst);
    uint32_t users = users_.load(std::memory_order_seq_cst);
    if ((uses != users) || is_lent_.load(std::memory_order_seq_cst)) {
        NVL_DEBUG("operations still use what the peer has freed at 0x%" PRIx64, fields_.base);
        return false;
    }
    for (const opened_import &one : imports_) {
        const std::shared_ptr<owner_link> &link = map_cache::link_of(*one.opened);
        if (link.get() == link_.load(std::memory_order_relaxed)) {
            freed_link_ = link; // is_alive() may be asking it
        }
        (void)cache_.give_back(one.opened, closed);
    }
    imports_.clear();
    return true;
}

void remote_key::take_again() noexcept
{
    is_lent_.store(false, std::memory_order_relaxed); // whoever it was let go, as all did
    size_t open = 0;
    for (const opened_import &one : imports_) {
        if (cache_.take_again(one.opened, one.given_back)) {
            imports_[open++] = one;
        } else {
            mapped_[one.from->id()].store(0, std::memory_order_relaxed);
        }
    }
    imports_.resize(open);
    if (open != 0) {
        link_.store(map_cache::link_of(*imports_.front().opened).get(), std::memory_order_release);
    }
}

} // namespace nvl
