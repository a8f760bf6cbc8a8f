// SPDX-License-Identifier: BSD-3-Clause
//
// The record's form in memory: a head and the chunks, in fixed sizes.
#include "mem/export_record.h"

#include <cstring>

namespace nvl {

namespace {

constexpr uint64_t record_magic = 0x32434552'4b4e4c56; // "VLNKREC2"

struct packed_head {
    uint64_t      magic;
    uint64_t      token;
    uint64_t      serial;
    uint64_t      base;
    uint64_t      size_bytes;
    uint64_t      pool;
    uint64_t      chunk_count;
    shared_handle pointer;
};

struct packed_chunk {
    uint64_t      size_bytes;
    int32_t       fd;
    uint32_t      has_fabric;
    shared_handle fabric;
};

static_assert(sizeof(packed_head) == 120 && sizeof(packed_chunk) == 80, "no holes");

} // namespace

std::vector<uint8_t> record_pack(const export_record &record)
{
    packed_head          head{record_magic,      record.token, record.serial,        record.base,
                     record.size_bytes, record.pool,  record.chunks.size(), record.pointer};
    std::vector<uint8_t> bytes(sizeof(head) + record.chunks.size() * sizeof(packed_chunk));
    std::memcpy(bytes.data(), &head, sizeof(head));
    uint8_t *at = bytes.data() + sizeof(head);
    for (const shared_chunk &chunk : record.chunks) {
        packed_chunk packed{chunk.size_bytes, chunk.fd, chunk.has_fabric ? 1u : 0u, chunk.fabric};
        std::memcpy(at, &packed, sizeof(packed));
        at += sizeof(packed);
    }
    return bytes;
}

bool record_parse(const std::vector<uint8_t> &bytes, export_record *record)
{
    packed_head head;
    if ((bytes.size() < sizeof(head)) || (bytes.size() > record_size_max)) {
        return false;
    }
    std::memcpy(&head, bytes.data(), sizeof(head));
    size_t rest = bytes.size() - sizeof(head);
    if ((head.magic != record_magic) || (rest % sizeof(packed_chunk) != 0) ||
        (head.chunk_count != rest / sizeof(packed_chunk)) || (head.chunk_count == 0) ||
        (head.base + head.size_bytes < head.base) ||
        ((head.pool != 0) && (head.chunk_count != 1))) {
        return false;
    }

    record->token      = head.token;
    record->serial     = head.serial;
    record->base       = head.base;
    record->size_bytes = head.size_bytes;
    record->pool       = head.pool;
    record->pointer    = head.pointer;
    record->chunks.clear();
    record->chunks.reserve(head.chunk_count);
    uint64_t       covered = 0;
    const uint8_t *at      = bytes.data() + sizeof(head);
    for (uint64_t i = 0; i < head.chunk_count; ++i, at += sizeof(packed_chunk)) {
        packed_chunk packed;
        std::memcpy(&packed, at, sizeof(packed));
        if (packed.size_bytes > head.size_bytes - covered) {
            return false;
        }
        covered += packed.size_bytes;
        record->chunks.push_back(
            {packed.size_bytes, packed.fd, packed.has_fabric != 0, packed.fabric});
    }
    return (head.pool != 0) || (covered == head.size_bytes);
}

} // namespace nvl
