// SPDX-License-Identifier: BSD-3-Clause
//
// See stream.h. The thread is made by the first piece of work, runs detached, and keeps its
// stream alive until the queue is empty: work outlives cuStreamDestroy, as in the driver.
#include "stream.h"

#include <csignal>
#include <pthread.h>
#include <thread>

namespace emu {
namespace {

// Never destroyed: detached workers may use it while the process ends.
struct gate {
    std::mutex              mutex;
    std::condition_variable opened;
    bool                    held  = false;
    unsigned long           quota = 0;
};

gate &the_gate()
{
    static gate *only = new gate;
    return *only;
}

void pass_gate()
{
    gate            &g = the_gate();
    std::unique_lock lock(g.mutex);
    g.opened.wait(lock, [&] { return !g.held || g.quota > 0; });
    if (g.held)
        g.quota--;
}

std::atomic<uint64_t> next_stream_id{16};

} // namespace

void hold_streams(bool on)
{
    gate           &g = the_gate();
    std::lock_guard lock(g.mutex);
    g.held  = on;
    g.quota = 0;
    g.opened.notify_all();
}

bool streams_are_held()
{
    gate           &g = the_gate();
    std::lock_guard lock(g.mutex);
    return g.held;
}

void release_streams(unsigned long pieces)
{
    gate           &g = the_gate();
    std::lock_guard lock(g.mutex);
    g.quota += pieces;
    g.opened.notify_all();
}

bool marker::done() const
{
    return of == nullptr || of->done(seq);
}

void marker::wait() const
{
    if (of != nullptr)
        of->wait(seq);
}

marker marker::never()
{
    return {std::make_shared<stream>(nullptr, nullptr, 0, 0), 1};
}

stream::stream(std::shared_ptr<context> owner_context, CUstream handle_value, unsigned flag_bits,
               int priority_value)
    : owner(owner_context),
      handle(handle_value),
      flags(flag_bits),
      priority(priority_value),
      id(next_stream_id++)
{
}

stream::~stream() = default;

marker stream::submit(std::function<void()> work, std::vector<marker> after)
{
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), std::move(after)});
    submitted_++;
    if (!has_thread_) {
        has_thread_ = true;
        // The program's signal handlers must not run on our threads.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread([self = shared_from_this()] { self->run_worker(); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    work_added_.notify_one();
    return {shared_from_this(), submitted_};
}

marker stream::last()
{
    std::lock_guard lock(mutex_);
    return {shared_from_this(), submitted_};
}

void stream::wait(uint64_t seq)
{
    std::unique_lock lock(mutex_);
    work_done_.wait(lock, [&] { return completed_.load() >= seq; });
}

void stream::close()
{
    std::lock_guard lock(mutex_);
    closed_ = true;
    work_added_.notify_one();
}

void stream::run_worker()
{
    pthread_setname_np(pthread_self(), "emu stream");
    for (;;) {
        work_item item;
        {
            std::unique_lock lock(mutex_);
            work_added_.wait(lock, [&] { return !queue_.empty() || closed_; });
            if (queue_.empty())
                return;
            item = std::move(queue_.front());
            queue_.pop_front();
        }
        pass_gate();
        for (marker &point : item.after)
            point.wait();
        item.run();
        item = {}; // what it held is given back before anybody sees it complete
        std::lock_guard lock(mutex_);
        completed_.fetch_add(1, std::memory_order_release);
        work_done_.notify_all();
    }
}

} // namespace emu
