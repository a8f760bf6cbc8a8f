// SPDX-License-Identifier: BSD-3-Clause
//
// Where a local buffer is that comes without a registration: on which GPU, or in
// page-locked host memory, or in other host memory. UCP registers no local buffer
// with a transport that does not ask for it, and asking would register host memory
// too, also in jobs that never meet a GPU. The driver's answers about GPU memory are
// kept until it is allocated or freed (UCX's memory events), so an operation asks
// nobody; page-locked host memory is asked about each time, since no event tells
// when it is unregistered.
// Called by uct for each operation; calls region.
#ifndef NVLINK_MEM_LOCAL_MEMORY_H
#define NVLINK_MEM_LOCAL_MEMORY_H

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "mem/region.h"

namespace nvl {

// An allocation.
struct local_range {
    uint64_t     base = 0;
    uint64_t     end  = 0; // behind its last byte
    const place *at =
        nullptr;          // null: memory that the driver copies, mostly page-locked host memory
    bool stays   = false; // in the memory of that place's GPU: not managed
    bool is_kept = false; // what changes about it from now on raises generation()
};

// What the driver has said about allocations of this process, for all interfaces.
// Any thread.
class local_memory {
public:
    static local_memory &get(places &where);

    // The allocation around `address`; false for memory that CUDA does not know.
    // May ask the driver.
    bool find(uint64_t address, local_range *out) noexcept;

    // True if the driver reads and writes all of [address, +size) directly: it is
    // page-locked, by whomever. Asks the driver.
    bool is_pinned(uint64_t address, size_t size_bytes) noexcept;

    // Memory was allocated or freed here: what is known about it is forgotten.
    void forget(uint64_t address, size_t size_bytes) noexcept;

    // Changes whenever something that was handed out may be wrong.
    uint64_t generation() const noexcept
    {
        return generation_.load(std::memory_order_acquire);
    }

    // Until somebody promises to call forget(), nothing is kept.
    void keep_answers() noexcept
    {
        keeps_.store(true, std::memory_order_relaxed);
    }

    bool keeps() const noexcept
    {
        return keeps_.load(std::memory_order_relaxed);
    }

    explicit local_memory(places &where) noexcept : where_(where)
    {
    }

private:
    static constexpr size_t capacity = 1024;

    size_t first_behind(uint64_t address) const noexcept;
    void   keep(local_range *range) noexcept;

    places                           &where_;
    std::atomic<bool>                 keeps_{false};
    std::atomic<uint64_t>             generation_{1};
    std::mutex                        mutex_;
    std::array<local_range, capacity> ranges_; // by address, none overlaps another
    size_t                            count_  = 0;
    uint64_t                          events_ = 0; // calls of forget()
};

// One interface's quick way to the same: no lock, no search. One thread at a time.
class local_lookup {
public:
    // The allocation around `address`, null for memory that CUDA does not know (the
    // driver is asked again each time). Valid until the next call.
    const local_range *find(local_memory &all, uint64_t address) noexcept
    {
        local_range &slot = slots_[(address >> granule_bits) % slots_.size()];
        if (__builtin_expect((generation_ == all.generation()) && (address >= slot.base) &&
                                 (address < slot.end),
                             1)) {
            return &slot;
        }
        return find_slow(all, address, &slot);
    }

    // True if the call before this one was about `address` and found nothing.
    bool has_just_missed(uint64_t address) const noexcept
    {
        return missed_ == address;
    }

    // An operation begins that has looked up nothing yet.
    void begin() noexcept
    {
        missed_ = 0;
    }

private:
    // The driver hands out small allocations from blocks of 2 MiB.
    static constexpr unsigned granule_bits = 21;

    const local_range *find_slow(local_memory &all, uint64_t address, local_range *slot) noexcept;

    uint64_t                    generation_ = 0;
    std::array<local_range, 64> slots_;
    local_range                 once_; // an answer that is not kept
    uint64_t                    missed_ = 0;
};

} // namespace nvl

#endif
