// SPDX-License-Identifier: BSD-3-Clause
//
// The wire form of a key: how registered memory is described to peers, and the
// checks of what a peer sent. Called by exports (pack) and uct (parse); calls
// nothing.
#ifndef NVLINK_MEM_WIRE_KEY_H
#define NVLINK_MEM_WIRE_KEY_H

#include "mem/place.h"
#include "mem/process.h"
#include "topo/graph.h"

namespace nvl {

// The ways in which another process can open an allocation. The numbers are on
// the wire: a key has one bit for each way that there is.
enum handle_kind : uint8_t {
    handle_none     = 0,
    handle_legacy   = 1, // cuIpcGetMemHandle
    handle_posix_fd = 2, // descriptors of VMM memory or of a pool
    handle_fabric   = 4, // also across hosts of one NVLink domain
    handle_pool     = 8  // with one of the two above: a pointer inside a shared pool
};
constexpr uint8_t handle_all = 15;

// What fits into a key: the handle of `kind`, legacy or fabric (memory of one
// chunk, or the pool that the memory is in). All else is in the owner's export
// record, see export_record.h.
struct inline_handle {
    handle_kind kind                      = handle_none;
    uint8_t     bytes[CU_IPC_HANDLE_SIZE] = {};
};

// What other hosts need beside, from an owner whose GPUs are in a fabric; its
// record and its page cannot be reached from there.
struct fabric_part {
    bool     present = false;
    gpu_uuid cluster{};
    uint32_t clique                             = 0;
    uint64_t pool                               = 0;  // as in the record; 0: VMM
    uint8_t  pointer[sizeof(CUmemFabricHandle)] = {}; // in the pool
};

// The GPU of an owner, as the topology judges it.
inline gpu_identity gpu_of(const gpu_uuid &uuid, const fabric_part &fabric) noexcept
{
    return {uuid, fabric.cluster, fabric.clique};
}

// The wire form. Little-endian, packed by hand in wire_key.cpp; `version`
// comes first and decides the rest. Later versions append.
constexpr uint8_t  key_version          = 5;
constexpr size_t   key_packed_size      = 152; // bytes; UCP packs a key's size into one byte
constexpr size_t   key_packed_size_most = 248; // with a fabric part
constexpr uint16_t no_page_fd           = 0xffff;

struct key_fields {
    process_identity   owner;
    gpu_uuid           uuid{};
    uint64_t           base       = 0; // of what can be opened, in the owner's addresses
    uint64_t           size_bytes = 0;
    unsigned long long buffer_id  = 0;
    uint64_t           serial     = 0;          // of the export at its owner, see life_page.h
    uint16_t           page_fd    = no_page_fd; // the owner's descriptor of its life page
    uint8_t            kinds      = 0;          // handle_kind bits; 0: only the owner reaches it
    inline_handle      handle;
    fabric_part        fabric;

    // True if another host of the owner's fabric finds all it needs in here.
    bool crosses_hosts() const noexcept
    {
        return fabric.present && (handle.kind == handle_fabric);
    }
};

// Bytes of a key's wire form, the same for all keys of a process.
constexpr size_t key_wire_size(bool has_fabric_part) noexcept
{
    return has_fabric_part ? key_packed_size_most : key_packed_size;
}

void key_pack(const key_fields &fields, uint8_t *wire) noexcept;

// The key of memory that peers cannot reach through this transport: UCP fails where a
// key cannot be packed, and looks for another lane where it cannot be unpacked.
void key_pack_nothing(uint8_t *wire, bool fabric) noexcept;
bool key_is_nothing(const uint8_t *wire) noexcept;

// Which export of which process a key is of. Names a key for good, see life_page.h; that a
// key is what it says of itself is another matter: see key_equal().
struct key_name {
    uint64_t token  = 0;
    uint64_t serial = 0;

    bool operator==(const key_name &other) const noexcept
    {
        return (token == other.token) && (serial == other.serial);
    }
};

// For bytes that nobody has checked yet. False: not a key of this version.
bool key_name_of(const uint8_t *wire, key_name *name) noexcept;

// Are two keys of this version the same? By the head: name, owner, kinds and the checksum over all
// that follows. Damage that the checksum misses (one in 2^32) would have the key taken for the one
// that was checked, which leads to memory that its owner did share.
bool key_equal(const uint8_t *wire, const uint8_t *other) noexcept;

// How long a key is that key_parse() has taken.
size_t key_size_of(const uint8_t *wire) noexcept;

// UCS_ERR_INVALID_PARAM for bytes that no version of this plugin writes;
// UCS_ERR_UNSUPPORTED for another version.
ucs_status_t key_parse(const uint8_t *wire, key_fields *fields) noexcept;

} // namespace nvl

#endif
