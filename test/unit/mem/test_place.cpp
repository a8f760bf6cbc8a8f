// SPDX-License-Identifier: BSD-3-Clause
//
// Places whose primary context the application resets, and the numbers of those whose context is
// destroyed, on the emulated driver.
#include "mem/place.h"

#include "driver/context_life.h"
#include "uct/emulated.h"
#include "uct/own_context.h"

#include <atomic>
#include <memory>
#include <set>
#include <thread>
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

// Contexts of the application, one after the other, beside one that lives.
TEST(places, give_the_numbers_of_ended_contexts_to_others)
{
    std::string why;
    places     *where = places::get(&why);
    ASSERT_NE(where, nullptr) << why;
    const CUdevice device = where->gpus()[0].device;
    forgotten      watcher(*where);

    own_context    lives(0);
    const place   *alive      = where->find(device, lives.get()).value();
    const unsigned alive_id   = alive->id();
    const place   *first_gone = nullptr;
    unsigned       first_id   = no_place;
    for (unsigned i = 0; i < 3 * max_places; ++i) {
        own_context           context(0);
        result<const place *> at = where->find(device, context.get());
        ASSERT_TRUE(at.ok()) << i;
        EXPECT_EQ(where->numbered(at.value()->id()), at.value());
        EXPECT_FALSE(where->is_over(*at.value()));
        if (first_gone == nullptr) {
            first_gone = at.value();
            first_id   = first_gone->id();
        }
    }
    EXPECT_EQ(watcher.numbers.count(first_id), 1u);
    EXPECT_EQ(first_gone->id(), no_place);
    EXPECT_TRUE(where->is_over(*first_gone)) << "whoever has its number now";
    EXPECT_EQ(alive->id(), alive_id);
    EXPECT_EQ(watcher.numbers.count(alive_id), 0u);
    // What was about to be kept under the number is not.
    bool is_kept = false;
    EXPECT_FALSE(where->while_numbered({{first_gone, first_id}}, [&] { is_kept = true; }));
    EXPECT_FALSE(is_kept);
    EXPECT_TRUE(where->while_numbered({{alive, alive_id}}, [&] { is_kept = true; }));
    EXPECT_TRUE(is_kept);
}

// Each finds a number, though all have to be taken back first.
TEST(places, give_numbers_to_threads_that_need_one_at_once)
{
    std::string why;
    places     *where = places::get(&why);
    ASSERT_NE(where, nullptr) << why;
    const CUdevice           device = where->gpus()[0].device;
    std::atomic<int>         failed{0};
    std::vector<std::thread> all;
    for (int t = 0; t < 8; ++t) {
        all.emplace_back([&] {
            for (int i = 0; i < 100; ++i) {
                own_context context(0);
                failed += where->find(device, context.get()).ok() ? 0 : 1;
            }
        });
    }
    for (std::thread &one : all) {
        one.join();
    }
    EXPECT_EQ(failed.load(), 0);
}

// No more than there is room for at a time.
TEST(places, are_refused_beyond_their_number_and_found_again_below_it)
{
    std::string why;
    places     *where = places::get(&why);
    ASSERT_NE(where, nullptr) << why;
    const CUdevice device = where->gpus()[0].device;

    // All that have one and are not over, once those have gone.
    const place *primary = where->primary(device).value();
    unsigned     known   = 0;
    while (where->find(device, own_context(0).get()).ok() && (known++ < 2 * max_places)) {
    }
    known = 0;
    for (unsigned i = 0; i < where->count(); ++i) {
        const place *at = where->numbered(i);
        known += (at != nullptr) && (at->is_primary() || !where->is_over(*at));
    }
    ASSERT_GE(known, 1u) << primary->id();

    std::vector<std::unique_ptr<own_context>> all;
    ucs_status_t                              status = UCS_OK;
    while ((status == UCS_OK) && (all.size() <= max_places)) {
        all.push_back(std::make_unique<own_context>(0));
        status = where->find(device, all.back()->get()).status();
    }
    EXPECT_EQ(status, UCS_ERR_NO_DEVICE);
    EXPECT_EQ(all.size(), max_places - known + 1);
    all.front().reset();
    EXPECT_TRUE(where->find(device, all.back()->get()).ok());
}

} // namespace nvl::test
