// SPDX-License-Identifier: BSD-3-Clause
//
// Finds out how memory can be shared, makes the handles, and keeps them.
#include "mem/exports.h"

#include <atomic>
#include <cinttypes>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/log.h"
#include "mem/life_page.h"
#include "topo/topology.h"

namespace nvl {

namespace {

// Descriptors that exports hold, handles and files, of the whole process.
std::atomic<size_t> fds_held_g{0};

// Entries whose object is gone, when there are many.
template<typename M> void prune(M *known, size_t *limit)
{
    if (known->size() < *limit) {
        return;
    }
    for (auto i = known->begin(); i != known->end();) {
        i = i->second.expired() ? known->erase(i) : std::next(i);
    }
    *limit = 2 * known->size() + 64;
}

// How a driver says that this machine or this user has no fabric handles; the
// next kind is tried, and nobody need know.
bool is_no_fabric(CUresult code) noexcept
{
    return (code == CUDA_ERROR_NOT_PERMITTED) || (code == CUDA_ERROR_NOT_SUPPORTED);
}

unique_fd file_with(const std::vector<uint8_t> &bytes) noexcept
{
    unique_fd file(memfd_create("ucx-nvlink-export", MFD_CLOEXEC));
    if (!file ||
        (pwrite(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))) {
        return {};
    }
    return file;
}

// Both kinds of handle, each if it is allowed and the driver gives it. The last
// refusal goes to *code.
template<typename F>
void take_handles(shareable *part, uint64_t allowed, bool want_fd, CUresult *code,
                  F &&export_as) noexcept
{
    if ((allowed & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) && want_fd) {
        int      fd     = -1;
        CUresult answer = export_as(&fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (answer == CUDA_SUCCESS) {
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
            part->fd = unique_fd(fd);
            ++fds_held_g;
        } else {
            *code = answer;
        }
    }
    if (allowed & CU_MEM_HANDLE_TYPE_FABRIC) {
        CUresult answer  = export_as(part->fabric.data(), CU_MEM_HANDLE_TYPE_FABRIC);
        part->has_fabric = answer == CUDA_SUCCESS;
        if (is_no_fabric(answer)) {
            NVL_DEBUG("no fabric handle (no IMEX channel?), another kind is used");
        }
        *code = (answer == CUDA_SUCCESS) ? *code : answer;
    }
}

} // namespace

shareable::~shareable()
{
    if (fd) {
        --fds_held_g;
    }
    if ((chunk != 0) && !process_is_exiting()) {
        (void)cuda.cuMemRelease(chunk);
    }
}

exported::~exported()
{
    // First of all the mark: after it, peers trust nothing of this export, and
    // the descriptors' numbers may mean something else.
    life_page::own(key_.owner.token).end(key_.serial);
    home_.forget(*this);
    if (record_file_) {
        --fds_held_g;
    }
}

exports &exports::get(places &where)
{
    static exports *const only = new exports(where);
    return *only;
}

void exports::set_socket_folder(const char *folder)
{
    std::lock_guard<std::mutex> guard(make_mutex_);
    folder_ = (folder != nullptr) ? folder : "";
}

size_t exports::count() const noexcept
{
    std::lock_guard<std::mutex> guard(table_mutex_);
    return by_serial_.size();
}

// ---- the table -----------------------------------------------------------------

void exports::forget(const exported &gone) noexcept
{
    std::lock_guard<std::mutex> guard(table_mutex_);
    by_serial_.erase(gone.key_.serial);
    auto row = table_.find(gone.table_key_);
    if (row == table_.end()) {
        return;
    }
    list &all = row->second;
    for (size_t i = 0; i < all.size();) {
        if (all[i].expired()) {
            all[i].swap(all.back());
            all.pop_back();
        } else {
            ++i;
        }
    }
    if (all.empty()) {
        table_.erase(row);
    }
}

// True if these chunks, at these addresses, are among those of `self`.
bool exports::has_chunks(const exported &self, const std::vector<walked_chunk> &walk)
{
    uint64_t at = self.key_.base;
    size_t   i  = 0;
    while ((i < self.parts_.size()) && (at < walk[0].base)) {
        at += self.sizes_[i++];
    }
    if ((at != walk[0].base) || (self.parts_.size() - i < walk.size())) {
        return false;
    }
    for (const walked_chunk &chunk : walk) {
        if ((self.parts_[i] != chunk.part) || (self.sizes_[i] != chunk.size_bytes)) {
            return false;
        }
        ++i;
    }
    return true;
}

std::shared_ptr<exported> exports::find(const region &found, const std::vector<walked_chunk> &walk)
{
    // Let go of after the lock: this may be their last use.
    std::vector<std::shared_ptr<exported>> all;
    {
        std::lock_guard<std::mutex> guard(table_mutex_);
        auto                        row = table_.find(found.base);
        if (row == table_.end()) {
            return nullptr;
        }
        for (const std::weak_ptr<exported> &one : row->second) {
            if (std::shared_ptr<exported> alive = one.lock()) {
                all.push_back(std::move(alive));
            }
        }
    }
    for (std::shared_ptr<exported> &one : all) {
        bool same = walk.empty() ? (one->key_.buffer_id == found.buffer_id) &&
                                       (one->key_.size_bytes == found.size_bytes)
                                 : has_chunks(*one, walk);
        if (same) {
            return std::move(one);
        }
    }
    return nullptr;
}

std::shared_ptr<exported> exports::begin(const region &found, const process_identity &self,
                                         uint64_t base, size_t size_bytes)
{
    std::shared_ptr<exported> made(new exported(*this, found.base));
    life_page                &page = life_page::own(self.token);
    key_fields               &key  = made->key_;
    key.owner                      = self;
    key.serial                     = page.begin();
    key.uuid                       = where_.gpus()[found.gpu].uuid;
    key.base                       = base;
    key.size_bytes                 = size_bytes;
    key.buffer_id                  = found.buffer_id;
    if (where_.shares_between_hosts()) {
        gpu_identity known =
            topology::get(where_.cuda()).identity(where_.gpus()[found.gpu].ordinal);
        key.fabric.present = true;
        key.fabric.cluster = known.cluster;
        key.fabric.clique  = known.clique;
    }
    key.page_fd = ((page.fd() >= 0) && (page.fd() < no_page_fd)) ? static_cast<uint16_t>(page.fd())
                                                                 : no_page_fd;
    std::lock_guard<std::mutex> guard(table_mutex_);
    by_serial_[key.serial] = made.get();
    table_[found.base].push_back(made);
    return made;
}

// ---- what can be shared, and how -----------------------------------------------

void exports::refuse(cause why, const exported &self, uint64_t handle_types,
                     const std::string &reason)
{
    // A process of MIG instances has no peers, and misses nothing.
    bool has_peers = topology::get(where_.cuda()).pairs().reach().peers;
    bool first     = has_peers && !std::exchange(told_[static_cast<unsigned>(why)], true);
    NVL_LOG(first ? log_level::warn : log_level::debug,
            "memory at 0x%" PRIx64 " length %" PRIu64 " cannot be shared with other processes "
            "(allowed handle types 0x%" PRIx64 "): %s; peers use another path",
            self.key_.base, self.key_.size_bytes, handle_types, reason.c_str());
}

void exports::export_legacy(exported *self, const region &found, const place &at)
{
    const cuda_api &cuda  = where_.cuda();
    context_guard   guard = where_.enter(at);
    relaxed_capture relaxed(cuda);
    CUipcMemHandle  raw;
    CUresult        code = guard.ok() ? cuda.cuIpcGetMemHandle(&raw, found.base) : guard.code();
    if (code != CUDA_SUCCESS) {
        refuse(cause::legacy, *self, found.handle_types,
               std::string("cuIpcGetMemHandle: ") + cuda.error_text(code));
        return;
    }
    inline_handle &handle = self->key_.handle;
    static_assert(sizeof(raw) == sizeof(handle.bytes), "legacy handles fill the buffer");
    std::memcpy(handle.bytes, &raw, sizeof(raw));
    handle.kind      = handle_legacy;
    self->key_.kinds = handle_legacy;
}

std::shared_ptr<shareable> exports::pool_of(const region &found, CUresult *code)
{
    const cuda_api &cuda = where_.cuda();
    prune(&pools_, &pools_limit_);
    std::shared_ptr<shareable> part = pools_[found.pool].lock();
    if (part) {
        return part;
    }
    part         = std::make_shared<shareable>(cuda);
    part->number = ++last_pool_;
    take_handles(part.get(), found.handle_types, may_hold_fds(1), code,
                 [&](void *out, CUmemAllocationHandleType type) {
                     return cuda.cuMemPoolExportToShareableHandle(out, found.pool, type, 0);
                 });
    if (!part->fd && !part->has_fabric) {
        return nullptr;
    }
    pools_[found.pool] = part;
    return part;
}

void exports::export_pool(exported *self, const region &found)
{
    const cuda_api &cuda = where_.cuda();
    if ((cuda.cuMemPoolExportToShareableHandle == nullptr) ||
        (cuda.cuMemPoolExportPointer == nullptr) || (found.handle_types == 0)) {
        refuse(cause::pool, *self, found.handle_types,
               "its pool has no handles, as the default pool of a GPU: make a pool with "
               "cuMemPoolCreate and handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or "
               "allocate with cudaMalloc");
        return;
    }
    CUresult                   code = CUDA_ERROR_NOT_SUPPORTED;
    std::shared_ptr<shareable> pool = pool_of(found, &code);
    CUmemPoolPtrExportData     pointer{};
    if (pool) {
        code = cuda.cuMemPoolExportPointer(&pointer, found.base);
    }
    if (code != CUDA_SUCCESS) {
        refuse(cause::pool, *self, found.handle_types,
               std::string("the driver refuses to export its pool: ") + cuda.error_text(code));
        return;
    }
    std::memcpy(self->record_.pointer.data(), &pointer, sizeof(pointer));
    self->record_.pool = pool->number;
    self->key_.kinds   = static_cast<uint8_t>(handle_pool | (pool->fd ? handle_posix_fd : 0) |
                                            (pool->has_fabric ? handle_fabric : 0));
    if (pool->has_fabric && self->key_.fabric.present) {
        self->key_.handle.kind = handle_fabric;
        std::memcpy(self->key_.handle.bytes, pool->fabric.data(), shared_handle_size);
        self->key_.fabric.pool = pool->number;
        std::memcpy(self->key_.fabric.pointer, &pointer, sizeof(pointer));
    }
    self->parts_.push_back(std::move(pool));
    self->sizes_.push_back(0);
}

std::shared_ptr<shareable> exports::chunk_at(uint64_t address)
{
    const cuda_api              &cuda  = where_.cuda();
    CUmemGenericAllocationHandle chunk = 0;
    if ((cuda.cuMemRetainAllocationHandle == nullptr) || (cuda.cuMemRelease == nullptr) ||
        (cuda.cuMemRetainAllocationHandle(&chunk, reinterpret_cast<void *>(address)) !=
         CUDA_SUCCESS)) {
        return nullptr;
    }
    prune(&chunks_, &chunks_limit_);
    std::weak_ptr<shareable>  &known = chunks_[chunk];
    std::shared_ptr<shareable> part  = known.lock();
    if (part) {
        // It holds the handle itself: no other chunk can have this number.
        (void)cuda.cuMemRelease(chunk);
        return part;
    }
    part        = std::make_shared<shareable>(cuda);
    part->chunk = chunk;
    known       = part;
    return part;
}

// The chunks under [address, +size), in a row. False, with the first address
// that is not mapped, if there is a hole.
bool exports::walk(const place &at, uint64_t address, size_t size_bytes,
                   std::vector<walked_chunk> *out, uint64_t *hole)
{
    const cuda_api &cuda  = where_.cuda();
    context_guard   guard = where_.enter(at);
    relaxed_capture relaxed(cuda);
    uint64_t        next = address;
    do {
        CUdeviceptr                base  = 0;
        size_t                     bytes = 0;
        std::shared_ptr<shareable> part;
        if (guard.ok() && (cuda.cuMemGetAddressRange(&base, &bytes, next) == CUDA_SUCCESS)) {
            part = chunk_at(next);
        }
        if (!part || (next - base >= bytes) || (!out->empty() && (base != next))) {
            *hole = next;
            return false;
        }
        out->push_back({base, bytes, std::move(part)});
        next = base + bytes;
    } while (next - address < size_bytes);
    return true;
}

// False if that many more could keep the application from opening its own files.
bool exports::may_hold_fds(size_t count, uint64_t share) noexcept
{
    rlimit limit{};
    return (getrlimit(RLIMIT_NOFILE, &limit) != 0) ||
           (fds_held_g.load() + count <= limit.rlim_cur / share);
}

// Empty if there is to be none: peers ask for the record over the socket.
unique_fd exports::record_file(const export_record &record)
{
    if (!may_hold_fds(1, files_share)) {
        return {};
    }
    unique_fd made = file_with(record_pack(record));
    fds_held_g += made ? 1 : 0;
    return made;
}

void exports::export_chunks(exported *self, const std::vector<walked_chunk> &walk)
{
    const cuda_api &cuda    = where_.cuda();
    bool            want_fd = may_hold_fds(walk.size());
    uint8_t         kinds   = 0;
    for (const walked_chunk &chunk : walk) {
        CUmemAllocationProp prop{};
        shareable          *part = chunk.part.get();
        CUresult            code = cuda.cuMemGetAllocationPropertiesFromHandle(&prop, part->chunk);
        auto                allowed = static_cast<uint64_t>(prop.requestedHandleTypes);
        if (!part->fd && !part->has_fabric && (code == CUDA_SUCCESS)) {
            take_handles(part, allowed, want_fd, &code,
                         [&](void *out, CUmemAllocationHandleType type) {
                             return cuda.cuMemExportToShareableHandle(out, part->chunk, type, 0);
                         });
        }
        if (!part->fd && !part->has_fabric) {
            std::string reason = "the chunk at 0x";
            char        hex[17];
            std::snprintf(hex, sizeof(hex), "%" PRIx64, chunk.base);
            reason += hex;
            if (code != CUDA_SUCCESS) {
                reason +=
                    std::string(" has handles that the driver refuses: ") + cuda.error_text(code);
            } else if (allowed == 0) {
                reason += " has no handles: create it with requestedHandleTypes = "
                          "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
            } else {
                reason += " needs a descriptor, and half of what this process may open is taken "
                          "already: raise ulimit -n";
            }
            refuse(cause::vmm, *self, allowed, reason);
            return;
        }
        kinds |= static_cast<uint8_t>((part->fd ? handle_posix_fd : 0) |
                                      (part->has_fabric ? handle_fabric : 0));
    }
    if ((walk.size() == 1) && walk[0].part->has_fabric) {
        self->key_.handle.kind = handle_fabric;
        std::memcpy(self->key_.handle.bytes, walk[0].part->fabric.data(), shared_handle_size);
    }
    self->key_.kinds = kinds;
}

// Writes the record for peers to fetch, unless the key says all.
void exports::publish(exported *self)
{
    bool needs_record = (self->key_.kinds & (handle_posix_fd | handle_pool)) ||
                        ((self->key_.kinds & handle_fabric) && !self->key_.handle.kind);
    if (!needs_record) {
        return;
    }
    export_record &record = self->record_;
    record.token          = self->key_.owner.token;
    record.serial         = self->key_.serial;
    record.base           = self->key_.base;
    record.size_bytes     = self->key_.size_bytes;
    {
        // The server's thread reads it as soon as there are chunks.
        std::lock_guard<std::mutex> guard(table_mutex_);
        for (size_t i = 0; i < self->parts_.size(); ++i) {
            const shareable &part = *self->parts_[i];
            record.chunks.push_back({self->sizes_[i], part.fd.get(), part.has_fabric, part.fabric});
        }
    }
    self->record_file_ = record_file(record);
    life_page::own(record.token).set_record(record.serial, self->record_file_.get());
    descriptor_server::start(record.token, folder_,
                             [this](const descriptor_question &asked, descriptor_reply *reply) {
                                 return answer(asked, reply);
                             });
}

// In the server's thread, which must never be the one to end an export: it works
// on copies of the descriptors.
bool exports::answer(const descriptor_question &asked, descriptor_reply *reply)
{
    auto copy = [&](int fd) {
        reply->fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
        return static_cast<bool>(reply->fds.back());
    };
    if (asked.ask == static_cast<uint32_t>(descriptor_ask::page)) {
        int fd = life_page::own(asked.token).fd();
        return (fd >= 0) && copy(fd);
    }
    std::lock_guard<std::mutex> guard(table_mutex_);
    auto                        found = by_serial_.find(asked.serial);
    if ((found == by_serial_.end()) || found->second->record_.chunks.empty()) {
        return false;
    }
    const export_record &record = found->second->record_;
    reply->bytes                = record_pack(record);
    for (const shared_chunk &chunk : record.chunks) {
        if ((chunk.fd >= 0) && !copy(chunk.fd)) {
            return false;
        }
    }
    return true;
}

std::shared_ptr<exported> exports::make(const region &found, const place &at, uint64_t address,
                                        size_t size_bytes, const process_identity &self)
{
    bool                      is_vmm = !found.legacy_ipc && (found.pool == nullptr);
    std::vector<walked_chunk> chunks;
    uint64_t                  hole   = 0;
    bool                      mapped = !is_vmm || walk(at, address, size_bytes, &chunks, &hole);
    if (mapped) {
        std::shared_ptr<exported> known = find(found, chunks);
        if (known) {
            return known;
        }
    }

    uint64_t base = found.base;
    size_t   size = found.size_bytes;
    if (is_vmm) {
        base = chunks.empty() ? address : chunks.front().base;
        size =
            (mapped ? chunks.back().base + chunks.back().size_bytes : address + size_bytes) - base;
    }
    std::shared_ptr<exported> made = begin(found, self, base, size);
    if (!mapped) {
        char where[64];
        std::snprintf(where, sizeof(where), "nothing is mapped at 0x%" PRIx64, hole);
        refuse(cause::hole, *made, found.handle_types, where);
        return made;
    }
    if (found.legacy_ipc) {
        export_legacy(made.get(), found, at);
    } else if (found.pool != nullptr) {
        export_pool(made.get(), found);
    } else {
        for (const walked_chunk &chunk : chunks) {
            made->parts_.push_back(chunk.part);
            made->sizes_.push_back(chunk.size_bytes);
        }
        // That of the first chunk, as one finds it at the key's address.
        (void)where_.cuda().cuPointerGetAttribute(&made->key_.buffer_id,
                                                  CU_POINTER_ATTRIBUTE_BUFFER_ID, base);
        export_chunks(made.get(), chunks);
    }
    publish(made.get());
    return made;
}

result<std::shared_ptr<exported>> exports::share(const region &found, const place &at,
                                                 uint64_t address, size_t size_bytes,
                                                 const process_identity &self) noexcept
{
    try {
        std::lock_guard<std::mutex> guard(make_mutex_);
        return make(found, at, address, size_bytes, self);
    } catch (const std::bad_alloc &) {
        return UCS_ERR_NO_MEMORY;
    }
}

} // namespace nvl
