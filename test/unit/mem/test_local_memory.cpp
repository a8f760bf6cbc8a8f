// SPDX-License-Identifier: BSD-3-Clause
//
// Where local buffers are, on the emulated driver: asked once for an allocation, and anew once it was freed.
#include "mem/local_memory.h"

#include "uct/emulated.h"
#include "uct/host_memory.h"
#include "uct/memory.h"

#include <thread>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

namespace nvl::test {

namespace {

constexpr size_t size = 1u << 20;

class local_memory_test : public testing::Test {
protected:
    local_memory_test()
    {
        std::string why;
        where_ = places::get(&why);
        all_   = std::make_unique<local_memory>(*where_);
        all_->keep_answers();
        emulator()->reset_counts();
    }

    // The GPU of an address; -1: page-locked memory of the host; -2: not known to CUDA.
    int gpu_of(uint64_t address)
    {
        const local_range *found = quick_.find(*all_, address);
        return found == nullptr ? -2 : found->at == nullptr ? -1 : static_cast<int>(found->at->gpu);
    }

    static long questions()
    {
        return emulator()->call_count("cuPointerGetAttributes");
    }

    places                       *where_;
    std::unique_ptr<local_memory> all_;
    local_lookup                  quick_;
};

} // namespace

TEST_F(local_memory_test, asks_once_for_an_allocation)
{
    gpu_memory memory(1, size);
    EXPECT_EQ(gpu_of(memory.address() + 5), 1);
    EXPECT_EQ(gpu_of(memory.address()), 1);
    EXPECT_EQ(gpu_of(memory.address() + size - 1), 1);
    EXPECT_EQ(questions(), 1);

    local_lookup of_another_interface;
    EXPECT_NE(of_another_interface.find(*all_, memory.address()), nullptr);
    EXPECT_EQ(questions(), 1);
}

TEST_F(local_memory_test, asks_again_once_the_memory_was_freed)
{
    gpu_memory memory(1, size), other(0, size);
    EXPECT_EQ(gpu_of(memory.address()), 1);
    EXPECT_EQ(gpu_of(other.address()), 0);
    EXPECT_EQ(gpu_of(memory.address()), 1); // the two may share a place in the quick table
    EXPECT_EQ(questions(), 2);
    all_->forget(memory.address() + size / 2, 1);
    EXPECT_EQ(gpu_of(memory.address()), 1);
    EXPECT_EQ(questions(), 3);
    // What lies beside it is still known, though every interface looks again.
    EXPECT_EQ(gpu_of(other.address()), 0);
    EXPECT_EQ(questions(), 3);
}

TEST_F(local_memory_test, keeps_no_answer_that_a_free_has_overtaken)
{
    gpu_memory  memory(1, size);
    int         seen = -2;
    std::thread asking;
    {
        planned_faults slow("cuPointerGetAttributes:1=sleep50000");
        asking = std::thread([&] { seen = gpu_of(memory.address()); });
        for (int i = 0; (i < 5000) && (questions() == 0); ++i) {
            usleep(1000);
        }
        all_->forget(memory.address(), size);
        asking.join();
    }
    EXPECT_EQ(seen, 1);
    long before = questions();
    EXPECT_EQ(gpu_of(memory.address()), 1);
    EXPECT_EQ(questions(), before + 1) << "by then it may be somewhere else";
}

TEST_F(local_memory_test, is_not_disturbed_by_memory_that_it_does_not_know)
{
    gpu_memory memory(1, size), other(0, size);
    EXPECT_EQ(gpu_of(memory.address()), 1);
    uint64_t before = all_->generation();
    all_->forget(other.address(), size);
    EXPECT_EQ(all_->generation(), before);
}

TEST_F(local_memory_test, keeps_nothing_where_nobody_tells_of_frees)
{
    local_memory blind(*where_);
    gpu_memory   memory(1, size);
    EXPECT_NE(quick_.find(blind, memory.address()), nullptr);
    EXPECT_NE(quick_.find(blind, memory.address()), nullptr);
    EXPECT_EQ(questions(), 2);
}

TEST_F(local_memory_test, knows_page_locked_memory_to_its_end)
{
    host_memory pinned(host_kind::allocated_pinned, bytes(size));
    host_memory half(host_kind::partly_registered, bytes(size));
    host_memory ordinary(host_kind::ordinary, bytes(size));
    auto        address = [](const host_memory &memory) {
        return reinterpret_cast<uint64_t>(memory.address());
    };
    EXPECT_EQ(gpu_of(address(pinned)), -1);
    EXPECT_EQ(gpu_of(address(half)), -1);
    EXPECT_EQ(gpu_of(address(ordinary)), -2);
    EXPECT_TRUE(quick_.has_just_missed(address(ordinary)));

    EXPECT_TRUE(all_->is_pinned(address(pinned), size));
    EXPECT_TRUE(all_->is_pinned(address(half), size / 2));
    EXPECT_FALSE(all_->is_pinned(address(half), size)) << "its second half is not";
    EXPECT_FALSE(all_->is_pinned(address(ordinary), 1));
}

// No event tells of it: the memory itself stays.
TEST_F(local_memory_test, notices_that_host_memory_was_unregistered)
{
    host_memory     memory(host_kind::ordinary, bytes(size));
    current_context scope(primary_context(0));
    void           *at = memory.address();
    NVL_MUST(cuMemHostRegister_v2, (at, size, 0));
    EXPECT_EQ(gpu_of(reinterpret_cast<uint64_t>(at)), -1);
    EXPECT_TRUE(all_->is_pinned(reinterpret_cast<uint64_t>(at), size));
    NVL_MUST(cuMemHostUnregister, (at));
    EXPECT_EQ(gpu_of(reinterpret_cast<uint64_t>(at)), -2);
    EXPECT_FALSE(all_->is_pinned(reinterpret_cast<uint64_t>(at), size));
}

TEST_F(local_memory_test, begins_anew_when_it_is_full)
{
    std::vector<std::unique_ptr<gpu_memory>> all;
    for (int i = 0; i < 1100; ++i) {
        all.push_back(std::make_unique<gpu_memory>(i % 2, 4096));
    }
    for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < all.size(); ++i) {
            ASSERT_EQ(gpu_of(all[i]->address()), static_cast<int>(i % 2));
        }
    }
}

// What the table has dropped, no lookup may keep: nobody would tell it of the free.
TEST_F(local_memory_test, lookups_begin_anew_with_it)
{
    std::vector<std::unique_ptr<gpu_memory>> all;
    for (int i = 0; i < 1024; ++i) {
        all.push_back(std::make_unique<gpu_memory>(i % 2, 4096));
        ASSERT_EQ(gpu_of(all.back()->address()), i % 2);
    }
    uint64_t first = all.front()->address();
    EXPECT_EQ(gpu_of(first), 0);
    // From elsewhere in the quick table.
    std::unique_ptr<gpu_memory> more;
    for (size_t length = 4096;; length += 2 << 20) {
        more = std::make_unique<gpu_memory>(1, length);
        if (((more->address() >> 21) % 64) != ((first >> 21) % 64)) {
            break;
        }
    }
    EXPECT_EQ(gpu_of(more->address()), 1);

    all_->forget(first, 4096);
    long before = questions();
    EXPECT_EQ(gpu_of(first), 0);
    EXPECT_EQ(questions(), before + 1);
}

// Another thread allocates while the driver is asked: the answer is right, but nobody keeps it.
TEST_F(local_memory_test, lookups_keep_no_answer_that_it_does_not_keep)
{
    gpu_memory  memory(1, size), other(0, size);
    std::thread elsewhere;
    {
        planned_faults slow("cuPointerGetAttributes:1=sleep100000");
        elsewhere = std::thread([&] {
            usleep(20000);
            all_->forget(other.address(), size);
        });
        EXPECT_EQ(gpu_of(memory.address()), 1);
        elsewhere.join();
    }
    long before = questions();
    all_->forget(memory.address(), size);
    EXPECT_EQ(gpu_of(memory.address()), 1);
    EXPECT_EQ(questions(), before + 1);
}

} // namespace nvl::test
