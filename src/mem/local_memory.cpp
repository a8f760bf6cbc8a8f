// SPDX-License-Identifier: BSD-3-Clause
//
// The table of allocations, and what the driver is asked when it has none.
#include "mem/local_memory.h"

#include <algorithm>
#include <new>

namespace nvl {

local_memory &local_memory::get(places &where)
{
    // Never destroyed: UCX's memory events reach it until the process ends.
    static auto *self = new local_memory(where);
    return *self;
}

// The index of the first range that begins behind `address`.
size_t local_memory::first_behind(uint64_t address) const noexcept
{
    const auto *end = ranges_.begin() + count_;
    return std::upper_bound(
               ranges_.begin(), end, address,
               [](uint64_t value, const local_range &range) { return value < range.base; }) -
           ranges_.begin();
}

bool local_memory::find(uint64_t address, local_range *out) noexcept
{
    uint64_t asked_at;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        size_t                      index = first_behind(address);
        asked_at                          = events_;
        if ((index != 0) && (address < ranges_[index - 1].end)) {
            *out = ranges_[index - 1];
            return true;
        }
    }

    region found = region_query(where_, reinterpret_cast<const void *>(address));
    if ((found.kind == memory_kind::unknown) && !found.is_unanswered) {
        return false;
    }
    *out = local_range{address, address + 1, nullptr, found.kind == memory_kind::device};
    if (found.gpu >= 0) {
        result<const place *> at = region_place(where_, found);
        out->at                  = at.ok() ? at.value() : nullptr;
    }
    // The processor must not touch what is a GPU's, or may be: the driver copies
    // it, or says why not.
    if ((out->at == nullptr) && (found.kind != memory_kind::host)) {
        return true;
    }
    if (found.is_vmm()) {
        found = region_mapped(where_, found, address, 1); // other chunks may be another GPU's
    }
    if (found.size_bytes == 0) {
        return true; // the driver does not say how far it goes
    }
    out->base = found.base;
    out->end  = found.base + found.size_bytes;

    // Nobody tells when page-locked memory is unregistered.
    if (out->at == nullptr) {
        return true;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    // Freed and allocated anew meanwhile: right for the caller, not to be kept.
    if (keeps() && (asked_at == events_)) {
        keep(out);
    }
    return true;
}

// The caller holds the lock.
void local_memory::keep(local_range *range) noexcept
{
    size_t first = first_behind(range->base);
    bool   free  = ((first == 0) || (ranges_[first - 1].end <= range->base)) &&
                ((first == count_) || (ranges_[first].base >= range->end));
    if (!free) {
        return; // another thread was quicker
    }
    if (count_ == capacity) {
        // More allocations than anybody moves at a time: start anew, and the lookups too.
        count_ = first = 0;
        generation_.fetch_add(1, std::memory_order_acq_rel);
    }
    std::move_backward(ranges_.begin() + first, ranges_.begin() + count_,
                       ranges_.begin() + count_ + 1);
    range->is_kept = true;
    ranges_[first] = *range;
    ++count_;
}

bool local_memory::is_pinned(uint64_t address, size_t size_bytes) noexcept
{
    local_range range;
    if (!find(address, &range) || (range.at != nullptr)) {
        return false;
    }
    uint64_t last = address + size_bytes - 1;
    if (last < range.end) {
        return true;
    }
    // Ends in another registration, or the driver did not say where it ends.
    return find(last, &range) && (range.at == nullptr) && (range.end - range.base == 1);
}

void local_memory::forget(uint64_t address, size_t size_bytes) noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    ++events_;
    uint64_t end   = address + std::max<size_t>(size_bytes, 1);
    size_t   first = first_behind(address);
    if ((first != 0) && (ranges_[first - 1].end > address)) {
        --first;
    }
    size_t last = first;
    while ((last != count_) && (ranges_[last].base < end)) {
        ++last;
    }
    if (first != last) {
        std::move(ranges_.begin() + last, ranges_.begin() + count_, ranges_.begin() + first);
        count_ -= last - first;
        generation_.fetch_add(1, std::memory_order_acq_rel);
    }
}

const local_range *local_lookup::find_slow(local_memory &all, uint64_t address,
                                           local_range *slot) noexcept
{
    uint64_t now = all.generation();
    if (generation_ != now) {
        slots_.fill(local_range{});
        generation_ = now;
    }
    if (!all.find(address, &once_)) {
        missed_ = address;
        return nullptr;
    }
    missed_ = 0;
    // Only what is kept there: what goes from there raises the generation.
    if (once_.is_kept && (now == all.generation())) {
        *slot = once_;
    }
    return &once_;
}

} // namespace nvl
