// SPDX-License-Identifier: BSD-3-Clause
//
// Packs and checks keys.
#include "mem/wire_key.h"

#include <cstring>

#include "base/log.h"

namespace nvl {

namespace {

// Offsets on the wire, version 5. What tells known keys apart comes first: a key that has just
// come from a peer costs a miss of the cache for each line that is read (0.1 us on two H200).
enum wire_at : size_t {
    at_version   = 0,
    at_kinds     = 1, // all kinds in the low half, that of the inline handle above, fabric_bit
    at_page_fd   = 2,
    at_pid       = 4,
    at_pid_ns    = 8,
    at_checksum  = 12,
    at_host_id   = 16,
    at_token     = 24,
    at_serial    = 32,
    at_uuid      = 40,
    at_base      = 56,
    at_size      = 64,
    at_buffer_id = 72,
    at_handle    = 80,
    at_rest_sum  = at_handle + CU_IPC_HANDLE_SIZE, // four bytes, and four that are zero
    at_end       = at_rest_sum + 8,
    // The fabric part.
    at_cluster    = at_end,
    at_clique     = at_cluster + 16, // four bytes, and four that are zero
    at_pool       = at_clique + 8,
    at_pointer    = at_pool + 8,
    at_fabric_end = at_pointer + sizeof(fabric_part::pointer)
};
static_assert(at_end == key_packed_size, "the wire form fits");
static_assert(at_fabric_end == key_packed_size_most, "the wire form fits");
static_assert((key_packed_size - at_host_id) % sizeof(uint64_t) == 0, "whole words");
static_assert((key_packed_size_most - key_packed_size) % sizeof(uint64_t) == 0, "whole words");

constexpr uint8_t fabric_bit = 0x80; // there is a fabric part

template<typename T> void put(uint8_t *wire, size_t at, T value) noexcept
{
    std::memcpy(wire + at, &value, sizeof(value));
}

template<typename T> T take(const uint8_t *wire, size_t at) noexcept
{
    T value;
    std::memcpy(&value, wire + at, sizeof(value));
    return value;
}

uint32_t sum_of(const uint8_t *wire, size_t from, size_t end, uint64_t hash) noexcept
{
    for (size_t at = from; at < end; at += sizeof(uint64_t)) {
        hash = (hash ^ take<uint64_t>(wire, at)) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return static_cast<uint32_t>(hash ^ (hash >> 32));
}

// Over everything but the checksum itself, the fabric part by its own sum: catches damage and
// foreign bytes, not malice; ranges are checked at every operation anyway. Nothing behind what
// every key has is read before this is right, or a wrong bit could lead beyond its end.
uint32_t checksum(const uint8_t *wire) noexcept
{
    return sum_of(wire, at_host_id, at_end,
                  take<uint64_t>(wire, 0) ^ take<uint32_t>(wire, at_pid_ns));
}

uint32_t fabric_sum(const uint8_t *wire) noexcept
{
    return sum_of(wire, at_cluster, at_fabric_end, 0);
}

} // namespace

void key_pack(const key_fields &fields, uint8_t *wire) noexcept
{
    const size_t size = key_wire_size(fields.fabric.present);
    std::memset(wire, 0, size);
    wire[at_version] = key_version;
    wire[at_kinds]   = static_cast<uint8_t>(fields.kinds | (fields.handle.kind << 4) |
                                          (fields.fabric.present ? fabric_bit : 0));
    put(wire, at_page_fd, fields.page_fd);
    put(wire, at_pid, fields.owner.pid);
    put(wire, at_pid_ns, fields.owner.pid_ns);
    put(wire, at_host_id, fields.owner.host_id);
    put(wire, at_token, fields.owner.token);
    std::memcpy(wire + at_uuid, fields.uuid.data(), fields.uuid.size());
    put(wire, at_base, fields.base);
    put(wire, at_size, fields.size_bytes);
    put<uint64_t>(wire, at_buffer_id, fields.buffer_id);
    put(wire, at_serial, fields.serial);
    std::memcpy(wire + at_handle, fields.handle.bytes, sizeof(fields.handle.bytes));
    if (fields.fabric.present) {
        std::memcpy(wire + at_cluster, fields.fabric.cluster.data(), fields.fabric.cluster.size());
        put(wire, at_clique, fields.fabric.clique);
        put(wire, at_pool, fields.fabric.pool);
        std::memcpy(wire + at_pointer, fields.fabric.pointer, sizeof(fields.fabric.pointer));
        put(wire, at_rest_sum, fabric_sum(wire));
    }
    put(wire, at_checksum, checksum(wire));
}

void key_pack_nothing(uint8_t *wire, bool fabric) noexcept
{
    std::memset(wire, 0, key_wire_size(fabric));
}

bool key_is_nothing(const uint8_t *wire) noexcept
{
    return wire[at_version] == 0;
}

bool key_name_of(const uint8_t *wire, key_name *name) noexcept
{
    if (wire[at_version] != key_version) {
        return false;
    }
    name->token  = take<uint64_t>(wire, at_token);
    name->serial = take<uint64_t>(wire, at_serial);
    return true;
}

size_t key_size_of(const uint8_t *wire) noexcept
{
    return key_wire_size((wire[at_kinds] & fabric_bit) != 0);
}

bool key_equal(const uint8_t *wire, const uint8_t *other) noexcept
{
    // No way out in between: the words are fetched side by side.
    uint64_t differs = 0;
    for (size_t at = 0; at < at_uuid; at += sizeof(uint64_t)) {
        differs |= take<uint64_t>(wire, at) ^ take<uint64_t>(other, at);
    }
    return differs == 0;
}

ucs_status_t key_parse(const uint8_t *wire, key_fields *fields) noexcept
{
    if (wire[at_version] != key_version) {
        NVL_DIAG("a key of version %u; this plugin knows version %u: use one release of the "
                 "plugin on both sides",
                 wire[at_version], key_version);
        return UCS_ERR_UNSUPPORTED;
    }
    uint8_t kinds  = wire[at_kinds] & handle_all;
    uint8_t inside = (wire[at_kinds] & ~fabric_bit) >> 4;
    bool    fabric = (wire[at_kinds] & fabric_bit) != 0;
    if ((take<uint32_t>(wire, at_checksum) != checksum(wire)) ||
        (fabric && (take<uint32_t>(wire, at_rest_sum) != fabric_sum(wire))) ||
        ((inside != handle_none) && (inside != handle_legacy) && (inside != handle_fabric)) ||
        ((inside & ~kinds) != 0) ||
        ((inside == handle_fabric) && (kinds & handle_pool) && !fabric)) {
        NVL_DIAG("a damaged key was refused");
        return UCS_ERR_INVALID_PARAM;
    }

    fields->kinds         = kinds;
    fields->handle.kind   = static_cast<handle_kind>(inside);
    fields->page_fd       = take<uint16_t>(wire, at_page_fd);
    fields->serial        = take<uint64_t>(wire, at_serial);
    fields->owner.pid     = take<uint32_t>(wire, at_pid);
    fields->owner.pid_ns  = take<uint32_t>(wire, at_pid_ns);
    fields->owner.host_id = take<uint64_t>(wire, at_host_id);
    fields->owner.token   = take<uint64_t>(wire, at_token);
    fields->base          = take<uint64_t>(wire, at_base);
    fields->size_bytes    = take<uint64_t>(wire, at_size);
    fields->buffer_id     = take<uint64_t>(wire, at_buffer_id);
    std::memcpy(fields->uuid.data(), wire + at_uuid, fields->uuid.size());
    std::memcpy(fields->handle.bytes, wire + at_handle, sizeof(fields->handle.bytes));
    fields->fabric = fabric_part();
    if (fabric) {
        fields->fabric.present = true;
        fields->fabric.clique  = take<uint32_t>(wire, at_clique);
        fields->fabric.pool    = take<uint64_t>(wire, at_pool);
        std::memcpy(fields->fabric.cluster.data(), wire + at_cluster,
                    fields->fabric.cluster.size());
        std::memcpy(fields->fabric.pointer, wire + at_pointer, sizeof(fields->fabric.pointer));
    }

    if (fields->base + fields->size_bytes < fields->base) {
        NVL_DIAG("a key with a region that wraps around was refused");
        return UCS_ERR_INVALID_PARAM;
    }
    return UCS_OK;
}

} // namespace nvl
