// SPDX-License-Identifier: BSD-3-Clause
//
// The answer to query_v2 in both layouts: the right place, and only what was asked for.

#include "host/iface_attr_v2.h"

#include <cstring>
#include <gtest/gtest.h>

namespace {

nvl::ucx_layout layout_1_22()
{
    return {"1.22", false, false, 15, nvl::iface_attr_v2_bits_1_22};
}

nvl::ucx_layout layout_1_23()
{
    return {"1.23", true, true, 16, nvl::iface_attr_v2_bits_1_23};
}

// Either structure, filled with a pattern that nobody writes.
struct answer {
    union {
        uct_iface_attr_v2_t     v22;
        nvl::iface_attr_v2_1_23 v23;
    };

    explicit answer(uint64_t mask)
    {
        std::memset(&v23, 0x55, sizeof(v23));
        v22.field_mask = mask;
    }
};

constexpr size_t untouched = 0x5555555555555555;

void fill(nvl::iface_attr_v2_ref attr)
{
    attr.set_max_put_sgl_zcopy_count(1);
    attr.set_max_get_sgl_zcopy_count(2);
    attr.set_cap_flags(attr.bits().flag_put_sgl_zcopy | attr.bits().flag_query_token);
    attr.set_token_lengths(4, 5);
}

} // namespace

TEST(iface_attr_v2, fills_the_fields_of_1_22)
{
    nvl::ucx_layout layout = layout_1_22();
    answer          a(0xf);
    fill({layout, &a.v22});
    EXPECT_EQ(a.v22.max_put_sgl_zcopy_count, 1u);
    EXPECT_EQ(a.v22.cap.flags, 0x3u);
    EXPECT_EQ(a.v22.tx_token_length, 4u);
    EXPECT_EQ(a.v22.rx_token_length, 5u);
}

TEST(iface_attr_v2, fills_the_fields_of_1_23)
{
    nvl::ucx_layout layout = layout_1_23();
    answer          a(0x1f);
    fill({layout, &a.v22});
    EXPECT_EQ(a.v23.max_put_sgl_zcopy_count, 1u);
    EXPECT_EQ(a.v23.max_get_sgl_zcopy_count, 2u);
    EXPECT_EQ(a.v23.cap.flags, 0x5u);
    EXPECT_EQ(a.v23.tx_token_length, 4u);
    EXPECT_EQ(a.v23.rx_token_length, 5u);
}

TEST(iface_attr_v2, writes_only_what_1_22_asks_for)
{
    nvl::ucx_layout layout = layout_1_22();
    answer          a(0x2);
    fill({layout, &a.v22});
    EXPECT_EQ(a.v22.cap.flags, 0x3u);
    EXPECT_EQ(a.v22.max_put_sgl_zcopy_count, untouched);
    EXPECT_EQ(a.v22.tx_token_length, untouched);
    EXPECT_EQ(a.v22.rx_token_length, untouched);
}

TEST(iface_attr_v2, writes_only_what_1_23_asks_for)
{
    nvl::ucx_layout layout = layout_1_23();
    answer          a(0x2);
    fill({layout, &a.v22});
    EXPECT_EQ(a.v23.max_get_sgl_zcopy_count, 2u);
    EXPECT_EQ(a.v23.max_put_sgl_zcopy_count, untouched);
    EXPECT_EQ(a.v23.cap.flags, untouched);
    EXPECT_EQ(a.v23.tx_token_length, untouched);
}

// The structure of 1.22 is eight bytes shorter.
TEST(iface_attr_v2, stays_inside_the_structure_of_1_22)
{
    nvl::ucx_layout layout = layout_1_22();
    answer          a(~uint64_t{0});
    fill({layout, &a.v22});
    EXPECT_EQ(reinterpret_cast<size_t>(a.v23.rx_token), untouched);
}
