// SPDX-License-Identifier: BSD-3-Clause
//
// Open imports: a peer's memory in this process's addresses, closed by the
// destructor. One class for each way of opening. Made by importer, kept by
// map_cache; calls the driver.
#ifndef NVLINK_MEM_MAPPING_H
#define NVLINK_MEM_MAPPING_H

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "driver/handles.h"
#include "mem/owner_link.h"

namespace nvl {

struct map_entry;

class mapping {
public:
    virtual ~mapping()                  = default;
    mapping(const mapping &)            = delete;
    mapping &operator=(const mapping &) = delete;

    CUdeviceptr mapped() const noexcept
    {
        return mapped_;
    }

protected:
    mapping(const cuda_api &cuda, CUcontext context, CUdeviceptr mapped) noexcept
        : cuda_(cuda), context_(context), mapped_(mapped)
    {
    }

    const cuda_api &cuda_;
    CUcontext       context_;
    CUdeviceptr     mapped_;

private:
    friend class map_cache;

    map_entry                  *home_ = nullptr; // where the cache keeps it
    std::shared_ptr<owner_link> link_;           // lives as long as something of the owner's
};

// The driver's own number of what is mapped there, which it never gives again; 0: not known.
unsigned long long mapping_number(const cuda_api &cuda, CUdeviceptr mapped) noexcept;

// cuIpcOpenMemHandle.
class legacy_mapping : public mapping {
public:
    legacy_mapping(const cuda_api &cuda, CUcontext context, CUdeviceptr mapped);
    ~legacy_mapping() override;

    // The driver counts the opens of a handle for the whole process. Held shared
    // by whoever opens or closes one; alone by who closes and opens them all anew.
    static std::shared_mutex &opens() noexcept;

    // The driver has closed what was mapped there under its number `id`: the mappings of
    // that have nothing to close any more. Those of what was or is there under another
    // one are left alone. Returns how many there are. The caller holds opens() alone.
    static unsigned forsake(CUcontext context, CUdeviceptr mapped, unsigned long long id) noexcept;

private:
    unsigned long long id_;                // its mapping_number()
    bool               is_closed_ = false; // under opens()
};

// Chunks mapped in a row into addresses of their own.
class vmm_mapping : public mapping {
public:
    // Null with the reason in *why.
    static std::unique_ptr<mapping> open(const cuda_api &cuda, CUcontext context, CUdevice device,
                                         const fetched_record &from, std::string *why);
    ~vmm_mapping() override;

private:
    vmm_mapping(const cuda_api &cuda, CUcontext context, CUdeviceptr reserved,
                size_t size_bytes) noexcept
        : mapping(cuda, context, reserved), size_bytes_(size_bytes)
    {
    }

    bool map(CUdevice device, const fetched_record &from, std::string *why);

    size_t              size_bytes_;
    std::vector<size_t> chunks_; // that are mapped
};

// A peer's pool in this process, and the pointers in it: imported once, however many GPUs use
// them. A second import of a pointer leads to the same memory, and freeing either ends both
// (driver 580: the second free is refused).
class imported_pool {
public:
    imported_pool(const cuda_api &cuda, CUcontext context, CUmemoryPool pool) noexcept
        : cuda_(cuda), context_(context), pool_(pool)
    {
    }

    ~imported_pool();
    imported_pool(const imported_pool &)            = delete;
    imported_pool &operator=(const imported_pool &) = delete;

    // Null with the reason in *why.
    static std::shared_ptr<imported_pool> open(const cuda_api &cuda, CUcontext context,
                                               const fetched_record &from, std::string *why);

    // Lets a GPU touch the pool's memory. Any thread; throws std::bad_alloc.
    bool allow(CUdevice device, std::string *why);

    // Where a pointer is; to be given back as often. 0 with the reason in *why. Any thread; throws
    // std::bad_alloc.
    CUdeviceptr take(const shared_handle &pointer, std::string *why);
    void        give_back(const shared_handle &pointer) noexcept;

    const cuda_api &cuda() const noexcept
    {
        return cuda_;
    }

    CUcontext context() const noexcept
    {
        return context_;
    }

private:
    struct imported_pointer {
        CUdeviceptr mapped = 0;
        unsigned    users  = 0;
    };

    const cuda_api    &cuda_;
    CUcontext          context_;
    CUmemoryPool       pool_;
    std::mutex         mutex_; // of what follows; the driver is called under it
    std::set<CUdevice> allowed_;
    std::map<shared_handle, imported_pointer> pointers_;
};

// A pointer in a shared pool.
class pool_mapping : public mapping {
public:
    static std::unique_ptr<mapping> open(std::shared_ptr<imported_pool> pool, CUdevice device,
                                         const shared_handle &pointer, std::string *why);
    ~pool_mapping() override;

private:
    pool_mapping(std::shared_ptr<imported_pool> pool, const shared_handle &pointer,
                 CUdeviceptr mapped) noexcept
        : mapping(pool->cuda(), pool->context(), mapped), pool_(std::move(pool)), pointer_(pointer)
    {
    }

    std::shared_ptr<imported_pool> pool_;
    shared_handle                  pointer_;
};

} // namespace nvl

#endif
