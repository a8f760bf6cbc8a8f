// SPDX-License-Identifier: BSD-3-Clause
//
// One stream: a thread that does what it was given, in order, some time after it was given.
// Knows nothing of CUDA's handles or rules; those are in stream_api.cpp.
#ifndef NVLINK_EMULATOR_STREAM_H
#define NVLINK_EMULATOR_STREAM_H

#include "cuda_internal.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace emu {

class stream;
struct context;

// A point in a stream's work: everything up to and with the seq-th piece.
struct marker {
    std::shared_ptr<stream> of;
    uint64_t                seq = 0;
    bool                    done() const;
    void                    wait() const;
    static marker           never(); // a point that is not reached
};

class stream : public std::enable_shared_from_this<stream> {
public:
    stream(std::shared_ptr<context> owner, CUstream handle, unsigned flags, int priority);
    ~stream();

    // Appends work that starts after what was appended before and after every marker.
    marker submit(std::function<void()> work, std::vector<marker> after = {});
    marker last();
    bool   done(uint64_t seq) const
    {
        return completed_.load(std::memory_order_acquire) >= seq;
    }
    void wait(uint64_t seq);
    // No more work will come: the thread ends when the queue is empty.
    void close();

    const std::weak_ptr<context> owner;
    const CUstream               handle;
    const unsigned               flags;
    std::atomic<int>             priority;
    const uint64_t               id;
    // What cuStreamSetAttribute has set.
    std::mutex                                  attributes_mutex;
    std::map<CUstreamAttrID, CUstreamAttrValue> attributes;
    // Set by capture.cpp: work that is submitted is recorded, not done.
    std::atomic<CUstreamCaptureStatus> capture_status{CU_STREAM_CAPTURE_STATUS_NONE};
    bool                               is_capturing() const
    {
        return capture_status.load() != CU_STREAM_CAPTURE_STATUS_NONE;
    }

private:
    struct work_item {
        std::function<void()> run;
        std::vector<marker>   after;
    };
    void run_worker();

    mutable std::mutex      mutex_;
    std::condition_variable work_added_;
    std::condition_variable work_done_;
    std::deque<work_item>   queue_;
    uint64_t                submitted_ = 0;
    std::atomic<uint64_t>   completed_{0};
    bool                    has_thread_ = false;
    bool                    closed_     = false;
};

// The gate of emu_hold: pieces of work pass it one by one.
void hold_streams(bool on);
bool streams_are_held();
void release_streams(unsigned long pieces);

} // namespace emu

#endif
