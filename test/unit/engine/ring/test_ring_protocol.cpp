// SPDX-License-Identifier: BSD-3-Clause
//
// The ring under random traffic and delays: nothing lost, nothing twice, every
// byte right; and each planted mistake is noticed. NVL_RING_OPS sets how many
// operations the long runs make (default 60,000), NVL_RING_SEED the seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "engine/ring/ring_traffic.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace nvl {

namespace {

uint64_t from_env(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return (text != nullptr) ? strtoull(text, nullptr, 0) : fallback;
}

struct bench_rig {
    explicit bench_rig(const fake_gpu::settings &how, const ring_config &config) : gpu(how)
    {
        lane_config lanes;
        lanes.completion = lane_completion::by_word;
        auto made_lane   = lane::create(gpu.cuda(), nullptr, lanes);
        copy_lane        = std::move(made_lane.value());
        auto made_ring   = ring_engine::create(gpu.cuda(), nullptr, 0, *copy_lane, config);
        ring             = std::move(made_ring.value());
    }

    fake_gpu                     gpu;
    std::unique_ptr<lane>        copy_lane;
    std::unique_ptr<ring_engine> ring;
};

fake_gpu::settings seeded(uint64_t plus)
{
    fake_gpu::settings how;
    how.seed = from_env("NVL_RING_SEED", 1) + plus;
    return how;
}

// How the run went, beside the verdict of a failure.
std::string story(const bench_rig &rig, const traffic_result &result)
{
    const ring_counts &counts = rig.ring->counts();
    return fmt::format("{} operations, {} by the ring, {} descriptors served; {} launches, {} "
                       "handovers, {} cancelled, {} barren, {} descriptors taken back",
                       result.finished, result.by_ring, rig.gpu.served(), counts.launches,
                       counts.handovers, counts.cancelled, counts.barren, counts.taken_back);
}

void expect_clean(const traffic_result &result, uint64_t count)
{
    EXPECT_FALSE(result.is_hanging);
    EXPECT_EQ(result.finished, count);
    EXPECT_EQ(result.wrong, 0u);
    EXPECT_EQ(result.late, 0u);
    EXPECT_EQ(result.failed, 0u);
}

// Large kernels narrow whenever they find nothing to do.
ring_config narrowing_ring()
{
    ring_config config    = small_ring();
    config.large_blocks   = 3;
    config.narrow_ns      = 1e3;
    config.narrow_most_ns = 1e3;
    config.idle_ns        = 20e6;
    config.stay_ns        = 200e6;
    return config;
}

} // namespace

TEST(ring_protocol, random_traffic_arrives_once_and_whole)
{
    const uint64_t count = from_env("NVL_RING_OPS", 60000);
    bench_rig      rig(seeded(0), small_ring());
    ring_traffic   traffic(*rig.copy_lane, *rig.ring, 11);

    traffic_result result = traffic.run(count, hang_s, 300e3);
    std::cout << story(rig, result) << "\n";
    expect_clean(result, count);
    EXPECT_EQ(rig.gpu.served_twice(), 0u);
    EXPECT_GT(rig.gpu.served(), count / 10);
    EXPECT_GT(rig.ring->counts().launches, 2u);
}

// Kernels that narrow and are replaced by wide ones all the time.
TEST(ring_protocol, narrowing_all_the_time_loses_nothing)
{
    const uint64_t     count = from_env("NVL_RING_OPS", 60000) / 4;
    fake_gpu::settings how   = seeded(8);
    how.torn_us              = 400;
    bench_rig    rig(how, narrowing_ring());
    ring_traffic traffic(*rig.copy_lane, *rig.ring, 17);

    traffic_result result = traffic.run(count, hang_s, 3e6); // gaps in which a busy machine narrows
    std::cout << story(rig, result) << ", " << rig.gpu.narrowed() << " narrowed, "
              << rig.ring->counts().widened << " widened\n";
    expect_clean(result, count);
    EXPECT_EQ(rig.gpu.served_twice(), 0u);
#if !defined(__SANITIZE_THREAD__) // with it, few gaps are long enough
    EXPECT_GT(rig.gpu.narrowed(), 0u);
#endif
}

TEST(ring_protocol, leaving_all_the_time_loses_nothing)
{
    const uint64_t count  = from_env("NVL_RING_OPS", 60000) / 4;
    ring_config    config = small_ring();
    config.idle_ns        = 2e3;
    config.stay_ns        = 300e3;
    config.take_back_max  = 4;
    config.barren_max     = 1000000;
    bench_rig    rig(seeded(1), config);
    ring_traffic traffic(*rig.copy_lane, *rig.ring, 12);

    traffic_result result = traffic.run(count, hang_s, 100e3);
    std::cout << story(rig, result) << "\n";
    expect_clean(result, count);
    EXPECT_EQ(rig.gpu.served_twice(), 0u);
    EXPECT_GT(rig.ring->counts().launches, 20u);
    EXPECT_GT(rig.ring->counts().taken_back, 0u);
    EXPECT_GT(rig.ring->counts().handovers, 0u);
}

TEST(ring_protocol, hello_and_cancel_cross_and_nothing_is_done_twice)
{
    const uint64_t     count  = from_env("NVL_RING_OPS", 60000) / 4;
    ring_config        config = restless_ring();
    fake_gpu::settings how    = seeded(2);
    how.late_launch           = 3;
    bench_rig    rig(how, config);
    ring_traffic traffic(*rig.copy_lane, *rig.ring, 13);

    traffic_result result = traffic.run(count, hang_s, 50e3);
    std::cout << story(rig, result) << "\n";
    expect_clean(result, count);
    EXPECT_EQ(rig.gpu.served_twice(), 0u);
    EXPECT_GT(rig.ring->counts().cancelled, 0u);
}

TEST(ring_protocol, sequence_numbers_wrap)
{
    const uint64_t count  = from_env("NVL_RING_OPS", 60000) / 4;
    ring_config    config = small_ring();
    config.first_number   = 0u - 3000;
    bench_rig    rig(seeded(3), config);
    ring_traffic traffic(*rig.copy_lane, *rig.ring, 14);

    traffic_result result = traffic.run(count, hang_s, 200e3);
    std::cout << story(rig, result) << "\n";
    expect_clean(result, count);
    EXPECT_EQ(rig.gpu.served_twice(), 0u);
}

TEST(ring_protocol, half_of_the_number_space_is_no_edge)
{
    const uint64_t count  = from_env("NVL_RING_OPS", 60000) / 4;
    ring_config    config = small_ring();
    config.first_number   = 0x80000000u - 3000;
    bench_rig    rig(seeded(4), config);
    ring_traffic traffic(*rig.copy_lane, *rig.ring, 15);

    traffic_result result = traffic.run(count, hang_s, 200e3);
    std::cout << story(rig, result) << "\n";
    expect_clean(result, count);
    EXPECT_EQ(rig.gpu.served_twice(), 0u);
}

// The tests above would be worth nothing if they did not notice these.

// In a child, since a thread sanitizer ends the process over what it sees too.

// What a sanitizer sees of a planted mistake is no finding: not where findings are gathered.
static void tell_standard_error()
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_report_path("stderr");
#endif
}

// A mistake shows when two sides cross, which a busy machine may keep them from: in one of `runs`.
static void exit_if_noticed(fake_gpu::settings how, const ring_config &config, unsigned runs = 1)
{
    // What a mistake has lost never comes.
    const double patience_s = (how.bug == planted::nothing) ? hang_s : 2;
    if (how.bug != planted::nothing) {
        tell_standard_error();
    }
    for (unsigned i = 0; i < runs; ++i, ++how.seed) {
        bench_rig      rig(how, config);
        ring_traffic   traffic(*rig.copy_lane, *rig.ring, 16 + i);
        traffic_result result = traffic.run(3000, patience_s, 50e3);
        if (result.is_hanging || (result.wrong != 0) || (result.late != 0) ||
            (result.failed != 0) || (rig.gpu.served_twice() != 0)) {
            _exit(1);
        }
    }
    _exit(0);
}

static bool is_not_clean(int status)
{
    return !WIFEXITED(status) || (WEXITSTATUS(status) != 0);
}

TEST(ring_protocol_DeathTest, a_right_kernel_passes_the_same_run)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    fake_gpu::settings how                = seeded(5);
    how.late_launch                       = 2;
    EXPECT_EXIT(exit_if_noticed(how, restless_ring()), testing::ExitedWithCode(0), "");
}

// With the thread sanitizer two sides cross too seldom, on a busy machine in none of the runs.
#if defined(__SANITIZE_THREAD__)
#define NEEDS_CROSSINGS() \
    GTEST_SKIP() << "planted mistakes are for the build without thread sanitizer"
#else
#define NEEDS_CROSSINGS()
#endif

TEST(ring_protocol_DeathTest, a_kernel_that_ignores_the_cancellation_is_noticed)
{
    NEEDS_CROSSINGS();
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    ring_config        config             = restless_ring();
    fake_gpu::settings how                = seeded(5);
    how.late_launch                       = 2;
    how.bug                               = planted::ignores_cancel;
    EXPECT_EXIT(exit_if_noticed(how, config, 50), is_not_clean, "");
}

// By kernels that come and go all the time.
static void expect_noticed_in_passing(planted bug, uint64_t seed)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    ring_config        config             = small_ring();
    fake_gpu::settings how                = seeded(seed);
    config.idle_ns                        = 2e3;
    config.stay_ns                        = 300e3;
    how.bug                               = bug;
    EXPECT_EXIT(exit_if_noticed(how, config, 50), is_not_clean, "");
}

TEST(ring_protocol_DeathTest, a_kernel_that_leaves_one_more_than_it_says_is_noticed)
{
    NEEDS_CROSSINGS();
    expect_noticed_in_passing(planted::reports_one_too_many, 6);
}

// A number that the poller takes for nobody's is done twice.
TEST(ring_protocol_DeathTest, a_worker_that_denies_what_it_takes_is_noticed)
{
    NEEDS_CROSSINGS();
    expect_noticed_in_passing(planted::denies_what_it_takes, 7);
}

// Once narrow, the numbers are those of the warps that remain: two workers take turns for these four.
static void exit_if_lost(planted bug)
{
    constexpr unsigned pieces = 4;
    constexpr size_t   size   = 64;

    fake_gpu::settings how = seeded(8);
    how.bug                = bug;
    ring_config config     = patient_ring();
    config.large_blocks    = 3;
    config.narrow_ns       = 1e3;
    config.narrow_most_ns  = 1e3;
    bench_rig        rig(how, config);
    uct_completion_t comp      = {[](uct_completion_t *) {}, 2, UCS_OK};
    char             src[size] = {1};
    char             dst[pieces][size];
    // The first kernel, all of whose warps but the few that remain have gone.
    if (!comes_true([&] {
            if (rig.ring->counts().launches == 0) {
                rig.ring->summon(config.alone_bytes + 1);
            }
            return (rig.gpu.narrowed() == 1) && rig.ring->ready();
        })) {
        _exit(2);
    }
    rig.gpu.fail_launches(true); // or a wide one would follow and do them
    // Told in one go, or the poller would do them by itself.
    copy_piece what[pieces];
    for (unsigned i = 0; i < pieces; ++i) {
        what[i] = {reinterpret_cast<uint64_t>(dst[i]), reinterpret_cast<uint64_t>(src), size};
    }
    (void)rig.ring->submit(what, pieces, op_end{&comp, nullptr});
    const auto is_done = [&] {
        (void)rig.ring->poll(pieces);
        return comp.count == 1;
    };
    if (bug == planted::nothing) {
        if (!comes_true(is_done)) {
            _exit(1);
        }
        return;
    }
    // The kernel stays: what it has not done after two seconds, it never will.
    for (unsigned ms = 0; ms < 2000; ++ms) {
        if (is_done()) {
            return;
        }
        usleep(1000);
    }
    _exit(1);
}

[[noreturn]] static void exit_after(planted bug)
{
    if (bug != planted::nothing) {
        tell_standard_error();
    }
    exit_if_lost(bug); // and joins all threads
    _exit(0);
}

TEST(ring_protocol_DeathTest, a_narrow_kernel_does_all_that_comes)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(exit_after(planted::nothing), testing::ExitedWithCode(0), "");
}

TEST(ring_protocol_DeathTest, a_worker_that_does_not_notice_the_narrowing_is_noticed)
{
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    const auto is_noticed                 = [](int status) {
        const bool never_narrow = WIFEXITED(status) && (WEXITSTATUS(status) == 2);
        return is_not_clean(status) && !never_narrow;
    };
    EXPECT_EXIT(exit_after(planted::keeps_its_numbers), is_noticed, "");
}

} // namespace nvl
