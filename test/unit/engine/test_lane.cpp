// SPDX-License-Identifier: BSD-3-Clause
//
// A lane on the emulated driver: order, room, markers, and what becomes of operations when the stream fails.
#include "engine/lane.h"

#include "mem/place.h"
#include "uct/emulated.h"
#include "uct/memory.h"

#include <chrono>
#include <gtest/gtest.h>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

struct ending {
    uct_completion_t  super{};
    std::vector<int> *order;
    int               number;
    ucs_status_t      status = UCS_INPROGRESS;

    ending(std::vector<int> *into, int n) : order(into), number(n)
    {
        super.func   = note;
        super.count  = 1;
        super.status = UCS_OK;
    }

    static void note(uct_completion_t *super)
    {
        auto *self   = reinterpret_cast<ending *>(super);
        self->status = super->status;
        self->order->push_back(self->number);
    }
};

// Counts as a key does.
struct counted_use : op_use {
    bool gone = false;

    counted_use() : op_use(last)
    {
    }

    static void last(op_use *self)
    {
        static_cast<counted_use *>(self)->gone = true;
    }
};

class lane_test : public testing::TestWithParam<lane_completion> {
protected:
    lane_test() : source_(0, size), target_(1, size)
    {
        std::string why;
        cuda_ = cuda_api::load(&why);
        // As the plugin does before it copies between two GPUs.
        places *where = places::get(&why);
        from_         = where->primary(where->gpus()[0].device).value();
        EXPECT_EQ(where->enable_peer(*from_, *where->primary(where->gpus()[1].device).value()),
                  UCS_OK);
    }

    void open(unsigned depth = 8)
    {
        lane_config config;
        config.depth      = depth;
        config.completion = GetParam();
        auto made         = lane::create(*cuda_, from_->context, config);
        ASSERT_TRUE(made.ok());
        lane_ = std::move(made.value());
    }

    copy_piece piece() const
    {
        return {target_.address(), source_.address(), size};
    }

    ucs_status_t submit(ending *end, op_use *use = nullptr)
    {
        copy_piece one = piece();
        return lane_->submit(&one, 1, op_end{end == nullptr ? nullptr : &end->super, use});
    }

    template<typename F> bool poll_until(F done)
    {
        auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!done()) {
            lane_->poll(64);
            if (std::chrono::steady_clock::now() > end) {
                return false;
            }
        }
        return true;
    }

    gpu_memory            source_, target_;
    const cuda_api       *cuda_ = nullptr;
    const place          *from_ = nullptr;
    std::unique_ptr<lane> lane_;
    std::vector<int>      order_;
};

std::string name_of_completion(const testing::TestParamInfo<lane_completion> &one)
{
    return one.param == lane_completion::by_event ? "by_event" : "by_word";
}

} // namespace

TEST_P(lane_test, moves_the_bytes)
{
    open();
    bytes sent = random_bytes(size, 1);
    source_.write(0, sent);
    ending end(&order_, 1);
    ASSERT_EQ(submit(&end), UCS_INPROGRESS);
    ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
    EXPECT_EQ(end.status, UCS_OK);
    EXPECT_EQ(difference(sent, target_.read(0, size)), "");
}

TEST_P(lane_test, ends_operations_in_the_order_of_posting)
{
    open(16);
    std::vector<ending> ends;
    ends.reserve(100);
    for (int i = 0; i < 100; ++i) {
        ends.emplace_back(&order_, i);
        bool marker = i % 3 == 1;
        ASSERT_TRUE(poll_until([&] { return !lane_->is_full(); }));
        ASSERT_EQ(marker ? lane_->submit_marker(op_end{&ends.back().super, nullptr})
                         : submit(&ends.back()),
                  UCS_INPROGRESS);
    }
    ASSERT_TRUE(poll_until([&] { return order_.size() == 100; }));
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(order_[static_cast<size_t>(i)], i);
    }
    EXPECT_EQ(lane_->in_flight(), 0u);
}

TEST_P(lane_test, is_full_at_its_depth_and_has_room_again)
{
    open(4);
    held_streams held;
    for (int i = 0; i < 4; ++i) {
        EXPECT_FALSE(lane_->is_full());
        ASSERT_EQ(submit(nullptr), UCS_INPROGRESS);
    }
    EXPECT_TRUE(lane_->is_full());
    ending end(&order_, 1);
    EXPECT_EQ(submit(&end), UCS_ERR_NO_RESOURCE);
    EXPECT_EQ(lane_->submit_marker(op_end{&end.super, nullptr}), UCS_ERR_NO_RESOURCE);
    EXPECT_EQ(end.super.count, 1) << "what was refused is untouched";
    held.let_go();
    ASSERT_TRUE(poll_until([&] { return lane_->in_flight() == 0; }));
    EXPECT_EQ(submit(&end), UCS_INPROGRESS);
    ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
}

TEST_P(lane_test, ends_no_marker_before_what_is_in_front_of_it)
{
    open();
    held_streams held;
    ending       first(&order_, 1), marker(&order_, 2), second(&order_, 3);
    ASSERT_EQ(submit(&first), UCS_INPROGRESS);
    ASSERT_EQ(lane_->submit_marker(op_end{&marker.super, nullptr}), UCS_INPROGRESS);
    ASSERT_EQ(submit(&second), UCS_INPROGRESS);
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(lane_->poll(64), 0u);
    }
    held.let_go();
    ASSERT_TRUE(poll_until([&] { return order_.size() == 3; }));
    EXPECT_EQ(order_, (std::vector<int>{1, 2, 3}));
}

TEST_P(lane_test, asks_the_driver_nothing_for_a_marker)
{
    open();
    emulator()->reset_counts();
    ending marker(&order_, 1);
    ASSERT_EQ(lane_->submit_marker(op_end{&marker.super, nullptr}), UCS_INPROGRESS);
    EXPECT_TRUE(calls_made().empty());
    ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
}

TEST_P(lane_test, ends_no_more_than_it_was_asked_for)
{
    open();
    std::vector<ending> ends;
    ends.reserve(6);
    for (int i = 0; i < 6; ++i) {
        ends.emplace_back(&order_, i);
        ASSERT_EQ(lane_->submit_marker(op_end{&ends.back().super, nullptr}), UCS_INPROGRESS);
    }
    EXPECT_EQ(lane_->poll(4), 4u);
    EXPECT_EQ(order_.size(), 4u);
    EXPECT_EQ(lane_->poll(4), 2u);
}

TEST_P(lane_test, keeps_the_use_until_the_end)
{
    open();
    counted_use use;
    {
        held_streams held;
        use.acquire();
        ending end(&order_, 1);
        ASSERT_EQ(submit(&end, &use), UCS_INPROGRESS);
        use.release(); // the owner's
        lane_->poll(64);
        EXPECT_FALSE(use.gone);
        held.let_go();
        ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
    }
    EXPECT_TRUE(use.gone);
}

TEST_P(lane_test, takes_several_pieces_as_one_operation)
{
    open();
    bytes sent = random_bytes(size, 2);
    source_.write(0, sent);
    copy_piece pieces[8];
    for (size_t i = 0; i < 8; ++i) {
        size_t at = i * (size / 8);
        pieces[i] = {target_.address() + at, source_.address() + at, size / 8};
    }
    ending end(&order_, 1);
    ASSERT_EQ(lane_->submit(pieces, 8, op_end{&end.super, nullptr}), UCS_INPROGRESS);
    EXPECT_EQ(lane_->in_flight(), 1u);
    ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
    EXPECT_EQ(difference(sent, target_.read(0, size)), "");
}

TEST_P(lane_test, refuses_what_the_driver_refuses_and_goes_on)
{
    open();
    ending end(&order_, 1);
    {
        planned_faults once("cuMemcpyAsync:1=801");
        EXPECT_NE(submit(&end), UCS_INPROGRESS);
    }
    EXPECT_EQ(end.super.count, 1);
    EXPECT_EQ(lane_->in_flight(), 0u);
    EXPECT_EQ(submit(&end), UCS_INPROGRESS);
    ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
    EXPECT_EQ(end.status, UCS_OK);
}

// What the driver says to a thread with no context, or with that of another GPU.
TEST_P(lane_test, tries_again_in_its_own_context)
{
    open();
    for (const char *plan : {"cuMemcpyAsync:1=1", "cuMemcpyAsync:1=201"}) {
        ending end(&order_, 1);
        {
            planned_faults once(plan);
            EXPECT_EQ(submit(&end), UCS_INPROGRESS) << plan;
        }
        ASSERT_TRUE(poll_until([&] { return !order_.empty(); }));
        EXPECT_EQ(end.status, UCS_OK);
        order_.clear();
    }
}

TEST_P(lane_test, keeps_the_use_of_pieces_that_went_before_one_that_was_refused)
{
    open();
    counted_use use;
    use.acquire();
    copy_piece   pieces[3] = {piece(), piece(), piece()};
    held_streams held;
    {
        planned_faults third("cuMemcpyAsync:3=1");
        EXPECT_NE(lane_->submit(pieces, 3, op_end{nullptr, &use}), UCS_INPROGRESS);
    }
    use.release(); // the caller's, as it was refused
    use.release(); // the owner's
    EXPECT_FALSE(use.gone) << "two copies still use the memory";
    held.let_go();
    ASSERT_TRUE(poll_until([&] { return use.gone; }));
}

TEST_P(lane_test, ends_everything_with_the_error_of_its_stream)
{
    open();
    held_streams        held;
    std::vector<ending> ends;
    ends.reserve(5);
    for (int i = 0; i < 5; ++i) {
        ends.emplace_back(&order_, i);
        ASSERT_EQ(submit(&ends.back()), UCS_INPROGRESS);
    }
    {
        // What a failed stream says to every question.
        planned_faults failed("cuEventQuery=719 cuStreamQuery=719");
        ASSERT_TRUE(poll_until([&] { return order_.size() == 5; })) << "hangs";
    }
    for (const ending &end : ends) {
        EXPECT_EQ(end.status, UCS_ERR_IO_ERROR);
    }
    EXPECT_EQ(lane_->in_flight(), 0u);
    EXPECT_EQ(submit(nullptr), UCS_ERR_IO_ERROR) << "broken for good";
    held.let_go();
}

TEST_P(lane_test, finishes_its_stream_when_it_is_closed)
{
    open();
    long  streams = emulator()->live_count("stream");
    bytes sent    = random_bytes(size, 3);
    source_.write(0, sent);
    ASSERT_EQ(submit(nullptr), UCS_INPROGRESS);
    lane_.reset();
    EXPECT_EQ(difference(sent, target_.read(0, size)), "");
    EXPECT_EQ(emulator()->live_count("stream"), streams - 1);
}

TEST_P(lane_test, leaves_nothing_behind_when_it_cannot_be_made)
{
    long before = emulator()->live_count("stream") + emulator()->live_count("event");
    for (const char *fault :
         {"cuStreamCreateWithPriority=2", "cuEventCreate:5=2", "cuMemHostRegister_v2=2",
          "cuMemHostGetDevicePointer_v2=1", "cuCtxPushCurrent_v2=201",
          "cuMemAlloc_v2=2 cuMemHostAlloc=2", "cuPointerGetAttribute=1"}) {
        planned_faults faults(fault);
        lane_config    config;
        config.completion = GetParam();
        auto made         = lane::create(*cuda_, from_->context, config);
        if (made.ok()) {
            made.value().reset();
        }
    }
    EXPECT_EQ(emulator()->live_count("stream") + emulator()->live_count("event"), before);
}

INSTANTIATE_TEST_SUITE_P(completions, lane_test,
                         testing::Values(lane_completion::by_event, lane_completion::by_word),
                         name_of_completion);

} // namespace nvl::test
