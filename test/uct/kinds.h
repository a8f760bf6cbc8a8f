// SPDX-License-Identifier: BSD-3-Clause
//
// GPU memory of every kind that CUDA hands out, for tests on either side of a connection.
#ifndef NVLINK_TEST_UCT_KINDS_H
#define NVLINK_TEST_UCT_KINDS_H

#include "uct/bytes.h"
#include "uct/driver.h"

namespace nvl::test {

enum class memory_kind {
    alloc,
    vmm_fd,
    vmm_fabric,
    vmm_both,
    vmm_none,
    vmm_chunks, // of 2 MiB, by descriptor
    vmm_mixed,  // the same, the second one by fabric handle
    pool_default,
    pool_fd,
    pool_fabric,
    pool_none,
    count
};

constexpr int memory_kind_count = static_cast<int>(memory_kind::count);

const char *to_text(memory_kind kind);

// False if this machine does not make such memory (fabric handles without an IMEX channel).
bool can_make(memory_kind kind);

// True if other processes can open it.
bool is_exportable(memory_kind kind);

// Rounded up to what the kind takes; size() says to what.
class any_memory {
public:
    any_memory(memory_kind kind, int gpu, size_t size);
    ~any_memory();
    any_memory(const any_memory &)            = delete;
    any_memory &operator=(const any_memory &) = delete;

    uint64_t address() const
    {
        return address_;
    }

    size_t size() const
    {
        return size_;
    }

    void  write(size_t offset, const bytes &from);
    bytes read(size_t offset, size_t size) const;

    // Other physical memory at the addresses of one chunk.
    void replace_chunk(size_t index);

    // Nothing at the addresses of one chunk.
    void unmap_chunk(size_t index);

private:
    void map_chunk(size_t index);
    void make_vmm(size_t chunk_size);
    void make_in_pool(unsigned handle_types);

    memory_kind       kind_;
    int               gpu_;
    CUcontext         context_;
    CUdeviceptr       address_ = 0;
    size_t            size_;
    size_t            chunk_size_ = 0;
    std::vector<bool> mapped_;
    CUmemoryPool      pool_ = nullptr; // its own one
};

} // namespace nvl::test

#endif
