// SPDX-License-Identifier: BSD-3-Clause
//
// The wire form of the two addresses that UCP exchanges: the device address says
// which host and what its GPUs can reach, the interface address which process.
// Called by iface and ep.
#ifndef NVLINK_UCT_ADDRESS_H
#define NVLINK_UCT_ADDRESS_H

#include <cstddef>
#include <cstdint>

#include "mem/process.h"
#include "topo/graph.h"

namespace nvl {

// Versions append; a reader takes what it knows of a longer address, and what an
// older one does not say is taken for possible.
//   1  host
//   2  what the process's GPUs reach (a device address alone)
constexpr uint8_t address_version = 2;

// Bytes: version 1, flags 1, clique 2 (low half), host id 8; from version 2 on
// digest of the cluster 8, digest of the only GPU 8, clique 2 (high half). UCP takes
// 31 at most, so two UUIDs do not fit.
constexpr size_t device_address_size = 30;

// Version 1, reserved 3, pid 4, pid namespace 4, token 8.
constexpr size_t iface_address_size = 20;

struct device_address {
    uint64_t      host_id = 0;
    process_reach reach;
};

void device_address_pack(const device_address &self, uint8_t *wire) noexcept;
void iface_address_pack(const process_identity &self, uint8_t *wire) noexcept;

// False for an address that this plugin cannot read; `size` is what UCP says,
// 0 if it does not: then the address is taken to be as long as its version's.
bool device_address_parse(const uint8_t *wire, size_t size, device_address *peer) noexcept;
bool iface_address_parse(const uint8_t *wire, size_t size, process_identity *peer) noexcept;

} // namespace nvl

#endif
