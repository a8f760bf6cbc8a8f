// SPDX-License-Identifier: BSD-3-Clause
//
// The cache of imports, on the emulated driver: opened once, shared, closed when it should be and never before.
#include "exporter.h"

#include "uct/emulated.h"

#include <atomic>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <thread>
#include <unistd.h>

namespace nvl::test {

namespace {

constexpr size_t size = 1u << 20;

long opens()
{
    return emulator()->call_count("cuIpcOpenMemHandle_v2");
}

long closes()
{
    return emulator()->call_count("cuIpcCloseMemHandle");
}

class map_cache_test : public testing::Test {
protected:
    map_cache_test()
    {
        std::string why;
        where_ = places::get(&why);
        place_ = where_->primary(where_->gpus()[0].device).value()->id();
        cache_ = std::make_unique<map_cache>(*where_);
        emulator()->reset_counts();
    }

    ~map_cache_test() override
    {
        cache_->purge();
        EXPECT_EQ(cache_->open_count(), 0u);
        EXPECT_EQ(emulator()->live_count("import"), 0) << "an import was left open";
    }

    import_key key()
    {
        return peer_.allocate(size, place_);
    }

    mapping *taken(const import_key &key)
    {
        result<mapping *> got = cache_->acquire(key);
        EXPECT_TRUE(got.ok()) << static_cast<int>(got.status());
        return got.ok() ? got.value() : nullptr;
    }

    // Takes and gives back: unused from then on.
    void use(const import_key &key)
    {
        cache_->release(taken(key));
    }

    // The cache's own thread may be about to close.
    static bool live_imports_become(long count)
    {
        for (int i = 0; (i < 500) && (emulator()->live_count("import") != count); ++i) {
            usleep(10000);
        }
        return emulator()->live_count("import") == count;
    }

    exporter                   peer_;
    places                    *where_;
    unsigned                   place_;
    std::unique_ptr<map_cache> cache_;
};

} // namespace

TEST_F(map_cache_test, opens_an_allocation_once_and_keeps_it)
{
    import_key one   = key();
    mapping   *first = taken(one), *second = taken(one);
    EXPECT_EQ(first, second);
    EXPECT_NE(first->mapped(), 0u);
    cache_->release(first);
    cache_->release(second);
    use(one);
    EXPECT_EQ(opens(), 1);
    EXPECT_EQ(closes(), 0);
    EXPECT_EQ(cache_->open_count(), 1u);
}

TEST_F(map_cache_test, opens_once_for_many_threads_at_once)
{
    import_key               one = key();
    planned_faults           slow("cuIpcOpenMemHandle_v2=sleep20000");
    std::atomic<int>         failed{0};
    std::vector<std::thread> all;
    for (int i = 0; i < 32; ++i) {
        all.emplace_back([&] {
            result<mapping *> got = cache_->acquire(one);
            if (got.ok()) {
                cache_->release(got.value());
            } else {
                ++failed;
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    EXPECT_EQ(failed.load(), 0);
    EXPECT_EQ(opens(), 1);
}

TEST_F(map_cache_test, gives_all_who_wait_the_error_and_tries_again_for_the_next)
{
    import_key       one = key();
    std::atomic<int> unreachable{0};
    {
        planned_faults           refuse("cuIpcOpenMemHandle_v2=101");
        std::vector<std::thread> all;
        for (int i = 0; i < 16; ++i) {
            all.emplace_back([&] {
                result<mapping *> got = cache_->acquire(one);
                unreachable += got.status() == UCS_ERR_UNREACHABLE ? 1 : 0;
            });
        }
        for (std::thread &thread : all) {
            thread.join();
        }
    }
    EXPECT_EQ(unreachable.load(), 16);
    EXPECT_EQ(cache_->open_count(), 0u);
    use(one);
    EXPECT_EQ(cache_->open_count(), 1u);
}

TEST_F(map_cache_test, survives_32_threads_and_any_order)
{
    std::vector<import_key> keys;
    for (int i = 0; i < 12; ++i) {
        keys.push_back(key());
    }
    map_cache_limits few;
    few.count = 3;
    cache_->set_limits(few);
    std::atomic<int>         failed{0};
    std::vector<std::thread> all;
    for (unsigned t = 0; t < 32; ++t) {
        all.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int round = 0; round < 100; ++round) {
                result<mapping *> first  = cache_->acquire(keys[random() % keys.size()]);
                result<mapping *> second = cache_->acquire(keys[random() % keys.size()]);
                if (!first.ok() || !second.ok()) {
                    ++failed;
                    continue;
                }
                cache_->release(first.value());
                cache_->release(second.value());
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    EXPECT_EQ(failed.load(), 0);
    EXPECT_LE(cache_->open_count(), 3u);
    EXPECT_EQ(opens() - closes(), static_cast<long>(cache_->open_count()));
}

TEST_F(map_cache_test, closes_what_was_unused_longest)
{
    map_cache_limits two;
    two.count = 2;
    cache_->set_limits(two);
    import_key a = key(), b = key(), c = key();
    use(a);
    use(b);
    use(a); // now b is the oldest
    use(c);
    EXPECT_EQ(cache_->open_count(), 2u);
    EXPECT_EQ(closes(), 1);
    use(a);
    use(c);
    EXPECT_EQ(opens(), 3) << "a or c was closed";
    use(b);
    EXPECT_EQ(opens(), 4) << "b was kept";
}

TEST_F(map_cache_test, keeps_no_more_bytes_than_it_may)
{
    map_cache_limits bytes;
    bytes.size_bytes = 2 * size;
    cache_->set_limits(bytes);
    import_key keys[] = {key(), key(), key(), key()};
    for (const import_key &one : keys) {
        use(one);
    }
    EXPECT_EQ(cache_->open_count(), 2u);
    map_cache_limits none;
    none.size_bytes = 0;
    cache_->set_limits(none);
    EXPECT_EQ(cache_->open_count(), 0u);
}

TEST_F(map_cache_test, never_closes_what_is_in_use)
{
    import_key a = key(), b = key();
    mapping   *held = taken(a);
    use(b);
    map_cache_limits none;
    none.count = 0;
    cache_->set_limits(none);
    cache_->purge();
    EXPECT_EQ(cache_->open_count(), 1u);
    EXPECT_EQ(closes(), 1);
    EXPECT_EQ(taken(a), held);
    cache_->release(held);
    cache_->release(held);
    EXPECT_EQ(cache_->open_count(), 0u) << "beyond the limit when it is let go";
}

TEST_F(map_cache_test, drops_what_was_freed_before_it_opens_what_is_at_its_address)
{
    for (int round = 0; round < 20; ++round) {
        import_key before = key();
        use(before);
        peer_.free(before);
        import_key after = key();
        if (after.base != before.base) {
            GTEST_SKIP() << "the address was not used again";
        }
        ASSERT_NE(after.buffer_id, before.buffer_id);
        use(after);
        peer_.free(after);
    }
    EXPECT_LE(cache_->open_count(), 1u);
}

// The one that closes is on its way when the other finds the old mapping still there.
TEST_F(map_cache_test, opens_anew_what_another_thread_is_about_to_close)
{
    for (int round = 0; round < 5; ++round) {
        import_key before = key();
        use(before);
        peer_.free(before);
        import_key after = key();
        if (after.base != before.base) {
            GTEST_SKIP() << "the address was not used again";
        }
        emulator()->reset_counts();
        planned_faults slow("cuIpcCloseMemHandle:1=sleep20000");
        std::thread    closer([&] { cache_->sweep(); });
        // Not for ever: the cache's own thread may have closed it before.
        for (int i = 0; (i < 1000) && (closes() == 0); ++i) {
            usleep(100);
        }
        mapping *opened = taken(after);
        closer.join();
        // Its close came too late for the old one: it must not be the new one's.
        EXPECT_TRUE(live_imports_become(1));
        if (opened != nullptr) {
            cache_->release(opened);
        }
        peer_.free(after);
        cache_->sweep();
        EXPECT_TRUE(live_imports_become(0));
    }
}

TEST_F(map_cache_test, is_busy_while_what_was_freed_is_still_in_use)
{
    import_key before = key();
    mapping   *held   = taken(before);
    peer_.free(before);
    import_key after = key();
    if (after.base != before.base) {
        GTEST_SKIP() << "the address was not used again";
    }
    EXPECT_EQ(cache_->acquire(after).status(), UCS_ERR_BUSY);
    EXPECT_EQ(cache_->acquire(after).status(), UCS_ERR_BUSY) << "the second time too";
    cache_->release(held);
    use(after);
}

// As UCX's cuda_ipc does: the driver counts its opens and ours alike.
TEST_F(map_cache_test, leaves_somebody_else_with_as_many_opens_as_he_has_made)
{
    const cuda_api &cuda   = where_->cuda();
    import_key      before = key();
    context_guard   guard(cuda, where_->at(place_).context);
    CUdeviceptr     his[2] = {open_handle(cuda, before), open_handle(cuda, before)};
    use(before);
    peer_.free(before);
    import_key after = key();
    if (after.base != before.base) {
        GTEST_SKIP() << "the address was not used again";
    }
    mapping *ours = taken(after);
    ASSERT_NE(ours, nullptr);
    unsigned long long number = mapping_number(cuda, ours->mapped());
    for (CUdeviceptr one : his) {
        EXPECT_EQ(cuda.cuIpcCloseMemHandle(one), CUDA_SUCCESS);
        EXPECT_EQ(mapping_number(cuda, ours->mapped()), number) << "he has closed ours";
    }
    cache_->release(ours);
}

// Its handle may by then be that of something else.
TEST_F(map_cache_test, refuses_what_its_owner_lets_go_of_while_it_is_opened)
{
    import_key     one = key();
    planned_faults slow("cuMemGetAddressRange_v2:1=sleep100000"); // it is open by then
    ucs_status_t   status = UCS_OK;
    std::thread    opener([&] { status = cache_->acquire(one).status(); });
    for (int i = 0; (i < 5000) && (emulator()->call_count("cuMemGetAddressRange_v2") == 0); ++i) {
        usleep(1000);
    }
    peer_.free(one);
    opener.join();
    EXPECT_EQ(status, UCS_ERR_UNREACHABLE);
    EXPECT_EQ(opens(), 1);
    EXPECT_EQ(emulator()->live_count("import"), 0);
    EXPECT_EQ(cache_->open_count(), 0u);
}

TEST_F(map_cache_test, shares_nothing_that_its_owner_has_let_go_of)
{
    import_key one  = key();
    mapping   *held = taken(one);
    peer_.free(one);
    EXPECT_EQ(cache_->acquire(one).status(), UCS_ERR_UNREACHABLE) << "open, and in use";
    cache_->release(held);
    EXPECT_EQ(cache_->open_count(), 0u) << "closed as soon as nobody uses it";
    EXPECT_EQ(cache_->acquire(one).status(), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(opens(), 1) << "the handle of something else by now";
}

TEST_F(map_cache_test, closes_soon_what_its_owner_has_let_go_of)
{
    import_key one = key();
    use(one);
    peer_.free(one);
    for (int i = 0; (i < 500) && (cache_->open_count() != 0); ++i) {
        usleep(10000);
    }
    EXPECT_EQ(cache_->open_count(), 0u);
    EXPECT_EQ(closes(), 1);
}

// The cache's own thread closes while the application captures, which forbids such calls to
// every thread.
TEST_F(map_cache_test, leaves_a_capture_alone_that_runs_while_it_closes)
{
    current_context scope(primary_context(0));
    import_key      one     = key();
    CUstream        stream  = nullptr;
    CUgraph         graph   = nullptr;
    mapping        *another = taken(key()); // opened before, like the other
    use(one);
    NVL_MUST(cuStreamCreate, (&stream, CU_STREAM_NON_BLOCKING));
    NVL_MUST(cuStreamBeginCapture_v2, (stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    peer_.free(one);
    EXPECT_TRUE(live_imports_become(1));
    EXPECT_EQ(cu().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS) << "it was spoilt";
    if (graph != nullptr) {
        NVL_MUST(cuGraphDestroy, (graph));
    }
    NVL_MUST(cuStreamDestroy_v2, (stream));
    cache_->release(another);
}

// The bounds of operations are the key's: what is opened must be all of that.
TEST_F(map_cache_test, refuses_a_key_that_says_more_than_there_is)
{
    import_key one = key(), more = one;
    more.size_bytes += 1;
    EXPECT_EQ(cache_->acquire(more).status(), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(emulator()->live_count("import"), 0);
    EXPECT_EQ(opens(), 1) << "it was asked";
    import_key odd = peer_.allocate(1000, place_);
    use(odd);
    use(one);
    EXPECT_EQ(cache_->open_count(), 2u);
}

TEST_F(map_cache_test, takes_noise_for_unreachable)
{
    import_key   one = key();
    std::mt19937 random(1);
    for (int round = 0; round < 50; ++round) {
        import_key bad = one;
        bad.handle.bytes[random() % sizeof(bad.handle.bytes)] ^=
            static_cast<uint8_t>(1 + random() % 255);
        result<mapping *> got = cache_->acquire(bad);
        if (got.ok()) {
            cache_->release(got.value()); // a byte that means nothing to the driver
        } else {
            EXPECT_EQ(got.status(), UCS_ERR_UNREACHABLE);
        }
        cache_->purge();
    }
}

} // namespace nvl::test
