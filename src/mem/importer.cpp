// SPDX-License-Identifier: BSD-3-Clause
//
// The order of the ways, stale handles of the driver, and the log.
#include "mem/importer.h"

#include <cinttypes>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "base/log.h"
#include "topo/topology.h"

namespace nvl {

namespace {

void add_reason(std::string *why, const std::string &reason)
{
    *why += (why->empty() ? "" : "; ") + reason;
}

// The one chunk, or the pool, of a key that brings its fabric handle along.
fetched_record record_of(const import_key &key)
{
    fetched_record made;
    shared_chunk   chunk;
    chunk.size_bytes = (key.kinds & handle_pool) ? 0 : key.size_bytes;
    chunk.has_fabric = true;
    std::memcpy(chunk.fabric.data(), key.handle.bytes, chunk.fabric.size());
    made.record.base       = key.base;
    made.record.size_bytes = key.size_bytes;
    made.record.pool       = key.fabric.pool;
    std::memcpy(made.record.pointer.data(), key.fabric.pointer, made.record.pointer.size());
    made.record.chunks.push_back(chunk);
    return made;
}

} // namespace

// The handle of an allocation that was freed equals that of the next one at its
// address, and while anybody in the process has the old one open the driver
// answers with the old mapping (seen on driver 580): writes would go to memory
// that the owner has freed. The driver's own id of the mapping tells.
bool importer::is_stale(const import_key &key, CUdeviceptr mapped)
{
    unsigned long long id = mapping_number(places_.cuda(), mapped);
    if (id == 0) {
        return false;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    opened_for                  now{{key.owner.token, key.buffer_id}, mapped};
    auto known = opened_for_.emplace(mapping_id{key.place_id, id}, now).first;
    bool stale = known->second.what != now.what;
    if (opened_for_.size() > remembered_most_) {
        forget_closed();
    }
    return stale;
}

// An id that the driver no longer knows at its address never comes again; one that it
// knows is still open, be it by others. The caller holds the lock.
void importer::forget_closed()
{
    for (auto i = opened_for_.begin(); i != opened_for_.end();) {
        bool is_open = is_same_allocation(places_.cuda(), i->second.mapped, i->first.second);
        i            = is_open ? std::next(i) : opened_for_.erase(i);
    }
    remembered_most_ = std::max(remembered_most_, 2 * opened_for_.size());
}

// Somebody in this process still holds the old mapping, which nobody can use any
// more: the owner has freed that memory. (cuda_ipc opens each peer's first
// allocation to see whether it can, and keeps it; ours may wait to be closed.)
// The driver counts opens: all are closed, and those of others made again, now of
// the new allocation, so that the other's close finds what it has to.
ucs_status_t importer::renew(const import_key &key, const CUipcMemHandle &raw, CUdeviceptr *mapped,
                             std::string *why)
{
    // More holders than a process has libraries that open handles.
    constexpr unsigned holders_max = 64;

    const cuda_api    &cuda    = places_.cuda();
    unsigned           holders = 0;
    unsigned long long old     = mapping_number(cuda, *mapped);
    if (is_in_use_(key)) {
        (void)cuda.cuIpcCloseMemHandle(*mapped);
        NVL_DEBUG("operations still use what the peer has freed at 0x%" PRIx64, key.base);
        return UCS_ERR_BUSY;
    }
    // Only of the old one: others may open and close meanwhile.
    while ((holders < holders_max) && is_same_allocation(cuda, *mapped, old) &&
           (cuda.cuIpcCloseMemHandle(*mapped) == CUDA_SUCCESS)) {
        ++holders;
    }
    unsigned ours = legacy_mapping::forsake(places_.at(key.place_id).context, *mapped, old);
    for (unsigned i = 0; i + ours < holders; ++i) {
        CUresult code = cuda.cuIpcOpenMemHandle(mapped, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (code != CUDA_SUCCESS) {
            add_reason(why, std::string("cuIpcOpenMemHandle: ") + cuda.error_text(code));
            return UCS_ERR_UNREACHABLE;
        }
    }
    if (is_stale(key, *mapped)) {
        (void)cuda.cuIpcCloseMemHandle(*mapped);
        NVL_DEBUG("the driver keeps what the peer has freed open at 0x%" PRIx64, key.base);
        return UCS_ERR_BUSY;
    }
    return UCS_OK;
}

// The handle does not say how long the memory is, and operations are held to what
// the key says: bytes behind the end would be somebody else's. The caller has made
// the place's context current.
bool importer::is_all_of(const import_key &key, CUdeviceptr mapped, std::string *why) const
{
    const cuda_api &cuda = places_.cuda();
    CUdeviceptr     base = 0;
    size_t          size = 0;
    CUresult        code = cuda.cuMemGetAddressRange(&base, &size, mapped);
    if (code != CUDA_SUCCESS) {
        add_reason(why, std::string("cuMemGetAddressRange: ") + cuda.error_text(code));
    } else if ((base != mapped) || (size < key.size_bytes)) {
        add_reason(why, "the peer's key says more bytes than what it opens has");
    } else {
        return true;
    }
    return false;
}

ucs_status_t importer::open_legacy(const import_key &key, std::unique_ptr<mapping> *opened,
                                   std::string *why)
{
    const cuda_api &cuda = places_.cuda();
    const place    &at   = places_.at(key.place_id);
    context_guard   guard(cuda, at.context);
    relaxed_capture relaxed(cuda);
    CUipcMemHandle  raw;
    CUdeviceptr     mapped = 0;

    std::memcpy(&raw, key.handle.bytes, sizeof(raw));
    std::shared_lock<std::shared_mutex> shared(legacy_mapping::opens());
    std::unique_lock<std::shared_mutex> alone(legacy_mapping::opens(), std::defer_lock);
    CUresult                            code = guard.ok()
                                                   ? cuda.cuIpcOpenMemHandle(&mapped, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
                                                   : guard.code();
    if (code != CUDA_SUCCESS) {
        add_reason(why, std::string("cuIpcOpenMemHandle: ") + cuda.error_text(code) +
                            peer_refusal_hint(code));
        return UCS_ERR_UNREACHABLE;
    }

    if (is_stale(key, mapped)) {
        // What was taken for stale may be closed meanwhile: it is counted below.
        shared.unlock();
        alone.lock();
        ucs_status_t status = is_stale(key, mapped) ? renew(key, raw, &mapped, why) : UCS_OK;
        if (status != UCS_OK) {
            return status;
        }
    }

    if (!is_all_of(key, mapped, why)) {
        (void)cuda.cuIpcCloseMemHandle(mapped);
        return UCS_ERR_UNREACHABLE;
    }
    opened->reset(new (std::nothrow) legacy_mapping(cuda, at.context, mapped));
    if (!*opened) {
        (void)cuda.cuIpcCloseMemHandle(mapped);
        return UCS_ERR_NO_MEMORY;
    }
    return UCS_OK;
}

std::unique_ptr<mapping> importer::open_pool(const import_key &key, const fetched_record &from,
                                             std::string *why)
{
    const place                   &at = places_.at(key.place_id);
    std::shared_ptr<imported_pool> pool;
    {
        std::lock_guard<std::mutex> guard(pools_mutex_);
        for (auto i = pools_.begin(); i != pools_.end();) {
            i = i->second.expired() ? pools_.erase(i) : std::next(i);
        }
        auto &known = pools_[{key.owner.token, from.record.pool}];
        pool        = known.lock();
        if (!pool) {
            pool  = imported_pool::open(places_.cuda(), at.context, from, why);
            known = pool;
        }
    }
    return pool ? pool_mapping::open(pool, places_.gpus()[at.gpu].device, from.record.pointer, why)
                : nullptr;
}

// By what the key itself has.
std::unique_ptr<mapping> importer::open_inline(const import_key &key, std::string *why)
{
    const place &at = places_.at(key.place_id);
    if (key.handle.kind != handle_fabric) {
        return nullptr;
    }
    if (key.kinds & handle_pool) {
        return open_pool(key, record_of(key), why);
    }
    return vmm_mapping::open(places_.cuda(), at.context, places_.gpus()[at.gpu].device,
                             record_of(key), why);
}

// Whether the two GPUs are in one fabric. What the driver would make of a handle
// of another one is not tried out.
bool importer::is_in_fabric(const import_key &key, std::string *why) const
{
    pair_path path = topology::get(places_.cuda())
                         .judge(places_.gpus()[places_.at(key.place_id).gpu].ordinal, false,
                                gpu_of(key.uuid, key.fabric));
    if (!path.reachable()) {
        add_reason(why, path.reason);
    }
    return path.reachable();
}

// VMM and pools.
std::unique_ptr<mapping> importer::open_shared(const import_key &key, const owner_link &link,
                                               std::string *why)
{
    const place    &at     = places_.at(key.place_id);
    CUdevice        device = places_.gpus()[at.gpu].device;
    const cuda_api &cuda   = places_.cuda();
    if (key.kinds & (handle_posix_fd | handle_pool | handle_fabric)) {
        fetched_record           got;
        std::unique_ptr<mapping> made;
        bool                     only_inline = key.kinds == key.handle.kind;
        if (!only_inline && (link.fetch(key.serial, &got, why) == UCS_OK)) {
            if ((got.record.base != key.base) || (got.record.size_bytes != key.size_bytes)) {
                add_reason(why, "the owner's record is of other memory");
            } else if (got.record.pool != 0) {
                return open_pool(key, got, why);
            } else {
                made = vmm_mapping::open(cuda, at.context, device, got, why);
            }
        }
        if (made) {
            return made;
        }
    }
    return open_inline(key, why);
}

ucs_status_t tell_freed(uint64_t base) noexcept
{
    NVL_DIAG("the peer has let go of its memory at 0x%" PRIx64 " before its key was used", base);
    return UCS_ERR_UNREACHABLE;
}

ucs_status_t importer::open(const import_key &key, const std::shared_ptr<owner_link> &link,
                            std::unique_ptr<mapping> *opened)
{
    std::string  why;
    ucs_status_t status = UCS_ERR_UNREACHABLE;
    if (!link->is_alive(key.serial)) {
        return tell_freed(key.base);
    }
    if (key.other_host) {
        *opened = is_in_fabric(key, &why) ? open_inline(key, &why) : nullptr;
        status  = *opened ? UCS_OK : UCS_ERR_UNREACHABLE;
    } else if (key.handle.kind == handle_legacy) {
        status = open_legacy(key, opened, &why);
    } else {
        *opened = open_shared(key, *link, &why);
        status  = *opened ? UCS_OK : UCS_ERR_UNREACHABLE;
    }
    // Handles name addresses, which may by now be those of other memory.
    if ((status == UCS_OK) && !link->is_alive(key.serial)) {
        opened->reset();
        return tell_freed(key.base);
    }
    if (status == UCS_ERR_UNREACHABLE) {
        tell_refused(key, why);
    }
    return status;
}

// ---- the log -------------------------------------------------------------------

bool importer::is_news(const import_key &key)
{
    std::lock_guard<std::mutex> guard(mutex_);
    return told_.emplace(key.place_id, key.uuid).second;
}

// A warning, once for each pair of GPUs: the bytes go another way.
void importer::tell_refused(const import_key &key, const std::string &why)
{
    const gpu &mine = places_.gpus()[places_.at(key.place_id).gpu];
    NVL_LOG(is_news(key) ? log_level::warn : log_level::debug,
            "GPU %d (%s) cannot open memory of GPU-%02x%02x%02x%02x of a peer process, so its "
            "bytes take another path: %s",
            mine.ordinal, mine.bus_id, key.uuid[0], key.uuid[1], key.uuid[2], key.uuid[3],
            why.c_str());
}

} // namespace nvl
