// SPDX-License-Identifier: BSD-3-Clause
//
// Opens and closes what peers share.
#include "mem/mapping.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/log.h"

namespace nvl {

namespace {

void add_reason(std::string *why, const cuda_api &cuda, const char *call, CUresult code)
{
    *why += (why->empty() ? "" : "; ") + std::string(call) + ": " + cuda.error_text(code) +
            peer_refusal_hint(code);
}

void warn_failed(const cuda_api &cuda, CUresult code, const char *call) noexcept
{
    if (code != CUDA_SUCCESS) {
        (void)cuda_failed(cuda, code, call, static_cast<int>(log_level::warn));
    }
}

CUmemAccessDesc full_access(CUdevice device) noexcept
{
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id   = device;
    access.flags         = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

// By descriptor, else by fabric handle; `import_as` calls the driver.
template<typename F>
bool import_shared(const cuda_api &cuda, const fetched_record &from, const shared_chunk &what,
                   const char *call, std::string *why, F &&import_as)
{
    if ((what.fd >= 0) && (static_cast<size_t>(what.fd) < from.fds.size())) {
        auto     fd = static_cast<intptr_t>(from.fds[static_cast<size_t>(what.fd)].get());
        CUresult code =
            import_as(reinterpret_cast<void *>(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (code == CUDA_SUCCESS) {
            return true;
        }
        add_reason(why, cuda, (std::string(call) + " by descriptor").c_str(), code);
    }
    if (what.has_fabric) {
        shared_handle copy = what.fabric;
        CUresult      code = import_as(copy.data(), CU_MEM_HANDLE_TYPE_FABRIC);
        if (code == CUDA_SUCCESS) {
            return true;
        }
        add_reason(why, cuda, (std::string(call) + " by fabric handle").c_str(), code);
    }
    return false;
}

} // namespace

// ---- legacy handles ------------------------------------------------------------

namespace {

// Those that live. Never destroyed: one may be closed while the process ends.
struct legacy_mappings {
    std::shared_mutex             opens;
    std::mutex                    mutex; // of `all`
    std::vector<legacy_mapping *> all;
};

legacy_mappings &legacy_mappings_get()
{
    static auto *const only = new legacy_mappings;
    return *only;
}

} // namespace

unsigned long long mapping_number(const cuda_api &cuda, CUdeviceptr mapped) noexcept
{
    unsigned long long id = 0;
    CUresult code         = cuda.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, mapped);
    return (code == CUDA_SUCCESS) ? id : 0;
}

std::shared_mutex &legacy_mapping::opens() noexcept
{
    return legacy_mappings_get().opens;
}

legacy_mapping::legacy_mapping(const cuda_api &cuda, CUcontext context, CUdeviceptr mapped)
    : mapping(cuda, context, mapped), id_(mapping_number(cuda, mapped))
{
    legacy_mappings            &live = legacy_mappings_get();
    std::lock_guard<std::mutex> guard(live.mutex);
    live.all.push_back(this);
}

legacy_mapping::~legacy_mapping()
{
    legacy_mappings                    &live = legacy_mappings_get();
    std::shared_lock<std::shared_mutex> shared(live.opens);
    {
        std::lock_guard<std::mutex> guard(live.mutex);
        live.all.erase(std::find(live.all.begin(), live.all.end(), this));
    }
    if (is_closed_ || process_is_exiting()) {
        return;
    }
    // A context that was reset took it along; others may have opened something there.
    if ((id_ != 0) && !is_same_allocation(cuda_, mapped_, id_)) {
        return;
    }
    context_guard   guard(cuda_, context_);
    relaxed_capture relaxed(cuda_);
    if (guard.ok()) {
        warn_failed(cuda_, cuda_.cuIpcCloseMemHandle(mapped_), "cuIpcCloseMemHandle");
    }
}

unsigned legacy_mapping::forsake(CUcontext context, CUdeviceptr mapped,
                                 unsigned long long id) noexcept
{
    legacy_mappings            &live = legacy_mappings_get();
    std::lock_guard<std::mutex> guard(live.mutex);
    unsigned                    count = 0;
    for (legacy_mapping *each : live.all) {
        bool is_it = (each->context_ == context) && (each->mapped_ == mapped) && (each->id_ == id);
        if (is_it && !each->is_closed_) {
            each->is_closed_ = true;
            ++count;
        }
    }
    return count;
}

// ---- VMM -----------------------------------------------------------------------

bool vmm_mapping::map(CUdevice device, const fetched_record &from, std::string *why)
{
    chunks_.reserve(from.record.chunks.size());
    uint64_t at = mapped_;
    for (const shared_chunk &chunk : from.record.chunks) {
        CUmemGenericAllocationHandle handle = 0;
        if (!import_shared(cuda_, from, chunk, "cuMemImportFromShareableHandle", why,
                           [&](void *shared, CUmemAllocationHandleType type) {
                               return cuda_.cuMemImportFromShareableHandle(&handle, shared, type);
                           })) {
            return false;
        }
        CUresult code = cuda_.cuMemMap(at, chunk.size_bytes, 0, handle, 0);
        (void)cuda_.cuMemRelease(handle); // the mapping keeps what is behind it
        if (code != CUDA_SUCCESS) {
            add_reason(why, cuda_, "cuMemMap", code);
            return false;
        }
        chunks_.push_back(chunk.size_bytes);
        at += chunk.size_bytes;
    }
    CUmemAccessDesc access = full_access(device);
    CUresult        code   = cuda_.cuMemSetAccess(mapped_, size_bytes_, &access, 1);
    if (code != CUDA_SUCCESS) {
        add_reason(why, cuda_, "cuMemSetAccess", code);
    }
    return code == CUDA_SUCCESS;
}

std::unique_ptr<mapping> vmm_mapping::open(const cuda_api &cuda, CUcontext context, CUdevice device,
                                           const fetched_record &from, std::string *why)
{
    CUdeviceptr reserved = 0;
    size_t      size     = from.record.size_bytes;
    if ((cuda.cuMemImportFromShareableHandle == nullptr) || (cuda.cuMemMap == nullptr) ||
        (cuda.cuMemAddressReserve == nullptr) || (cuda.cuMemSetAccess == nullptr)) {
        *why += "the driver has no virtual memory management";
        return nullptr;
    }
    context_guard   guard(cuda, context);
    relaxed_capture relaxed(cuda);
    CUresult code = guard.ok() ? cuda.cuMemAddressReserve(&reserved, size, 0, 0, 0) : guard.code();
    if (code != CUDA_SUCCESS) {
        add_reason(why, cuda, "cuMemAddressReserve", code);
        return nullptr;
    }
    auto *raw = new (std::nothrow) vmm_mapping(cuda, context, reserved, size);
    if (raw == nullptr) {
        (void)cuda.cuMemAddressFree(reserved, size);
        throw std::bad_alloc();
    }
    std::unique_ptr<mapping> made(raw);
    return raw->map(device, from, why) ? std::move(made) : nullptr;
}

vmm_mapping::~vmm_mapping()
{
    if (process_is_exiting()) {
        return;
    }
    context_guard   guard(cuda_, context_);
    relaxed_capture relaxed(cuda_);
    uint64_t        at = mapped_;
    for (size_t size : chunks_) {
        warn_failed(cuda_, cuda_.cuMemUnmap(at, size), "cuMemUnmap");
        at += size;
    }
    warn_failed(cuda_, cuda_.cuMemAddressFree(mapped_, size_bytes_), "cuMemAddressFree");
}

// ---- pools ---------------------------------------------------------------------

std::shared_ptr<imported_pool> imported_pool::open(const cuda_api &cuda, CUcontext context,
                                                   const fetched_record &from, std::string *why)
{
    CUmemoryPool    pool = nullptr;
    context_guard   guard(cuda, context);
    relaxed_capture relaxed(cuda);
    if ((cuda.cuMemPoolImportFromShareableHandle == nullptr) ||
        (cuda.cuMemPoolImportPointer == nullptr) || (cuda.cuMemPoolSetAccess == nullptr)) {
        *why += "the driver has no memory pools";
        return nullptr;
    }
    if (!import_shared(cuda, from, from.record.chunks[0], "cuMemPoolImportFromShareableHandle", why,
                       [&](void *shared, CUmemAllocationHandleType type) {
                           return cuda.cuMemPoolImportFromShareableHandle(&pool, shared, type, 0);
                       })) {
        return nullptr;
    }
    return std::make_shared<imported_pool>(cuda, context, pool);
}

bool imported_pool::allow(CUdevice device, std::string *why)
{
    std::lock_guard<std::mutex> guard(mutex_);
    if (!allowed_.insert(device).second) {
        return true;
    }
    context_guard   current(cuda_, context_);
    relaxed_capture relaxed(cuda_);
    CUmemAccessDesc access = full_access(device);
    CUresult        code   = cuda_.cuMemPoolSetAccess(pool_, &access, 1);
    if (code != CUDA_SUCCESS) {
        allowed_.erase(device);
        add_reason(why, cuda_, "cuMemPoolSetAccess", code);
    }
    return code == CUDA_SUCCESS;
}

CUdeviceptr imported_pool::take(const shared_handle &pointer, std::string *why)
{
    std::lock_guard<std::mutex> guard(mutex_);
    auto                        at = pointers_.try_emplace(pointer).first;
    if (at->second.users == 0) {
        context_guard          current(cuda_, context_);
        relaxed_capture        relaxed(cuda_);
        CUmemPoolPtrExportData data;
        std::memcpy(&data, pointer.data(), sizeof(data));
        CUresult code = cuda_.cuMemPoolImportPointer(&at->second.mapped, pool_, &data);
        if (code != CUDA_SUCCESS) {
            pointers_.erase(at);
            add_reason(why, cuda_, "cuMemPoolImportPointer", code);
            return 0;
        }
    }
    ++at->second.users;
    return at->second.mapped;
}

void imported_pool::give_back(const shared_handle &pointer) noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    auto                        at = pointers_.find(pointer);
    if (--at->second.users != 0) {
        return;
    }
    if (!process_is_exiting()) {
        context_guard   current(cuda_, context_);
        relaxed_capture relaxed(cuda_);
        warn_failed(cuda_, cuda_.cuMemFree(at->second.mapped), "cuMemFree of a peer's pool memory");
    }
    pointers_.erase(at);
}

imported_pool::~imported_pool()
{
    if (!process_is_exiting()) {
        context_guard   guard(cuda_, context_);
        relaxed_capture relaxed(cuda_);
        warn_failed(cuda_, cuda_.cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
    }
}

std::unique_ptr<mapping> pool_mapping::open(std::shared_ptr<imported_pool> pool, CUdevice device,
                                            const shared_handle &pointer, std::string *why)
{
    CUdeviceptr mapped = pool->allow(device, why) ? pool->take(pointer, why) : 0;
    if (mapped == 0) {
        return nullptr;
    }
    imported_pool &home = *pool;
    auto          *raw  = new (std::nothrow) pool_mapping(std::move(pool), pointer, mapped);
    if (raw == nullptr) {
        home.give_back(pointer);
        throw std::bad_alloc();
    }
    return std::unique_ptr<mapping>(raw);
}

pool_mapping::~pool_mapping()
{
    pool_->give_back(pointer_);
}

} // namespace nvl
