// SPDX-License-Identifier: BSD-3-Clause
//
// Sections of driver_calls: what comes before memory, memory, and what is known about pointers.
#include "driver_calls.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace calls {
namespace {

void before_init()
{
    int         number = 0;
    CUcontext   ctx    = nullptr;
    CUdeviceptr p      = 0;
    const char *text   = nullptr;
    report("cuDeviceGetCount", CU(cuDeviceGetCount)(&number));
    report("cuCtxGetCurrent", CU(cuCtxGetCurrent)(&ctx));
    report("cuMemAlloc", CU(cuMemAlloc_v2)(&p, 4096));
    report("cuDevicePrimaryCtxRetain", CU(cuDevicePrimaryCtxRetain)(&ctx, 0));
    report("cuPointerGetAttribute",
           CU(cuPointerGetAttribute)(&number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096));
    report("cuDriverGetVersion", CU(cuDriverGetVersion)(&number));
    report("cuGetErrorName", CU(cuGetErrorName)(CUDA_ERROR_INVALID_VALUE, &text));
    report("cuInit with flags", CU(cuInit)(1));
    report("cuInit", CU(cuInit)(0));
    report("cuInit again", CU(cuInit)(0));
    report("cuDeviceGetCount after", CU(cuDeviceGetCount)(&number));
}

void device()
{
    must("cuInit", CU(cuInit)(0));
    int         value = 0;
    CUdevice    dev   = 0;
    char        text[64];
    CUuuid      uuid;
    size_t      size  = 0;
    const char *error = nullptr;
    report("cuDeviceGet -1", CU(cuDeviceGet)(&dev, -1));
    report("cuDeviceGet 1000", CU(cuDeviceGet)(&dev, 1000));
    report("cuDeviceGet null", CU(cuDeviceGet)(nullptr, 0));
    report("cuDeviceGetCount null", CU(cuDeviceGetCount)(nullptr));
    report("cuDeviceGetAttribute",
           CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    report_value("unified addressing", value);
    report("cuDeviceGetAttribute device 1000",
           CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1000));
    report("cuDeviceGetAttribute 0",
           CU(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(0), 0));
    report("cuDeviceGetAttribute 100000",
           CU(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(100000), 0));
    report("cuDeviceGetAttribute null",
           CU(cuDeviceGetAttribute)(nullptr, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0));
    report("cuDeviceGetName", CU(cuDeviceGetName)(text, sizeof(text), 0));
    report("cuDeviceGetName null", CU(cuDeviceGetName)(nullptr, 10, 0));
    report("cuDeviceGetName device 1000", CU(cuDeviceGetName)(text, sizeof(text), 1000));
    report("cuDeviceGetUuid", CU(cuDeviceGetUuid_v2)(&uuid, 0));
    report("cuDeviceGetUuid device 1000", CU(cuDeviceGetUuid_v2)(&uuid, 1000));
    report("cuDeviceTotalMem", CU(cuDeviceTotalMem_v2)(&size, 0));
    report("cuDeviceTotalMem null", CU(cuDeviceTotalMem_v2)(nullptr, 0));
    report("cuDeviceGetPCIBusId", CU(cuDeviceGetPCIBusId)(text, sizeof(text), 0));
    report("cuDeviceGetPCIBusId length 5", CU(cuDeviceGetPCIBusId)(text, 5, 0));
    must("cuDeviceGetPCIBusId", CU(cuDeviceGetPCIBusId)(text, sizeof(text), 0));
    report("cuDeviceGetByPCIBusId", CU(cuDeviceGetByPCIBusId)(&dev, text));
    report("cuDeviceGetByPCIBusId wrong", CU(cuDeviceGetByPCIBusId)(&dev, "00ff:fe:1f.0"));
    report("cuDeviceGetByPCIBusId words", CU(cuDeviceGetByPCIBusId)(&dev, "no address"));
    report("cuGetErrorName 0", CU(cuGetErrorName)(CUDA_SUCCESS, &error));
    report("cuGetErrorName 12345", CU(cuGetErrorName)(static_cast<CUresult>(12345), &error));
    report("cuGetErrorString 999", CU(cuGetErrorString)(CUDA_ERROR_UNKNOWN, &error));
}

void look_up(const char *label, const char *name, int version, cuuint64_t flags)
{
    void                          *function = nullptr;
    CUdriverProcAddressQueryResult status   = CU_GET_PROC_ADDRESS_SUCCESS;
    CUresult code = CU(cuGetProcAddress_v2)(name, &function, version, flags, &status);
    report(label, code);
    char line[128];
    snprintf(line, sizeof(line), "%s status", label);
    report_value(line, status);
    snprintf(line, sizeof(line), "%s found", label);
    report_value(line, function != nullptr);
}

void proc_address()
{
    must("cuInit", CU(cuInit)(0));
    void *a = nullptr, *b = nullptr;
    look_up("cuMemAlloc", "cuMemAlloc", 12020, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("cuMemAlloc_v2", "cuMemAlloc_v2", 12020, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("unknown", "cuNoSuchFunction", 12020, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("cuMemcpyBatchAsync 12.2", "cuMemcpyBatchAsync", 12020, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("cuMemcpyBatchAsync 12.8", "cuMemcpyBatchAsync", 12080, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("version 20.0", "cuMemAlloc", 20000, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("version 0", "cuMemAlloc", 0, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("version 1.0", "cuInit", 1000, CU_GET_PROC_ADDRESS_DEFAULT);
    look_up("flags 8", "cuMemAlloc", 12020, 8);
    look_up("per thread", "cuMemcpyAsync", 12020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    report("null status",
           CU(cuGetProcAddress_v2)("cuInit", &a, 12020, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
    must("12.0", CU(cuGetProcAddress_v2)("cuCtxGetDevice", &a, 12000, CU_GET_PROC_ADDRESS_DEFAULT,
                                         nullptr));
    report_value("cuCtxGetDevice 12.0 is the exported one",
                 a == reinterpret_cast<void *>(CU(cuCtxGetDevice)));
    must("legacy", CU(cuGetProcAddress_v2)("cuMemcpyAsync", &a, 12020,
                                           CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr));
    must("per thread",
         CU(cuGetProcAddress_v2)("cuMemcpyAsync", &b, 12020,
                                 CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr));
    report_value("per-thread form differs", a != b);
}

void no_context()
{
    must("cuInit", CU(cuInit)(0));
    CUdeviceptr        p      = 0;
    CUcontext          ctx    = nullptr;
    CUdevice           dev    = 0;
    CUstream           stream = nullptr;
    CUevent            event  = nullptr;
    void              *host   = nullptr;
    size_t             size   = 0;
    unsigned long long id     = 0;
    int                least = 0, greatest = 0;
    CUmodule           module = nullptr;
    CUipcMemHandle     handle{};
    char               bytes[64] = {};
    report("cuCtxGetCurrent", CU(cuCtxGetCurrent)(&ctx));
    report_value("current context is null", ctx == nullptr);
    report("cuCtxGetDevice", CU(cuCtxGetDevice)(&dev));
    report("cuCtxGetId null", CU(cuCtxGetId)(nullptr, &id));
    report("cuCtxPopCurrent", CU(cuCtxPopCurrent_v2)(&ctx));
    report("cuCtxSetCurrent null", CU(cuCtxSetCurrent)(nullptr));
    report("cuCtxPushCurrent null", CU(cuCtxPushCurrent_v2)(nullptr));
    report("cuCtxSynchronize", CU(cuCtxSynchronize)());
    report("cuCtxGetStreamPriorityRange", CU(cuCtxGetStreamPriorityRange)(&least, &greatest));
    report("cuMemAlloc", CU(cuMemAlloc_v2)(&p, 4096));
    report("cuMemFree 0", CU(cuMemFree_v2)(0));
    report("cuMemAllocManaged", CU(cuMemAllocManaged)(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    report("cuMemHostAlloc", CU(cuMemHostAlloc)(&host, 4096, 0));
    report("cuMemGetInfo", CU(cuMemGetInfo_v2)(&size, &size));
    report("cuStreamCreate", CU(cuStreamCreate)(&stream, 0));
    report("cuEventCreate", CU(cuEventCreate)(&event, 0));
    report("cuStreamSynchronize 0", CU(cuStreamSynchronize)(nullptr));
    report("cuStreamQuery 0", CU(cuStreamQuery)(nullptr));
    report("cuMemcpyAsync",
           CU(cuMemcpyAsync)(reinterpret_cast<CUdeviceptr>(bytes),
                             reinterpret_cast<CUdeviceptr>(bytes + 32), 8, nullptr));
    report("cuIpcOpenMemHandle",
           CU(cuIpcOpenMemHandle_v2)(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    report("cuIpcCloseMemHandle", CU(cuIpcCloseMemHandle)(4096));
    report("cuModuleLoadData", CU(cuModuleLoadData)(&module, bytes));
    report("cuPointerGetAttribute of the stack",
           CU(cuPointerGetAttribute)(&dev, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     reinterpret_cast<CUdeviceptr>(bytes)));
}

void context()
{
    must("cuInit", CU(cuInit)(0));
    CUcontext          a = nullptr, b = nullptr, seen = nullptr;
    unsigned           flags  = 0;
    int                active = 0;
    CUdevice           dev    = 0;
    unsigned long long id_a = 0, id_b = 0;
    report("state before", CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    report_value("active before", active);
    report("release unretained", CU(cuDevicePrimaryCtxRelease_v2)(0));
    report("retain null", CU(cuDevicePrimaryCtxRetain)(nullptr, 0));
    report("retain device 1000", CU(cuDevicePrimaryCtxRetain)(&a, 1000));
    report("retain", CU(cuDevicePrimaryCtxRetain)(&a, 0));
    report("retain again", CU(cuDevicePrimaryCtxRetain)(&b, 0));
    report_value("same handle", a == b);
    report("destroy primary", CU(cuCtxDestroy_v2)(a));
    report("set current", CU(cuCtxSetCurrent)(a));
    report("get device", CU(cuCtxGetDevice)(&dev));
    report("set flags of active", CU(cuDevicePrimaryCtxSetFlags_v2)(0, CU_CTX_SCHED_SPIN));
    report("set flags wrong", CU(cuDevicePrimaryCtxSetFlags_v2)(0, 0x8000));
    report("release", CU(cuDevicePrimaryCtxRelease_v2)(0));
    report("get id", CU(cuCtxGetId)(a, &id_a));
    report("create", CU(cuCtxCreate_v2)(&b, CU_CTX_SCHED_AUTO, 0));
    report("get id of created", CU(cuCtxGetId)(b, &id_b));
    report_value("ids differ", id_a != id_b);
    report("create flags wrong", CU(cuCtxCreate_v2)(&seen, 7, 0));
    report("create device 1000", CU(cuCtxCreate_v2)(&seen, 0, 1000));
    report("get current", CU(cuCtxGetCurrent)(&seen));
    report_value("created is current", seen == b);
    report("pop", CU(cuCtxPopCurrent_v2)(&seen));
    report_value("popped created", seen == b);
    must("get current", CU(cuCtxGetCurrent)(&seen));
    report_value("first is current", seen == a);
    report("push", CU(cuCtxPushCurrent_v2)(b));
    report("destroy current", CU(cuCtxDestroy_v2)(b));
    must("get current", CU(cuCtxGetCurrent)(&seen));
    report_value("first is current after destroy", seen == a);
    report("state", CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    report_value("active", active);
    report("last release", CU(cuDevicePrimaryCtxRelease_v2)(0));
    must("state", CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    report_value("active after", active);
    must("get current", CU(cuCtxGetCurrent)(&seen));
    report_value("still current", seen == a);
}

void released_context()
{
    CUcontext   ctx = start(0);
    CUdeviceptr p   = 0;
    must("release", CU(cuDevicePrimaryCtxRelease_v2)(0));
    report("alloc in released context", CU(cuMemAlloc_v2)(&p, 4096));
    report("synchronize released context", CU(cuCtxSynchronize)());
    report("set current released", CU(cuCtxSetCurrent)(ctx));
}

void destroyed_context()
{
    start(0);
    CUcontext   ctx = nullptr;
    CUdevice    dev = 0;
    CUdeviceptr p   = 0;
    must("create", CU(cuCtxCreate_v2)(&ctx, 0, 0));
    must("push", CU(cuCtxPushCurrent_v2)(ctx));
    must("destroy", CU(cuCtxDestroy_v2)(ctx)); // it is on the stack twice
    report("get device", CU(cuCtxGetDevice)(&dev));
    report("alloc", CU(cuMemAlloc_v2)(&p, 4096));
    report("push destroyed", CU(cuCtxPushCurrent_v2)(ctx));
    report("destroy destroyed", CU(cuCtxDestroy_v2)(ctx));
}

void memory()
{
    start(0);
    CUdeviceptr p = allocate(1 << 20), q = 0, base = 0;
    size_t      size = 0, pitch = 0;
    report("alloc 0", CU(cuMemAlloc_v2)(&q, 0));
    report("alloc null", CU(cuMemAlloc_v2)(nullptr, 4096));
    report("alloc too much", CU(cuMemAlloc_v2)(&q, 1ull << 46));
    report("free null", CU(cuMemFree_v2)(0));
    report("free interior", CU(cuMemFree_v2)(p + 256));
    report("free host pointer", CU(cuMemFree_v2)(reinterpret_cast<CUdeviceptr>(&q)));
    report("range", CU(cuMemGetAddressRange_v2)(&base, &size, p + 4097));
    report_value("range base", base == p);
    report_value("range size", static_cast<long long>(size));
    report("range of end", CU(cuMemGetAddressRange_v2)(&base, &size, p + (1 << 20) - 1));
    report("range of the stack",
           CU(cuMemGetAddressRange_v2)(&base, &size, reinterpret_cast<CUdeviceptr>(&q)));
    report("range without size", CU(cuMemGetAddressRange_v2)(&base, nullptr, p));
    report("pitch", CU(cuMemAllocPitch_v2)(&q, &pitch, 1000, 10, 4));
    report("pitch element 5", CU(cuMemAllocPitch_v2)(&base, &pitch, 1000, 10, 5));
    report("free pitched", CU(cuMemFree_v2)(q));
    report("managed", CU(cuMemAllocManaged)(&q, 8192, CU_MEM_ATTACH_GLOBAL));
    report("managed flags 0", CU(cuMemAllocManaged)(&base, 8192, 0));
    report("managed 0", CU(cuMemAllocManaged)(&base, 0, CU_MEM_ATTACH_GLOBAL));
    *reinterpret_cast<volatile char *>(q) = 1; // the processor may
    report("free managed", CU(cuMemFree_v2)(q));
    report("free", CU(cuMemFree_v2)(p));
    report("free twice", CU(cuMemFree_v2)(p));
    report("range of freed", CU(cuMemGetAddressRange_v2)(&base, &size, p));
    report("get info", CU(cuMemGetInfo_v2)(&size, &pitch));
    report("get info null", CU(cuMemGetInfo_v2)(nullptr, nullptr));
}

void host_memory()
{
    start(0);
    void       *pinned = nullptr, *own = aligned_alloc(4096, 1 << 16);
    CUdeviceptr p     = 0;
    unsigned    flags = 0;
    report("host alloc", CU(cuMemHostAlloc)(&pinned, 1 << 16, CU_MEMHOSTALLOC_PORTABLE));
    report("host alloc flags 64", CU(cuMemHostAlloc)(&pinned, 4096, 64));
    report("host alloc 0", CU(cuMemHostAlloc)(&pinned, 0, 0));
    must("host alloc", CU(cuMemHostAlloc)(&pinned, 1 << 16, CU_MEMHOSTALLOC_PORTABLE));
    report("device pointer", CU(cuMemHostGetDevicePointer_v2)(&p, pinned, 0));
    report_value("device pointer is the same", p == reinterpret_cast<CUdeviceptr>(pinned));
    report("device pointer flags 1", CU(cuMemHostGetDevicePointer_v2)(&p, pinned, 1));
    report("device pointer of own", CU(cuMemHostGetDevicePointer_v2)(&p, own, 0));
    report("host flags", CU(cuMemHostGetFlags)(&flags, pinned));
    report_value("host flags", flags);
    report("host flags of own", CU(cuMemHostGetFlags)(&flags, own));
    report("free interior", CU(cuMemFreeHost)(static_cast<char *>(pinned) + 4096));
    report("unregister allocated", CU(cuMemHostUnregister)(pinned));
    report("register allocated", CU(cuMemHostRegister_v2)(pinned, 4096, 0));
    report("free host", CU(cuMemFreeHost)(pinned));
    report("free own", CU(cuMemFreeHost)(own));
    report("register", CU(cuMemHostRegister_v2)(own, 1 << 16, CU_MEMHOSTREGISTER_PORTABLE));
    report("register again", CU(cuMemHostRegister_v2)(own, 1 << 16, 0));
    report("register part", CU(cuMemHostRegister_v2)(static_cast<char *>(own) + 4096, 4096, 0));
    report("register null", CU(cuMemHostRegister_v2)(nullptr, 4096, 0));
    report("register 0 bytes", CU(cuMemHostRegister_v2)(own, 0, 0));
    report("device pointer of registered", CU(cuMemHostGetDevicePointer_v2)(&p, own, 0));
    report("unregister interior", CU(cuMemHostUnregister)(static_cast<char *>(own) + 4096));
    report("unregister", CU(cuMemHostUnregister)(own));
    report("unregister twice", CU(cuMemHostUnregister)(own));
    report("register device memory",
           CU(cuMemHostRegister_v2)(reinterpret_cast<void *>(allocate(4096)), 4096, 0));
    free(own);
}

template<class T>
void attribute(const char *label, CUpointer_attribute which, CUdeviceptr p, bool show)
{
    T        value{};
    CUresult code = CU(cuPointerGetAttribute)(&value, which, p);
    report(label, code);
    if (show && code == CUDA_SUCCESS)
        report_value(label, static_cast<long long>(value));
}

void attributes_of(const char *what, CUdeviceptr p)
{
    struct {
        const char         *name;
        CUpointer_attribute which;
        bool                wide, show;
    } const all[] = {
        {"context", CU_POINTER_ATTRIBUTE_CONTEXT, true, false},
        {"type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, false, true},
        {"device pointer", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, true, false},
        {"host pointer", CU_POINTER_ATTRIBUTE_HOST_POINTER, true, false},
        {"sync memops", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, false, true},
        {"buffer id", CU_POINTER_ATTRIBUTE_BUFFER_ID, true, false},
        {"managed", CU_POINTER_ATTRIBUTE_IS_MANAGED, false, true},
        {"ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, false, true},
        {"legacy ipc", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, false, true},
        {"range start", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, true, false},
        {"range size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, true, true},
        {"mapped", CU_POINTER_ATTRIBUTE_MAPPED, false, true},
        {"handle types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, true, true},
        {"access", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, false, true},
        {"pool", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, true, false},
        {"block id", CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, true, false},
    };
    for (auto &a : all) {
        char label[96];
        snprintf(label, sizeof(label), "%s %s", what, a.name);
        if (a.wide)
            attribute<unsigned long long>(label, a.which, p, a.show);
        else
            attribute<int>(label, a.which, p, a.show);
    }
}

void pointers()
{
    start(0);
    CUdeviceptr        p = allocate(1 << 20), managed = 0;
    void              *pinned = nullptr;
    int                type = 7, ordinal = 7, on = 1, managed_flag = 7;
    unsigned long long id = 7;
    must("host alloc", CU(cuMemHostAlloc)(&pinned, 1 << 16, 0));
    must("managed", CU(cuMemAllocManaged)(&managed, 1 << 16, CU_MEM_ATTACH_GLOBAL));
    attributes_of("device", p + 4096);
    attributes_of("pinned", reinterpret_cast<CUdeviceptr>(pinned));
    attributes_of("managed", managed);
    attributes_of("unknown", reinterpret_cast<CUdeviceptr>(&type));
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void               *out[]   = {&type, &ordinal, &managed_flag, &id};
    report("attributes of unknown",
           CU(cuPointerGetAttributes)(4, which, out, reinterpret_cast<CUdeviceptr>(&type)));
    report_value("attributes of unknown type", type);
    report_value("attributes of unknown ordinal", ordinal);
    report_value("attributes of unknown managed", managed_flag);
    report("attributes of device", CU(cuPointerGetAttributes)(4, which, out, p));
    report_value("attributes of device type", type);
    report("attributes none", CU(cuPointerGetAttributes)(0, which, out, p));
    report("attribute null", CU(cuPointerGetAttribute)(nullptr, which[0], p));
    report("attribute 0", CU(cuPointerGetAttribute)(&type, static_cast<CUpointer_attribute>(0), p));
    report("set sync memops", CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    report("set sync memops of pinned",
           CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                     reinterpret_cast<CUdeviceptr>(pinned)));
    report("set memory type", CU(cuPointerSetAttribute)(&on, which[0], p));
    must("free", CU(cuMemFree_v2)(p));
    report("attribute of freed", CU(cuPointerGetAttribute)(&type, which[0], p));
}

} // namespace

const section memory_sections[] = {
    {"before_init", before_init, false},
    {"device", device, false},
    {"proc_address", proc_address, false},
    {"no_context", no_context, false},
    {"context", context, false},
    {"released_context", released_context, false},
    {"destroyed_context", destroyed_context, false},
    {"memory", memory, false},
    {"host_memory", host_memory, false},
    {"pointers", pointers, false},
    {nullptr, nullptr, false},
};

} // namespace calls
