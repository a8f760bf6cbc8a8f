// SPDX-License-Identifier: BSD-3-Clause
//
// Memory of the host on the near side: every kind of it, to and from a peer's GPU. Contents, order, what the driver is
// asked, and that nothing of it waits in a post. Also local buffers that come without a registration.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/host_memory.h"
#include "uct/log_watch.h"

#include <poll.h>

namespace nvl::test {

namespace {

constexpr size_t guard_size = 64;
constexpr size_t size_max   = 16u << 20;
constexpr size_t room       = size_max + 4 * guard_size;

ucs_status_t post(const connection &c, bool push, void *buffer, size_t size, size_t at,
                  completion *done, uct_mem_h memh = UCT_MEM_HANDLE_NULL)
{
    uct_iov_t one{buffer, size, memh, 0, 1};
    auto      call = push ? uct_ep_put_zcopy : uct_ep_get_zcopy;
    return call(c.ep.get(), &one, 1, c.remote + at, c.rkey(), &done->super);
}

// The bytes of a put, and those around them.
void check_put(const connection &c, host_kind kind, size_t from, size_t to, size_t size)
{
    bytes       filled = random_bytes(from + size, size);
    host_memory local(kind, filled);
    if (!local.exists()) {
        return;
    }
    bytes expected = random_bytes(size + 2 * guard_size, size + 1);
    c.far->write(c.remote, to - guard_size, expected);
    std::copy(filled.begin() + from, filled.end(), expected.begin() + guard_size);

    completion done;
    ASSERT_EQ(post(c, true, local.address() + from, size, to, &done), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    ASSERT_EQ(done.status, UCS_OK);
    ASSERT_EQ(difference(expected, c.far->read(c.remote, to - guard_size, expected.size())), "")
        << size << " bytes of " << to_text(kind);
}

void check_get(const connection &c, host_kind kind, size_t to, size_t from, size_t size)
{
    bytes       expected = random_bytes(to + size + guard_size, size);
    host_memory local(kind, expected);
    if (!local.exists() || (kind == host_kind::read_only)) {
        return;
    }
    bytes source = random_bytes(size, size + 2);
    c.far->write(c.remote, from, source);
    std::copy(source.begin(), source.end(), expected.begin() + to);

    completion done;
    ASSERT_EQ(post(c, false, local.address() + to, size, from, &done), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    ASSERT_EQ(done.status, UCS_OK);
    ASSERT_EQ(difference(expected, local.read()), "") << size << " bytes of " << to_text(kind);
}

long copies_made()
{
    return emulator()->call_count("cuMemcpyAsync");
}

} // namespace

class every_host_kind : public testing::TestWithParam<std::tuple<far_kind, int, int>> {};

TEST_P(every_host_kind, is_copied_to_and_from_a_gpu)
{
    auto [far, gpu, number] = GetParam();
    auto       kind         = static_cast<host_kind>(number);
    connection c(far, 0, gpu, room);
    for (size_t size : {1, 2, 7, 8, 63, 255, 4096, 16384, 16385, 65537, 262144, 262145, 3333333}) {
        check_put(c, kind, size % 13, guard_size + size % 5, size);
        check_get(c, kind, size % 11, guard_size + size % 3, size);
        if (HasFatalFailure()) {
            return;
        }
    }
    check_put(c, kind, 1, guard_size + 3, size_max);
    check_get(c, kind, 3, guard_size + 1, size_max);
}

INSTANTIATE_TEST_SUITE_P(
    host, every_host_kind,
    testing::Combine(testing::Values(far_kind::other_worker, far_kind::other_process),
                     testing::Values(0, 1), testing::Range(0, static_cast<int>(host_kind::last))),
    [](const testing::TestParamInfo<every_host_kind::ParamType> &one) {
        return std::string(to_text(std::get<0>(one.param))) + "_gpu_" +
               std::to_string(std::get<1>(one.param)) + "_" +
               to_text(static_cast<host_kind>(std::get<2>(one.param)));
    });

// ---- what the driver is asked to do --------------------------------------------------------------------------------

TEST(pinned_host_memory, goes_in_one_copy_and_is_not_registered_again)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, room);
    for (host_kind kind :
         {host_kind::allocated_pinned, host_kind::registered, host_kind::inside_of_registered}) {
        host_memory local(kind, random_bytes(size_max, 1));
        for (bool push : {true, false}) {
            completion first, second;
            ASSERT_EQ(post(c, push, local.address(), size_max, 0, &first), UCS_INPROGRESS);
            ASSERT_TRUE(c.wait(first));
            emulator()->reset_counts();
            ASSERT_EQ(post(c, push, local.address(), size_max, 0, &second), UCS_INPROGRESS);
            for (const auto &[name, count] : calls_made()) {
                // UCX cannot hook the emulated driver's functions, so nothing may be kept of its
                // answers (test/unit/mem has the case where it can).
                EXPECT_TRUE(name == "cuMemcpyAsync" || name == "cuEventRecord" ||
                            name == "cuThreadExchangeStreamCaptureMode" ||
                            name == "cuPointerGetAttributes" || name == "cuPointerGetAttribute")
                    << count << " of " << name << " in a post";
            }
            EXPECT_EQ(copies_made(), 1) << to_text(kind);
            ASSERT_TRUE(c.wait(second));
        }
    }
    EXPECT_EQ(emulator()->call_count("cuMemHostRegister_v2"), 0);
}

TEST(pageable_host_memory, never_holds_the_caller_of_a_post)
{
    NVL_NEEDS_EMULATOR();
    connection  c(far_kind::other_process, 0, 1, room);
    bytes       sent = random_bytes(size_max, 4);
    host_memory local(host_kind::ordinary, sent);
    completion  done[2];
    {
        // A copy from pageable memory would not return as long as the streams are held.
        held_streams held;
        ASSERT_EQ(post(c, true, local.address(), size_max, 0, &done[0]), UCS_INPROGRESS);
        ASSERT_EQ(post(c, true, local.address(), 1000, 0, &done[1]), UCS_INPROGRESS);
        for (int i = 0; i < 100; ++i) {
            c.here.progress();
        }
        EXPECT_EQ(done[0].called, 0);
    }
    ASSERT_TRUE(c.wait(done[0]) && c.wait(done[1]));
    EXPECT_EQ(difference(sent, c.far->read(c.remote, 0, size_max)), "");
}

TEST(pageable_host_memory, goes_in_chunks_of_the_size_that_is_set)
{
    NVL_NEEDS_EMULATOR();
    connection  c(far_kind::other_process, 0, 1, room,
                  {{"HOST_CHUNK", "64k"}, {"HOST_STAGE", "256k"}});
    host_memory local(host_kind::ordinary, random_bytes(1u << 20, 4));
    completion  first, second;
    ASSERT_EQ(post(c, true, local.address(), 1, 0, &first), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(first));
    emulator()->reset_counts();
    ASSERT_EQ(post(c, true, local.address(), 1u << 20, 0, &second), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(second));
    EXPECT_EQ(copies_made(), 16);
    EXPECT_EQ(emulator()->call_count("cuMemHostRegister_v2"), 0) << "a second stage";
}

TEST(pageable_host_memory, arrives_where_nothing_can_be_page_locked)
{
    NVL_NEEDS_EMULATOR();
    for (const char *code : {"2", "801"}) {
        connection     c(far_kind::other_process, 0, 1, room);
        planned_faults faults(std::string("cuMemHostRegister_v2=") + code);
        check_put(c, host_kind::ordinary, 1, guard_size, 1000001);
        check_get(c, host_kind::ordinary, 1, guard_size, 1000001);
    }
}

TEST(pageable_host_memory, ends_with_the_error_of_its_copy)
{
    NVL_NEEDS_EMULATOR();
    connection  c(far_kind::other_process, 0, 1, room);
    host_memory local(host_kind::ordinary, random_bytes(size_max, 4));
    completion  done, later;
    expect_log("cuMemcpyAsync");
    {
        planned_faults faults("cuMemcpyAsync:3=801");
        ASSERT_EQ(post(c, true, local.address(), size_max, 0, &done), UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_NE(done.status, UCS_OK);
        EXPECT_EQ(done.called, 1);
    }
    ASSERT_EQ(post(c, true, local.address(), 1000, 0, &later), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(later));
    EXPECT_EQ(later.status, UCS_OK) << "one refused copy ends one operation";
}

TEST(pageable_host_memory, refuses_more_than_it_keeps_and_goes_on)
{
    connection              c(far_kind::other_process, 0, 1, room);
    host_memory             local(host_kind::ordinary, random_bytes(1u << 20, 4));
    std::vector<completion> done(200);
    size_t                  refused = 0;
    for (completion &one : done) {
        ucs_status_t status;
        while ((status = post(c, true, local.address(), 1u << 20, 0, &one)) ==
               UCS_ERR_NO_RESOURCE) {
            ++refused;
            c.here.progress();
        }
        ASSERT_EQ(status, UCS_INPROGRESS);
    }
    ASSERT_TRUE(c.drain());
    EXPECT_GT(refused, 0u);
    for (const completion &one : done) {
        EXPECT_EQ(one.called, 1);
    }
}

// ---- order ---------------------------------------------------------------------------------------------------------

TEST(host_memory_order, a_fence_holds_back_what_is_posted_behind_it)
{
    connection       c(far_kind::other_process, 0, 1, room);
    constexpr size_t size = 3u << 20;
    bytes            last = random_bytes(size, 9);
    host_memory      first(host_kind::ordinary, random_bytes(size, 8));
    host_memory      second(host_kind::allocated_pinned, last);
    completion       done[2];
    ASSERT_EQ(post(c, true, first.address(), size, 0, &done[0]), UCS_INPROGRESS);
    ASSERT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
    ucs_status_t status;
    while ((status = post(c, true, second.address(), size, 0, &done[1])) == UCS_ERR_NO_RESOURCE) {
        c.here.progress();
    }
    ASSERT_EQ(status, UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done[1]));
    EXPECT_EQ(done[0].called, 1);
    EXPECT_EQ(difference(last, c.far->read(c.remote, 0, size)), "");
}

TEST(host_memory_order, a_flush_ends_behind_all_that_was_posted)
{
    NVL_NEEDS_EMULATOR();
    connection  c(far_kind::other_process, 0, 1, room);
    host_memory ordinary(host_kind::ordinary, random_bytes(size_max, 8));
    host_memory pinned(host_kind::allocated_pinned, random_bytes(1000, 9));
    completion  first, second, flushed;
    {
        held_streams held;
        ASSERT_EQ(post(c, true, ordinary.address(), size_max, 0, &first), UCS_INPROGRESS);
        ASSERT_EQ(post(c, false, pinned.address(), 1000, 0, &second), UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_flush(c.ep.get(), 0, &flushed.super), UCS_INPROGRESS);
        for (int i = 0; i < 50; ++i) {
            c.here.progress();
        }
        EXPECT_EQ(flushed.called, 0);
    }
    ASSERT_TRUE(c.wait(flushed));
    EXPECT_EQ(first.called, 1);
    EXPECT_EQ(second.called, 1);
}

TEST(host_memory_order, a_sleeper_is_woken_and_finds_the_next_part_to_do)
{
    connection  c(far_kind::other_process, 0, 1, room);
    bytes       sent = random_bytes(size_max, 4);
    host_memory local(host_kind::ordinary, sent);
    completion  done;
    int         fd = -1;
    ASSERT_EQ(ucx().uct_iface_event_fd_get(c.here.iface(), &fd), UCS_OK);
    ASSERT_EQ(post(c, true, local.address(), size_max, 0, &done), UCS_INPROGRESS);
    while (done.called == 0) {
        ucs_status_t armed = ucx().uct_iface_event_arm(c.here.iface(), UCT_EVENT_SEND_COMP);
        if (armed == UCS_OK) {
            pollfd one{fd, POLLIN, 0};
            ASSERT_EQ(::poll(&one, 1, 30000), 1) << "nobody woke it";
        } else {
            ASSERT_EQ(armed, UCS_ERR_BUSY);
        }
        c.here.progress();
    }
    EXPECT_EQ(difference(sent, c.far->read(c.remote, 0, size_max)), "");
}

TEST(host_memory_order, pieces_of_every_kind_go_as_one_operation)
{
    connection       c(far_kind::other_process, 0, 1, room);
    constexpr size_t size = 100001;
    bytes            parts[4];
    for (int i = 0; i < 4; ++i) {
        parts[i] = random_bytes(size, 20 + i);
    }
    host_memory ordinary(host_kind::ordinary, parts[0]);
    host_memory pinned(host_kind::allocated_pinned, parts[2]);
    host_memory shared(host_kind::shared, parts[3]);
    c.local.write(0, parts[1]);
    uct_iov_t  iov[4] = {{ordinary.address(), size, nullptr, 0, 1},
                         c.iov(0, size),
                         {pinned.address(), size, nullptr, 0, 1},
                         {shared.address(), size, nullptr, 0, 1}};
    completion done;
    ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), iov, 4, c.remote, c.rkey(), &done.super),
              UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.called, 1);
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(difference(parts[i], c.far->read(c.remote, i * size, size)), "") << i;
    }
}

TEST(host_memory_order, an_interface_closes_with_some_of_it_in_flight)
{
    auto        c = std::make_unique<connection>(far_kind::other_process, 0, 1, room);
    host_memory local(host_kind::ordinary, random_bytes(size_max, 4));
    completion  done;
    ASSERT_EQ(post(*c, true, local.address(), size_max, 0, &done), UCS_INPROGRESS);
    c->here.progress();
    c.reset(); // the leak report of the emulated driver tells the rest
}

// ---- what is registered --------------------------------------------------------------------------------------------

TEST(host_registration, is_not_asked_for_and_costs_nothing)
{
    NVL_NEEDS_EMULATOR();
    entity           here;
    uct_md_attr_v2_t attr{};
    attr.field_mask = UINT64_MAX;
    ASSERT_EQ(ucx().uct_md_query_v2(here.md(), &attr), UCS_OK);
    EXPECT_EQ(attr.reg_mem_types & (1u << UCS_MEMORY_TYPE_HOST), 0u);
    EXPECT_NE(attr.access_mem_types & (1u << UCS_MEMORY_TYPE_HOST), 0u);
    EXPECT_EQ(attr.flags & UCT_MD_FLAG_NEED_MEMH, 0u);

    host_memory local(host_kind::ordinary, bytes(1u << 20));
    emulator()->reset_counts();
    registered mine(here, reinterpret_cast<uint64_t>(local.address()), 1u << 20);
    for (const auto &[name, count] : calls_made()) {
        EXPECT_EQ(name, "cuPointerGetAttributes") << count;
    }
}

TEST(host_registration, of_a_user_is_taken)
{
    connection  c(far_kind::other_process, 0, 1, room);
    bytes       sent = random_bytes(100000, 4);
    host_memory local(host_kind::ordinary, sent);
    registered  mine(c.here, reinterpret_cast<uint64_t>(local.address()), sent.size());
    completion  done;
    ASSERT_EQ(post(c, true, local.address(), sent.size(), 0, &done, mine.memh()), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(difference(sent, c.far->read(c.remote, 0, sent.size())), "");
}

TEST(host_registration, is_as_it_was_where_host_memory_is_switched_off)
{
    entity           here(settings{{"HOST_MEMORY", "n"}});
    uct_md_attr_v2_t attr{};
    attr.field_mask = UINT64_MAX;
    ASSERT_EQ(ucx().uct_md_query_v2(here.md(), &attr), UCS_OK);
    EXPECT_EQ(attr.access_mem_types & (1u << UCS_MEMORY_TYPE_HOST), 0u);
    EXPECT_NE(attr.flags & UCT_MD_FLAG_NEED_MEMH, 0u);
}

// ---- buffers of GPUs without a registration ------------------------------------------------------------------------

TEST(unregistered_buffer, is_looked_up_again_when_its_address_was_freed)
{
    connection c(far_kind::other_process, 0, 1, room);
    // The same address on one GPU and then on the other, as often as the driver hands it out again.
    for (int i = 0; i < 8; ++i) {
        gpu_memory memory(i % 2, 1u << 20);
        bytes      sent = random_bytes(1u << 20, 30 + i);
        memory.write(0, sent);
        completion done;
        ASSERT_EQ(post(c, true, reinterpret_cast<void *>(memory.address()), sent.size(), 0, &done),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(difference(sent, c.far->read(c.remote, 0, sent.size())), "");
    }
}

TEST(unregistered_buffer, takes_more_allocations_than_are_kept_at_hand)
{
    connection                               c(far_kind::other_worker, 0, 1, room);
    std::vector<std::unique_ptr<gpu_memory>> all;
    for (int i = 0; i < 100; ++i) {
        all.push_back(std::make_unique<gpu_memory>(i % 2, 4096));
        all.back()->write(0, random_bytes(4096, i));
    }
    for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < all.size(); ++i) {
            completion   done;
            ucs_status_t status;
            do {
                status = post(c, true, reinterpret_cast<void *>(all[i]->address()), 4096, i * 4096,
                              &done);
                c.here.progress();
            } while (status == UCS_ERR_NO_RESOURCE);
            ASSERT_TRUE(c.wait(done));
        }
    }
    for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(difference(random_bytes(4096, i), c.far->read(c.remote, i * 4096, 4096)), "");
    }
}

} // namespace nvl::test
