// SPDX-License-Identifier: BSD-3-Clause
//
// Atomic operations by the ring on the fake GPU: each once, whatever becomes of the
// kernel, and those behind them in order.
#include <gtest/gtest.h>

#include <sched.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/ring/ring_traffic.h"

namespace nvl {

namespace {

class ring_atomics : public testing::Test {
protected:
    void open(const ring_config &config, const fake_gpu::settings &how = {})
    {
        gpu_ = std::make_unique<fake_gpu>(how);
        lane_config lanes;
        lanes.completion = lane_completion::by_word;
        lane_            = std::move(lane::create(gpu_->cuda(), nullptr, lanes).value());
        auto made        = ring_engine::create(gpu_->cuda(), nullptr, 0, *lane_, config);
        ASSERT_TRUE(made.ok());
        ring_ = std::move(made.value());
    }

    void TearDown() override
    {
        ring_.reset();
        lane_.reset();
        gpu_.reset();
    }

    op_end end()
    {
        return op_end{&comp_, nullptr};
    }

    template<typename word>
    ucs_status_t post(word *at, ring_atomic what, word operand, word *result = nullptr,
                      word compare = 0)
    {
        return ring_->submit_atomic(
            {reinterpret_cast<uint64_t>(at), operand, compare, result, sizeof(word), what}, end());
    }

    bool finishes(int count)
    {
        return comes_true([&] {
            (void)ring_->poll(64);
            (void)lane_->poll(64);
            return comp_.count == start_count - count;
        });
    }

    bool wake()
    {
        return comes_true([&] {
            ring_->summon(1);
            return ring_->ready();
        });
    }

    // Every operation on one width, with operands that have bits in each byte.
    template<typename word> void check_every_operation()
    {
        const word before  = static_cast<word>(0xf0e1d2c3b4a59687ull);
        const word operand = static_cast<word>(0x123456789abcdef1ull);
        struct row {
            ring_atomic what;
            word        compare, after;
        };
        const row rows[] = {
            {ring_atomic_add, 0, static_cast<word>(before + operand)},
            {ring_atomic_and, 0, static_cast<word>(before & operand)},
            {ring_atomic_or, 0, static_cast<word>(before | operand)},
            {ring_atomic_xor, 0, static_cast<word>(before ^ operand)},
            {ring_atomic_swap, 0, operand},
            {ring_atomic_compare_swap, before, operand},
            {ring_atomic_compare_swap, static_cast<word>(before + 1), before},
        };
        int done = start_count - comp_.count;
        for (const row &one : rows) {
            // The neighbours stay.
            alignas(16) word memory[3] = {1, before, 2};
            word             result[3] = {3, 0, 4};
            ASSERT_EQ(post(&memory[1], one.what, operand, &result[1], one.compare), UCS_INPROGRESS);
            ASSERT_TRUE(finishes(++done));
            EXPECT_EQ(memory[1], one.after) << one.what;
            EXPECT_EQ(result[1], before) << one.what;
            EXPECT_TRUE((memory[0] == 1) && (memory[2] == 2) && (result[0] == 3) &&
                        (result[2] == 4));
            memory[1] = before;
            ASSERT_EQ(
                post(&memory[1], one.what, operand, static_cast<word *>(nullptr), one.compare),
                UCS_INPROGRESS);
            ASSERT_TRUE(finishes(++done));
            EXPECT_EQ(memory[1], one.after) << one.what;
        }
    }

    static constexpr int start_count = 1 << 20;

    std::unique_ptr<fake_gpu>    gpu_;
    std::unique_ptr<lane>        lane_;
    std::unique_ptr<ring_engine> ring_;
    uct_completion_t             comp_ = {[](uct_completion_t *) {}, start_count, UCS_OK};
};

} // namespace

TEST_F(ring_atomics, do_what_they_are_named_after)
{
    open(patient_ring());
    check_every_operation<uint32_t>();
    check_every_operation<uint64_t>();
    EXPECT_EQ(comp_.status, UCS_OK);
    EXPECT_EQ(gpu_->served_twice(), 0u);
}

TEST_F(ring_atomics, the_first_calls_a_kernel_and_waits_for_it)
{
    open(patient_ring());
    uint64_t counter = 5, result = 0;
    gpu_->hold(true);
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 2, &result), UCS_INPROGRESS);
    EXPECT_EQ(ring_->counts().launches, 1u);
    EXPECT_TRUE(ring_->is_busy());
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(ring_->poll(64), 0u);
    }
    EXPECT_EQ(counter, 5u);
    gpu_->hold(false);
    ASSERT_TRUE(finishes(1));
    EXPECT_EQ(counter, 7u);
    EXPECT_EQ(result, 5u);
    EXPECT_FALSE(ring_->is_busy());
}

// With operations that could go elsewhere a kernel that is late is given up; what
// only it can do waits on, and for the next one.
TEST_F(ring_atomics, wait_where_copies_give_a_kernel_up)
{
    ring_config config      = patient_ring();
    config.hello_timeout_ns = 1e5;
    config.patience_ns      = 1e5;
    open(config);
    gpu_->hold(true);
    uint64_t counter = 0;
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    uint64_t start = clock_ticks();
    while (clock_ticks() - start < clock_from_ns(5e6)) {
        (void)ring_->poll(64);
        ring_->summon(8); // as copies do
    }
    EXPECT_EQ(comp_.count, start_count);
    EXPECT_EQ(ring_->counts().cancelled, 0u);
    gpu_->hold(false);
    ASSERT_TRUE(finishes(1));
    EXPECT_EQ(counter, 1u);
}

// The kernel leaves soon after it has come, and nobody looks for long: it must have
// found the operation.
TEST_F(ring_atomics, are_done_however_rarely_somebody_looks)
{
    ring_config config = patient_ring();
    config.idle_ns     = 1e6;
    open(config);
    uint64_t counter = 0;
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    EXPECT_TRUE(comes_true([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        (void)ring_->poll(64);
        return comp_.count != start_count;
    }));
    EXPECT_EQ(ring_->counts().launches, 1u);
    EXPECT_EQ(counter, 1u);
}

TEST_F(ring_atomics, a_marker_ends_behind_those_that_wait)
{
    open(patient_ring());
    gpu_->hold(true);
    uint64_t         counter = 0;
    uct_completion_t mark    = {[](uct_completion_t *) {}, 10, UCS_OK};
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    ASSERT_EQ(ring_->submit_marker(op_end{&mark, nullptr}), UCS_INPROGRESS);
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    for (int i = 0; i < 1000; ++i) {
        (void)ring_->poll(64);
    }
    EXPECT_EQ(mark.count, 10);
    gpu_->hold(false);
    ASSERT_TRUE(comes_true([&] {
        (void)ring_->poll(1);
        return mark.count == 9;
    }));
    EXPECT_GE(start_count - comp_.count, 1);
    EXPECT_TRUE(finishes(2));
    EXPECT_EQ(counter, 2u);
}

TEST_F(ring_atomics, too_many_are_refused_and_taken_again)
{
    ring_config config  = patient_ring();
    config.atomic_depth = 64;
    open(config);
    gpu_->hold(true);
    uint64_t counter = 0;
    int      posted  = 0;
    while (post<uint64_t>(&counter, ring_atomic_add, 1) == UCS_INPROGRESS) {
        ++posted;
        ASSERT_LE(posted, 64);
    }
    EXPECT_GT(posted, 16);
    EXPECT_TRUE(ring_->has_marker_room()); // a flush is not locked out
    EXPECT_EQ(ring_->submit_marker(end()), UCS_INPROGRESS);
    gpu_->hold(false);
    ASSERT_TRUE(finishes(posted + 1));
    EXPECT_EQ(counter, static_cast<uint64_t>(posted));
    EXPECT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    EXPECT_TRUE(finishes(posted + 2));
}

TEST_F(ring_atomics, end_with_an_error_where_no_kernel_will_come)
{
    ring_config config    = patient_ring();
    config.backoff_min_ns = 1;
    config.backoff_max_ns = 1;
    open(config);
    gpu_->fail_launches(true);
    uint64_t counter = 0;
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    ASSERT_TRUE(finishes(1));
    EXPECT_NE(comp_.status, UCS_OK);
    EXPECT_NE(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    EXPECT_TRUE(comes_true([&] {
        (void)ring_->poll(64);
        return !ring_->is_busy();
    }));
    EXPECT_EQ(counter, 0u);
}

TEST_F(ring_atomics, end_with_an_error_when_the_context_dies)
{
    open(patient_ring());
    gpu_->hold(true);
    uint64_t counter = 0;
    ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
    gpu_->break_context();
    ASSERT_TRUE(finishes(1));
    EXPECT_NE(comp_.status, UCS_OK);
    gpu_->hold(false);
}

// A copy may be done again, this may not: nobody knows what the kernel did.
TEST_F(ring_atomics, one_that_a_vanished_kernel_may_have_done_fails)
{
    fake_gpu::settings how;
    how.bug            = planted::never_says_left;
    ring_config config = patient_ring();
    config.idle_ns     = 1e6;
    open(config, how);
    ASSERT_TRUE(wake());
    uint64_t counter = 0;
    int      posted  = 0;
    while (comp_.status == UCS_OK) {
        ASSERT_EQ(post<uint64_t>(&counter, ring_atomic_add, 1), UCS_INPROGRESS);
        ASSERT_TRUE(finishes(++posted));
        uint64_t start = clock_ticks();
        while (clock_ticks() - start < clock_from_ns(2e6)) {
            sched_yield();
        }
    }
    // The one that failed found nobody.
    EXPECT_EQ(counter, static_cast<uint64_t>(posted - 1));
}

namespace {

// Adds to a few counters, copies and flushes beside them, on kernels that come and go.
// Fetched values of one counter are all different, or an addition was done twice.
class mixed_traffic {
public:
    static constexpr int counters = 4;

    mixed_traffic(lane &copies, ring_engine &ring, uint64_t seed)
        : copies_(copies), ring_(ring), random_(seed)
    {
    }

    // Posts `count` additions; true if all ended, none long after the one before.
    bool run(uint64_t count, double gap_ns)
    {
        fetched_.assign(count, UINT64_MAX);
        which_.assign(count, 0);
        uint64_t posted = 0;
        int      left   = 0;
        uint64_t alive  = clock_ticks();
        while ((posted < count) || !has_ended()) {
            if (left != additions_.count) {
                left  = additions_.count;
                alive = clock_ticks();
            } else if (clock_ticks() - alive > clock_from_ns(hang_s * 1e9)) {
                return false;
            }
            (void)ring_.poll(16);
            (void)copies_.poll(16);
            if (posted == count) {
                sched_yield();
                continue;
            }
            step(&posted);
            if (random() % 64 == 0) {
                uint64_t since = clock_ticks();
                while (clock_ticks() - since < clock_from_ns(gap_ns)) {
                    sched_yield();
                }
            }
        }
        return true;
    }

    void check() const
    {
        std::vector<std::vector<bool>> seen(counters);
        uint64_t                       sum[counters] = {};
        for (int i = 0; i < counters; ++i) {
            seen[i].resize(fetched_.size());
        }
        for (size_t i = 0; i < fetched_.size(); ++i) {
            ASSERT_LT(fetched_[i], fetched_.size());
            EXPECT_FALSE(seen[which_[i]][fetched_[i]]) << "twice";
            seen[which_[i]][fetched_[i]] = true;
            ++sum[which_[i]];
        }
        for (int i = 0; i < counters; ++i) {
            EXPECT_EQ(memory_[i], sum[i]);
        }
        EXPECT_EQ(early_, 0u) << "markers that ended before what was in front of them";
        EXPECT_EQ(wrong_copies_, 0u);
        EXPECT_GT(markers_, 0u);
        EXPECT_GT(copied_, 0u);
    }

private:
    struct marker {
        uct_completion_t comp;
        mixed_traffic   *self;
        uint64_t         before; // additions posted in front of it
    };

    uint64_t random()
    {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        return random_ >> 8;
    }

    void step(uint64_t *posted)
    {
        uint64_t r = random() % 8;
        if (r == 0) {
            auto *mine       = new marker{};
            mine->comp.func  = marked;
            mine->comp.count = 1;
            mine->self       = this;
            mine->before     = *posted;
            if (ring_.submit_marker(op_end{&mine->comp, nullptr}) == UCS_INPROGRESS) {
                ++expected_;
                ++markers_;
            } else {
                delete mine;
            }
        } else if ((r == 1) && !is_copying_) {
            ++copy_value_;
            memset(src_, static_cast<int>(copy_value_), sizeof(src_));
            copy_piece piece{reinterpret_cast<uint64_t>(dst_), reinterpret_cast<uint64_t>(src_),
                             1 + random() % sizeof(src_)};
            copy_size_ = piece.size_bytes;
            copy_comp_ = {copied, 1, UCS_OK};
            ring_.summon(piece.size_bytes);
            if (ring_.submit(&piece, 1, op_end{&copy_comp_, nullptr}) == UCS_INPROGRESS) {
                is_copying_ = true;
                self_       = this;
                ++expected_;
                ++copied_;
            }
        } else {
            which_[*posted] = static_cast<uint8_t>(random() % counters);
            atomic_request what{reinterpret_cast<uint64_t>(&memory_[which_[*posted]]),
                                1,
                                0,
                                &fetched_[*posted],
                                sizeof(uint64_t),
                                ring_atomic_add};
            if (ring_.submit_atomic(what, op_end{&additions_, nullptr}) == UCS_INPROGRESS) {
                ++*posted;
                ++expected_;
            }
        }
    }

    bool has_ended() const
    {
        return ended_ + static_cast<uint64_t>(all_additions - additions_.count) == expected_;
    }

    static void marked(uct_completion_t *comp)
    {
        auto *mine = reinterpret_cast<marker *>(comp);
        for (uint64_t i = 0; i < mine->before; ++i) {
            mine->self->early_ += (mine->self->fetched_[i] == UINT64_MAX);
        }
        ++mine->self->ended_;
        delete mine;
    }

    static void copied(uct_completion_t *)
    {
        for (size_t i = 0; i < self_->copy_size_; ++i) {
            self_->wrong_copies_ += (self_->dst_[i] != static_cast<uint8_t>(self_->copy_value_));
        }
        self_->is_copying_ = false;
        ++self_->ended_;
    }

    lane                 &copies_;
    ring_engine          &ring_;
    uint64_t              random_;
    uint64_t              memory_[counters] = {};
    std::vector<uint64_t> fetched_;
    std::vector<uint8_t>  which_;
    // Each addition counts it down.
    static constexpr int all_additions = INT_MAX;
    uct_completion_t     additions_    = {[](uct_completion_t *) {}, all_additions, UCS_OK};
    uint64_t             expected_ = 0, ended_ = 0, markers_ = 0, copied_ = 0;
    uint64_t             early_ = 0, wrong_copies_ = 0;
    bool                 is_copying_ = false;
    uct_completion_t     copy_comp_{};
    size_t               copy_size_  = 0;
    unsigned             copy_value_ = 0;
    uint8_t              src_[2000], dst_[2000];

    static mixed_traffic *self_;
};

mixed_traffic *mixed_traffic::self_ = nullptr;

uint64_t additions()
{
#if defined(__SANITIZE_THREAD__)
    constexpr uint64_t fallback = 15000; // takes minutes on a busy machine otherwise
#else
    constexpr uint64_t fallback = 60000;
#endif
    const char *text = getenv("NVL_RING_OPS");
    return ((text != nullptr) ? strtoull(text, nullptr, 0) : fallback) / 4;
}

} // namespace

TEST_F(ring_atomics, are_done_once_by_kernels_that_come_and_go)
{
    ring_config config   = small_ring();
    config.idle_ns       = 2e3;
    config.stay_ns       = 300e3;
    config.take_back_max = 4;
    open(config);
    mixed_traffic traffic(*lane_, *ring_, 5);
    ASSERT_TRUE(traffic.run(additions(), 50e3));
    traffic.check();
    EXPECT_EQ(gpu_->served_twice(), 0u);
    EXPECT_GT(ring_->counts().launches, 5u);
}

// What is left behind mostly waits for a kernel that has not reported in, is given up
// with it, and goes to a third one.
TEST_F(ring_atomics, are_done_once_where_kernels_are_cancelled)
{
    const ring_config  config = restless_ring();
    fake_gpu::settings how;
    how.late_launch = 3;
    open(config, how);
    mixed_traffic traffic(*lane_, *ring_, 6);
    ASSERT_TRUE(traffic.run(additions(), 50e3));
    traffic.check();
    EXPECT_EQ(gpu_->served_twice(), 0u);
    EXPECT_GT(ring_->counts().cancelled, 0u);
    EXPECT_GT(ring_->counts().taken_back, 0u);
}

// All that is left behind goes to the host's hands, and never a range to the next kernel.
TEST_F(ring_atomics, are_done_once_where_everything_is_taken_back)
{
    ring_config config   = small_ring();
    config.idle_ns       = 1e3;
    config.stay_ns       = 100e3;
    config.take_back_max = ring_slots;
    config.first_number  = 0xffffffffu - 3000; // and where the numbers wrap
    open(config);
    mixed_traffic traffic(*lane_, *ring_, 7);
    ASSERT_TRUE(traffic.run(additions(), 20e3));
    traffic.check();
    EXPECT_EQ(gpu_->served_twice(), 0u);
    EXPECT_GT(ring_->counts().taken_back, 0u);
}

} // namespace nvl
