// SPDX-License-Identifier: BSD-3-Clause
//
// The bytes of one piece of emulated GPU memory: a memfd, which the copy workers reach through
// their own mapping and other processes through its descriptor. The last page of the file tells
// an importer what it holds and records who has it open.
#ifndef NVLINK_EMULATOR_BACKING_H
#define NVLINK_EMULATOR_BACKING_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace emu {

constexpr size_t   page_size  = 4096;
constexpr uint64_t file_magic = 0x31554d455f4c564eULL; // "NVL_EMU1"

enum class memory_source : uint32_t { alloc, physical, pool, managed, host };

// The last page of a memory file.
struct shared_page {
    struct import_slot {
        std::atomic<int32_t>  pid;
        std::atomic<uint32_t> opens;
    };
    static constexpr unsigned slots = 128;

    uint64_t              magic;
    memory_source         source;
    uint32_t              handle_types; // CUmemAllocationHandleType bits
    uint64_t              size;
    uint64_t              nonce[2];
    unsigned char         device_uuid[16]; // all 0: host memory
    char                  host[64];        // which emulated machine it is on
    char                  cluster[64];     // which fabric
    int32_t               owner_pid;
    uint32_t              gpu_direct_rdma;
    std::atomic<uint32_t> freed; // the owner has given it back
    import_slot           importers[slots];
};
static_assert(sizeof(shared_page) <= page_size, "one page at the end of the file");

class backing {
public:
    // A new file of size bytes; size is a multiple of the page size.
    static std::shared_ptr<backing> create(size_t size, memory_source source);
    // Takes over fd. nullptr: not a memory file of this emulator.
    static std::shared_ptr<backing> adopt(int fd);
    ~backing();
    backing(const backing &)            = delete;
    backing &operator=(const backing &) = delete;

    char *bytes() const
    {
        return bytes_;
    }
    size_t size() const
    {
        return size_;
    }
    int fd() const
    {
        return fd_;
    }
    shared_page &page() const
    {
        return *page_;
    }
    uint64_t block_id() const
    {
        return block_id_;
    }

    void     count_import() noexcept;
    void     uncount_import() noexcept;
    unsigned live_importers() const noexcept; // in other processes that still run

    // Device whose memory this uses up; set by whoever accounts for it.
    std::atomic<uint64_t> *used_bytes = nullptr;

private:
    backing(int fd, char *bytes, size_t size);
    int          fd_;
    char        *bytes_;
    size_t       size_;
    shared_page *page_;
    uint64_t     block_id_;
};

} // namespace emu

#endif
