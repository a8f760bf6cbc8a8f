// SPDX-License-Identifier: BSD-3-Clause
//
// Places whose primary context the application resets, and the numbers of those whose context is
// destroyed, on the emulated driver.
#include "mem/place.h"

#include "driver/context_life.h"
#include "uct/emulated.h"
#include "uct/own_context.h"

#include <memory>
#include <set>
#include <vector>

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
    EXPECT_NE(after.value()->id(), before.value()->id());
    EXPECT_FALSE(where->is_over(*after.value()));
}

namespace {

struct forgotten final : place_watcher {
    explicit forgotten(places &where) : where_(where)
    {
        where_.add_watcher(this);
    }

    ~forgotten()
    {
        where_.remove_watcher(this);
    }

    void forget_place(unsigned id) noexcept override
    {
        EXPECT_EQ(where_.numbered(id), nullptr) << "not before everybody knows";
        numbers.insert(id);
    }

    std::set<unsigned> numbers;
    places            &where_;
};

} // namespace

// Contexts of the application, one after the other, beside one that is used and one that lives.
TEST(places, give_the_numbers_of_ended_contexts_to_others)
{
    std::string why;
    places     *where = places::get(&why);
    ASSERT_NE(where, nullptr) << why;
    const CUdevice device = where->gpus()[0].device;
    forgotten      watcher(*where);

    auto         ended  = std::make_unique<own_context>(0);
    const place *in_use = where->find(device, ended->get()).value();
    own_context  lives(0);
    const place *alive      = where->find(device, lives.get()).value();
    unsigned     used_id    = in_use->id();
    unsigned     alive_id   = alive->id();
    auto         use        = std::make_unique<place_use>(*in_use);
    const place *first_gone = nullptr;
    unsigned     first_id   = no_place;
    ended.reset();
    for (unsigned i = 0; i < 3 * max_places; ++i) {
        own_context           context(0);
        result<const place *> at = where->find(device, context.get());
        ASSERT_TRUE(at.ok()) << i;
        EXPECT_EQ(where->numbered(at.value()->id()), at.value());
        EXPECT_EQ(watcher.numbers.count(used_id), 0u);
        EXPECT_FALSE(where->is_over(*at.value()));
        if (first_gone == nullptr) {
            first_gone = at.value();
            first_id   = first_gone->id();
        }
    }
    EXPECT_EQ(watcher.numbers.count(first_id), 1u);
    EXPECT_TRUE(where->is_over(*first_gone)) << "whoever has it now";
    EXPECT_EQ(alive->id(), alive_id);
    EXPECT_EQ(watcher.numbers.count(alive_id), 0u);
    EXPECT_EQ(in_use->id(), used_id);

    use.reset();
    for (unsigned i = 0; i < 2 * max_places; ++i) {
        own_context context(0);
        ASSERT_TRUE(where->find(device, context.get()).ok()) << i;
    }
    EXPECT_EQ(in_use->id(), no_place);
    EXPECT_EQ(watcher.numbers.count(used_id), 1u);
}

// No more than there is room for at a time.
TEST(places, are_refused_beyond_their_number_and_found_again_below_it)
{
    std::string why;
    places     *where = places::get(&why);
    ASSERT_NE(where, nullptr) << why;
    const CUdevice device = where->gpus()[0].device;

    std::vector<std::unique_ptr<own_context>> all;
    ucs_status_t                              status = UCS_OK;
    while ((status == UCS_OK) && (all.size() <= max_places)) {
        all.push_back(std::make_unique<own_context>(0));
        status = where->find(device, all.back()->get()).status();
    }
    EXPECT_EQ(status, UCS_ERR_NO_DEVICE);
    EXPECT_GT(all.size(), max_places / 2);
    all.front().reset();
    EXPECT_TRUE(where->find(device, all.back()->get()).ok());
}

} // namespace nvl::test
