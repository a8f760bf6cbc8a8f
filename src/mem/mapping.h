// SPDX-License-Identifier: BSD-3-Clause
//
// Open imports: a peer's memory in this process's addresses, closed by the
// destructor. One class for each way of opening. Made by importer, kept by
// map_cache; calls the driver.
#ifndef NVLINK_MEM_MAPPING_H
#define NVLINK_MEM_MAPPING_H

#include <memory>
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

// cuIpcOpenMemHandle.
class legacy_mapping : public mapping {
public:
    legacy_mapping(const cuda_api &cuda, CUcontext context, CUdeviceptr mapped);
    ~legacy_mapping() override;

    // The driver counts the opens of a handle for the whole process. Held shared
    // by whoever opens or closes one; alone by who closes and opens them all anew.
    static std::shared_mutex &opens() noexcept;

    // The driver has closed what is mapped there: its mappings have nothing to
    // close any more. Returns how many there are. The caller holds opens() alone.
    static unsigned forsake(CUcontext context, CUdeviceptr mapped) noexcept;

private:
    unsigned long long id_        = 0;     // the driver's, of what is mapped; 0: not known
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

// A peer's pool in this process; shared by all pointers in it.
class imported_pool {
public:
    imported_pool(const cuda_api &cuda, CUcontext context, CUmemoryPool pool) noexcept
        : cuda_(cuda), context_(context), pool_(pool)
    {
    }

    ~imported_pool();
    imported_pool(const imported_pool &)            = delete;
    imported_pool &operator=(const imported_pool &) = delete;

    // Null with the reason in *why. `device` may touch it afterwards.
    static std::shared_ptr<imported_pool> open(const cuda_api &cuda, CUcontext context,
                                               CUdevice device, const fetched_record &from,
                                               std::string *why);

private:
    friend class pool_mapping;

    const cuda_api &cuda_;
    CUcontext       context_;
    CUmemoryPool    pool_;
};

// A pointer in a shared pool.
class pool_mapping : public mapping {
public:
    static std::unique_ptr<mapping> open(std::shared_ptr<imported_pool> pool,
                                         const shared_handle &pointer, std::string *why);
    ~pool_mapping() override;

private:
    pool_mapping(std::shared_ptr<imported_pool> pool, CUdeviceptr mapped) noexcept
        : mapping(pool->cuda_, pool->context_, mapped), pool_(std::move(pool))
    {
    }

    std::shared_ptr<imported_pool> pool_;
};

} // namespace nvl

#endif
