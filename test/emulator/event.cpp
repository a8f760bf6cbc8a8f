// SPDX-License-Identifier: BSD-3-Clause
//
// Events: a point in a stream's work, and when it was reached. What several processes need to know
// of an interprocess event is in a file that all of them map: the numbers of the last record that
// was asked for and of the last one that was reached.
#include "driver.h"
#include "faults.h"
#include "handle_file.h"
#include "stale.h"

#include <chrono>
#include <cstring>
#include <unistd.h>

using namespace emu;

namespace {

uint64_t now_ns()
{
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

CUresult event_of(CUevent handle, std::shared_ptr<event> *e)
{
    refuse_stale(handle);
    *e = drv().events.find(handle);
    return *e == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult fault_of(const event &e)
{
    auto ctx = e.owner.lock();
    return ctx == nullptr ? CUDA_SUCCESS : static_cast<CUresult>(ctx->fault.load());
}

struct shared_records {
    std::atomic<uint64_t> asked, reached;
};

shared_records &records_of(const backing &file)
{
    return *reinterpret_cast<shared_records *>(file.bytes());
}

bool is_reached(const event &e)
{
    if (e.shared == nullptr)
        return !e.was_recorded || e.recorded.done();
    shared_records &records = records_of(*e.shared);
    return records.reached.load() >= records.asked.load();
}

// As another process may be the one that records, this has to look again and again.
void wait_for_record(const backing &file, uint64_t number)
{
    while (records_of(file).reached.load() < number)
        usleep(50);
}

// The record's piece of work.
std::function<void()> reach(const std::shared_ptr<std::atomic<uint64_t>> &time,
                            const std::shared_ptr<backing>               &shared)
{
    if (shared == nullptr)
        return [time] { time->store(now_ns()); };
    uint64_t number = ++records_of(*shared).asked;
    return [time, shared, number] {
        time->store(now_ns());
        std::atomic<uint64_t> &reached = records_of(*shared).reached;
        uint64_t               before  = reached.load();
        while (before < number && !reached.compare_exchange_weak(before, number)) {
        }
    };
}

// The one flag of a record and of a wait, "external", is for streams that are captured.
bool takes_flags(const stream &s, unsigned flags)
{
    static_assert(int(CU_EVENT_RECORD_EXTERNAL) == int(CU_EVENT_WAIT_EXTERNAL));
    return flags == 0 || (flags == CU_EVENT_RECORD_EXTERNAL && s.is_capturing());
}

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags)
{
    std::shared_ptr<event>   e;
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(event_of(handle, &e));
    EMU_TRY(stream_of(stream_handle, &s, &ctx));
    EMU_REQUIRE(takes_flags(*s, flags), CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(e->context_id == ctx->id, CUDA_ERROR_INVALID_HANDLE);
    auto time = std::make_shared<std::atomic<uint64_t>>(0);
    // Under the event's lock, so that two records of it end in the order of their submission.
    std::lock_guard lock(e->mutex);
    e->recorded = submit_ordered(*ctx, *s, reach(time, e->shared));
    if (fault_of_this_call().lost) {
        e->recorded = marker::never();
        if (e->shared != nullptr)
            ++records_of(*e->shared).asked;
    }
    e->time_ns      = time;
    e->was_recorded = true;
    return CUDA_SUCCESS;
}

} // namespace

EMU_API(cuEventCreate, (CUevent * handle, unsigned int flags), (handle, flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(
        (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) == 0,
        CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE((flags & CU_EVENT_INTERPROCESS) == 0 || (flags & CU_EVENT_DISABLE_TIMING) != 0,
                CUDA_ERROR_INVALID_VALUE);
    auto e        = std::make_shared<event>();
    e->handle     = make_handle<CUevent>(handle_kind::event);
    e->owner      = ctx;
    e->context_id = ctx->id;
    e->flags      = flags;
    if ((flags & CU_EVENT_INTERPROCESS) != 0) {
        e->shared = backing::create(page_size, memory_source::host);
        EMU_REQUIRE(e->shared != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    }
    drv().events.add(e->handle, e);
    *handle = e->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuEventDestroy_v2, (CUevent handle), (handle))
{
    refuse_stale(handle);
    return drv().events.remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

EMU_API(cuEventRecord, (CUevent handle, CUstream stream), (handle, stream))
{
    return record(handle, stream, 0);
}

EMU_API(cuEventRecordWithFlags, (CUevent handle, CUstream stream, unsigned int flags),
        (handle, stream, flags))
{
    EMU_REQUIRE((flags & ~CU_EVENT_RECORD_EXTERNAL) == 0, CUDA_ERROR_INVALID_VALUE);
    return record(handle, stream, flags);
}

EMU_API(cuEventQuery, (CUevent handle), (handle))
{
    std::shared_ptr<event> e;
    EMU_TRY(event_of(handle, &e));
    EMU_TRY(refuse_while_capturing());
    bool done;
    {
        std::lock_guard lock(e->mutex);
        done = is_reached(*e);
    }
    EMU_TRY(fault_of(*e));
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EMU_API(cuEventSynchronize, (CUevent handle), (handle))
{
    std::shared_ptr<event> e;
    EMU_TRY(event_of(handle, &e));
    EMU_TRY(refuse_while_capturing());
    marker point;
    {
        std::lock_guard lock(e->mutex);
        point = e->recorded;
    }
    if (e->shared != nullptr)
        wait_for_record(*e->shared, records_of(*e->shared).asked.load());
    else
        point.wait();
    return fault_of(*e);
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    EMU_REQUIRE(ms != nullptr, CUDA_ERROR_INVALID_HANDLE); // as the real driver says
    std::shared_ptr<event> a, b;
    EMU_TRY(event_of(start, &a));
    EMU_TRY(event_of(end, &b));
    EMU_REQUIRE(((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) == 0, CUDA_ERROR_INVALID_HANDLE);
    uint64_t from = 0, to = 0;
    for (auto &[e, time] : {std::make_pair(a, &from), std::make_pair(b, &to)}) {
        std::lock_guard lock(e->mutex);
        EMU_REQUIRE(e->was_recorded, CUDA_ERROR_INVALID_HANDLE);
        EMU_REQUIRE(e->recorded.done(), CUDA_ERROR_NOT_READY);
        *time = e->time_ns->load();
    }
    *ms = static_cast<float>((static_cast<double>(to) - static_cast<double>(from)) / 1e6);
    return CUDA_SUCCESS;
}

EMU_API(cuEventElapsedTime, (float *ms, CUevent start, CUevent end), (ms, start, end))
{
    return elapsed(ms, start, end);
}

EMU_API(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end), (ms, start, end))
{
    return elapsed(ms, start, end);
}

EMU_API(cuStreamWaitEvent, (CUstream stream_handle, CUevent handle, unsigned int flags),
        (stream_handle, handle, flags))
{
    std::shared_ptr<event>   e;
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(event_of(handle, &e));
    EMU_TRY(stream_of(stream_handle, &s, &ctx));
    EMU_REQUIRE(takes_flags(*s, flags), CUDA_ERROR_INVALID_VALUE);
    marker point;
    {
        std::lock_guard lock(e->mutex);
        point = e->recorded;
    }
    if (std::shared_ptr<backing> shared = e->shared) {
        uint64_t number = records_of(*shared).asked.load();
        submit_ordered(*ctx, *s, [shared, number] { wait_for_record(*shared, number); });
    } else if (point.of != nullptr)
        submit_ordered(*ctx, *s, [] {}, {point});
    return CUDA_SUCCESS;
}

EMU_API(cuIpcGetEventHandle, (CUipcEventHandle * handle, CUevent event_handle),
        (handle, event_handle))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<event> e;
    EMU_TRY(event_of(event_handle, &e));
    EMU_REQUIRE(e->shared != nullptr, CUDA_ERROR_INVALID_HANDLE);
    memory_handle made = handle_of(*e->shared, page_size, handle_purpose::event);
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &made, sizeof(made));
    return CUDA_SUCCESS;
}

EMU_API(cuIpcOpenEventHandle, (CUevent * event_handle, CUipcEventHandle raw), (event_handle, raw))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(event_handle != nullptr, CUDA_ERROR_INVALID_VALUE);
    memory_handle handle;
    memcpy(&handle, &raw, sizeof(handle));
    EMU_REQUIRE(handle.purpose == handle_purpose::event, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(handle.pid != getpid(), CUDA_ERROR_INVALID_CONTEXT);
    auto e    = std::make_shared<event>();
    e->shared = open_file(handle);
    EMU_REQUIRE(e->shared != nullptr, CUDA_ERROR_INVALID_HANDLE);
    e->handle     = make_handle<CUevent>(handle_kind::event);
    e->owner      = ctx;
    e->context_id = ctx->id;
    e->flags      = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    drv().events.add(e->handle, e);
    *event_handle = e->handle;
    return CUDA_SUCCESS;
}
