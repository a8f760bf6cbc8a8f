// SPDX-License-Identifier: BSD-3-Clause
//
// See space.h. Addresses are taken first fit, so that one freed is soon handed out again, as the
// driver does it.
#include "space.h"

#include <algorithm>
#include <mutex>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emu {
namespace {

constexpr size_t arena_bytes = 64ull << 30;

// Not by mmap: the sanitizers would account for it as memory of the program.
uint64_t reserve_addresses(size_t size)
{
    long got = syscall(SYS_mmap, nullptr, size, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return got == -1 ? 0 : static_cast<uint64_t>(got);
}

bool is_within(uint64_t address, size_t size, uint64_t base, size_t length)
{
    return address >= base && size <= length && address - base <= length - size;
}

} // namespace

uint64_t next_buffer_id() noexcept
{
    static std::atomic<uint64_t> last{0};
    return ++last;
}

bool space::grow(size_t size)
{
    size_t   length = std::max(arena_bytes, round_up(size + va_granule, va_granule));
    uint64_t base   = reserve_addresses(length);
    if (base == 0)
        return false;
    uint64_t aligned = round_up(base, va_granule);
    length -= aligned - base;
    length -= length % va_granule;
    arenas_.push_back({aligned, length});
    free_[aligned] = length;
    return true;
}

uint64_t space::take(std::map<uint64_t, size_t>::iterator hole, uint64_t base, size_t size)
{
    uint64_t start = hole->first;
    uint64_t end   = start + hole->second;
    free_.erase(hole);
    if (base > start)
        free_[start] = base - start;
    if (base + size < end)
        free_[base + size] = end - base - size;
    return base;
}

uint64_t space::reserve(size_t size, size_t alignment, uint64_t wanted)
{
    size      = round_up(size, va_granule);
    alignment = std::max(alignment, va_granule);
    std::unique_lock lock(mutex_);
    if (wanted != 0 && wanted % alignment == 0) {
        auto hole = free_.upper_bound(wanted);
        if (hole != free_.begin()) {
            --hole;
            if (is_within(wanted, size, hole->first, hole->second))
                return take(hole, wanted, size);
        }
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
            uint64_t base = round_up(hole->first, alignment);
            if (is_within(base, size, hole->first, hole->second))
                return take(hole, base, size);
        }
        if (!grow(size + alignment))
            return 0;
    }
    return 0;
}

namespace {

constexpr size_t packed_step = 512; // what cuMemAlloc aligns to

// The first gap of that size in a granule; 0: none.
uint64_t gap_in(uint64_t granule, const std::map<uint64_t, size_t> &used, size_t size)
{
    uint64_t at = granule;
    for (auto &[base, length] : used) {
        if (base - at >= size)
            return at;
        at = base + length;
    }
    return granule + va_granule - at >= size ? at : 0;
}

} // namespace

uint64_t space::reserve_packed(size_t size)
{
    size = round_up(size, packed_step);
    {
        std::unique_lock lock(mutex_);
        for (auto &[granule, used] : packed_) {
            if (uint64_t base = gap_in(granule, used, size)) {
                used[base] = size;
                return base;
            }
        }
    }
    uint64_t granule = reserve(va_granule, va_granule);
    if (granule != 0) {
        std::unique_lock lock(mutex_);
        packed_[granule][granule] = size;
    }
    return granule;
}

// False: it was not packed, or its granule is free now and has to be released too.
bool space::release_packed(uint64_t base)
{
    std::unique_lock lock(mutex_);
    auto             granule = packed_.find(base / va_granule * va_granule);
    if (granule == packed_.end())
        return false;
    granule->second.erase(base);
    if (!granule->second.empty())
        return true;
    packed_.erase(granule);
    return false;
}

void space::release(uint64_t base, size_t size)
{
    if (release_packed(base))
        return;
    base = base / va_granule * va_granule;
    size = round_up(size, va_granule);
    std::unique_lock lock(mutex_);
    auto [here, fresh] = free_.emplace(base, size);
    if (!fresh)
        return;
    auto after = std::next(here);
    if (after != free_.end() && here->first + here->second == after->first) {
        here->second += after->second;
        free_.erase(after);
    }
    if (here != free_.begin()) {
        auto before = std::prev(here);
        if (before->first + before->second == here->first) {
            before->second += here->second;
            free_.erase(here);
        }
    }
}

bool space::is_gpu_address(uint64_t address) const
{
    std::shared_lock lock(mutex_);
    return std::any_of(arenas_.begin(), arenas_.end(), [&](const arena &a) {
        return address >= a.base && address - a.base < a.size;
    });
}

void space::insert(const std::shared_ptr<range> &r)
{
    std::unique_lock lock(mutex_);
    ranges_[r->base] = r;
}

bool space::insert_alone(const std::shared_ptr<range> &r)
{
    std::unique_lock lock(mutex_);
    auto             next = ranges_.lower_bound(r->base);
    if (next != ranges_.end() && next->first - r->base < r->size)
        return false;
    if (next != ranges_.begin()) {
        const range &before = *std::prev(next)->second;
        if (r->base - before.base < before.size)
            return false;
    }
    ranges_.emplace_hint(next, r->base, r);
    return true;
}

std::shared_ptr<range> space::find(uint64_t address) const
{
    std::shared_lock lock(mutex_);
    auto             next = ranges_.upper_bound(address);
    if (next == ranges_.begin())
        return nullptr;
    auto &candidate = std::prev(next)->second;
    return address - candidate->base < candidate->size ? candidate : nullptr;
}

bool space::remove(const std::shared_ptr<range> &r)
{
    std::unique_lock lock(mutex_);
    auto             found = ranges_.find(r->base);
    if (found == ranges_.end() || found->second != r)
        return false;
    ranges_.erase(found);
    return true;
}

std::vector<std::shared_ptr<range>> space::within(uint64_t base, size_t size) const
{
    std::vector<std::shared_ptr<range>> found;
    std::shared_lock                    lock(mutex_);
    for (auto &[start, r] : ranges_) {
        if (start < base + size && base < start + r->size)
            found.push_back(r);
    }
    return found;
}

bool space::overlaps(uint64_t base, size_t size) const
{
    return !within(base, size).empty();
}

std::vector<std::shared_ptr<range>> space::all() const
{
    std::vector<std::shared_ptr<range>> found;
    std::shared_lock                    lock(mutex_);
    for (auto &entry : ranges_)
        found.push_back(entry.second);
    return found;
}

bool space::locate(uint64_t address, size_t size, std::vector<piece> *pieces) const
{
    pieces->clear();
    while (size > 0) {
        std::shared_ptr<range> r = find(address);
        if (r == nullptr) {
            if (is_gpu_address(address) || !pieces->empty())
                return false;
            // Plain host memory: nothing to say about where it ends.
            pieces->push_back({reinterpret_cast<char *>(address), size, nullptr});
            return true;
        }
        uint64_t offset = address - r->base;
        size_t   here   = std::min(size, static_cast<size_t>(r->size - offset));
        // Only VMM mappings may be walked across: they are one range for the program.
        if (here < size && r->kind != range_kind::vmm && r->kind != range_kind::host_registered)
            return false;
        pieces->push_back({r->bytes + offset, here, r});
        address += here;
        size -= here;
    }
    return true;
}

} // namespace emu
