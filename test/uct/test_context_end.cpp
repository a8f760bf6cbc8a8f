// SPDX-License-Identifier: BSD-3-Clause
//
// The application destroys a context of its own, or resets the primary one, while the plugin has streams, events and a
// kernel in it. A real driver follows their handles into freed memory, so none may be named: the emulated one counts it
// as a violation.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"
#include "uct/own_context.h"

#include <array>
#include <unistd.h>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

enum class ends_by { destroy, reset };

// Everything an operation needs, with the local buffer in a context that ends before the rest. GPU 0 is local.
class ending_context : public testing::TestWithParam<ends_by> {
protected:
    void SetUp() override
    {
        NVL_NEEDS_EMULATOR();
        violations_ = emulator()->violation_count();
        for (size_t i = 0; i < live_.size(); ++i) {
            live_[i] = emulator()->live_count(kinds[i]);
        }
        open();
    }

    void TearDown() override
    {
        if (emulator() == nullptr) {
            return;
        }
        close();
        EXPECT_EQ(emulator()->violation_count(), violations_);
        for (size_t i = 0; i < live_.size(); ++i) {
            EXPECT_LE(emulator()->live_count(kinds[i]), live_[i]) << kinds[i];
        }
    }

    void open(const settings &with = {})
    {
        peer_   = std::make_unique<peer_side>();
        remote_ = peer_->allocate(1, size);
        here_   = std::make_unique<entity>(with);
        open_local();
    }

    // The buffer, and what belongs to it.
    void open_local()
    {
        if (GetParam() == ends_by::destroy) {
            own_   = std::make_unique<own_context>(0);
            local_ = std::make_unique<gpu_memory>(own_->get(), size);
        } else {
            local_ = std::make_unique<gpu_memory>(0, size);
        }
        key_  = std::make_unique<unpacked>(peer_->key(remote_));
        ep_   = std::make_unique<endpoint>(*here_, peer_->address());
        memh_ = std::make_unique<registered>(*here_, local_->address(), size);
    }

    void end_context()
    {
        local_->forget();
        if (GetParam() == ends_by::destroy) {
            own_->destroy();
        } else {
            reset_primary();
        }
    }

    static void reset_primary()
    {
        NVL_MUST(cuDevicePrimaryCtxReset_v2, (device_of(0)));
    }

    void revive()
    {
        if (GetParam() == ends_by::reset) {
            retain_primary();
        }
    }

    static void retain_primary()
    {
        CUcontext same = nullptr;
        NVL_MUST(cuDevicePrimaryCtxRetain, (&same, device_of(0)));
    }

    // By another one at the same address, with a buffer in it.
    void replace_context()
    {
        end_context();
        close_local();
        emulator()->reuse_contexts(1);
        revive();
        open_local();
        emulator()->reuse_contexts(0);
    }

    void close_local()
    {
        ep_.reset();
        key_.reset();
        memh_.reset();
        local_.reset();
        own_.reset();
    }

    void close()
    {
        close_local();
        here_.reset();
        peer_.reset();
        revive();
    }

    ucs_status_t put(completion *done)
    {
        uct_mem_h memh = (memh_ != nullptr) ? memh_->memh() : UCT_MEM_HANDLE_NULL;
        uct_iov_t iov{reinterpret_cast<void *>(address_), size, memh, 0, 1};
        return uct_ep_put_zcopy(ep_->get(), &iov, 1, remote_, key_->rkey(), &done->super);
    }

    // Some puts until the engine at work is in its stride.
    void put_some()
    {
        address_ = local_->address();
        for (int i = 0; i < 8; ++i) {
            completion done;
            ASSERT_EQ(put(&done), UCS_INPROGRESS);
            ASSERT_TRUE(wait(done));
            ASSERT_EQ(done.status, UCS_OK);
        }
    }

    bool wait(const completion &done) const
    {
        auto end = std::chrono::steady_clock::now() + connection::patience();
        while (done.called == 0 && std::chrono::steady_clock::now() < end) {
            here_->progress();
            std::this_thread::yield();
        }
        return done.called != 0;
    }

    void expect_works()
    {
        bytes source = random_bytes(size, 7);
        local_->write(0, source);
        put_some();
        EXPECT_EQ(difference(source, peer_->read(remote_, 0, size)), "");
    }

    static constexpr std::array<const char *, 8> kinds = {
        "stream", "event", "allocation", "registration", "import", "mapping", "module", "pool"};

    long                           violations_ = 0;
    std::array<long, kinds.size()> live_{};
    std::unique_ptr<peer_side>     peer_;
    uint64_t                       remote_  = 0;
    uint64_t                       address_ = 0; // of the buffer, after its end too
    std::unique_ptr<entity>        here_;
    std::unique_ptr<own_context>   own_;
    std::unique_ptr<gpu_memory>    local_;
    std::unique_ptr<registered>    memh_;
    std::unique_ptr<unpacked>      key_;
    std::unique_ptr<endpoint>      ep_;
};

std::string name_of_end(const testing::TestParamInfo<ends_by> &info)
{
    return info.param == ends_by::destroy ? "destroy" : "reset";
}

} // namespace

TEST_P(ending_context, leaves_nothing_to_close)
{
    put_some();
    end_context();
}

// The streams have done their work when a context ends; nobody here has seen it.
TEST_P(ending_context, ends_what_is_in_flight_once)
{
    constexpr int count = 4;
    put_some();
    expect_log("failed: ");
    std::vector<std::unique_ptr<completion>> all;
    for (int i = 0; i < count; ++i) {
        all.push_back(std::make_unique<completion>());
        ASSERT_EQ(put(all.back().get()), UCS_INPROGRESS);
    }
    end_context();
    for (const auto &done : all) {
        EXPECT_TRUE(wait(*done));
        // What a word in memory said before the end is true; an event says nothing any more.
        EXPECT_TRUE(done->status == UCS_OK || done->status == UCS_ERR_IO_ERROR) << done->status;
    }
    for (int i = 0; i < 100; ++i) {
        here_->progress();
    }
    for (const auto &done : all) {
        EXPECT_EQ(done->called, 1);
    }
    EXPECT_EQ(uct_iface_flush(here_->iface(), 0, nullptr), UCS_OK);
}

TEST_P(ending_context, may_have_operations_in_flight_that_nobody_waits_for)
{
    put_some();
    completion done;
    ASSERT_EQ(put(&done), UCS_INPROGRESS);
    end_context();
}

TEST_P(ending_context, refuses_what_is_posted_afterwards)
{
    put_some();
    end_context();
    expect_log("failed: ");
    for (int i = 0; i < 3; ++i) {
        completion   done;
        ucs_status_t status = put(&done);
        if (status == UCS_INPROGRESS) { // the kernel's ring takes it, and finds out
            ASSERT_TRUE(wait(done));
            status = done.status;
        }
        EXPECT_EQ(status, UCS_ERR_IO_ERROR);
    }
}

TEST_P(ending_context, before_its_first_operation_is_an_error)
{
    address_ = local_->address();
    end_context();
    expect_log("failed: ");
    expect_log("was destroyed before");
    completion   done;
    ucs_status_t status = put(&done);
    if (status == UCS_INPROGRESS) {
        ASSERT_TRUE(wait(done));
        status = done.status;
    }
    EXPECT_NE(status, UCS_OK);
}

// With pageable memory of the host, whose slots are page-locked here.
TEST_P(ending_context, takes_no_slot_of_the_host_along)
{
    bytes     source = random_bytes(size, 3);
    uct_iov_t iov{source.data(), size, nullptr, 0, 1};
    put_some();
    for (int i = 0; i < 4; ++i) {
        completion done;
        ASSERT_EQ(uct_ep_put_zcopy(ep_->get(), &iov, 1, remote_, key_->rkey(), &done.super),
                  UCS_INPROGRESS);
        ASSERT_TRUE(wait(done));
    }
    end_context();
    expect_log("failed: ");
    completion   done;
    ucs_status_t status = uct_ep_put_zcopy(ep_->get(), &iov, 1, remote_, key_->rkey(), &done.super);
    if (status == UCS_INPROGRESS) {
        EXPECT_TRUE(wait(done));
    }
}

// The same interface serves what comes after, also where the new context has the address of the old one.
TEST_P(ending_context, is_followed_by_another_at_its_address)
{
    CUcontext before = (own_ != nullptr) ? own_->get() : primary_context(0);
    expect_works();
    replace_context();
    EXPECT_EQ((own_ != nullptr) ? own_->get() : primary_context(0), before);
    expect_works();
}

// As a driver before CUDA 12 does, which numbers no contexts.
TEST_P(ending_context, is_told_from_the_next_without_a_number)
{
    close();
    planned_faults no_numbers("cuCtxGetId=1");
    open();
    expect_works();
    replace_context();
    if (GetParam() == ends_by::destroy) {
        expect_works();
    } else {
        expect_log("failed: "); // the place of the primary context is the old one
        completion done;
        address_            = local_->address();
        ucs_status_t status = put(&done);
        if (status == UCS_INPROGRESS) {
            EXPECT_TRUE(wait(done));
        }
    }
}

TEST_P(ending_context, by_words_too)
{
    close();
    open({{"COMPLETION", "word"}, {"KERNEL", "n"}});
    put_some();
    completion done;
    ASSERT_EQ(put(&done), UCS_INPROGRESS);
    expect_log("failed: ");
    end_context();
    EXPECT_TRUE(wait(done));
}

// Whoever wants to sleep is told to look.
TEST_P(ending_context, is_found_out_before_going_to_sleep)
{
    put_some();
    completion done;
    ASSERT_EQ(put(&done), UCS_INPROGRESS);
    expect_log("failed: ");
    end_context();
    ucs_status_t armed = UCS_ERR_BUSY;
    auto         end   = std::chrono::steady_clock::now() + connection::patience();
    while (armed == UCS_ERR_BUSY && std::chrono::steady_clock::now() < end) {
        armed = ucx().uct_iface_event_arm(here_->iface(), UCT_EVENT_SEND_COMP);
        here_->progress();
    }
    EXPECT_EQ(armed, UCS_OK);
    EXPECT_EQ(done.called, 1);
}

INSTANTIATE_TEST_SUITE_P(contexts, ending_context,
                         testing::Values(ends_by::destroy, ends_by::reset), name_of_end);

// ---- a context of the application's own that stays, while the primary one goes -------------------------------------

namespace {

class context_that_stays : public ending_context {
protected:
    void TearDown() override
    {
        others_.clear();
        ending_context::TearDown();
    }

    // What it copies with was opened in the primary context, and nothing tells of its end.
    void reset_under_it()
    {
        local_->write(0, random_bytes(size, 7));
        put_some();
        ASSERT_EQ(difference(random_bytes(size, 7), peer_->read(remote_, 0, size)), "");
        emulator()->reuse_contexts(1);
        reset_primary();
        retain_primary(); // the application goes on with that, too
        emulator()->reuse_contexts(0);
        // Other memory, large enough for the address of the import to be used again.
        for (int i = 0; i < 8; ++i) {
            others_.push_back(std::make_unique<gpu_memory>(0, untouched_.size()));
            others_.back()->write(0, untouched_);
        }
        expect_log("was reset: what peers share is opened anew");
        local_->write(0, source_);
    }

    void expect_untouched()
    {
        for (const auto &other : others_) {
            EXPECT_EQ(difference(untouched_, other->read(0, untouched_.size())), "");
        }
    }

    void expect_refused()
    {
        completion   done;
        ucs_status_t status = put(&done);
        if (status == UCS_INPROGRESS) {
            ASSERT_TRUE(wait(done));
            status = done.status;
        }
        EXPECT_EQ(status, UCS_ERR_IO_ERROR);
        expect_untouched();
    }

    void expect_opened_anew()
    {
        reset_under_it();
        expect_refused();
        // An answer about the context is good for 100 us.
        usleep(1000);
        completion done;
        (void)put(&done);
        key_ = std::make_unique<unpacked>(peer_->key(remote_));
        put_some();
        EXPECT_EQ(difference(source_, peer_->read(remote_, 0, size)), "");
        expect_untouched();
    }

    const bytes untouched_ = bytes(2u << 20, 0x33);
    const bytes source_    = random_bytes(size, 8);

    std::vector<std::unique_ptr<gpu_memory>> others_;
};

} // namespace

TEST_P(context_that_stays, opens_anew_what_a_reset_of_the_primary_one_took_along)
{
    expect_opened_anew();
}

TEST_P(context_that_stays, opens_anew_what_a_buffer_without_a_registration_needs)
{
    memh_.reset();
    expect_opened_anew();
}

TEST_P(context_that_stays, opens_anew_with_words_too)
{
    close();
    open({{"COMPLETION", "word"}});
    expect_opened_anew();
}

// What it polls is locked in its own context: in the primary one the reset would take it along.
TEST_P(context_that_stays, keeps_a_copy_kernel_that_lingers)
{
    close();
    open({{"IDLE", "5s"}, {"STAY", "5s"}, {"GAP", "5s"}});
    const char *kernel  = std::getenv("UCX_NVLINK_KERNEL");
    const bool  lingers = (kernel == nullptr) || (std::strcmp(kernel, "n") != 0);
    const long  before  = emulator()->call_count("cuLaunchKernel");
    put_some();
    ASSERT_EQ(emulator()->call_count("cuLaunchKernel") > before, lingers);
    expect_opened_anew();
}

// It has no engine that could have seen the primary context before.
TEST_P(context_that_stays, is_refused_on_another_interface_too)
{
    reset_under_it();
    entity other;
    ep_ = std::make_unique<endpoint>(other, peer_->address());
    expect_refused();
    ep_.reset();
}

INSTANTIATE_TEST_SUITE_P(contexts, context_that_stays, testing::Values(ends_by::destroy),
                         name_of_end);

} // namespace nvl::test
