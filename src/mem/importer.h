// SPDX-License-Identifier: BSD-3-Clause
//
// Opens one import, in the ways that its key offers, and says which path the
// bytes take or why another one. Called by map_cache, never under its lock;
// calls mapping and owner_link.
#ifndef NVLINK_MEM_IMPORTER_H
#define NVLINK_MEM_IMPORTER_H

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "mem/mapping.h"

namespace nvl {

// The same addresses of the same owner, in part: of what keys name.
template<typename T> bool overlaps(const T &one, const T &other) noexcept
{
    return (one.owner.token == other.owner.token) && (one.base < other.base + other.size_bytes) &&
           (other.base < one.base + one.size_bytes);
}

// What identifies memory of a peer. The serial makes memory that was let go of
// and exported anew another one, also at the same address.
struct import_key {
    unsigned           place_id = 0;
    process_identity   owner;
    uint64_t           serial     = 0;
    unsigned long long buffer_id  = 0;
    uint64_t           base       = 0;
    uint64_t           size_bytes = 0;
    uint8_t            kinds      = 0;
    uint16_t           page_fd    = no_page_fd; // not compared
    inline_handle      handle;
    gpu_uuid           uuid{}; // of the peer's GPU, for the log; not compared
    bool               other_host = false;
    fabric_part        fabric; // not compared

    import_key() = default;

    import_key(const key_fields &fields, unsigned place, bool is_of_other_host = false) noexcept
        : place_id(place),
          owner(fields.owner),
          serial(fields.serial),
          buffer_id(fields.buffer_id),
          base(fields.base),
          size_bytes(fields.size_bytes),
          kinds(fields.kinds),
          page_fd(fields.page_fd),
          handle(fields.handle),
          uuid(fields.uuid),
          other_host(is_of_other_host),
          fabric(fields.fabric)
    {
    }

    bool operator==(const import_key &other) const noexcept
    {
        return (place_id == other.place_id) && (owner.token == other.owner.token) &&
               (serial == other.serial) && (buffer_id == other.buffer_id) && (base == other.base) &&
               (size_bytes == other.size_bytes) && (kinds == other.kinds) &&
               (handle.kind == other.handle.kind) &&
               (std::memcmp(handle.bytes, other.handle.bytes, sizeof(handle.bytes)) == 0);
    }

    // The same addresses of the same owner, in part.
    bool overlaps(const import_key &other) const noexcept
    {
        return (place_id == other.place_id) && nvl::overlaps(*this, other);
    }
};

// Says that the owner has let go of its memory at `base`; UCS_ERR_UNREACHABLE.
ucs_status_t tell_freed(uint64_t base) noexcept;

class importer {
public:
    // `is_in_use`: does an operation or a key still use memory at those addresses?
    importer(places &where, std::function<bool(const import_key &)> is_in_use)
        : places_(where), is_in_use_(std::move(is_in_use))
    {
    }

    // Opens in the order descriptor, fabric, legacy, as the key has them, and memory
    // of another host by fabric handle where both GPUs are in one fabric; the
    // reasons of all that failed are logged, as a warning once for a pair of GPUs.
    // UCS_ERR_UNREACHABLE: it cannot be opened. UCS_ERR_BUSY: see map_cache.h. Any
    // thread; throws std::bad_alloc.
    ucs_status_t open(const import_key &key, const std::shared_ptr<owner_link> &link,
                      std::unique_ptr<mapping> *opened);

private:
    std::unique_ptr<mapping> open_shared(const import_key &key, const owner_link &link,
                                         std::string *why);
    std::unique_ptr<mapping> open_inline(const import_key &key, std::string *why);
    bool                     is_in_fabric(const import_key &key, std::string *why) const;
    std::unique_ptr<mapping> open_pool(const import_key &key, const fetched_record &from,
                                       std::string *why);
    ucs_status_t             open_legacy(const import_key &key, std::unique_ptr<mapping> *opened,
                                         std::string *why);
    bool                     is_stale(const import_key &key, CUdeviceptr mapped);
    void                     forget_closed();
    bool         is_all_of(const import_key &key, CUdeviceptr mapped, std::string *why) const;
    ucs_status_t renew(const import_key &key, const CUipcMemHandle &raw, CUdeviceptr *mapped,
                       std::string *why);
    bool         is_news(const import_key &key);
    void         tell_refused(const import_key &key, const std::string &why);

    places                                 &places_;
    std::function<bool(const import_key &)> is_in_use_;
    std::mutex                              mutex_; // of the tables

    // Which allocation of which owner a mapping of the driver was opened for, by
    // place and by the driver's own id of the mapping, which is never used again.
    using mapping_id = std::pair<unsigned, unsigned long long>;
    struct opened_for {
        std::pair<uint64_t, unsigned long long> what; // owner, buffer id
        CUdeviceptr                             mapped;
    };
    std::map<mapping_id, opened_for> opened_for_;
    size_t remembered_most_ = 65536; // before the closed ones are forgotten

    // Pools of peers: owner, the owner's number of the pool.
    std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<imported_pool>> pools_;
    std::mutex pools_mutex_; // held while one is opened: never twice

    // What the log has been told: place, peer's GPU, reached or not.
    std::set<std::pair<unsigned, gpu_uuid>> told_;
};

} // namespace nvl

#endif
