// SPDX-License-Identifier: BSD-3-Clause
//
// Which exports of a process are alive, in memory that its peers read: one
// generation word for each export; and the keys of what they may check a pair of
// GPUs with. A peer that has memory open looks there, so
// that it lets go of what the owner has freed without being asked. Called by
// exports (the owner's side) and owner_link (the peer's); calls the system.
#ifndef NVLINK_MEM_LIFE_PAGE_H
#define NVLINK_MEM_LIFE_PAGE_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "mem/wire_key.h"

namespace nvl {

// What is in the page. Only the owner writes.
struct life_layout {
    struct slot {
        std::atomic<uint32_t> generation; // of the export that is alive here
        std::atomic<int32_t>  record_fd;  // its record's descriptor at the owner; -1: none
    };

    // The key of memory for a check of copies; see pair_check.h.
    struct sample {
        std::atomic<uint32_t> state; // 0: none yet; 1: there; 2: was there
        uint8_t               key[key_packed_size_most];
    };

    static constexpr uint64_t expected_magic = 0x3246494c4b4e4c56; // "VLNKLIF2"
    // More than a process exports at a time; the memory of unused ones is not there.
    static constexpr uint32_t slot_count = 65536;

    uint64_t              magic;
    uint64_t              token;   // of the process
    std::atomic<uint64_t> changes; // grows when an export ends
    uint64_t              reserved[5];
    slot                  slots[slot_count];
    sample                samples[max_gpus]; // by the owner's own numbers of its GPUs
};

// A serial names an export for good: generation << 32 | slot. Generations begin
// with 1, so that 0 is no serial. What finds no slot is alive for ever.
constexpr uint32_t no_slot = 0xffffffff;

// The owner's side. Any thread.
class life_page {
public:
    // The process's page, never destroyed. Made at the first call, with `token`.
    static life_page &own(uint64_t token);

    // To be passed to peers; -1 if the system gave no page.
    int fd() const noexcept
    {
        return fd_.get();
    }

    // The serial of a new export. The record's descriptor, or -1, is the caller's.
    uint64_t begin() noexcept;
    void     set_record(uint64_t serial, int record_fd) noexcept;
    void     end(uint64_t serial) noexcept;

    // The packed key of the sample of one of this process's GPUs; null: none any more.
    void set_sample(unsigned gpu, const uint8_t *packed) noexcept;

private:
    explicit life_page(uint64_t token);
    bool is_ours() const noexcept;

    unique_fd             fd_;
    pid_t                 pid_  = 0; // who made it
    life_layout          *page_ = nullptr;
    std::mutex            mutex_;
    std::vector<uint32_t> free_;
    uint32_t              used_    = 0; // slots that were ever in use
    uint32_t              no_slot_ = 0; // exports that found none
};

// A peer's side: somebody else's page, for reading.
class life_view {
public:
    // Takes the page behind `fd` if it is the one of the process with `token`.
    static std::unique_ptr<life_view> map(unique_fd fd, uint64_t token) noexcept;
    ~life_view();
    life_view(const life_view &)            = delete;
    life_view &operator=(const life_view &) = delete;

    bool is_alive(uint64_t serial) const noexcept;

    // The owner's descriptor of the export's record; -1: none, or not alive.
    int record_fd(uint64_t serial) const noexcept;

    // False for a number that is no GPU of the owner's. A key of zeros: it has no
    // sample (any more).
    bool sample(unsigned gpu, uint8_t (&packed)[key_packed_size_most]) const noexcept;

    uint64_t changes() const noexcept
    {
        return page_->changes.load(std::memory_order_acquire);
    }

private:
    explicit life_view(const life_layout *page) noexcept : page_(page)
    {
    }

    const life_layout *page_;
};

} // namespace nvl

#endif
