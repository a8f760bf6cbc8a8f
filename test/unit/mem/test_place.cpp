// SPDX-License-Identifier: BSD-3-Clause
//
// Places whose primary context the application resets, on the emulated driver.
#include "mem/place.h"

#include "driver/context_life.h"
#include "uct/emulated.h"

#include <unistd.h>

#include <gtest/gtest.h>

namespace nvl::test {

// The application goes on with the GPU, and something else is kept in the new context at the old one's handle.
TEST(places, know_a_reset_context_though_a_new_life_has_begun_there)
{
    std::string why;
    places     *where = places::get(&why);
    ASSERT_NE(where, nullptr) << why;
    CUdevice              device = where->gpus()[1].device;
    result<const place *> before = where->primary(device);
    ASSERT_TRUE(before.ok());
    result<life_ref> old_life = context_life::of(where->cuda(), before.value()->context);
    ASSERT_TRUE(old_life.ok());
    EXPECT_FALSE(where->was_reset(*before.value()));

    emulator()->reuse_contexts(1);
    NVL_MUST(cuDevicePrimaryCtxReset_v2, (device));
    CUcontext same = nullptr;
    NVL_MUST(cuDevicePrimaryCtxRetain, (&same, device));
    emulator()->reuse_contexts(0);
    ASSERT_EQ(same, before.value()->context);
    result<life_ref> new_life = context_life::of(where->cuda(), same);
    ASSERT_TRUE(new_life.ok());

    // An answer is good for a while.
    usleep(static_cast<useconds_t>(2 * recent_answer::good_for_ns / 1e3));
    EXPECT_TRUE(where->was_reset(*before.value()));
    EXPECT_TRUE(where->is_over(*before.value()));
    result<const place *> after = where->primary(device);
    ASSERT_TRUE(after.ok());
    EXPECT_NE(after.value()->id, before.value()->id);
    EXPECT_FALSE(where->is_over(*after.value()));
}

} // namespace nvl::test
