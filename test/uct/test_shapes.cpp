// SPDX-License-Identifier: BSD-3-Clause
//
// Rows at equal distances (columns of a matrix, boxes of a grid) as one operation: by stride and count, and recognised
// in lists; how many copies the driver is asked for.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/host_memory.h"
#include "uct/list.h"
#include "uct/log_watch.h"

namespace nvl::test {

namespace {

long copies_made()
{
    return emulator()->call_count("cuMemcpyAsync") + emulator()->call_count("cuMemcpy2DAsync_v2");
}

const settings by_copy_engine = {{"KERNEL", "n"}};

// What a column of `source` looks like in `target`, both of the same shape.
void place_rows(bytes *target, const bytes &source, size_t rows, size_t row, size_t to_step,
                size_t from_step)
{
    for (size_t i = 0; i < rows; ++i) {
        std::copy_n(source.begin() + i * from_step, row, target->begin() + i * to_step);
    }
}

} // namespace

class shapes : public testing::TestWithParam<far_kind> {};

TEST_P(shapes, of_an_iov_arrive_packed_and_are_scattered)
{
    constexpr size_t rows = 300, row = 1001, step = 1536;
    connection       c(GetParam(), 0, 1, rows * step + 1000);
    bytes            source = random_bytes(rows * step, 1);
    bytes            packed(rows * row);
    place_rows(&packed, source, rows, row, row, step);
    c.local.write(0, source);
    c.far->write(c.remote, 0, random_bytes(rows * step, 2));

    uct_iov_t  one{reinterpret_cast<void *>(c.local.address()), row, c.local_registration.memh(),
                  step, rows};
    completion put_done, get_done;
    ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &one, 1, c.remote + 5, c.rkey(), &put_done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(put_done));
    EXPECT_EQ(difference(packed, c.far->read(c.remote, 5, packed.size())), "");

    bytes before = random_bytes(rows * step, 3);
    c.local.write(0, before);
    ASSERT_EQ(uct_ep_get_zcopy(c.ep.get(), &one, 1, c.remote + 5, c.rkey(), &get_done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(get_done));
    place_rows(&before, packed, rows, row, step, row);
    EXPECT_EQ(difference(before, c.local.read(0, before.size())), "");
}

TEST_P(shapes, of_a_list_keep_their_steps_on_both_sides)
{
    // Boxes of a grid: planes of rows, one element a plane.
    constexpr size_t planes = 5, rows = 100, row = 333, step = 512, plane = rows * step;
    connection       c(GetParam(), 0, 1, planes * plane);
    bytes            source   = random_bytes(planes * plane, 1);
    bytes            expected = random_bytes(planes * plane, 2);
    c.local.write(0, source);
    c.far->write(c.remote, 0, expected);
    list all;
    for (size_t i = 0; i < planes; ++i) {
        all.add(c, c.local.address() + i * plane, row, c.remote + i * plane, rows, step);
    }
    place_rows(&expected, source, planes * rows, row, step, step);

    completion done;
    ASSERT_EQ(all.put(c, &done), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.called, 1);
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, expected.size())), "");
}

INSTANTIATE_TEST_SUITE_P(far, shapes,
                         testing::Values(far_kind::other_worker, far_kind::other_process),
                         [](const testing::TestParamInfo<far_kind> &one) {
                             return to_text(one.param);
                         });

// ---- how many copies -----------------------------------------------------------------------------------------------

TEST(shape_on_a_copy_engine, is_one_submission)
{
    NVL_NEEDS_EMULATOR();
    constexpr size_t rows = 4096, row = 64u << 10, step = row + 256;
    connection       c(far_kind::other_process, 0, 1, rows * step, by_copy_engine);
    c.local.write(0, random_bytes(row, 1));
    list all;
    all.add(c, c.local.address(), row, c.remote, rows, step);
    completion done;
    emulator()->reset_counts();
    ASSERT_EQ(all.put(c, &done), UCS_INPROGRESS);
    EXPECT_EQ(copies_made(), 1);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.status, UCS_OK);
    EXPECT_EQ(difference(random_bytes(row, 1), c.far->read(c.remote, 0, row)), "");
}

TEST(shape_on_a_copy_engine, without_gaps_is_one_plain_copy)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, 1u << 20, by_copy_engine);
    bytes      sent = random_bytes(1u << 20, 1);
    c.local.write(0, sent);
    list all;
    all.add(c, c.local.address(), 1024, c.remote, 1024, 1024);
    completion done;
    emulator()->reset_counts();
    ASSERT_EQ(all.put(c, &done), UCS_INPROGRESS);
    EXPECT_EQ(emulator()->call_count("cuMemcpyAsync"), 1);
    EXPECT_EQ(copies_made(), 1);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(difference(sent, c.far->read(c.remote, 0, sent.size())), "");
}

TEST(shape_on_a_copy_engine, is_recognised_in_a_plain_list)
{
    NVL_NEEDS_EMULATOR();
    constexpr size_t rows = 1000, row = 100, near_step = 160, far_step = 128;
    connection       c(far_kind::other_process, 0, 1, (rows + 1) * near_step, by_copy_engine);
    bytes            source   = random_bytes(rows * near_step, 1);
    bytes            expected = random_bytes(rows * near_step, 2);
    c.local.write(0, source);
    c.far->write(c.remote, 0, expected);
    list all;
    for (size_t i = 0; i < rows; ++i) {
        all.add(c, c.local.address() + i * near_step, row, c.remote + i * far_step);
    }
    place_rows(&expected, source, rows, row, far_step, near_step);
    completion done;
    emulator()->reset_counts();
    ASSERT_EQ(all.put(c, &done, false), UCS_INPROGRESS);
    EXPECT_EQ(copies_made(), 1);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, expected.size())), "");
}

TEST(shape_on_a_copy_engine, that_ends_in_the_middle_of_a_list_takes_no_other_bytes_along)
{
    NVL_NEEDS_EMULATOR();
    // 100 rows of a column, one of another length, 100 rows of another column, 70 that follow no rule.
    connection c(far_kind::other_process, 0, 1, 1u << 20, by_copy_engine);
    bytes      source   = random_bytes(1u << 20, 1);
    bytes      expected = random_bytes(1u << 20, 2);
    c.local.write(0, source);
    c.far->write(c.remote, 0, expected);
    list all;
    auto add = [&](size_t from, size_t to, size_t size) {
        all.add(c, c.local.address() + from, size, c.remote + to);
        std::copy_n(source.begin() + from, size, expected.begin() + to);
    };
    for (size_t i = 0; i < 100; ++i) {
        add(i * 1000, i * 900, 500);
    }
    add(100 * 1000, 100 * 900, 501);
    for (size_t i = 0; i < 100; ++i) {
        add(200000 + i * 77, 200000 + i * 99, 60);
    }
    for (size_t i = 0; i < 70; ++i) {
        add(400000 + i * i * 40, 400000 + i * i * 44, 30);
    }
    completion done;
    ASSERT_EQ(all.put(c, &done, false), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.called, 1);
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, expected.size())), "");
}

TEST(shape, whose_rows_overlap_is_refused_or_right)
{
    // A step of less than a row: no 2D copy can do it.
    connection c(far_kind::other_process, 0, 1, 1u << 20, by_copy_engine);
    bytes      source = random_bytes(100000, 1);
    c.local.write(0, source);
    uct_iov_t one{reinterpret_cast<void *>(c.local.address()), 100, c.local_registration.memh(), 10,
                  50};
    completion done;
    ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &one, 1, c.remote, c.rkey(), &done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    bytes expected(50 * 100);
    place_rows(&expected, source, 50, 100, 100, 10);
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, expected.size())), "");
}

TEST(shape, that_leaves_the_peers_memory_is_refused_whole)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, 1u << 20);
    expect_log("is outside the peer's registered memory");
    list all;
    all.add(c, c.local.address(), 100, c.remote, 1, 0);
    all.add(c, c.local.address(), 100, c.remote, 1025, 1024);
    completion done;
    emulator()->reset_counts();
    EXPECT_EQ(all.put(c, &done), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(copies_made(), 0);
    EXPECT_EQ(done.called, 0);
}

TEST(shape, of_host_memory_arrives)
{
    constexpr size_t rows = 200, row = 1000, step = 1200;
    for (host_kind kind : {host_kind::ordinary, host_kind::allocated_pinned}) {
        connection  c(far_kind::other_process, 0, 1, rows * step);
        bytes       source = random_bytes(rows * step, 1);
        bytes       packed(rows * row);
        host_memory local(kind, source);
        place_rows(&packed, source, rows, row, row, step);
        uct_iov_t  one{local.address(), row, nullptr, step, rows};
        completion put_done, get_done;
        ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &one, 1, c.remote, c.rkey(), &put_done.super),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(put_done));
        EXPECT_EQ(difference(packed, c.far->read(c.remote, 0, packed.size())), "");

        bytes other = random_bytes(packed.size(), 7);
        c.far->write(c.remote, 0, other);
        ASSERT_EQ(uct_ep_get_zcopy(c.ep.get(), &one, 1, c.remote, c.rkey(), &get_done.super),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(get_done));
        place_rows(&source, other, rows, row, step, row);
        EXPECT_EQ(difference(source, local.read()), "");
    }
}

} // namespace nvl::test
