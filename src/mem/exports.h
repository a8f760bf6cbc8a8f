// SPDX-License-Identifier: BSD-3-Clause
//
// What this process lets its peers open: one export for an allocation, however
// many registrations it has, from the first packed key to the last registration.
// Called by export (registrations) and the descriptor server; calls the driver.
#ifndef NVLINK_MEM_EXPORTS_H
#define NVLINK_MEM_EXPORTS_H

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "mem/descriptor_server.h"
#include "mem/export_record.h"
#include "mem/region.h"
#include "mem/wire_key.h"

namespace nvl {

// Something of the driver's with handles that others may open: a chunk of VMM
// memory or a pool. Shared by all exports that need it.
struct shareable {
    explicit shareable(const cuda_api &driver) noexcept : cuda(driver)
    {
    }

    ~shareable();

    const cuda_api              &cuda;
    CUmemGenericAllocationHandle chunk  = 0; // retained, so that no other takes its number
    uint64_t                     number = 0; // of a pool, never used again
    unique_fd                    fd;
    bool                         has_fabric = false;
    shared_handle                fabric{};
};

// An allocation, or the chunks of a VMM range that were registered.
class exported {
public:
    ~exported();
    exported(const exported &)            = delete;
    exported &operator=(const exported &) = delete;

    const key_fields &key() const noexcept
    {
        return key_;
    }

    // True if the whole range is inside.
    bool covers(uint64_t address, size_t size_bytes) const noexcept
    {
        return (address >= key_.base) && (address - key_.base <= key_.size_bytes) &&
               (size_bytes <= key_.size_bytes - (address - key_.base));
    }

private:
    friend class exports;

    exported(class exports &home, uint64_t place_in_table) noexcept
        : home_(home), table_key_(place_in_table)
    {
    }

    class exports                          &home_;
    uint64_t                                table_key_;
    key_fields                              key_;
    std::vector<std::shared_ptr<shareable>> parts_; // chunks in their order, or the pool
    std::vector<size_t>                     sizes_; // of the chunks
    export_record                           record_;
    unique_fd                               record_file_;
};

class exports {
public:
    // The process's, never destroyed.
    static exports &get(places &where);

    // For descriptors, before the first share(): UCX_NVLINK_SOCKET_DIR.
    void set_socket_folder(const char *folder);

    // The export of the memory at [address, +size), which `found` describes and
    // which copies run on in `at`. Made, or shared with who has it. What cannot
    // be exported has an export too, whose key names no kind; the first of each
    // cause is logged as a warning. Any thread; calls the driver, which does not
    // wait for the GPU in this.
    result<std::shared_ptr<exported>> share(const region &found, const place &at, uint64_t address,
                                            size_t                  size_bytes,
                                            const process_identity &self) noexcept;

    // How many are alive, for tests.
    size_t count() const noexcept;

private:
    struct walked_chunk {
        uint64_t                   base;
        size_t                     size_bytes;
        std::shared_ptr<shareable> part;
    };

    // Why memory cannot be exported, in words, and whether that was told before.
    enum class cause : unsigned { legacy, vmm, hole, pool, count };

    explicit exports(places &where) noexcept : where_(where)
    {
    }

    // Of the descriptors that this process may have, one in so many may be of exports.
    // Without handles most memory cannot be shared; without its file a record goes over
    // the socket, so files leave room for handles.
    static constexpr uint64_t handles_share = 2, files_share = 4;

    friend class exported;
    using list = std::vector<std::weak_ptr<exported>>;

    std::shared_ptr<exported> find(const region &found, const std::vector<walked_chunk> &walk);
    static bool has_chunks(const exported &self, const std::vector<walked_chunk> &walk);
    std::shared_ptr<exported> begin(const region &found, const process_identity &self,
                                    uint64_t base, size_t size_bytes);
    void                      forget(const exported &gone) noexcept;
    std::shared_ptr<exported> make(const region &found, const place &at, uint64_t address,
                                   size_t size_bytes, const process_identity &self);
    void                      export_legacy(exported *self, const region &found, const place &at);
    void                      export_pool(exported *self, const region &found);
    void                      export_chunks(exported *self, const std::vector<walked_chunk> &walk);
    bool walk(const place &at, uint64_t address, size_t size_bytes, std::vector<walked_chunk> *out,
              uint64_t *hole);
    std::shared_ptr<shareable> chunk_at(uint64_t address);
    std::shared_ptr<shareable> pool_of(const region &found, CUresult *code);
    static bool                may_hold_fds(size_t count, uint64_t share = handles_share) noexcept;
    static unique_fd           record_file(const export_record &record);
    void                       publish(exported *self);
    bool                       answer(const descriptor_question &asked, descriptor_reply *reply);
    void refuse(cause why, const exported &self, uint64_t handle_types, const std::string &reason);

    places                            &where_;
    std::mutex                         make_mutex_;  // one export is made at a time
    mutable std::mutex                 table_mutex_; // of the tables; never held over a driver call
    std::unordered_map<uint64_t, list> table_;
    std::unordered_map<uint64_t, exported *>                         by_serial_;
    std::map<CUmemGenericAllocationHandle, std::weak_ptr<shareable>> chunks_;
    std::map<CUmemoryPool, std::weak_ptr<shareable>>                 pools_;
    size_t      chunks_limit_ = 64, pools_limit_ = 64; // when to look for what is gone
    uint64_t    last_pool_ = 0;
    std::string folder_;
    bool        told_[static_cast<unsigned>(cause::count)] = {};
};

} // namespace nvl

#endif
