// SPDX-License-Identifier: BSD-3-Clause
//
// Packs and reads addresses.
#include "uct/address.h"

#include <cstring>

namespace nvl {

namespace {

constexpr size_t device_address_size_1 = 12; // of version 1

constexpr uint8_t flag_peers  = 0x1;
constexpr uint8_t flag_fabric = 0x2;

static_assert(device_address_size <= 31, "UCP packs the length of a device address in five bits");

bool is_readable(const uint8_t *wire, size_t size, size_t expected) noexcept
{
    // A version of 0 never existed; a later one begins as this one does.
    return (wire != nullptr) && (wire[0] != 0) && ((size == 0) || (size >= expected));
}

template<typename T> void put(uint8_t *wire, size_t at, const T &value) noexcept
{
    std::memcpy(wire + at, &value, sizeof(value));
}

template<typename T> T take(const uint8_t *wire, size_t at) noexcept
{
    T value;
    std::memcpy(&value, wire + at, sizeof(value));
    return value;
}

} // namespace

void device_address_pack(const device_address &self, uint8_t *wire) noexcept
{
    const process_reach &reach = self.reach;
    wire[0]                    = address_version;
    wire[1] =
        static_cast<uint8_t>((reach.peers ? flag_peers : 0) | (reach.fabric ? flag_fabric : 0));
    put(wire, 2, static_cast<uint16_t>(reach.clique));
    put(wire, 4, self.host_id);
    put(wire, 12, reach.cluster);
    put(wire, 20, reach.gpu);
    put(wire, 28, static_cast<uint16_t>(reach.clique >> 16));
}

void iface_address_pack(const process_identity &self, uint8_t *wire) noexcept
{
    std::memset(wire, 0, iface_address_size);
    wire[0] = address_version;
    put(wire, 4, self.pid);
    put(wire, 8, self.pid_ns);
    put(wire, 12, self.token);
}

bool device_address_parse(const uint8_t *wire, size_t size, device_address *peer) noexcept
{
    if (!is_readable(wire, size, device_address_size_1)) {
        return false;
    }
    *peer         = device_address();
    peer->host_id = take<uint64_t>(wire, 4);
    if (wire[0] == 1) {
        peer->reach.peers = true;
        return true;
    }
    if ((size != 0) && (size < device_address_size)) {
        return false;
    }
    peer->reach.peers   = (wire[1] & flag_peers) != 0;
    peer->reach.fabric  = (wire[1] & flag_fabric) != 0;
    peer->reach.cluster = take<uint64_t>(wire, 12);
    peer->reach.gpu     = take<uint64_t>(wire, 20);
    peer->reach.clique =
        take<uint16_t>(wire, 2) | (static_cast<uint32_t>(take<uint16_t>(wire, 28)) << 16);
    return true;
}

bool iface_address_parse(const uint8_t *wire, size_t size, process_identity *peer) noexcept
{
    if (!is_readable(wire, size, iface_address_size)) {
        return false;
    }
    peer->pid    = take<uint32_t>(wire, 4);
    peer->pid_ns = take<uint32_t>(wire, 8);
    peer->token  = take<uint64_t>(wire, 12);
    return true;
}

} // namespace nvl
