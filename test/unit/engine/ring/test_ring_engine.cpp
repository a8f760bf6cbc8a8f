// SPDX-License-Identifier: BSD-3-Clause
//
// What ring_engine promises, one behaviour a test, on the fake GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "engine/ring/ring_traffic.h"

namespace nvl {

namespace {

class ring_engine_test : public testing::Test {
protected:
    void open(const ring_config &config)
    {
        lane_config lanes;
        lanes.completion = lane_completion::by_word;
        lane_            = std::move(lane::create(gpu_.cuda(), nullptr, lanes).value());
        auto made        = ring_engine::create(gpu_.cuda(), nullptr, 0, *lane_, config);
        ASSERT_TRUE(made.ok());
        ring_ = std::move(made.value());
        for (size_t i = 0; i < sizeof(src_); ++i) {
            src_[i] = static_cast<uint8_t>(i * 7 + 1);
        }
    }

    // A marker in the ring, and a kernel that was launched and does not start.
    void post_to_a_held_kernel()
    {
        open(patient_ring());
        ASSERT_TRUE(wake());
        ring_->request_leave();
        ASSERT_TRUE(comes_true([&] { return ring_->quiet(); }));
        gpu_.hold(true);
        ASSERT_TRUE(comes_true([&] {
            ring_->summon(1);
            return ring_->counts().launches == 2;
        }));
        ASSERT_EQ(ring_->submit_marker(end()), UCS_INPROGRESS);
    }

    // Of three blocks, two of which leave as soon as nothing is to do.
    static ring_config narrowing()
    {
        ring_config config  = patient_ring();
        config.large_blocks = 3;
        config.narrow_ns    = 1e3;
        return config;
    }

    bool wake(size_t size_bytes = 1)
    {
        return comes_true([&] {
            ring_->summon(size_bytes);
            return ring_->ready();
        });
    }

    copy_piece piece(size_t offset, size_t size_bytes)
    {
        return copy_piece{reinterpret_cast<uint64_t>(dst_ + offset),
                          reinterpret_cast<uint64_t>(src_ + offset), size_bytes};
    }

    op_end end()
    {
        return op_end{&comp_, nullptr};
    }

    // `count` operations of end() have finished.
    bool finishes(int count)
    {
        return comes_true([&] {
            (void)ring_->poll(64);
            (void)lane_->poll(64);
            return comp_.count == start_count - count;
        });
    }

    static constexpr int start_count = 1 << 20;

    fake_gpu                     gpu_{fake_gpu::settings()};
    std::unique_ptr<lane>        lane_;
    std::unique_ptr<ring_engine> ring_;
    uct_completion_t             comp_       = {[](uct_completion_t *) {}, start_count, UCS_OK};
    uint8_t                      src_[65536] = {};
    uint8_t                      dst_[65536] = {};
};

} // namespace

TEST_F(ring_engine_test, takes_nothing_before_a_kernel_has_reported_in)
{
    open(patient_ring());
    gpu_.hold(true);
    ring_->summon(1);
    ring_->summon(1);
    copy_piece what = piece(0, 8);

    EXPECT_EQ(ring_->counts().launches, 1u);
    EXPECT_FALSE(ring_->ready());
    EXPECT_EQ(ring_->submit(&what, 1, end()), UCS_ERR_NO_RESOURCE);
    EXPECT_EQ(ring_->in_flight(), 0u);
    gpu_.hold(false);
    EXPECT_TRUE(wake());
    EXPECT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(memcmp(dst_, src_, 8), 0);
}

// An application's kernel holds the SMs that the others wait for.
TEST_F(ring_engine_test, takes_nothing_before_all_of_its_blocks_are_there)
{
    ring_config config  = patient_ring();
    config.large_blocks = 3;
    open(config);
    gpu_.hold_other_blocks(true);
    ring_->summon(60000);
    ring_->summon(60000);
    ASSERT_EQ(ring_->counts().launches, 1u);

    uint64_t start = clock_ticks();
    while (clock_ticks() - start < clock_from_ns(20e6)) {
        ASSERT_FALSE(ring_->ready());
        sched_yield();
    }
    gpu_.hold_other_blocks(false);
    EXPECT_TRUE(wake(60000));
    EXPECT_EQ(ring_->counts().launches, 1u);
    copy_piece what = piece(0, 60000);
    EXPECT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(memcmp(dst_, src_, 60000), 0);
}

TEST_F(ring_engine_test, does_not_wait_for_its_blocks_longer_than_it_may_stay)
{
    ring_config config  = patient_ring();
    config.large_blocks = 3;
    config.stay_ns      = 1e6;
    open(config);
    gpu_.hold_other_blocks(true);
    ring_->summon(60000);
    ring_->summon(60000);
    // Its last word is there while blocks of it have not started.
    EXPECT_TRUE(comes_true([&] { return ring_->quiet(); }));
    EXPECT_EQ(gpu_.served(), 0u);
    gpu_.hold_other_blocks(false);
}

TEST_F(ring_engine_test, a_launch_has_no_more_blocks_than_the_gpu_has_sms)
{
    fake_gpu::settings how;
    how.sms = 2;
    fake_gpu    gpu(how);
    ring_config config  = patient_ring();
    config.large_blocks = 32;
    lane_config lanes;
    lanes.completion = lane_completion::by_word;
    auto copy_lane   = std::move(lane::create(gpu.cuda(), nullptr, lanes).value());
    auto ring = std::move(ring_engine::create(gpu.cuda(), nullptr, 0, *copy_lane, config).value());
    ASSERT_TRUE(comes_true([&] {
        ring->summon(60000);
        return ring->ready();
    }));
    EXPECT_EQ(gpu.most_blocks(), 2u);
}

TEST_F(ring_engine_test, a_single_operation_does_not_launch)
{
    open(patient_ring());
    ring_->summon(1);
    EXPECT_EQ(ring_->counts().launches, 0u);
}

TEST_F(ring_engine_test, a_post_and_its_end_need_no_driver_call)
{
    open(patient_ring());
    ASSERT_TRUE(wake(65536));
    ASSERT_TRUE(wake(65536));
    copy_piece what = piece(0, 8);
    int        done = 0, clean = 0;
    // A machine that is busy may delay it until the stream is asked.
    ASSERT_TRUE(comes_true([&] {
        uint64_t before = gpu_.calls();
        uint64_t start  = clock_ticks();
        ring_->summon(8);
        EXPECT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
        EXPECT_EQ(gpu_.calls(), before);
        EXPECT_TRUE(finishes(++done));
        if (clock_ticks() - start < clock_from_ns(0.9e6)) {
            EXPECT_EQ(gpu_.calls(), before);
            ++clean;
        }
        return HasFailure() || ((done >= 50) && (clean > 0));
    }));
}

TEST_F(ring_engine_test, a_large_operation_ends_once_with_all_its_chunks)
{
    open(patient_ring());
    ASSERT_TRUE(wake(60000));
    copy_piece what = piece(3, 60000);
    ASSERT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    EXPECT_GT(ring_->in_flight(), 100u);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(ring_->in_flight(), 0u);
    EXPECT_EQ(memcmp(dst_ + 3, src_ + 3, 60000), 0);
    EXPECT_EQ(dst_[2], 0);
    EXPECT_EQ(dst_[60003], 0);
}

TEST_F(ring_engine_test, inline_bytes_may_be_overwritten_after_the_post)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    uint8_t bytes[ring_inline_bytes];
    int     posted = 0;
    size_t  at     = 0;
    for (uint32_t size = 1; size <= ring_inline_bytes; ++size, at += size) {
        memcpy(bytes, src_ + at, size);
        ASSERT_EQ(ring_->submit_inline(reinterpret_cast<uint64_t>(dst_ + at), bytes, size, end()),
                  UCS_INPROGRESS);
        memset(bytes, 0xee, sizeof(bytes));
        ++posted;
    }
    ASSERT_TRUE(finishes(posted));
    at = 0;
    for (uint32_t size = 1; size <= ring_inline_bytes; ++size, at += size) {
        EXPECT_EQ(memcmp(dst_ + at, src_ + at, size), 0) << size;
    }
    EXPECT_EQ(ring_->submit_inline(0, bytes, ring_inline_bytes + 1, end()), UCS_ERR_EXCEEDS_LIMIT);
}

TEST_F(ring_engine_test, a_full_ring_refuses_and_takes_again)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    std::vector<copy_piece> list;
    for (uint32_t i = 0; i < ring_slots; ++i) {
        list.push_back(piece(i, 1));
    }
    ASSERT_EQ(ring_->submit(list.data(), ring_slots, end()), UCS_INPROGRESS);
    EXPECT_EQ(ring_->submit(list.data(), 1, end()), UCS_ERR_NO_RESOURCE);
    list.push_back(piece(0, 1));
    EXPECT_EQ(ring_->submit(list.data(), list.size(), end()), UCS_ERR_EXCEEDS_LIMIT);
    ASSERT_TRUE(finishes(1));
    ASSERT_TRUE(wake()); // so much work calls a larger kernel: it may be the one that is there now
    EXPECT_EQ(ring_->submit(list.data(), 1, end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(2));
}

TEST_F(ring_engine_test, a_marker_ends_after_what_was_before_it)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    copy_piece what = piece(0, 60000);
    ASSERT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    uct_completion_t mark = {[](uct_completion_t *) {}, 10, UCS_OK};
    ASSERT_EQ(ring_->submit_marker(op_end{&mark, nullptr}), UCS_INPROGRESS);
    ASSERT_TRUE(comes_true([&] {
        (void)ring_->poll(1);
        return mark.count == 9;
    }));
    EXPECT_EQ(comp_.count, start_count - 1);
}

TEST_F(ring_engine_test, a_marker_needs_no_kernel)
{
    open(patient_ring());
    ASSERT_EQ(ring_->submit_marker(end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(ring_->counts().launches, 0u);
}

TEST_F(ring_engine_test, work_that_waits_for_a_late_kernel_goes_to_the_copy_engine)
{
    ring_config config      = patient_ring();
    config.hello_timeout_ns = 1e6;
    open(config);
    gpu_.hold(true);
    ring_->summon(1);
    ring_->summon(1);
    // A marker may be posted while the kernel is not there.
    ASSERT_EQ(ring_->submit_marker(end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(ring_->counts().cancelled, 1u);
    EXPECT_EQ(ring_->counts().taken_back, 1u);
    EXPECT_FALSE(ring_->quiet());
    gpu_.hold(false);
    EXPECT_TRUE(comes_true([&] { return ring_->quiet(); }));
    EXPECT_EQ(gpu_.served(), 0u);
}

TEST_F(ring_engine_test, lets_go_of_what_was_used_when_it_is_closed)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    op_use     use([](op_use *) {});
    copy_piece small = piece(0, 8), cut = piece(0, 60000);
    for (const copy_piece &what : {small, cut, small}) {
        use.acquire();
        ASSERT_EQ(ring_->submit(&what, 1, op_end{&comp_, &use}), UCS_INPROGRESS);
    }
    ring_.reset();
    EXPECT_EQ(use.count.load(), 1u);
    EXPECT_EQ(comp_.count, start_count) << "nobody is told";
}

// Nobody has looked since the kernel behind the first one reported in.
TEST_F(ring_engine_test, closing_does_not_wait_for_the_idle_time_of_a_kernel_that_followed)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    ring_->summon(60000);
    ASSERT_EQ(ring_->counts().handovers, 1u);
    ASSERT_TRUE(comes_true([&] { return gpu_.hellos() == 2; }));

    uint64_t start = clock_ticks();
    ring_.reset();
    EXPECT_LT(clock_ticks() - start, clock_from_ns(hang_s * 1e9));
}

TEST_F(ring_engine_test, a_large_kernel_narrows_and_the_next_stream_gets_another)
{
    open(narrowing());
    ASSERT_TRUE(wake(60000));
    ASSERT_TRUE(comes_true([&] { return gpu_.narrowed() == 1; }));

    // What one warp does alone needs no more.
    copy_piece what = piece(0, 8);
    ring_->summon(8);
    ASSERT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(ring_->counts().launches, 1u);

    // What the few that remain would take turns for does.
    what = piece(0, 60000);
    ring_->summon(what.size_bytes);
    ASSERT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(2));
    EXPECT_EQ(memcmp(dst_, src_, 60000), 0);
    EXPECT_EQ(ring_->counts().widened, 1u);
}

// Its workers copy: that is not to be without work.
TEST_F(ring_engine_test, a_kernel_whose_workers_copy_does_not_narrow)
{
    open(narrowing());
    copy_piece what   = piece(0, 60000);
    int        posted = 0;
    // Again where a busy machine has let it narrow before it had anything to do.
    ASSERT_TRUE(comes_true([&] {
        gpu_.hold_copies(true);
        const uint64_t served = gpu_.served();
        EXPECT_TRUE(wake(60000));
        EXPECT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
        ++posted;
        EXPECT_TRUE(comes_true([&] { return gpu_.served() != served; }));
        usleep(20000);
        const uint64_t before = gpu_.narrowed();
        usleep(50000);
        EXPECT_EQ(gpu_.narrowed(), before);
        const bool is_wide = (before < ring_->counts().launches);
        gpu_.hold_copies(false);
        EXPECT_TRUE(finishes(posted));
        return HasFailure() || is_wide;
    }));
    EXPECT_TRUE(comes_true([&] { return gpu_.narrowed() == ring_->counts().launches; }));
}

// Streams that follow each other keep their kernel longer and longer.
TEST_F(ring_engine_test, narrows_later_where_streams_follow_each_other)
{
    ring_config config    = patient_ring();
    config.narrow_ns      = 1e6;
    config.narrow_most_ns = 8e6;
    open(config);
    ASSERT_TRUE(wake(60000));
    // A kernel is told when it is launched; on a busy machine more may follow than are waited for.
    ASSERT_TRUE(comes_true([&] {
        if (gpu_.narrowed() > ring_->counts().widened) {
            ring_->summon(60000);
        }
        return gpu_.narrow_times_ns().size() >= 5;
    }));
    const std::vector<uint64_t> told_ns = gpu_.narrow_times_ns();
    EXPECT_THAT(std::vector<uint64_t>(told_ns.begin(), told_ns.begin() + 5),
                testing::ElementsAre(1000000, 2000000, 4000000, 8000000, 8000000));
}

TEST_F(ring_engine_test, leaves_when_asked)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    ring_->request_leave();
    EXPECT_TRUE(comes_true([&] { return ring_->quiet(); }));
}

TEST_F(ring_engine_test, arming_wakes_after_the_work_is_done)
{
    open(patient_ring());
    ASSERT_TRUE(wake());
    std::atomic<bool> woken{false};
    copy_piece        what = piece(0, 60000);
    ASSERT_EQ(ring_->submit(&what, 1, end()), UCS_INPROGRESS);
    ucs_status_t status;
    while (
        (status = ring_->arm([](void *arg) { static_cast<std::atomic<bool> *>(arg)->store(true); },
                             &woken)) == UCS_ERR_BUSY) {
        (void)ring_->poll(64);
    }
    ASSERT_EQ(status, UCS_OK);
    // Nobody polls until the wake-up: the kernel leaves by itself.
    ASSERT_TRUE(comes_true([&] { return woken.load() || (comp_.count == start_count - 1); }));
    (void)ring_->poll(64);
    EXPECT_EQ(comp_.count, start_count - 1);
    EXPECT_EQ(memcmp(dst_, src_, 60000), 0);
}

TEST_F(ring_engine_test, a_dead_context_ends_every_operation_with_an_error)
{
    ASSERT_NO_FATAL_FAILURE(post_to_a_held_kernel());
    gpu_.break_context();
    EXPECT_TRUE(finishes(1));
    EXPECT_NE(comp_.status, UCS_OK);
    EXPECT_TRUE(ring_->is_broken());
    EXPECT_FALSE(ring_->ready());
    gpu_.hold(false);
}

TEST_F(ring_engine_test, a_context_that_is_destroyed_ends_every_operation_and_is_not_touched)
{
    ASSERT_NO_FATAL_FAILURE(post_to_a_held_kernel());
    gpu_.destroy_context();
    gpu_.hold(false);
    EXPECT_EQ(ring_->arm([](void *) {}, nullptr), UCS_ERR_BUSY);
    EXPECT_TRUE(finishes(1));
    EXPECT_EQ(comp_.status, UCS_ERR_IO_ERROR);
    EXPECT_TRUE(ring_->is_broken());
    EXPECT_FALSE(ring_->ready());
    ring_.reset();
    lane_.reset();
    EXPECT_EQ(gpu_.stale_calls(), 0u);
}

TEST_F(ring_engine_test, a_driver_that_refuses_launches_is_not_asked_for_ever)
{
    ring_config config    = patient_ring();
    config.backoff_min_ns = 1;
    config.backoff_max_ns = 1;
    open(config);
    gpu_.fail_launches(true);
    for (int i = 0; i < 1000; ++i) {
        ring_->summon(1);
    }
    uint64_t calls = gpu_.calls();
    for (int i = 0; i < 1000; ++i) {
        ring_->summon(1);
    }
    EXPECT_EQ(gpu_.calls(), calls);
    EXPECT_FALSE(ring_->ready());
}

// A ring whose kernel goes after a moment without work and does not say so: to its host it looks as if it were there.
struct vanishing_ring {
    vanishing_ring()
    {
        config.idle_ns   = 1e6;
        config.narrow_ns = 1e9; // or another kernel would follow and do the work
        lane_config lanes;
        lanes.completion = lane_completion::by_word;
        copy_lane        = std::move(lane::create(gpu.cuda(), nullptr, lanes).value());
        ring = std::move(ring_engine::create(gpu.cuda(), nullptr, 0, *copy_lane, config).value());
    }

    static fake_gpu::settings silent()
    {
        fake_gpu::settings how;
        how.bug = planted::never_says_left;
        return how;
    }

    static void outlast_the_kernel()
    {
        uint64_t start = clock_ticks();
        while (clock_ticks() - start < clock_from_ns(2e6)) {
            sched_yield();
        }
    }

    fake_gpu                     gpu{silent()};
    ring_config                  config = patient_ring();
    std::unique_ptr<lane>        copy_lane;
    std::unique_ptr<ring_engine> ring;
};

TEST_F(ring_engine_test, a_kernel_that_vanished_is_replaced_by_the_copy_engine)
{
    vanishing_ring it;
    ring_engine   *ring      = it.ring.get();
    lane          *copy_lane = it.copy_lane.get();
    ASSERT_TRUE(comes_true([&] {
        ring->summon(1);
        return ring->ready();
    }));
    copy_piece what = piece(0, 100);
    for (int count = 1; count < 100; ++count) {
        ASSERT_EQ(ring->submit(&what, 1, end()), UCS_INPROGRESS);
        ASSERT_TRUE(comes_true([&] {
            (void)ring->poll(64);
            (void)copy_lane->poll(64);
            return comp_.count == start_count - count;
        }));
        if (ring->counts().taken_back != 0) {
            break;
        }
        vanishing_ring::outlast_the_kernel();
    }
    EXPECT_GT(ring->counts().taken_back, 0u);
    EXPECT_EQ(comp_.status, UCS_OK);
    EXPECT_EQ(memcmp(dst_, src_, 100), 0);
}

TEST_F(ring_engine_test, waits_for_what_it_took_back_when_it_is_closed)
{
    vanishing_ring it;
    lane          *copy_lane = it.copy_lane.get();
    ASSERT_TRUE(comes_true([&] {
        it.ring->summon(1);
        return it.ring->ready();
    }));
    op_use     use([](op_use *) {});
    copy_piece what = piece(0, 100);
    ASSERT_TRUE(comes_true([&] {
        use.acquire();
        EXPECT_EQ(it.ring->submit(&what, 1, op_end{nullptr, &use}), UCS_INPROGRESS);
        (void)comes_true([&] {
            (void)it.ring->poll(64);
            return (it.ring->in_flight() == 0) || (copy_lane->in_flight() != 0);
        });
        vanishing_ring::outlast_the_kernel();
        return copy_lane->in_flight() != 0;
    }));
    it.ring.reset();
    EXPECT_EQ(copy_lane->in_flight(), 0u);
    EXPECT_EQ(use.count.load(), 1u);
}

TEST_F(ring_engine_test, is_not_made_where_every_launch_blocks)
{
    lane_config lanes;
    lanes.completion = lane_completion::by_word;
    lane_            = std::move(lane::create(gpu_.cuda(), nullptr, lanes).value());
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    auto made = ring_engine::create(gpu_.cuda(), nullptr, 0, *lane_, small_ring());
    unsetenv("CUDA_LAUNCH_BLOCKING");
    EXPECT_EQ(made.status(), UCS_ERR_UNSUPPORTED);
}

} // namespace nvl
