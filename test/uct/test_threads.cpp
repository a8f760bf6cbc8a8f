// SPDX-License-Identifier: BSD-3-Clause
//
// Any thread may call, whatever context it has; it finds its own as it left it. Any number of contexts.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"
#include "uct/own_context.h"

#include <atomic>
#include <mutex>
#include <thread>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

CUcontext current()
{
    CUcontext context = nullptr;
    NVL_MUST(cuCtxGetCurrent, (&context));
    return context;
}

// Progresses until everything has ended; false if that takes too long.
bool flushed(entity &here)
{
    auto end = std::chrono::steady_clock::now() + connection::patience();
    while (uct_iface_flush(here.iface(), 0, nullptr) == UCS_INPROGRESS) {
        here.progress();
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
    }
    return true;
}

// That a call leaves the thread's context stack as it was.
class unchanged_contexts {
public:
    explicit unchanged_contexts(const char *call)
        : call_(call), context_(current()), depth_(depth())
    {
    }

    ~unchanged_contexts()
    {
        EXPECT_EQ(current(), context_) << call_;
        EXPECT_EQ(depth(), depth_) << call_;
    }

private:
    static int depth()
    {
        return emulator() == nullptr ? 0 : emulator()->context_depth();
    }

    const char *call_;
    CUcontext   context_;
    int         depth_;
};

// `checked("name", expression)`
#define NVL_CHECKED(_call)                \
    [&] {                                 \
        unchanged_contexts scope(#_call); \
        return _call;                     \
    }()

enum class thread_has {
    nothing,
    primary_of_other_gpu,
    own_of_same_gpu,
    own_of_other_gpu,
    destroyed
};

class any_context : public testing::TestWithParam<thread_has> {
protected:
    // Runs on a thread in the state that the case is about.
    template<typename F> void on_thread(F what)
    {
        std::thread([&] {
            std::unique_ptr<own_context> own;
            switch (GetParam()) {
            case thread_has::primary_of_other_gpu:
                NVL_MUST(cuCtxSetCurrent, (primary_context(1)));
                break;
            case thread_has::own_of_same_gpu:
            case thread_has::destroyed:
                own = std::make_unique<own_context>(0);
                break;
            case thread_has::own_of_other_gpu:
                own = std::make_unique<own_context>(1);
                break;
            case thread_has::nothing:
                break;
            }
            if (own) {
                NVL_MUST(cuCtxSetCurrent, (own->get()));
            }
            if (GetParam() == thread_has::destroyed) {
                // Destroyed by another thread: here it stays current.
                std::thread([&] { own->destroy(); }).join();
            }
            try {
                what();
            } catch (const set_up_failed &failed) {
                ADD_FAILURE() << failed.what();
            }
            cu().cuCtxSetCurrent(nullptr);
        }).join();
    }
};

std::string name_of_state(const testing::TestParamInfo<thread_has> &info)
{
    const char *const names[] = {"no_context", "primary_of_other_gpu", "own_of_same_gpu",
                                 "own_of_other_gpu", "destroyed_context"};
    return names[static_cast<int>(info.param)];
}

} // namespace

TEST_P(any_context, serves_every_call)
{
    // A destroyed context is undefined for the real driver (580 takes it, and a run there ended with a damaged heap).
    if (GetParam() == thread_has::destroyed) {
        NVL_NEEDS_EMULATOR();
    }
    gpu_memory local(0, size);
    local_side far_side;
    uint64_t   remote = far_side.allocate(1, size);
    bytes      source = random_bytes(size, 1);
    local.write(0, source);
    bytes     key = far_side.key(remote);
    addresses to  = far_side.address();

    on_thread([&] {
        auto here = NVL_CHECKED(std::make_unique<entity>());
        auto reg  = NVL_CHECKED(std::make_unique<registered>(*here, local.address(), size));
        (void)NVL_CHECKED(reg->key());
        auto         rkey = NVL_CHECKED(std::make_unique<unpacked>(key));
        auto         ep   = NVL_CHECKED(std::make_unique<endpoint>(*here, to));
        uct_iov_t    iov{reinterpret_cast<void *>(local.address()), size, reg->memh(), 0, 1};
        completion   done;
        ucs_status_t status =
            NVL_CHECKED(uct_ep_put_zcopy(ep->get(), &iov, 1, remote, rkey->rkey(), &done.super));
        ASSERT_EQ(status, UCS_INPROGRESS);
        while (done.called == 0) {
            NVL_CHECKED(here->progress());
        }
        EXPECT_EQ(done.status, UCS_OK);
        status = NVL_CHECKED(uct_ep_get_zcopy(ep->get(), &iov, 1, remote, rkey->rkey(), nullptr));
        ASSERT_EQ(status, UCS_INPROGRESS);
        while (NVL_CHECKED(uct_iface_flush(here->iface(), 0, nullptr)) != UCS_OK) {
            NVL_CHECKED(here->progress());
        }
        NVL_CHECKED((rkey.reset(), 0));
        NVL_CHECKED((ep.reset(), 0));
        NVL_CHECKED((reg.reset(), 0));
        NVL_CHECKED((here.reset(), 0));
    });
    EXPECT_EQ(difference(source, far_side.read(remote, 0, size)), "");
}

TEST_P(any_context, opens_the_memory_of_another_process)
{
    // A destroyed context is undefined for the real driver (580 takes it, and a run there ended with a damaged heap).
    if (GetParam() == thread_has::destroyed) {
        NVL_NEEDS_EMULATOR();
    }
    peer_side  peer;
    uint64_t   remote = peer.allocate(1, size);
    bytes      key    = peer.key(remote);
    gpu_memory local(0, size);
    bytes      source = random_bytes(size, 2);
    local.write(0, source);
    on_thread([&] {
        entity       here;
        registered   reg(here, local.address(), size);
        auto         rkey = NVL_CHECKED(std::make_unique<unpacked>(key));
        endpoint     ep(here, peer.address());
        uct_iov_t    iov{reinterpret_cast<void *>(local.address()), size, reg.memh(), 0, 1};
        ucs_status_t status =
            NVL_CHECKED(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey->rkey(), nullptr));
        ASSERT_EQ(status, UCS_INPROGRESS);
        while (uct_iface_flush(here.iface(), 0, nullptr) != UCS_OK) {
            NVL_CHECKED(here.progress());
        }
        NVL_CHECKED((rkey.reset(), 0));
    });
    EXPECT_EQ(difference(source, peer.read(remote, 0, size)), "");
}

INSTANTIATE_TEST_SUITE_P(threads, any_context,
                         testing::Values(thread_has::nothing, thread_has::primary_of_other_gpu,
                                         thread_has::own_of_same_gpu, thread_has::own_of_other_gpu,
                                         thread_has::destroyed),
                         name_of_state);

TEST(threads, progress_what_others_posted)
{
    connection               c(far_kind::other_process, 0, 1, size);
    std::mutex               worker; // UCP's lock
    std::atomic<bool>        stop{false};
    completion               done(400);
    std::thread              progress([&] {
        while (!stop.load()) {
            std::lock_guard<std::mutex> guard(worker);
            c.here.progress();
        }
    });
    std::vector<std::thread> posters;
    for (int t = 0; t < 4; ++t) {
        posters.emplace_back([&, t] {
            for (int i = 0; i < 100;) {
                std::lock_guard<std::mutex> guard(worker);
                size_t                      at = static_cast<size_t>(t) * 1024;
                ucs_status_t                status =
                    (t % 2 == 0) ? c.put(at, at, 1024, &done) : c.get(at, at, 1024, &done);
                i += status == UCS_INPROGRESS ? 1 : 0;
            }
        });
    }
    for (std::thread &one : posters) {
        one.join();
    }
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (bool all = false; !all && std::chrono::steady_clock::now() < end;) {
        std::lock_guard<std::mutex> guard(worker);
        all = done.called == 1;
    }
    stop.store(true);
    progress.join();
    EXPECT_EQ(done.called, 1);
    EXPECT_EQ(done.status, UCS_OK);
}

// Each thread with a worker of its own and the same peer.
TEST(threads, unpack_and_copy_side_by_side)
{
    constexpr int         count = 8;
    peer_side             peer;
    std::vector<uint64_t> remotes;
    std::vector<bytes>    keys;
    for (int i = 0; i < count; ++i) {
        remotes.push_back(peer.allocate(i % 2, size));
        keys.push_back(peer.key(remotes.back()));
    }
    addresses                to = peer.address();
    std::vector<std::thread> all;
    for (int t = 0; t < count; ++t) {
        all.emplace_back([&, t] {
            entity     here;
            gpu_memory local(t % 2, size);
            registered reg(here, local.address(), size);
            endpoint   ep(here, to);
            for (int round = 0; round < 40; ++round) {
                size_t    which = static_cast<size_t>(t + round) % count;
                unpacked  rkey(keys[which]);
                size_t    at = static_cast<size_t>(t) * 4096;
                uct_iov_t iov{reinterpret_cast<void *>(local.address()), 4096, reg.memh(), 0, 1};
                EXPECT_EQ(
                    uct_ep_put_zcopy(ep.get(), &iov, 1, remotes[which] + at, rkey.rkey(), nullptr),
                    UCS_INPROGRESS);
                ASSERT_TRUE(flushed(here));
            }
        });
    }
    for (std::thread &one : all) {
        one.join();
    }
}

// ---- contexts ------------------------------------------------------------------------------------------------------

TEST(contexts, of_several_owners_are_kept_apart)
{
    local_side                                far_side;
    uint64_t                                  remote = far_side.allocate(1, size);
    entity                                    here;
    unpacked                                  rkey(far_side.key(remote));
    endpoint                                  ep(here, far_side.address());
    std::vector<std::unique_ptr<own_context>> contexts;
    std::vector<std::unique_ptr<gpu_memory>>  memory;
    for (int i = 0; i < 6; ++i) {
        contexts.push_back(std::make_unique<own_context>(i % 2));
        memory.push_back(std::make_unique<gpu_memory>(contexts.back()->get(), size));
    }
    for (size_t i = 0; i < memory.size(); ++i) {
        bytes source = random_bytes(size, 40 + i);
        memory[i]->write(0, source);
        registered reg(here, memory[i]->address(), size);
        uct_iov_t  iov{reinterpret_cast<void *>(memory[i]->address()), size, reg.memh(), 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), nullptr),
                  UCS_INPROGRESS);
        ASSERT_TRUE(flushed(here));
        EXPECT_EQ(difference(source, far_side.read(remote, 0, size)), "") << "context " << i;
    }
}

TEST(contexts, may_hold_the_memory_behind_a_key)
{
    own_context context(1);
    gpu_memory  target(context.get(), size), local(0, size);
    entity      here, owner;
    registered  theirs(owner, target.address(), size), mine(here, local.address(), size);
    unpacked    rkey(theirs.key());
    endpoint    ep(here, owner.address());
    bytes       source = random_bytes(size, 50);
    local.write(0, source);
    uct_iov_t iov{reinterpret_cast<void *>(local.address()), size, mine.memh(), 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, target.address(), rkey.rkey(), nullptr),
              UCS_INPROGRESS);
    ASSERT_TRUE(flushed(here));
    EXPECT_EQ(difference(source, target.read(0, size)), "");
}

TEST(contexts, that_are_destroyed_end_in_an_error)
{
    // A destroyed context is undefined for the real driver (580 takes it, and a run there ended with a damaged heap).
    NVL_NEEDS_EMULATOR();
    local_side  far_side;
    uint64_t    remote = far_side.allocate(1, size);
    entity      here;
    unpacked    rkey(far_side.key(remote));
    endpoint    ep(here, far_side.address());
    own_context context(0);
    gpu_memory  memory(context.get(), size);
    auto        reg = std::make_unique<registered>(here, memory.address(), size);
    uct_iov_t   iov{reinterpret_cast<void *>(memory.address()), size, reg->memh(), 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(flushed(here));

    memory.forget();
    context.destroy();
    expect_log("failed: ");
    completion   done;
    ucs_status_t status = uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), &done.super);
    EXPECT_NE(status, UCS_OK);
    for (int i = 0; status == UCS_INPROGRESS && done.called == 0 && i < 1000000; ++i) {
        here.progress();
    }
    EXPECT_TRUE(status != UCS_INPROGRESS || (done.called == 1 && done.status != UCS_OK));
    reg.reset();

    // The others go on.
    gpu_memory again(0, size);
    bytes      source = random_bytes(size, 60);
    again.write(0, source);
    registered fresh(here, again.address(), size);
    iov = {reinterpret_cast<void *>(again.address()), size, fresh.memh(), 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), nullptr), UCS_INPROGRESS);
    EXPECT_TRUE(flushed(here));
    EXPECT_EQ(difference(source, far_side.read(remote, 0, size)), "");
}

// A program that makes a context for each task, for a long time; more of them than there are places.
TEST(contexts, may_come_and_go_in_any_number)
{
    local_side far_side;
    uint64_t   remote = far_side.allocate(1, size);
    bytes      key    = far_side.key(remote);
    addresses  to     = far_side.address();
    for (unsigned i = 0; i < 150; ++i) {
        own_context context(0);
        gpu_memory  memory(context.get(), size);
        bytes       source = random_bytes(size, i);
        memory.write(0, source);
        entity     here;
        registered reg(here, memory.address(), size);
        unpacked   rkey(key);
        endpoint   ep(here, to);
        uct_iov_t  iov{reinterpret_cast<void *>(memory.address()), size, reg.memh(), 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), nullptr), UCS_INPROGRESS)
            << "context " << i;
        ASSERT_TRUE(flushed(here));
        ASSERT_EQ(difference(source, far_side.read(remote, 0, size)), "") << "context " << i;
    }
}

// The same with an interface and a key that stay, to memory of this process and of another.
static void contexts_come_and_go(entity &here, side &far_side)
{
    uint64_t remote = far_side.allocate(1, size);
    unpacked rkey(far_side.key(remote));
    endpoint ep(here, far_side.address());
    for (unsigned i = 0; i < 150; ++i) {
        // Two at a time, in turns, on either GPU.
        own_context first(0), second(1);
        for (own_context *context : {&first, &second}) {
            gpu_memory memory(context->get(), size);
            bytes      source = random_bytes(size, 2 * i + (context == &second));
            memory.write(0, source);
            registered reg(here, memory.address(), size);
            uct_iov_t  iov{reinterpret_cast<void *>(memory.address()), size, reg.memh(), 0, 1};
            ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), nullptr),
                      UCS_INPROGRESS)
                << "context " << i;
            ASSERT_TRUE(flushed(here));
            ASSERT_EQ(difference(source, far_side.read(remote, 0, size)), "") << "context " << i;
        }
    }
}

// As many at a time as there are numbers, under interfaces that do nothing any more: what they keep of them is in
// nobody's way.
TEST(contexts, may_all_go_before_others_come)
{
    entity        here, idle;
    local_side    far_side(here);
    uint64_t      remote = far_side.allocate(1, size);
    unpacked      rkey(far_side.key(remote));
    endpoint      ep(here, far_side.address()), idle_ep(idle, far_side.address());
    constexpr int many = 50;
    for (int round = 0; round < 3; ++round) {
        std::vector<std::unique_ptr<own_context>> all;
        for (int i = 0; i < many; ++i) {
            all.push_back(std::make_unique<own_context>(0));
            gpu_memory memory(all.back()->get(), size);
            bytes      source = random_bytes(size, static_cast<uint64_t>(100 * round + i));
            memory.write(0, source);
            entity    &by = (round == 0) ? idle : here;
            registered reg(by, memory.address(), size);
            uct_iov_t  iov{reinterpret_cast<void *>(memory.address()), size, reg.memh(), 0, 1};
            ASSERT_EQ(uct_ep_put_zcopy((round == 0) ? idle_ep.get() : ep.get(), &iov, 1, remote,
                                       rkey.rkey(), nullptr),
                      UCS_INPROGRESS)
                << "context " << i << " of round " << round;
            ASSERT_TRUE(flushed(by));
            ASSERT_EQ(difference(source, far_side.read(remote, 0, size)), "");
        }
    }
}

// Each task is begun by the end of the one before, inside of progress, where no engine of an ended context is closed.
class chain_of_contexts {
public:
    chain_of_contexts(entity &here, side &far_side)
        : here_(here),
          remote_(far_side.allocate(1, size)),
          rkey_(far_side.key(remote_)),
          ep_(here, far_side.address())
    {
        done_.super.func  = ended;
        done_.owner       = this;
        again_.super.func = retry;
        again_.owner      = this;
    }

    void next()
    {
        reg_.reset();
        memory_.reset();
        context_ = std::make_unique<own_context>(0);
        memory_  = std::make_unique<gpu_memory>(context_->get(), size);
        reg_     = std::make_unique<registered>(here_, memory_->address(), size);
        post();
    }

    int length = 0;
    int failed = 0;
    int waited = 0;

private:
    template<typename T> struct named {
        T                  super; // first
        chain_of_contexts *owner;
    };

    ucs_status_t try_post()
    {
        uct_iov_t iov{reinterpret_cast<void *>(memory_->address()), size, reg_->memh(), 0, 1};
        done_.super.count  = 1;
        done_.super.status = UCS_OK;
        return uct_ep_put_zcopy(ep_.get(), &iov, 1, remote_, rkey_.rkey(), &done_.super);
    }

    // As UCP does it: again at once where pending_add says BUSY.
    void post()
    {
        for (int trial = 0; trial < 1000; ++trial) {
            const ucs_status_t status = try_post();
            if (status == UCS_INPROGRESS) {
                return;
            }
            if (status != UCS_ERR_NO_RESOURCE) {
                ++failed;
                return;
            }
            if (uct_ep_pending_add(ep_.get(), &again_.super, 0) == UCS_OK) {
                ++waited;
                return;
            }
        }
        ++failed;
    }

    static ucs_status_t retry(uct_pending_req_t *self)
    {
        auto              *chain  = reinterpret_cast<named<uct_pending_req_t> *>(self)->owner;
        const ucs_status_t status = chain->try_post();
        chain->failed += (status != UCS_INPROGRESS) && (status != UCS_ERR_NO_RESOURCE);
        return (status == UCS_INPROGRESS) ? UCS_OK : status;
    }

    static void ended(uct_completion_t *self)
    {
        auto *chain = reinterpret_cast<named<uct_completion_t> *>(self)->owner;
        chain->failed += (self->status != UCS_OK);
        if (++chain->length < 200) {
            chain->next();
        }
    }

    entity                      &here_;
    uint64_t                     remote_;
    unpacked                     rkey_;
    endpoint                     ep_;
    named<uct_completion_t>      done_{};
    named<uct_pending_req_t>     again_{};
    std::unique_ptr<own_context> context_;
    std::unique_ptr<gpu_memory>  memory_;
    std::unique_ptr<registered>  reg_;
};

TEST(contexts, may_come_and_go_within_progress)
{
    entity            here;
    local_side        far_side(here);
    chain_of_contexts chain(here, far_side);
    chain.next();
    auto end = std::chrono::steady_clock::now() + connection::patience();
    while ((chain.length < 200) && (chain.failed == 0) &&
           (std::chrono::steady_clock::now() < end)) {
        here.progress();
    }
    EXPECT_EQ(chain.failed, 0);
    EXPECT_EQ(chain.length, 200);
    EXPECT_GT(chain.waited, 0) << "nobody's number was in the way";
}

TEST(contexts, may_come_and_go_under_one_interface)
{
    entity     here;
    local_side far_side(here);
    contexts_come_and_go(here, far_side);
}

TEST(contexts, may_come_and_go_while_a_peer_stays)
{
    entity    here;
    peer_side far_side;
    contexts_come_and_go(here, far_side);
}

} // namespace nvl::test
