// SPDX-License-Identifier: BSD-3-Clause
//
// The wire form of a key: what goes in comes out, and nothing that was not put in is taken.
#include "mem/wire_key.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace nvl::test {

namespace {

key_fields random_fields(unsigned seed)
{
    std::mt19937_64 random(seed);
    key_fields      fields;
    fields.owner.host_id = random();
    fields.owner.token   = random();
    fields.owner.pid     = static_cast<uint32_t>(random());
    fields.owner.pid_ns  = static_cast<uint32_t>(random());
    for (uint8_t &byte : fields.uuid) {
        byte = static_cast<uint8_t>(random());
    }
    fields.base        = random() >> 1;
    fields.size_bytes  = random() >> 2;
    fields.buffer_id   = random();
    fields.serial      = random();
    fields.page_fd     = static_cast<uint16_t>(random());
    fields.handle.kind = (seed % 2) ? handle_legacy : handle_fabric;
    fields.kinds       = static_cast<uint8_t>(fields.handle.kind | (random() & handle_all));
    for (uint8_t &byte : fields.handle.bytes) {
        byte = static_cast<uint8_t>(random());
    }
    // A pool's handle in the key goes with a fabric part.
    fields.fabric.present =
        (seed % 3 == 0) || ((fields.kinds & handle_pool) && (fields.handle.kind == handle_fabric));
    if (fields.fabric.present) {
        fields.fabric.clique = static_cast<uint32_t>(random());
        fields.fabric.pool   = random();
        for (uint8_t &byte : fields.fabric.cluster) {
            byte = static_cast<uint8_t>(random());
        }
        for (uint8_t &byte : fields.fabric.pointer) {
            byte = static_cast<uint8_t>(random());
        }
    }
    return fields;
}

// Behind the key nothing may be read: a wrong bit may say that there is a fabric part.
struct key_at_an_end {
    explicit key_at_an_end(size_t size)
    {
        pages = static_cast<uint8_t *>(
            mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        EXPECT_NE(pages, MAP_FAILED);
        EXPECT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
        wire = pages + page - size;
    }

    ~key_at_an_end()
    {
        munmap(pages, 2 * page);
    }

    key_at_an_end(const key_at_an_end &)            = delete;
    key_at_an_end &operator=(const key_at_an_end &) = delete;

    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    uint8_t     *pages;
    uint8_t     *wire;
};

ucs_status_t parsed(const key_fields &fields, key_fields *back)
{
    uint8_t wire[key_packed_size_most];
    key_pack(fields, wire);
    return key_parse(wire, back);
}

} // namespace

TEST(wire_key, brings_back_what_was_packed)
{
    for (unsigned seed = 0; seed < 1000; ++seed) {
        key_fields fields = random_fields(seed), back;
        ASSERT_EQ(parsed(fields, &back), UCS_OK);
        EXPECT_TRUE(back.owner == fields.owner);
        EXPECT_EQ(back.uuid, fields.uuid);
        EXPECT_EQ(back.base, fields.base);
        EXPECT_EQ(back.size_bytes, fields.size_bytes);
        EXPECT_EQ(back.buffer_id, fields.buffer_id);
        EXPECT_EQ(back.serial, fields.serial);
        EXPECT_EQ(back.page_fd, fields.page_fd);
        EXPECT_EQ(back.kinds, fields.kinds);
        EXPECT_EQ(back.handle.kind, fields.handle.kind);
        EXPECT_EQ(back.fabric.present, fields.fabric.present);
        EXPECT_EQ(back.fabric.cluster, fields.fabric.cluster);
        EXPECT_EQ(back.fabric.clique, fields.fabric.clique);
        EXPECT_EQ(back.fabric.pool, fields.fabric.pool);
        EXPECT_EQ(
            std::memcmp(back.fabric.pointer, fields.fabric.pointer, sizeof(back.fabric.pointer)),
            0);
        EXPECT_EQ(std::memcmp(back.handle.bytes, fields.handle.bytes, sizeof(back.handle.bytes)),
                  0);
    }
}

TEST(wire_key, fits_into_what_ucp_can_say)
{
    EXPECT_LE(key_packed_size_most, 255u);
}

TEST(wire_key, crosses_hosts_with_a_fabric_handle_and_the_fabric)
{
    key_fields fields;
    fields.kinds = fields.handle.kind = handle_fabric;
    EXPECT_FALSE(fields.crosses_hosts());
    fields.fabric.present = true;
    EXPECT_TRUE(fields.crosses_hosts());
    fields.kinds = fields.handle.kind = handle_legacy;
    EXPECT_FALSE(fields.crosses_hosts());
}

TEST(wire_key, packs_every_byte)
{
    // Nothing of the buffer is left as it was: it goes to another process.
    uint8_t first[key_packed_size_most], second[key_packed_size_most];
    for (unsigned seed : {1, 3}) {
        key_fields fields = random_fields(seed);
        std::memset(first, 0x00, sizeof(first));
        std::memset(second, 0xff, sizeof(second));
        key_pack(fields, first);
        key_pack(fields, second);
        EXPECT_EQ(std::memcmp(first, second, key_wire_size(fields.fabric.present)), 0);
    }
}

TEST(wire_key, refuses_any_wrong_bit)
{
    key_fields back;
    for (unsigned seed : {1, 3}) {
        key_fields    fields = random_fields(seed);
        key_at_an_end at(key_wire_size(fields.fabric.present));
        uint8_t      *wire = at.wire;
        key_pack(fields, wire);
        for (size_t bit = 0; bit < 8 * key_wire_size(fields.fabric.present); ++bit) {
            wire[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
            EXPECT_NE(key_parse(wire, &back), UCS_OK) << bit;
            wire[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
        }
        EXPECT_EQ(key_parse(wire, &back), UCS_OK);
    }
}

// Good checksums, bad contents: from a peer that is wrong, not from a line that is.
TEST(wire_key, refuses_a_handle_of_an_unknown_kind)
{
    for (unsigned kinds = 0; kinds <= handle_all; ++kinds) {
        for (unsigned kind = 0; kind < handle_pool; ++kind) { // what the wire has room for
            key_fields fields  = random_fields(3), back;      // with a fabric part
            fields.kinds       = static_cast<uint8_t>(kinds);
            fields.handle.kind = static_cast<handle_kind>(kind);
            bool fits  = kind == handle_none || kind == handle_legacy || kind == handle_fabric;
            bool known = fits && (kind & ~kinds) == 0;
            EXPECT_EQ(parsed(fields, &back) == UCS_OK, known) << kinds << " " << kind;
        }
    }
}

TEST(wire_key, refuses_a_pool_without_what_opens_it)
{
    key_fields fields     = random_fields(3), back;
    fields.kinds          = handle_pool | handle_fabric;
    fields.handle.kind    = handle_fabric;
    fields.fabric.present = false;
    EXPECT_NE(parsed(fields, &back), UCS_OK);
    fields.fabric.present = true;
    EXPECT_EQ(parsed(fields, &back), UCS_OK);
}

TEST(wire_key, refuses_a_region_that_wraps_around)
{
    key_fields fields = random_fields(5), back;
    fields.base       = UINT64_MAX - 10;
    fields.size_bytes = 11;
    EXPECT_NE(parsed(fields, &back), UCS_OK);
    fields.size_bytes = UINT64_MAX;
    EXPECT_NE(parsed(fields, &back), UCS_OK);
    fields.base       = 0;
    fields.size_bytes = UINT64_MAX;
    EXPECT_EQ(parsed(fields, &back), UCS_OK);
}

} // namespace nvl::test
