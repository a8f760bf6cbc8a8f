// SPDX-License-Identifier: BSD-3-Clause
//
// The state of stream capture: which calls it forbids, and to whom. What is captured is dropped:
// graphs are not emulated, cuGraphInstantiate says so by name.
#include "driver.h"

#include <algorithm>

namespace emu {
namespace {

struct capture {
    std::shared_ptr<stream> of;
    CUstreamCaptureMode     mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id         thread;
    uint64_t                id = 0;
};

struct capture_list {
    std::mutex           mutex;
    std::vector<capture> active;
    std::atomic<size_t>  count{0}; // so that nobody takes the lock for nothing
    uint64_t             last_id = 0;
    std::set<CUgraph>    graphs;
};

capture_list &captures()
{
    static capture_list *only = new capture_list;
    return *only;
}

CUstreamCaptureMode &mode_of_thread()
{
    static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mode;
}

bool is_mode(CUstreamCaptureMode mode)
{
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
           mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

// Does this capture forbid the calling thread an unsafe call?
bool forbids(const capture &c)
{
    if (mode_of_thread() == CU_STREAM_CAPTURE_MODE_RELAXED ||
        c.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (c.thread == std::this_thread::get_id())
        return true;
    return mode_of_thread() == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           c.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

capture *find_capture(stream &s) // under the lock
{
    auto &active = captures().active;
    auto  found  = std::find_if(active.begin(), active.end(),
                                [&](const capture &c) { return c.of.get() == &s; });
    return found == active.end() ? nullptr : &*found;
}

} // namespace

CUresult refuse_while_capturing()
{
    if (captures().count.load() == 0)
        return CUDA_SUCCESS;
    std::lock_guard lock(captures().mutex);
    CUresult        code = CUDA_SUCCESS;
    for (capture &c : captures().active) {
        if (forbids(c)) {
            c.of->capture_status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            code                 = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return code;
}

CUresult refuse_on_capturing(stream &s)
{
    if (!s.is_capturing())
        return CUDA_SUCCESS;
    s.capture_status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult refuse_legacy_while_capturing(const context &ctx)
{
    if (captures().count.load() == 0)
        return CUDA_SUCCESS;
    std::lock_guard lock(captures().mutex);
    for (capture &c : captures().active) {
        if ((c.of->flags & CU_STREAM_NON_BLOCKING) == 0 && c.of->owner.lock().get() == &ctx &&
            c.mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
            c.of->capture_status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return CUDA_SUCCESS;
}

void forget_capture(stream &s)
{
    if (captures().count.load() == 0)
        return;
    std::lock_guard lock(captures().mutex);
    auto           &active = captures().active;
    active.erase(std::remove_if(active.begin(), active.end(),
                                [&](const capture &c) { return c.of.get() == &s; }),
                 active.end());
    captures().count = active.size();
}

} // namespace emu

using namespace emu;

static CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_REQUIRE(handle != nullptr && handle != CU_STREAM_LEGACY,
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(is_mode(mode), CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(!s->is_capturing(), CUDA_ERROR_ILLEGAL_STATE);
    capture_list   &list = captures();
    std::lock_guard lock(list.mutex);
    capture         made;
    made.of     = s;
    made.mode   = mode;
    made.thread = std::this_thread::get_id();
    made.id     = ++list.last_id;
    list.active.push_back(made);
    list.count        = list.active.size();
    s->capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
{
    return begin_capture(stream, mode);
}

EMU_API(cuStreamEndCapture, (CUstream handle, CUgraph *graph), (handle, graph))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_REQUIRE(graph != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(s->is_capturing(), CUDA_ERROR_ILLEGAL_STATE);
    bool valid = s->capture_status.load() == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    {
        std::lock_guard lock(captures().mutex);
        capture        *c = find_capture(*s);
        EMU_REQUIRE(c != nullptr, CUDA_ERROR_ILLEGAL_STATE);
        EMU_REQUIRE(c->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
                        c->thread == std::this_thread::get_id(),
                    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    forget_capture(*s);
    s->capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
    *graph            = nullptr;
    EMU_REQUIRE(valid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    *graph = make_handle<CUgraph>(handle_kind::graph);
    std::lock_guard lock(captures().mutex);
    captures().graphs.insert(*graph);
    return CUDA_SUCCESS;
}

EMU_API(cuGraphDestroy, (CUgraph graph), (graph))
{
    std::lock_guard lock(captures().mutex);
    return captures().graphs.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EMU_API(cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus *status), (handle, status))
{
    EMU_REQUIRE(status != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *status = s->capture_status.load();
    return CUDA_SUCCESS;
}

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    EMU_REQUIRE(status != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    *status = s->capture_status.load();
    std::lock_guard lock(captures().mutex);
    capture        *c = find_capture(*s);
    if (id != nullptr && c != nullptr)
        *id = c->id;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamGetCaptureInfo_v2,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **dependencies, size_t *count),
        (stream, status, id, graph, dependencies, count))
{
    EMU_REQUIRE(graph == nullptr && dependencies == nullptr, CUDA_ERROR_NOT_SUPPORTED);
    if (count != nullptr)
        *count = 0;
    return capture_info(stream, status, id);
}

EMU_API(cuStreamGetCaptureInfo_v3,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
         const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
        (stream, status, id, graph, dependencies, edges, count))
{
    EMU_REQUIRE(graph == nullptr && dependencies == nullptr && edges == nullptr,
                CUDA_ERROR_NOT_SUPPORTED);
    if (count != nullptr)
        *count = 0;
    return capture_info(stream, status, id);
}

EMU_API(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode))
{
    EMU_REQUIRE(mode != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::swap(*mode, mode_of_thread());
    return CUDA_SUCCESS;
}
