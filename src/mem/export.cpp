// SPDX-License-Identifier: BSD-3-Clause
//
// Registers local memory and packs its key when a peer asks.
#include "mem/export.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "mem/pair_check.h"

namespace nvl {

registration::registration(places &where, const region &found, const place *at, uint64_t address,
                           size_t size_bytes) noexcept
    : places_(where), region_(found), place_(at), address_(address), size_bytes_(size_bytes)
{
}

result<std::unique_ptr<registration>> registration::create(places &where, void *address,
                                                           size_t size_bytes) noexcept
{
    region       found = region_query(where, address);
    const place *at    = nullptr;

    if (found.gpu >= 0) {
        CUdevice              device = where.gpus()[found.gpu].device;
        result<const place *> known  = where.primary(device);
        if (known.ok() && (found.context != nullptr) && (known.value()->context != found.context)) {
            known = where.find(device, found.context);
        }
        // Without a place its keys lead nowhere and UCP takes another lane, where a registration
        // that fails would end what it is for.
        at = known.ok() ? known.value() : nullptr;
    }

    // UCP rounds a buffer up to its cache's alignment, so the range may end behind
    // the allocation; what operations may touch is the allocation itself.
    std::unique_ptr<registration> self(new (std::nothrow) registration(
        where, found, at, reinterpret_cast<uint64_t>(address), size_bytes));
    if (!self) {
        return UCS_ERR_NO_MEMORY;
    }
    return self;
}

ucs_status_t registration::pack_key(const process_identity &self, uint64_t address,
                                    size_t size_bytes, uint8_t *packed) noexcept
{
    if ((address == 0) || (size_bytes == SIZE_MAX)) {
        address    = address_;
        size_bytes = size_bytes_;
    }
    // UCP may register the first chunk of a VMM range and pack more of it.
    uint64_t                    from = std::min(address, address_);
    uint64_t                    end  = std::max(address + size_bytes, address_ + size_bytes_);
    std::lock_guard<std::mutex> guard(mutex_);
    bool                        reaches =
        !exports_.empty() && (!region_.is_vmm() || exports_.back()->covers(from, end - from));
    if (!reaches) {
        pair_check::get(places_).offer(*place_, self);
        result<std::shared_ptr<exported>> made =
            exports::get(places_).share(region_, *place_, from, end - from, self);
        if (!made.ok()) {
            return made.status();
        }
        key_pack(made.value()->key(), packed_);
        try {
            // Keys of the ones before stay good, too.
            exports_.push_back(std::move(made.value()));
        } catch (const std::bad_alloc &) {
            return UCS_ERR_NO_MEMORY;
        }
    }
    std::memcpy(packed, packed_, key_wire_size(places_.shares_between_hosts()));
    return UCS_OK;
}

} // namespace nvl
