// SPDX-License-Identifier: BSD-3-Clause
//
// Sections of driver_calls: copies, streams, events, captures, launches, and stale handles.
#include "driver_calls.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace calls {
namespace {

CUdeviceptr number(const void *pointer)
{
    return reinterpret_cast<CUdeviceptr>(pointer);
}

void copies()
{
    start(0);
    CUdeviceptr a = allocate(1 << 16), b = allocate(1 << 16);
    CUstream    stream   = make_stream();
    void       *pinned   = nullptr;
    char        text[64] = "abc", back[64] = "";
    must("host alloc", CU(cuMemHostAlloc)(&pinned, 1 << 16, 0));
    report("HtoD", CU(cuMemcpyHtoD_v2)(a, text, 4));
    report("DtoD", CU(cuMemcpyDtoD_v2)(b, a, 4));
    report("DtoH", CU(cuMemcpyDtoH_v2)(back, b, 4));
    report_value("bytes are equal", strcmp(text, back) == 0);
    report("any", CU(cuMemcpy)(number(back), a, 4));
    report("any host to host", CU(cuMemcpy)(number(back), number(text), 4));
    report("async", CU(cuMemcpyAsync)(b, a, 1 << 16, stream));
    report("async to pinned", CU(cuMemcpyAsync)(number(pinned), a, 1 << 16, stream));
    report("async from pinned", CU(cuMemcpyAsync)(a, number(pinned), 1 << 16, stream));
    report("async 0 bytes", CU(cuMemcpyAsync)(b, a, 0, stream));
    report("DtoD from 0", CU(cuMemcpyDtoD_v2)(b, 0, 16));
    report("DtoD too long", CU(cuMemcpyDtoD_v2)(b, a, 1ull << 33));
    report("HtoD to host", CU(cuMemcpyHtoD_v2)(number(back), text, 4));
    report("DtoH from host", CU(cuMemcpyDtoH_v2)(back, number(text), 4));
    report("HtoD from device", CU(cuMemcpyHtoD_v2)(a, reinterpret_cast<void *>(b), 4));
    report("DtoHAsync", CU(cuMemcpyDtoHAsync_v2)(pinned, a, 64, stream));
    report("HtoDAsync", CU(cuMemcpyHtoDAsync_v2)(a, pinned, 64, stream));
    report("DtoDAsync", CU(cuMemcpyDtoDAsync_v2)(a, b, 64, stream));
    report("synchronize", CU(cuStreamSynchronize)(stream));
    must("free", CU(cuMemFree_v2)(b));
    report("DtoD to freed", CU(cuMemcpyDtoD_v2)(b, a, 16));
}

// Each in its section: a real driver may touch the address by the processor.
void copy_from_null()
{
    start(0);
    report("HtoD", CU(cuMemcpyHtoD_v2)(allocate(4096), nullptr, 16));
}

void copy_to_null()
{
    start(0);
    report("async", CU(cuMemcpyAsync)(0, allocate(4096), 16, make_stream()));
}

void fills()
{
    start(0);
    CUdeviceptr   a       = allocate(1 << 16);
    unsigned char back[8] = {};
    report("D8", CU(cuMemsetD8_v2)(a, 0x5a, 100));
    report("D16", CU(cuMemsetD16_v2)(a, 0x1234, 50));
    report("D32", CU(cuMemsetD32_v2)(a + 4, 0x01020304, 1));
    report("D16 odd address", CU(cuMemsetD16_v2)(a + 1, 0x1234, 2));
    report("D32 odd address", CU(cuMemsetD32_v2)(a + 2, 0x1234, 2));
    report("D8 nothing", CU(cuMemsetD8_v2)(a, 1, 0));
    report("D8 to 0", CU(cuMemsetD8_v2)(0, 1, 16));
    report("D8 to host", CU(cuMemsetD8_v2)(number(back), 1, 8));
    report("D8Async", CU(cuMemsetD8Async)(a + 7, 9, 1, nullptr));
    report("read back", CU(cuMemcpyDtoH_v2)(back, a, 8));
    report_value("bytes", (back[0] << 16) | (back[4] << 8) | back[7]);
}

void boxes()
{
    start(0);
    CUdeviceptr   a = allocate(1 << 16);
    char          from[64], to[64] = {};
    CUDA_MEMCPY2D copy{};
    for (int i = 0; i < 64; i++)
        from[i] = static_cast<char>(i);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost       = from;
    copy.srcPitch      = 16;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice     = a;
    copy.dstPitch      = 512;
    copy.WidthInBytes  = 4;
    copy.Height        = 4;
    report("2D in", CU(cuMemcpy2D_v2)(&copy));
    CUDA_MEMCPY2D back = copy;
    back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    back.srcDevice     = a;
    back.srcPitch      = 512;
    back.dstMemoryType = CU_MEMORYTYPE_HOST;
    back.dstHost       = to;
    back.dstPitch      = 4;
    report("2D out", CU(cuMemcpy2D_v2)(&back));
    report_value("last byte", to[15]);
    copy.srcPitch = 2;
    report("pitch below width", CU(cuMemcpy2D_v2)(&copy));
    copy.srcPitch      = 16;
    copy.srcMemoryType = static_cast<CUmemorytype>(77);
    report("memory type 77", CU(cuMemcpy2D_v2)(&copy));
    report("null", CU(cuMemcpy2D_v2)(nullptr));
}

void streams()
{
    start(0);
    CUstream  s        = nullptr;
    unsigned  flags    = 0;
    int       priority = 7;
    CUcontext ctx      = nullptr;
    report("create", CU(cuStreamCreate)(&s, CU_STREAM_DEFAULT));
    report("create null", CU(cuStreamCreate)(nullptr, 0));
    report("create flags 64", CU(cuStreamCreate)(&s, 64));
    report("create priority -1", CU(cuStreamCreateWithPriority)(&s, CU_STREAM_NON_BLOCKING, -1));
    report("get priority", CU(cuStreamGetPriority)(s, &priority));
    report_value("priority", priority);
    report("create priority 1000", CU(cuStreamCreateWithPriority)(&s, 0, 1000));
    must("get priority", CU(cuStreamGetPriority)(s, &priority));
    report_value("priority 1000 becomes", priority);
    report("get flags", CU(cuStreamGetFlags)(s, &flags));
    report("get flags null", CU(cuStreamGetFlags)(s, nullptr));
    report("get context", CU(cuStreamGetCtx)(s, &ctx));
    report("get context of 0", CU(cuStreamGetCtx)(nullptr, &ctx));
    report("query", CU(cuStreamQuery)(s));
    report("query 0", CU(cuStreamQuery)(nullptr));
    report("query legacy", CU(cuStreamQuery)(CU_STREAM_LEGACY));
    report("query per thread", CU(cuStreamQuery)(CU_STREAM_PER_THREAD));
    report("synchronize", CU(cuStreamSynchronize)(s));
    report("synchronize 0", CU(cuStreamSynchronize)(nullptr));
    report("destroy 0", CU(cuStreamDestroy_v2)(nullptr));
    report("host function null", CU(cuLaunchHostFunc)(s, nullptr, nullptr));
    report("callback null", CU(cuStreamAddCallback)(s, nullptr, nullptr, 0));
    report("destroy", CU(cuStreamDestroy_v2)(s));
}

void events()
{
    start(0);
    CUevent  e = nullptr, f = nullptr, untimed = nullptr;
    CUstream s  = make_stream();
    float    ms = -1;
    report("create", CU(cuEventCreate)(&e, CU_EVENT_DEFAULT));
    report("create null", CU(cuEventCreate)(nullptr, 0));
    report("create flags 64", CU(cuEventCreate)(&f, 64));
    report("create interprocess timed", CU(cuEventCreate)(&f, CU_EVENT_INTERPROCESS));
    report("create untimed", CU(cuEventCreate)(&untimed, CU_EVENT_DISABLE_TIMING));
    report("query unrecorded", CU(cuEventQuery)(e));
    report("synchronize unrecorded", CU(cuEventSynchronize)(e));
    report("wait for unrecorded", CU(cuStreamWaitEvent)(s, e, 0));
    must("create", CU(cuEventCreate)(&f, CU_EVENT_DEFAULT));
    report("elapsed unrecorded", CU(cuEventElapsedTime_v2)(&ms, e, f));
    report("record", CU(cuEventRecord)(e, s));
    report("record second", CU(cuEventRecord)(f, s));
    report("record untimed", CU(cuEventRecord)(untimed, s));
    report("wait", CU(cuStreamWaitEvent)(s, e, 0));
    report("wait flags 64", CU(cuStreamWaitEvent)(s, e, 64));
    report("synchronize", CU(cuEventSynchronize)(f));
    report("query", CU(cuEventQuery)(f));
    report("elapsed", CU(cuEventElapsedTime_v2)(&ms, e, f));
    report("elapsed null", CU(cuEventElapsedTime_v2)(nullptr, e, f));
    report("synchronize untimed", CU(cuEventSynchronize)(untimed));
    report("elapsed untimed", CU(cuEventElapsedTime_v2)(&ms, e, untimed));
    report("record null event", CU(cuEventRecord)(nullptr, s));
    report("query null event", CU(cuEventQuery)(nullptr));
    report("destroy", CU(cuEventDestroy_v2)(e));
    report("destroy null", CU(cuEventDestroy_v2)(nullptr));
}

void events_of_two_contexts()
{
    CUcontext first = start(0), second = nullptr;
    CUevent   e     = nullptr;
    CUstream  other = nullptr;
    must("event", CU(cuEventCreate)(&e, 0));
    must("context", CU(cuCtxCreate_v2)(&second, 0, 0));
    must("stream", CU(cuStreamCreate)(&other, 0));
    report("record in stream of another context", CU(cuEventRecord)(e, other));
    report("query from another context", CU(cuEventQuery)(e));
    report("synchronize from another context", CU(cuEventSynchronize)(e));
    must("set", CU(cuCtxSetCurrent)(first));
    report("stream of another context: record", CU(cuEventRecord)(e, other));
    report("stream of another context: synchronize", CU(cuStreamSynchronize)(other));
    report("stream of another context: query", CU(cuStreamQuery)(other));
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    report("stream of another context: copy", CU(cuMemcpyAsync)(a, b, 4096, other));
    report("stream of another context: fill", CU(cuMemsetD8Async)(a, 1, 4096, other));
    report("stream of another context: after", CU(cuStreamSynchronize)(other));
}

void handles_without_context()
{
    start(0);
    CUevent     e = nullptr;
    CUstream    s = make_stream();
    CUdeviceptr a = allocate(4096), b = allocate(4096);
    int         type = 0;
    must("event", CU(cuEventCreate)(&e, 0));
    must("none", CU(cuCtxSetCurrent)(nullptr));
    report("record", CU(cuEventRecord)(e, s));
    report("synchronize event", CU(cuEventSynchronize)(e));
    report("query event", CU(cuEventQuery)(e));
    report("wait event", CU(cuStreamWaitEvent)(s, e, 0));
    report("synchronize stream first", CU(cuStreamSynchronize)(s));
    report("query stream", CU(cuStreamQuery)(s));
    report("copy", CU(cuMemcpyAsync)(a, b, 4096, s));
    report("copy DtoD", CU(cuMemcpyDtoDAsync_v2)(a, b, 4096, s));
    report("fill", CU(cuMemsetD8Async)(a, 1, 4096, s));
    report("host function", CU(cuLaunchHostFunc)(
                                s, [](void *) {}, nullptr));
    report("synchronize stream", CU(cuStreamSynchronize)(s));
    report("pointer attribute",
           CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
    report("address range", CU(cuMemGetAddressRange_v2)(&b, nullptr, a));
    report("ipc handle", [&] {
        CUipcMemHandle handle;
        return CU(cuIpcGetMemHandle)(&handle, a);
    }());
    report("destroy event", CU(cuEventDestroy_v2)(e));
    report("destroy stream", CU(cuStreamDestroy_v2)(s));
    report("free", CU(cuMemFree_v2)(a));
}

std::atomic<int> code_in_callback{-1};

void host_functions()
{
    start(0);
    CUstream s = make_stream();
    report("launch", CU(cuLaunchHostFunc)(
                         s,
                         [](void *) {
                             CUdeviceptr p    = 0;
                             code_in_callback = CU(cuMemAlloc_v2)(&p, 4096);
                         },
                         nullptr));
    report("synchronize", CU(cuStreamSynchronize)(s));
    report_value("alloc inside", code_in_callback);
    code_in_callback = -1;
    report("callback",
           CU(cuStreamAddCallback)(
               s, [](CUstream, CUresult code, void *) { code_in_callback = code; }, nullptr, 0));
    report("callback flags 1", CU(cuStreamAddCallback)(
                                   s, [](CUstream, CUresult, void *) {}, nullptr, 1));
    report("synchronize again", CU(cuStreamSynchronize)(s));
    report_value("code told", code_in_callback);
}

void values()
{
    start(0);
    CUstream    s    = make_stream();
    CUdeviceptr a    = allocate(4096);
    cuuint32_t  seen = 0;
    report("write 32", CU(cuStreamWriteValue32_v2)(s, a, 7, 0));
    report("write 64", CU(cuStreamWriteValue64_v2)(s, a + 8, 7, 0));
    report("write misaligned", CU(cuStreamWriteValue32_v2)(s, a + 2, 7, 0));
    report("write to 0", CU(cuStreamWriteValue32_v2)(s, 0, 7, 0));
    report("write to the stack", CU(cuStreamWriteValue32_v2)(s, number(&seen), 7, 0));
    report("wait equal", CU(cuStreamWaitValue32_v2)(s, a, 7, CU_STREAM_WAIT_VALUE_EQ));
    report("wait at least", CU(cuStreamWaitValue32_v2)(s, a, 5, CU_STREAM_WAIT_VALUE_GEQ));
    report("wait and", CU(cuStreamWaitValue32_v2)(s, a, 1, CU_STREAM_WAIT_VALUE_AND));
    report("wait flags 64", CU(cuStreamWaitValue32_v2)(s, a, 1, 64));
    report("synchronize", CU(cuStreamSynchronize)(s));
    must("read", CU(cuMemcpyDtoH_v2)(&seen, a, 4));
    report_value("value", seen);
    report("batch of none", CU(cuStreamBatchMemOp_v2)(s, 0, nullptr, 0));
}

void capturing()
{
    start(0);
    CUstream              s = make_stream(), t = make_stream();
    CUgraph               graph  = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUdeviceptr           p      = 0;
    CUdeviceptr           a = allocate(4096), b = allocate(4096);
    report("status", CU(cuStreamIsCapturing)(s, &status));
    report_value("status", status);
    report("end uncaptured", CU(cuStreamEndCapture)(s, &graph));
    report("begin legacy", CU(cuStreamBeginCapture_v2)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report("begin mode 9", CU(cuStreamBeginCapture_v2)(s, static_cast<CUstreamCaptureMode>(9)));
    report("begin", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report("begin again", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    must("status", CU(cuStreamIsCapturing)(s, &status));
    report_value("status begun", status);
    report("copy captured", CU(cuMemcpyAsync)(a, b, 4096, s));
    report("end", CU(cuStreamEndCapture)(s, &graph));
    report("destroy graph", CU(cuGraphDestroy)(graph));

    must("begin", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report("alloc while capturing", CU(cuMemAlloc_v2)(&p, 4096));
    must("status", CU(cuStreamIsCapturing)(s, &status));
    report_value("status after alloc", status);
    report("end invalidated", CU(cuStreamEndCapture)(s, &graph));

    must("begin", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report("query captured", CU(cuStreamQuery)(s));
    report("end after query", CU(cuStreamEndCapture)(s, &graph));
    must("begin", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report("synchronize other", CU(cuStreamSynchronize)(t));
    report("query other", CU(cuStreamQuery)(t));
    report("end after other", CU(cuStreamEndCapture)(s, &graph));
    must("begin", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    report("synchronize context", CU(cuCtxSynchronize)());
    report("end after context", CU(cuStreamEndCapture)(s, &graph));

    must("begin", CU(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    report("exchange", CU(cuThreadExchangeStreamCaptureMode)(&mode));
    report_value("mode before", mode);
    report("alloc relaxed", CU(cuMemAlloc_v2)(&p, 4096));
    report("free relaxed", CU(cuMemFree_v2)(p));
    report("end relaxed", CU(cuStreamEndCapture)(s, &graph));
    must("exchange", CU(cuThreadExchangeStreamCaptureMode)(&mode));
    report_value("mode was", mode);
    mode = static_cast<CUstreamCaptureMode>(9);
    report("exchange mode 9", CU(cuThreadExchangeStreamCaptureMode)(&mode));
}

void modules()
{
    start(0);
    CUmodule   module   = nullptr;
    CUfunction function = nullptr;
    CUlibrary  library  = nullptr;
    report("load null", CU(cuModuleLoadData)(&module, nullptr));
    report("load null module", CU(cuModuleLoadData)(nullptr, "x"));
    report("load no file", CU(cuModuleLoad)(&module, "/no/such/file.cubin"));
    report("library null",
           CU(cuLibraryLoadData)(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0));
    report("launch null",
           CU(cuLaunchKernel)(nullptr, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
    report("function null name", CU(cuModuleGetFunction)(&function, nullptr, nullptr));
}

void batches()
{
    start(0);
    int version = 0;
    must("version", CU(cuDriverGetVersion)(&version));
    void                          *found = nullptr;
    CUdriverProcAddressQueryResult status;
    CUresult code = CU(cuGetProcAddress_v2)("cuMemcpyBatchAsync", &found, 12080,
                                            CU_GET_PROC_ADDRESS_DEFAULT, &status);
    if (code != CUDA_SUCCESS || found == nullptr) {
        report("absent", code);
        return;
    }
    auto               copy     = reinterpret_cast<decltype(&::cuMemcpyBatchAsync)>(found);
    CUstream           s        = make_stream();
    CUdeviceptr        to[2]    = {allocate(4096), allocate(4096)};
    CUdeviceptr        from[2]  = {allocate(4096), allocate(4096)};
    size_t             sizes[2] = {4096, 100}, first = 0, fail = 77;
    CUmemcpyAttributes attr{};
    attr.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    report("two", copy(to, from, sizes, 2, &attr, &first, 1, &fail, s));
    report("none", copy(to, from, sizes, 0, &attr, &first, 1, &fail, s));
    report("stream 0", copy(to, from, sizes, 2, &attr, &first, 1, &fail, nullptr));
    report("no attributes", copy(to, from, sizes, 2, &attr, &first, 0, &fail, s));
    attr.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    report("order invalid", copy(to, from, sizes, 2, &attr, &first, 1, &fail, s));
    attr.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    first               = 1;
    report("first index 1", copy(to, from, sizes, 2, &attr, &first, 1, &fail, s));
    first    = 0;
    sizes[1] = 0;
    report("size 0", copy(to, from, sizes, 2, &attr, &first, 1, &fail, s));
    report("synchronize", CU(cuStreamSynchronize)(s));
}

void destroyed_stream_finishes()
{
    start(0);
    CUstream    s = make_stream();
    CUdeviceptr a = allocate(1 << 20), b = allocate(1 << 20);
    CUevent     e = nullptr;
    must("event", CU(cuEventCreate)(&e, 0));
    report("copy", CU(cuMemcpyAsync)(a, b, 1 << 20, s));
    report("record", CU(cuEventRecord)(e, s));
    report("destroy", CU(cuStreamDestroy_v2)(s));
    report("event", CU(cuEventSynchronize)(e));
}

} // namespace

const section work_sections[] = {
    {"copies", copies, false},
    {"copy_from_null", copy_from_null, false},
    {"copy_to_null", copy_to_null, false},
    {"fills", fills, false},
    {"boxes", boxes, false},
    {"streams", streams, false},
    {"events", events, false},
    {"events_of_two_contexts", events_of_two_contexts, false},
    {"handles_without_context", handles_without_context, false},
    {"host_functions", host_functions, false},
    {"values", values, false},
    {"capturing", capturing, false},
    {"modules", modules, false},
    {"batches", batches, false},
    {"destroyed_stream_finishes", destroyed_stream_finishes, false},
    {nullptr, nullptr, false},
};

} // namespace calls
