// SPDX-License-Identifier: BSD-3-Clause
//
// The address space that the GPUs and the process share: which addresses belong to the driver,
// what lies there, and where the bytes really are. GPU addresses are reserved without access, so
// that a stray touch by the processor faults.
#ifndef NVLINK_EMULATOR_SPACE_H
#define NVLINK_EMULATOR_SPACE_H

#include "backing.h"
#include "cuda_internal.h"

#include <array>
#include <map>
#include <memory>
#include <shared_mutex>
#include <vector>

namespace emu {

constexpr size_t va_granule  = 2u << 20; // as the driver maps
constexpr size_t packed_max  = 1u << 20; // allocations up to this share a granule
constexpr int    max_devices = 64;

enum class range_kind {
    alloc,      // cuMemAlloc and relatives
    imported,   // cuIpcOpenMemHandle
    vmm,        // one cuMemMap
    pool,       // cuMemAllocAsync, cuMemPoolImportPointer
    managed,    // cuMemAllocManaged
    global,     // a module's variable
    host_alloc, // cuMemHostAlloc
    host_registered,
};

struct pool;

// One allocation or mapping. Its fields do not change while it is in the space, except where an
// atomic says so: who needs another one replaces it.
struct range {
    uint64_t                 base = 0;
    size_t                   size = 0;
    range_kind               kind = range_kind::alloc;
    std::shared_ptr<backing> memory;
    size_t                   offset       = 0;       // of base in memory
    char                    *bytes        = nullptr; // where the processor reaches it
    int                      device       = -1;      // whose memory it is; -1: the host's
    CUcontext                context      = nullptr;
    uint64_t                 context_id   = 0;
    uint64_t                 buffer_id    = 0;
    unsigned                 flags        = 0;
    unsigned                 handle_types = 0;
    bool                     legacy_ipc   = false;
    bool                     of_graph     = false; // allocated in a capture
    std::atomic<bool>        sync_memops{false};
    std::shared_ptr<pool>    owner_pool;
    int                      opens       = 0; // of an import, under the lock of ipc.cpp
    uint64_t                 import_list = 0, import_address = 0; // whose
    int                      home = -1; // of an import: the device whose memory it is
    std::atomic<bool>        exported{false};
    // What each device may do there: 0 nothing, 1 read, 3 read and write. Only vmm and pool;
    // for the others peer access decides.
    std::array<std::atomic<unsigned char>, max_devices> access{};
    bool                                                has_own_access() const
    {
        return kind == range_kind::vmm || kind == range_kind::pool;
    }
    bool is_host() const
    {
        return kind == range_kind::host_alloc || kind == range_kind::host_registered;
    }
};

// Bytes that lie together for the processor.
struct piece {
    char                  *bytes = nullptr;
    size_t                 size  = 0;
    std::shared_ptr<range> from; // nullptr: pageable host memory
};

class space {
public:
    // size is rounded up to the granule. 0: no addresses left.
    uint64_t reserve(size_t size, size_t alignment, uint64_t wanted = 0);
    // Small allocations share a granule, as the driver packs them. 0: no addresses left.
    uint64_t reserve_packed(size_t size);
    // Of both.
    void release(uint64_t base, size_t size);
    bool is_gpu_address(uint64_t address) const;

    void insert(const std::shared_ptr<range> &r);
    // False, and nothing is done: something lies there already.
    bool                   insert_alone(const std::shared_ptr<range> &r);
    std::shared_ptr<range> find(uint64_t address) const;
    // False: it was taken out before.
    bool                                remove(const std::shared_ptr<range> &r);
    bool                                overlaps(uint64_t base, size_t size) const;
    std::vector<std::shared_ptr<range>> within(uint64_t base, size_t size) const;
    std::vector<std::shared_ptr<range>> all() const;

    // Where [address, address + size) lies. False: a part of it is GPU address space with
    // nothing behind it, or leaves the allocation in which it begins.
    bool locate(uint64_t address, size_t size, std::vector<piece> *pieces) const;

private:
    struct arena {
        uint64_t base = 0;
        size_t   size = 0;
    };
    bool     release_packed(uint64_t base);
    bool     grow(size_t size);
    uint64_t take(std::map<uint64_t, size_t>::iterator hole, uint64_t base, size_t size);

    mutable std::shared_mutex                  mutex_;
    std::map<uint64_t, std::shared_ptr<range>> ranges_;
    std::vector<arena>                         arenas_;
    std::map<uint64_t, size_t>                 free_; // base -> size
    // Granules that small allocations share: base -> what is in use there, base -> size.
    std::map<uint64_t, std::map<uint64_t, size_t>> packed_;
};

uint64_t next_buffer_id() noexcept;

inline size_t round_up(size_t size, size_t granule)
{
    return (size + granule - 1) / granule * granule;
}

} // namespace emu

#endif
