// SPDX-License-Identifier: BSD-3-Clause
//
// Flush, fence, pending requests and completions: what has ended when, and in which order.
#include "uct/connection.h"
#include "uct/emulated.h"

#include <deque>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

connection two_gpus(const settings &with = {})
{
    return connection(far_kind::other_worker, 0, 1, 4 * size, with);
}

// A request that waits for room, as UCP makes one.
struct waiting {
    uct_pending_req_t super{}; // first: UCT hands it back
    connection       *with;
    completion       *done;
    std::vector<int> *order;
    int               number;
    size_t            bytes;
    ucs_status_t      last = UCS_ERR_NO_RESOURCE;

    waiting(connection *c, completion *end, std::vector<int> *o, int n, size_t b = size)
        : with(c), done(end), order(o), number(n), bytes(b)
    {
        super.func = try_again;
    }

    static ucs_status_t try_again(uct_pending_req_t *req)
    {
        auto *self = reinterpret_cast<waiting *>(req);
        self->last = self->with->put(0, 0, self->bytes, self->done);
        if (self->last == UCS_ERR_NO_RESOURCE) {
            return self->last;
        }
        self->order->push_back(self->number);
        return UCS_OK;
    }
};

// Posts until there is no room; how many went in.
int fill(connection *c, completion *done)
{
    int count = 0;
    while (c->put(0, 0, size, done) == UCS_INPROGRESS) {
        ++count;
    }
    return count;
}

} // namespace

// ---- flush ---------------------------------------------------------------------------------------------------------

TEST(flush, is_done_where_nothing_was_posted)
{
    connection c = two_gpus();
    completion done;
    EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, nullptr), UCS_OK);
    EXPECT_EQ(uct_iface_flush(c.here.iface(), 0, nullptr), UCS_OK);
    EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, &done.super), UCS_OK);
    EXPECT_EQ(uct_iface_flush(c.here.iface(), 0, &done.super), UCS_OK);
    c.here.progress();
    EXPECT_EQ(done.called, 0) << "a flush that was done at once has called its completion";
    EXPECT_EQ(done.super.count, 1);
}

TEST(flush, ends_after_all_that_was_posted_before_it)
{
    NVL_NEEDS_EMULATOR();
    connection c = two_gpus();
    // The engines are made at first use.
    ASSERT_EQ(c.put(0, 0, 8, nullptr), UCS_INPROGRESS);
    ASSERT_EQ(c.get(size, size, 8, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());

    held_streams held;
    completion   put_done, get_done, flushed;
    ASSERT_EQ(c.put(0, 0, size, &put_done), UCS_INPROGRESS);
    ASSERT_EQ(c.get(size, size, size, &get_done), UCS_INPROGRESS);
    EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, nullptr), UCS_INPROGRESS);
    EXPECT_EQ(uct_iface_flush(c.here.iface(), 0, nullptr), UCS_INPROGRESS);
    ASSERT_EQ(uct_ep_flush(c.ep.get(), 0, &flushed.super), UCS_INPROGRESS);
    for (int i = 0; i < 1000; ++i) {
        c.here.progress();
    }
    EXPECT_EQ(put_done.called + get_done.called + flushed.called, 0);
    held.let_go();
    ASSERT_TRUE(c.wait(flushed));
    EXPECT_EQ(put_done.called, 1);
    EXPECT_EQ(get_done.called, 1);
    EXPECT_EQ(flushed.called, 1);
    EXPECT_EQ(flushed.status, UCS_OK);
    EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, nullptr), UCS_OK);
}

TEST(flush, does_not_wait_for_what_is_posted_behind_it)
{
    NVL_NEEDS_EMULATOR();
    connection c = two_gpus({{"KERNEL", "n"}});
    ASSERT_EQ(c.put(0, 0, 8, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
    held_streams held;
    completion   first, flushed, second;
    ASSERT_EQ(c.put(0, 0, size, &first), UCS_INPROGRESS);
    ASSERT_EQ(uct_ep_flush(c.ep.get(), 0, &flushed.super), UCS_INPROGRESS);
    ASSERT_EQ(c.put(0, 0, size, &second), UCS_INPROGRESS);
    // The first copy and its signal.
    held.let_through(2);
    ASSERT_TRUE(c.wait(flushed));
    EXPECT_EQ(first.called, 1);
    EXPECT_EQ(second.called, 0);
    held.let_go();
    ASSERT_TRUE(c.wait(second));
}

TEST(flush, may_be_asked_for_many_times)
{
    connection             c = two_gpus();
    std::deque<completion> flushes;
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
        flushes.emplace_back();
        completion  &one    = flushes.back();
        ucs_status_t status = (i % 2 == 0) ? uct_ep_flush(c.ep.get(), 0, &one.super)
                                           : uct_iface_flush(c.here.iface(), 0, &one.super);
        if (status == UCS_OK) {
            flushes.pop_back();
        } else {
            ASSERT_EQ(status, UCS_INPROGRESS);
        }
    }
    ASSERT_TRUE(c.drain());
    for (const completion &one : flushes) {
        EXPECT_EQ(one.called, 1);
    }
}

TEST(flush, of_a_full_interface_waits_its_turn)
{
    NVL_NEEDS_EMULATOR();
    connection   c = two_gpus({{"DEPTH", "4"}, {"KERNEL", "n"}});
    held_streams held;
    completion   puts(1000), flushed;
    ASSERT_EQ(fill(&c, &puts), 4);
    EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, &flushed.super), UCS_ERR_NO_RESOURCE);
    held.let_go();
    ASSERT_TRUE(c.wait([&] {
        ucs_status_t status = uct_ep_flush(c.ep.get(), 0, &flushed.super);
        return status != UCS_ERR_NO_RESOURCE;
    }));
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(puts.super.count, 1000 - 4);
}

// ---- fence ---------------------------------------------------------------------------------------------------------

// A put and a get go through different lanes, so that without the fence the get may come first.
TEST(fence, keeps_a_get_behind_a_put)
{
    connection c = two_gpus();
    for (int round = 0; round < 300; ++round) {
        bytes fresh = random_bytes(size, 1000 + static_cast<uint64_t>(round));
        c.local.write(0, fresh);
        ASSERT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
        ASSERT_EQ((round % 2 == 0) ? uct_ep_fence(c.ep.get(), 0)
                                   : uct_iface_fence(c.here.iface(), 0),
                  UCS_OK);
        ucs_status_t status = UCS_ERR_NO_RESOURCE;
        ASSERT_TRUE(c.wait([&] {
            status = c.get(size, 0, size, nullptr);
            return status != UCS_ERR_NO_RESOURCE;
        }));
        ASSERT_EQ(status, UCS_INPROGRESS);
        ASSERT_TRUE(c.drain());
        ASSERT_EQ(difference(fresh, c.local.read(size, size)), "") << "round " << round;
    }
}

TEST(fence, lets_nothing_pass_while_the_first_is_under_way)
{
    NVL_NEEDS_EMULATOR();
    connection   c = two_gpus();
    held_streams held;
    completion   put_done;
    ASSERT_EQ(c.put(0, 0, size, &put_done), UCS_INPROGRESS);
    ASSERT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(c.get(size, 0, size, nullptr), UCS_ERR_NO_RESOURCE);
        c.here.progress();
    }
    held.let_go();
    ASSERT_TRUE(c.wait(put_done));
    EXPECT_EQ(c.get(size, 0, size, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
}

TEST(fence, costs_nothing_where_nothing_is_under_way)
{
    connection c = two_gpus();
    EXPECT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
    EXPECT_EQ(uct_iface_fence(c.here.iface(), 0), UCS_OK);
    EXPECT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
}

// ---- pending -------------------------------------------------------------------------------------------------------

TEST(pending, refuses_a_request_that_need_not_wait)
{
    connection       c = two_gpus();
    std::vector<int> order;
    waiting          one(&c, nullptr, &order, 1);
    EXPECT_EQ(uct_ep_pending_add(c.ep.get(), &one.super, 0), UCS_ERR_BUSY);
}

TEST(pending, goes_through_in_order_when_there_is_room)
{
    connection          c = two_gpus({{"DEPTH", "4"}, {"KERNEL", "n"}});
    std::vector<int>    order;
    completion          done(1000);
    std::deque<waiting> requests;
    int                 posted = 0;
    {
        std::unique_ptr<held_streams> held;
        if (emulator() != nullptr) {
            held = std::make_unique<held_streams>();
        }
        posted = fill(&c, &done);
        for (int i = 0; i < 20; ++i) {
            requests.emplace_back(&c, &done, &order, i);
            ASSERT_EQ(uct_ep_pending_add(c.ep.get(), &requests.back().super, 0), UCS_OK);
        }
        // Nobody overtakes those that wait.
        EXPECT_EQ(c.put(0, 0, size, &done), UCS_ERR_NO_RESOURCE);
        EXPECT_EQ(uct_ep_flush(c.ep.get(), 0, nullptr), UCS_ERR_NO_RESOURCE);
    }
    ASSERT_TRUE(c.wait([&] { return order.size() == 20; }));
    ASSERT_TRUE(c.drain());
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(order[static_cast<size_t>(i)], i);
    }
    EXPECT_EQ(done.super.count, 1000 - posted - 20);
}

TEST(pending, is_refused_again_and_stays_first)
{
    NVL_NEEDS_EMULATOR();
    connection       c = two_gpus({{"DEPTH", "2"}, {"KERNEL", "n"}});
    std::vector<int> order;
    held_streams     held;
    ASSERT_EQ(fill(&c, nullptr), 2);
    waiting first(&c, nullptr, &order, 1), second(&c, nullptr, &order, 2);
    ASSERT_EQ(uct_ep_pending_add(c.ep.get(), &first.super, 0), UCS_OK);
    ASSERT_EQ(uct_ep_pending_add(c.ep.get(), &second.super, 0), UCS_OK);
    for (int i = 0; i < 100; ++i) {
        c.here.progress();
    }
    EXPECT_TRUE(order.empty());
    held.let_go();
    ASSERT_TRUE(c.wait([&] { return order.size() == 2; }));
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    ASSERT_TRUE(c.drain());
}

TEST(pending, gives_back_the_requests_of_one_endpoint)
{
    NVL_NEEDS_EMULATOR();
    connection       c = two_gpus({{"DEPTH", "2"}, {"KERNEL", "n"}});
    endpoint         other(c.here, c.far->address());
    std::vector<int> order;
    held_streams     held;
    ASSERT_EQ(fill(&c, nullptr), 2);
    std::deque<waiting> requests;
    for (int i = 0; i < 6; ++i) {
        requests.emplace_back(&c, nullptr, &order, i);
        ASSERT_EQ(
            uct_ep_pending_add((i % 2 == 0) ? c.ep.get() : other.get(), &requests.back().super, 0),
            UCS_OK);
    }
    std::vector<int> purged;
    uct_ep_pending_purge(
        other.get(),
        [](uct_pending_req_t *req, void *arg) {
            static_cast<std::vector<int> *>(arg)->push_back(
                reinterpret_cast<waiting *>(req)->number);
        },
        &purged);
    EXPECT_EQ(purged, (std::vector<int>{1, 3, 5}));
    held.let_go();
    ASSERT_TRUE(c.wait([&] { return order.size() == 3; }));
    EXPECT_EQ(order, (std::vector<int>{0, 2, 4}));
    ASSERT_TRUE(c.drain());
}

// UCP tries again at once after BUSY, without progress in between: it must not be told so while there is no room.
TEST(pending, never_says_busy_to_what_would_be_refused_again)
{
    const size_t        sizes[] = {64, 4096, 100000, 1000000, 4000000};
    connection          c(far_kind::other_worker, 0, 1, 4u << 20);
    std::vector<int>    order;
    std::deque<waiting> requests;
    for (int round = 0; round < 3000; ++round) {
        size_t length = sizes[round % 5];
        if (c.put(0, 0, length, nullptr) != UCS_ERR_NO_RESOURCE) {
            continue;
        }
        requests.emplace_back(&c, nullptr, &order, round, length);
        ucs_status_t added = uct_ep_pending_add(c.ep.get(), &requests.back().super, 0);
        if (added == UCS_ERR_BUSY) {
            ASSERT_EQ(c.put(0, 0, length, nullptr), UCS_INPROGRESS)
                << length << " bytes: refused, told not to wait, refused again";
            requests.pop_back();
            continue;
        }
        ASSERT_EQ(added, UCS_OK);
        ASSERT_TRUE(c.wait([&] { return order.size() == requests.size(); }));
    }
    ASSERT_TRUE(c.drain());
}

// ---- completions ---------------------------------------------------------------------------------------------------

TEST(completion, counts_down_once_for_each_operation)
{
    connection c = two_gpus();
    completion done(10);
    for (int i = 0; i < 10; ++i) {
        ASSERT_EQ((i % 2 == 0) ? c.put(0, 0, size, &done) : c.get(size, size, size, &done),
                  UCS_INPROGRESS);
    }
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.called, 1);
    EXPECT_EQ(done.super.count, 0);
    EXPECT_EQ(done.status, UCS_OK);
}

TEST(completion, is_never_called_by_the_post_itself)
{
    connection c = two_gpus();
    for (int i = 0; i < 200; ++i) {
        completion done;
        ASSERT_EQ(c.put(0, 0, 16, &done), UCS_INPROGRESS);
        ASSERT_EQ(done.called, 0);
        ASSERT_EQ(done.super.count, 1);
        ASSERT_TRUE(c.wait(done));
    }
}

namespace {

struct chain {
    uct_completion_t super{};
    connection      *with;
    int              left;
};

void post_next(uct_completion_t *super)
{
    auto *self = reinterpret_cast<chain *>(super);
    if (--self->left > 0) {
        super->count        = 1;
        uct_iov_t    iov    = self->with->iov(0, size);
        ucs_status_t status = uct_ep_put_zcopy(self->with->ep.get(), &iov, 1, self->with->remote,
                                               self->with->rkey(), super);
        EXPECT_EQ(status, UCS_INPROGRESS);
    }
}

} // namespace

TEST(completion, may_post_the_next_operation)
{
    connection c = two_gpus({{"DEPTH", "2"}});
    chain      one;
    one.with        = &c;
    one.left        = 100;
    one.super.func  = post_next;
    one.super.count = 1;
    uct_iov_t iov   = c.iov(0, size);
    ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &iov, 1, c.remote, c.rkey(), &one.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait([&] { return one.left == 0; }));
    ASSERT_TRUE(c.drain());
}

TEST(completion, of_a_closed_interface_leaves_memory_alone)
{
    // Whatever is under way when the interface is closed: after that nothing touches the memory.
    connection c = two_gpus();
    entity     other;
    registered from(other, c.local.address(), c.local.size());
    {
        endpoint  ep(other, c.far->address());
        uct_iov_t iov{reinterpret_cast<void *>(c.local.address()), size, from.memh(), 0, 1};
        for (int i = 0; i < 20; ++i) {
            ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, c.remote, c.rkey(), nullptr),
                      UCS_INPROGRESS);
        }
    }
    other.close_iface();
    bytes marks(size, 0x5a);
    c.far->write(c.remote, 0, marks);
    ASSERT_EQ(c.put(size, size, size, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(difference(marks, c.far->read(c.remote, 0, size)), "");
}

} // namespace nvl::test
