// SPDX-License-Identifier: BSD-3-Clause
//
// What a peer needs beside the key to open memory that is no plain cuMemAlloc:
// the chunks of a VMM range, or the pool and the pointer in it, with their
// handles. Kept by the owner in a file of its own, fetched by the peer once for
// an import. Called by exports (pack) and owner_link (parse); calls nothing.
#ifndef NVLINK_MEM_EXPORT_RECORD_H
#define NVLINK_MEM_EXPORT_RECORD_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver/cuda.h"

namespace nvl {

// Bytes of a fabric handle and of a pointer's export data.
constexpr size_t shared_handle_size = 64;
static_assert(sizeof(CUmemFabricHandle) == shared_handle_size, "as the driver has it");
static_assert(sizeof(CUmemPoolPtrExportData) == shared_handle_size, "as the driver has it");

using shared_handle = std::array<uint8_t, shared_handle_size>;

// The handles of one chunk, or of one pool.
struct shared_chunk {
    uint64_t      size_bytes = 0;  // of the chunk; 0 of a pool
    int           fd         = -1; // at the owner; at the importer its copy, or -1
    bool          has_fabric = false;
    shared_handle fabric{};
};

struct export_record {
    uint64_t                  token      = 0; // of the owner
    uint64_t                  serial     = 0; // of the export
    uint64_t                  base       = 0;
    uint64_t                  size_bytes = 0;
    uint64_t                  pool       = 0; // number of the pool at its owner; 0: VMM
    shared_handle             pointer{};      // in the pool
    std::vector<shared_chunk> chunks;         // of a pool: the pool's handles
};

std::vector<uint8_t> record_pack(const export_record &record);

// False for bytes that make no sense, whoever wrote them.
bool record_parse(const std::vector<uint8_t> &bytes, export_record *record);

// How long a packed record may be.
constexpr size_t record_size_max = 64u << 20;

} // namespace nvl

#endif
