// SPDX-License-Identifier: BSD-3-Clause
//
// Every kind of GPU memory on either side of put and get, within a process and between two, compared byte by byte; and
// what is said of the kinds that cannot be shared.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

namespace nvl::test {

namespace {

struct kind_case {
    memory_kind kind;
    far_kind    far;
    int         here_gpu, far_gpu;
};

std::string name_of_kind(const testing::TestParamInfo<kind_case> &info)
{
    return std::string(to_text(info.param.kind)) + "_" + to_text(info.param.far) + "_gpu_" +
           std::to_string(info.param.here_gpu) + "_to_" + std::to_string(info.param.far_gpu);
}

std::vector<kind_case> all_kinds()
{
    std::vector<kind_case> all;
    for (int i = 0; i < memory_kind_count; ++i) {
        auto kind = static_cast<memory_kind>(i);
        all.push_back({kind, far_kind::same_worker, 0, 1});
        all.push_back({kind, far_kind::other_process, 0, 0});
        all.push_back({kind, far_kind::other_process, 0, 1});
    }
    return all;
}

// Ten MiB: five chunks of those kinds that have chunks.
constexpr size_t size = 10u << 20;

// From one byte to nearly all, at odd places, across each border of chunks of 2 MiB.
struct piece {
    size_t offset, size;
};
constexpr piece pieces[] = {{0, 1},
                            {1, 7},
                            {(2u << 20) - 1, 2},
                            {(4u << 20) - 4095, 8191},
                            {(6u << 20) - 65537, 131073},
                            {(7u << 20) + 3, (2u << 20) + 1},
                            {13, size - 29},
                            {size - 1, 1}};

// Both sides as they should be.
struct two_sides {
    bytes near, there;
};

// One operation with new bytes on both sides; what is around it is compared too.
void copies_exactly(connection &c, uint64_t remote, const unpacked &key, bool push,
                    const piece &what, two_sides *all)
{
    constexpr size_t around = 4096;
    size_t           first  = what.offset - std::min(what.offset, around);
    size_t           length = std::min(size - first, what.size + what.offset - first + around);
    bytes            near = random_bytes(length, what.offset * 2 + push), there = near;
    for (uint8_t &byte : there) {
        byte = static_cast<uint8_t>(~byte);
    }
    c.local.write(first, near);
    c.far->write(remote, first, there);

    uct_iov_t  iov = c.iov(what.offset, what.size);
    completion done;
    auto       post = push ? uct_ep_put_zcopy : uct_ep_get_zcopy;
    ASSERT_EQ(post(c.ep.get(), &iov, 1, remote + what.offset, key.rkey(), &done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    ASSERT_EQ(done.status, UCS_OK);

    bytes &to   = push ? there : near;
    bytes &from = push ? near : there;
    auto   at   = static_cast<ptrdiff_t>(what.offset - first);
    std::copy_n(from.begin() + at, what.size, to.begin() + at);
    EXPECT_EQ(difference(there, c.far->read(remote, first, length)), "");
    EXPECT_EQ(difference(near, c.local.read(first, length)), "");
    std::copy(near.begin(), near.end(), all->near.begin() + static_cast<ptrdiff_t>(first));
    std::copy(there.begin(), there.end(), all->there.begin() + static_cast<ptrdiff_t>(first));
}

} // namespace

class kind : public testing::TestWithParam<kind_case> {
protected:
    void SetUp() override
    {
        if (!can_make(GetParam().kind)) {
            GTEST_SKIP() << "this machine has no fabric handles";
        }
        if (!is_exportable(GetParam().kind)) {
            expect_log("cannot be shared with other processes");
        }
    }

    bool is_reachable() const
    {
        return GetParam().far != far_kind::other_process || is_exportable(GetParam().kind);
    }
};

TEST_P(kind, is_put_to_and_got_from_byte_by_byte)
{
    connection c(GetParam().far, GetParam().here_gpu, GetParam().far_gpu, size);
    uint64_t   remote = c.far->allocate_kind(GetParam().kind, GetParam().far_gpu, size);
    bytes      packed = c.far->key(remote);
    if (!is_reachable()) {
        EXPECT_EQ(try_unpack(packed), UCS_ERR_UNREACHABLE);
        return;
    }
    unpacked  key(packed);
    two_sides all{bytes(size, 0x55), bytes(size, 0x66)};
    c.local.write(0, all.near);
    c.far->write(remote, 0, all.there);
    for (const piece &one : pieces) {
        for (bool push : {true, false}) {
            ASSERT_NO_FATAL_FAILURE(copies_exactly(c, remote, key, push, one, &all))
                << (push ? "put" : "get") << " of " << one.size << " bytes at " << one.offset;
        }
    }
    EXPECT_EQ(difference(all.near, c.local.read(0, size)), "");
    EXPECT_EQ(difference(all.there, c.far->read(remote, 0, size)), "");
}

// The kind under the pointer that is given to put and get.
TEST_P(kind, is_a_local_buffer_like_any_other)
{
    connection c(GetParam().far, GetParam().here_gpu, GetParam().far_gpu, size);
    any_memory local(GetParam().kind, GetParam().here_gpu, size);
    registered registration(c.here, local.address(), size);
    for (const piece &one : pieces) {
        bytes source = random_bytes(one.size, one.offset + 5);
        local.write(one.offset, source);
        for (bool push : {true, false}) {
            uct_iov_t  iov{reinterpret_cast<void *>(local.address() + one.offset), one.size,
                          registration.memh(), 0, 1};
            completion done;
            auto       post = push ? uct_ep_put_zcopy : uct_ep_get_zcopy;
            ASSERT_EQ(post(c.ep.get(), &iov, 1, c.remote + one.offset, c.rkey(), &done.super),
                      UCS_INPROGRESS);
            ASSERT_TRUE(c.wait(done));
            ASSERT_EQ(done.status, UCS_OK);
            if (push) {
                EXPECT_EQ(difference(source, c.far->read(c.remote, one.offset, one.size)), "");
                local.write(one.offset, bytes(one.size, 0));
            } else {
                EXPECT_EQ(difference(source, local.read(one.offset, one.size)), "");
            }
        }
    }
}

TEST_P(kind, is_reached_through_any_pointer_into_it)
{
    connection c(GetParam().far, GetParam().here_gpu, GetParam().far_gpu, size);
    uint64_t   remote = c.far->allocate_kind(GetParam().kind, GetParam().far_gpu, size);
    if (!is_reachable()) {
        return;
    }
    for (size_t offset : {size_t(1), size_t(4097), size_t((2u << 20) - 3), size - 100}) {
        size_t     length = std::min(size - offset, size_t(3) << 20);
        uint64_t   part   = c.far->register_part(remote, offset, length);
        unpacked   key(c.far->part_key(part));
        bytes      source = random_bytes(length, offset);
        completion done;
        c.local.write(0, source);
        uct_iov_t iov = c.iov(0, length);
        ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &iov, 1, remote + offset, key.rkey(), &done.super),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(difference(source, c.far->read(remote, offset, length)), "");
        c.far->release_part(part);
    }
}

INSTANTIATE_TEST_SUITE_P(kinds, kind, testing::ValuesIn(all_kinds()), name_of_kind);

// ---- chunks ------------------------------------------------------------------------------------

TEST(kind_of_chunks, is_written_where_it_is_now_after_one_was_replaced)
{
    connection c(far_kind::other_process, 0, 1, size);
    uint64_t   remote = c.far->allocate_kind(memory_kind::vmm_chunks, 1, size);
    for (size_t round = 0; round < 20; ++round) {
        unpacked   key(c.far->key(remote));
        bytes      source = random_bytes(size, round);
        completion done;
        c.local.write(0, source);
        c.far->write(remote, 0, bytes(size, 0x33));
        uct_iov_t iov = c.iov(0, size);
        ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &iov, 1, remote, key.rkey(), &done.super),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        ASSERT_EQ(difference(source, c.far->read(remote, 0, size)), "") << "round " << round;
        c.far->replace_chunk(remote, round % 5);
    }
}

// The export of before lives on with another registration: the chunk behind the address is what counts.
TEST(kind_of_chunks, is_exported_anew_when_one_was_replaced_under_another_registration)
{
    connection c(far_kind::other_process, 0, 1, size);
    uint64_t   remote = c.far->allocate_kind(memory_kind::vmm_chunks, 1, size);
    uint64_t   stays  = c.far->register_part(remote, 0, size);
    unpacked   old(c.far->part_key(stays));
    c.far->replace_chunk(remote, 2);
    unpacked   key(c.far->key(remote));
    bytes      source = random_bytes(size, 1);
    completion done;
    c.local.write(0, source);
    uct_iov_t iov = c.iov(0, size);
    ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &iov, 1, remote, key.rkey(), &done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(difference(source, c.far->read(remote, 0, size)), "");
}

TEST(kind_of_chunks, is_not_written_through_the_key_from_before)
{
    connection c(far_kind::other_process, 0, 1, size);
    uint64_t   remote = c.far->allocate_kind(memory_kind::vmm_chunks, 1, size);
    unpacked   old(c.far->key(remote));
    c.far->replace_chunk(remote, 2);
    bytes fresh(size, 0x44);
    c.far->write(remote, 0, fresh);
    completion done;
    uct_iov_t  iov = c.iov(0, 2u << 20);
    // Into the void, or an error.
    if (uct_ep_put_zcopy(c.ep.get(), &iov, 1, remote + (4u << 20), old.rkey(), &done.super) ==
        UCS_INPROGRESS) {
        ASSERT_TRUE(c.wait(done));
    }
    EXPECT_EQ(difference(fresh, c.far->read(remote, 0, size)), "");
}

TEST(kind_of_chunks, with_a_hole_is_refused_as_a_whole)
{
    connection c(far_kind::other_process, 0, 1, size);
    uint64_t   remote = c.far->allocate_kind(memory_kind::vmm_chunks, 1, size);
    c.far->unmap_chunk(remote, 3);
    EXPECT_EQ(try_unpack(c.far->key(remote)), UCS_ERR_UNREACHABLE);
    uint64_t below = c.far->register_part(remote, 0, 6u << 20);
    EXPECT_EQ(try_unpack(c.far->part_key(below)), UCS_OK) << "what is below the hole is whole";
}

// ---- what cannot be shared ----------------------------------------------------------------------

TEST(kind_without_handles, is_told_of_once_with_advice)
{
    entity here;
    expect_log("cannot be shared with other processes");
    std::vector<std::unique_ptr<any_memory>> all;
    for (int i = 0; i < 5; ++i) {
        all.push_back(std::make_unique<any_memory>(memory_kind::vmm_none, 1, size));
        registered one(here, all.back()->address(), size), two(here, all.back()->address(), 64);
        (void)one.key();
        (void)two.key();
    }
    size_t warnings = 0;
    for (const log_line &line : logged()) {
        if (line.level <= 2 && line.text.find("requestedHandleTypes") != std::string::npos) {
            ++warnings;
            EXPECT_NE(line.text.find("allowed handle types 0x0"), std::string::npos) << line.text;
            EXPECT_NE(line.text.find("length 10485760"), std::string::npos) << line.text;
        }
    }
    // Another test of this process may have been first.
    EXPECT_LE(warnings, 1u);
}

} // namespace nvl::test
