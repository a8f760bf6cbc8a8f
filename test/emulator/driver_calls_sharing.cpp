// SPDX-License-Identifier: BSD-3-Clause
//
// Sections of driver_calls: two GPUs, virtual memory management, pools, and two processes.
#include "driver_calls.h"

#include <cstring>
#include <unistd.h>

namespace calls {
namespace {

constexpr size_t chunk = 2u << 20;

void peers()
{
    if (!has_two_gpus())
        return;
    int       value = 0;
    CUcontext a = start(0), b = nullptr;
    must("retain 1", CU(cuDevicePrimaryCtxRetain)(&b, 1));
    report("can access itself", CU(cuDeviceCanAccessPeer)(&value, 0, 0));
    report_value("can access itself", value);
    report("can access 1000", CU(cuDeviceCanAccessPeer)(&value, 0, 1000));
    report("can access null", CU(cuDeviceCanAccessPeer)(nullptr, 0, 1));
    report("attribute",
           CU(cuDeviceGetP2PAttribute)(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    report("attribute itself",
           CU(cuDeviceGetP2PAttribute)(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
    report("attribute 99",
           CU(cuDeviceGetP2PAttribute)(&value, static_cast<CUdevice_P2PAttribute>(99), 0, 1));
    report("disable before", CU(cuCtxDisablePeerAccess)(b));
    report("enable itself", CU(cuCtxEnablePeerAccess)(a, 0));
    report("enable flags 1", CU(cuCtxEnablePeerAccess)(b, 1));
    report("enable null", CU(cuCtxEnablePeerAccess)(nullptr, 0));
    CUdeviceptr mine = allocate(4096), theirs = 0;
    must("set 1", CU(cuCtxSetCurrent)(b));
    theirs = allocate(4096);
    must("set 0", CU(cuCtxSetCurrent)(a));
    CUstream s = make_stream();
    report("copy without access", CU(cuMemcpyAsync)(theirs, mine, 4096, s));
    report("copy without access done", CU(cuStreamSynchronize)(s));
    report("peer copy without access", CU(cuMemcpyPeerAsync)(theirs, b, mine, a, 4096, s));
    report("peer copy without access done", CU(cuStreamSynchronize)(s));
    int flags = 7;
    report("access flags without",
           CU(cuPointerGetAttribute)(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, theirs));
    report_value("access flags without", flags);
    report("enable", CU(cuCtxEnablePeerAccess)(b, 0));
    report("enable again", CU(cuCtxEnablePeerAccess)(b, 0));
    must("access flags",
         CU(cuPointerGetAttribute)(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, theirs));
    report_value("access flags with", flags);
    report("copy with access", CU(cuMemcpyAsync)(theirs, mine, 4096, s));
    report("copy with access done", CU(cuStreamSynchronize)(s));
    report("free of the other device", CU(cuMemFree_v2)(theirs));
    report("disable", CU(cuCtxDisablePeerAccess)(b));
}

CUmemAllocationProp prop_of(CUdevice device, unsigned types)
{
    CUmemAllocationProp prop{};
    prop.type                 = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type        = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id          = device;
    prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    return prop;
}

CUmemAccessDesc access_of(CUdevice device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id   = device;
    access.flags         = flags;
    return access;
}

void vmm()
{
    start(0);
    CUmemAllocationProp          prop = prop_of(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle h = 0, again = 0, imported = 0;
    CUdeviceptr                  va = 0, base = 0, plain = allocate(4096);
    size_t                       granularity = 0, size = 0;
    unsigned long long           flags = 9, types = 9;
    int                          fd = -1, legacy = 9, mapped = 9;
    report("granularity", CU(cuMemGetAllocationGranularity)(&granularity, &prop,
                                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    report_value("granularity", static_cast<long long>(granularity));
    report("granularity null prop", CU(cuMemGetAllocationGranularity)(
                                        &granularity, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    report("create", CU(cuMemCreate)(&h, chunk, &prop, 0));
    report("create odd size", CU(cuMemCreate)(&again, chunk + 1, &prop, 0));
    report("create 0", CU(cuMemCreate)(&again, 0, &prop, 0));
    report("create flags 1", CU(cuMemCreate)(&again, chunk, &prop, 1));
    CUmemAllocationProp wrong = prop_of(1000, 0);
    report("create device 1000", CU(cuMemCreate)(&again, chunk, &wrong, 0));
    wrong      = prop_of(0, 0);
    wrong.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    report("create type 0", CU(cuMemCreate)(&again, chunk, &wrong, 0));
    report("reserve", CU(cuMemAddressReserve)(&va, 2 * chunk, 0, 0, 0));
    report("reserve odd size", CU(cuMemAddressReserve)(&base, 4097, 0, 0, 0));
    report("reserve 0", CU(cuMemAddressReserve)(&base, 0, 0, 0, 0));
    report("reserve alignment 3", CU(cuMemAddressReserve)(&base, chunk, 3, 0, 0));
    report("map offset", CU(cuMemMap)(va, chunk, chunk, h, 0));
    report("map too long", CU(cuMemMap)(va, 2 * chunk, 0, h, 0));
    report("map unreserved", CU(cuMemMap)(plain, chunk, 0, h, 0));
    report("access before map", [&] {
        CUmemAccessDesc all = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        return CU(cuMemSetAccess)(va, chunk, &all, 1);
    }());
    report("map", CU(cuMemMap)(va, chunk, 0, h, 0));
    report("map again", CU(cuMemMap)(va, chunk, 0, h, 0));
    report("fill before access", CU(cuMemsetD8_v2)(va, 1, 16));
    CUmemAccessDesc all = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    report("set access", CU(cuMemSetAccess)(va, chunk, &all, 1));
    report("set access of hole", CU(cuMemSetAccess)(va, 2 * chunk, &all, 1));
    CUmemAccessDesc odd = access_of(1000, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    report("set access device 1000", CU(cuMemSetAccess)(va, chunk, &odd, 1));
    CUmemLocation here = all.location;
    report("get access", CU(cuMemGetAccess)(&flags, &here, va));
    report_value("get access", static_cast<long long>(flags));
    report("get access of plain memory", CU(cuMemGetAccess)(&flags, &here, plain));
    report("fill", CU(cuMemsetD8_v2)(va, 1, 16));
    report("fill beyond", CU(cuMemsetD8_v2)(va + chunk, 1, 16));
    report("range", CU(cuMemGetAddressRange_v2)(&base, &size, va + 100));
    report_value("range size", static_cast<long long>(size));
    report("legacy",
           CU(cuPointerGetAttribute)(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, va));
    report_value("legacy", legacy);
    report("handle types",
           CU(cuPointerGetAttribute)(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, va));
    report_value("handle types", static_cast<long long>(types));
    report("mapped in hole",
           CU(cuPointerGetAttribute)(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, va + chunk));
    report("context", CU(cuPointerGetAttribute)(&types, CU_POINTER_ATTRIBUTE_CONTEXT, va));
    report("ipc handle", [&] {
        CUipcMemHandle handle;
        return CU(cuIpcGetMemHandle)(&handle, va);
    }());
    report("retain", CU(cuMemRetainAllocationHandle)(&again, reinterpret_cast<void *>(va)));
    report_value("retained is the same", again == h);
    report("retain plain memory",
           CU(cuMemRetainAllocationHandle)(&imported, reinterpret_cast<void *>(plain)));
    report("properties", CU(cuMemGetAllocationPropertiesFromHandle)(&wrong, h));
    report_value("properties types", wrong.requestedHandleTypes);
    report("export",
           CU(cuMemExportToShareableHandle)(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    report("export fabric not asked for", [&] {
        CUmemFabricHandle fabric;
        return CU(cuMemExportToShareableHandle)(&fabric, h, CU_MEM_HANDLE_TYPE_FABRIC, 0);
    }());
    report("import", CU(cuMemImportFromShareableHandle)(
                         &imported, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    report("release imported", CU(cuMemRelease)(imported));
    report("import fd 12345",
           CU(cuMemImportFromShareableHandle)(&imported, reinterpret_cast<void *>(12345),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    report("import standard input",
           CU(cuMemImportFromShareableHandle)(&imported, nullptr,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    report("release", CU(cuMemRelease)(h));
    report("release retained", CU(cuMemRelease)(again));
    report("fill after release", CU(cuMemsetD8_v2)(va, 1, 16));
    report("address free while mapped", CU(cuMemAddressFree)(va, 2 * chunk));
    report("unmap part", CU(cuMemUnmap)(va, chunk / 2));
    report("unmap unmapped", CU(cuMemUnmap)(va + chunk, chunk));
    report("mem free", CU(cuMemFree_v2)(va));
    report("unmap", CU(cuMemUnmap)(va, chunk));
    report("unmap again", CU(cuMemUnmap)(va, chunk));
    report("fill after unmap", CU(cuMemsetD8_v2)(va, 1, 16));
    report("address free wrong size", CU(cuMemAddressFree)(va, chunk));
    report("address free", CU(cuMemAddressFree)(va, 2 * chunk));
    report("address free again", CU(cuMemAddressFree)(va, 2 * chunk));
    report("close", close(fd) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
}

void vmm_export_without_type()
{
    start(0);
    CUmemAllocationProp          prop = prop_of(0, 0);
    CUmemGenericAllocationHandle h    = 0;
    int                          fd   = -1;
    must("create", CU(cuMemCreate)(&h, chunk, &prop, 0));
    report("export",
           CU(cuMemExportToShareableHandle)(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    report("release", CU(cuMemRelease)(h));
}

// Handles that are none. (Of others than 0 a real driver may die.)
void vmm_map_nothing()
{
    start(0);
    CUdeviceptr va = 0;
    must("reserve", CU(cuMemAddressReserve)(&va, chunk, 0, 0, 0));
    report("map 0", CU(cuMemMap)(va, chunk, 0, 0, 0));
}

void vmm_release_twice()
{
    start(0);
    CUmemAllocationProp          prop = prop_of(0, 0);
    CUmemGenericAllocationHandle h    = 0;
    must("create", CU(cuMemCreate)(&h, chunk, &prop, 0));
    report("release 0", CU(cuMemRelease)(0));
    report("release", CU(cuMemRelease)(h));
    report("release again", CU(cuMemRelease)(h));
}

void vmm_two_chunks()
{
    start(0);
    CUmemAllocationProp          prop = prop_of(0, 0);
    CUmemGenericAllocationHandle a = 0, b = 0;
    CUdeviceptr                  va = 0, base = 0;
    size_t                       size = 0;
    unsigned long long           id_a = 0, id_b = 0, start_b = 0, size_b = 0;
    must("create", CU(cuMemCreate)(&a, chunk, &prop, 0));
    must("create", CU(cuMemCreate)(&b, chunk, &prop, 0));
    must("reserve", CU(cuMemAddressReserve)(&va, 2 * chunk, 0, 0, 0));
    must("map", CU(cuMemMap)(va, chunk, 0, a, 0));
    must("map", CU(cuMemMap)(va + chunk, chunk, 0, b, 0));
    CUmemAccessDesc all = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    report("set access of both", CU(cuMemSetAccess)(va, 2 * chunk, &all, 1));
    report("fill across", CU(cuMemsetD8_v2)(va + chunk - 8, 1, 16));
    report("copy across", CU(cuMemcpyDtoD_v2)(va, va + chunk - 8, 16));
    must("range", CU(cuMemGetAddressRange_v2)(&base, &size, va + chunk));
    report_value("range of second starts at", static_cast<long long>(base - va));
    report_value("range of second has", static_cast<long long>(size));
    must("id", CU(cuPointerGetAttribute)(&id_a, CU_POINTER_ATTRIBUTE_BUFFER_ID, va));
    must("id", CU(cuPointerGetAttribute)(&id_b, CU_POINTER_ATTRIBUTE_BUFFER_ID, va + chunk));
    report_value("buffer ids differ", id_a != id_b);
    must("start",
         CU(cuPointerGetAttribute)(&start_b, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, va + chunk));
    must("size", CU(cuPointerGetAttribute)(&size_b, CU_POINTER_ATTRIBUTE_RANGE_SIZE, va + chunk));
    report_value("range start attribute", static_cast<long long>(start_b - va));
    report_value("range size attribute", static_cast<long long>(size_b));

    // By whose context access is judged, and what the driver says without one.
    CUdeviceptr plain = allocate(2 * chunk);
    CUstream    s     = make_stream();
    CUcontext   own   = nullptr;
    must("pop", CU(cuCtxPopCurrent_v2)(&own));
    report("without a context, plain", CU(cuMemcpyAsync)(plain, plain + chunk, chunk, s));
    report("without a context, one chunk", CU(cuMemcpyAsync)(va, plain, chunk, s));
    report("without a context, both", CU(cuMemcpyAsync)(va, plain, 2 * chunk, s));
    report("without a context, across", CU(cuMemcpyAsync)(va + chunk - 8, plain, 16, s));
    if (has_two_gpus()) {
        CUcontext other = start(1);
        report("other GPU's context, plain", CU(cuMemcpyAsync)(plain, plain + chunk, chunk, s));
        report("other GPU's context, one chunk", CU(cuMemcpyAsync)(va, plain, chunk, s));
        report("other GPU's context, both", CU(cuMemcpyAsync)(va, plain, 2 * chunk, s));
        must("pop", CU(cuCtxPopCurrent_v2)(&other));
    }
    must("push", CU(cuCtxPushCurrent_v2)(own));
    must("wait", CU(cuStreamSynchronize)(s));
    report("unmap both", CU(cuMemUnmap)(va, 2 * chunk));
}

void fabric_handles()
{
    start(0);
    CUmemAllocationProp          prop = prop_of(0, CU_MEM_HANDLE_TYPE_FABRIC);
    CUmemGenericAllocationHandle h    = 0;
    CUmemFabricHandle            wrong{};
    report("create", CU(cuMemCreate)(&h, chunk, &prop, 0));
    report("import nonsense",
           CU(cuMemImportFromShareableHandle)(&h, &wrong, CU_MEM_HANDLE_TYPE_FABRIC));
}

void pools()
{
    start(0);
    CUmemoryPool           pool = nullptr, own = nullptr;
    CUstream               s = make_stream();
    CUdeviceptr            p = 0, q = 0, base = 0;
    CUmemPoolProps         props{};
    size_t                 size  = 0;
    unsigned long long     value = 9;
    int                    fd = -1, legacy = 9, flag = 9;
    CUmemPoolPtrExportData share{};
    props.allocType     = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    report("default pool", CU(cuDeviceGetDefaultMemPool)(&pool, 0));
    report("default pool of 1000", CU(cuDeviceGetDefaultMemPool)(&own, 1000));
    report("current pool", CU(cuDeviceGetMemPool)(&own, 0));
    report_value("current is default", own == pool);
    report("destroy default", CU(cuMemPoolDestroy)(pool));
    report("alloc", CU(cuMemAllocAsync)(&p, 4096, s));
    report("alloc 0", CU(cuMemAllocAsync)(&q, 0, s));
    report("alloc null", CU(cuMemAllocAsync)(nullptr, 4096, s));
    report("synchronize", CU(cuStreamSynchronize)(s));
    report("fill", CU(cuMemsetD8Async)(p, 1, 4096, s));
    report("range", CU(cuMemGetAddressRange_v2)(&base, &size, p));
    report_value("range size", static_cast<long long>(size));
    report("legacy",
           CU(cuPointerGetAttribute)(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    report_value("legacy", legacy);
    report("handle types",
           CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
    report_value("handle types", static_cast<long long>(value));
    report("pool of pointer",
           CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    report_value("pool of pointer is default", value == reinterpret_cast<uintptr_t>(pool));
    report("ipc handle", [&] {
        CUipcMemHandle handle;
        return CU(cuIpcGetMemHandle)(&handle, p);
    }());
    report("export pointer of default pool", CU(cuMemPoolExportPointer)(&share, p));
    report("export default pool", CU(cuMemPoolExportToShareableHandle)(
                                      &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    report("free async", CU(cuMemFreeAsync)(p, s));
    report("free async of 0", CU(cuMemFreeAsync)(0, s));
    must("alloc", CU(cuMemAllocAsync)(&p, 4096, s));
    must("synchronize", CU(cuStreamSynchronize)(s));
    report("free of async memory", CU(cuMemFree_v2)(p));
    q = allocate(4096);
    report("free async of plain memory", CU(cuMemFreeAsync)(q, s));
    report("synchronize after", CU(cuStreamSynchronize)(s));
    report("create null", CU(cuMemPoolCreate)(&own, nullptr));
    CUmemPoolProps nothing{};
    report("create type 0", CU(cuMemPoolCreate)(&own, &nothing));
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    report("create", CU(cuMemPoolCreate)(&own, &props));
    report("alloc from pool", CU(cuMemAllocFromPoolAsync)(&p, 4096, own, s));
    report("synchronize pool", CU(cuStreamSynchronize)(s));
    report("export pool", CU(cuMemPoolExportToShareableHandle)(
                              &fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    report("export pointer", CU(cuMemPoolExportPointer)(&share, p));
    report("export plain pointer", CU(cuMemPoolExportPointer)(&share, allocate(4096)));
    report("get attribute",
           CU(cuMemPoolGetAttribute)(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    report_value("release threshold", static_cast<long long>(value));
    report("get attribute 99",
           CU(cuMemPoolGetAttribute)(own, static_cast<CUmemPool_attribute>(99), &value));
    report("get reuse",
           CU(cuMemPoolGetAttribute)(own, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &flag));
    report_value("reuse", flag);
    CUmemAccessDesc all = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    report("set access of own device", CU(cuMemPoolSetAccess)(own, &all, 1));
    all = access_of(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    report("take access of own device", CU(cuMemPoolSetAccess)(own, &all, 1));
    all = access_of(1000, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    report("set access device 1000", CU(cuMemPoolSetAccess)(own, &all, 1));
    report("trim", CU(cuMemPoolTrimTo)(own, 0));
    report("import of own export", CU(cuMemPoolImportFromShareableHandle)(
                                       &pool, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    report("import fd 12345",
           CU(cuMemPoolImportFromShareableHandle)(&pool, reinterpret_cast<void *>(12345),
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    report("destroy", CU(cuMemPoolDestroy)(own));
}

void ipc_export()
{
    start(0);
    CUdeviceptr    p = allocate(1 << 20), q = 0;
    CUipcMemHandle a{}, b{}, zero{};
    void          *pinned = nullptr;
    report("get", CU(cuIpcGetMemHandle)(&a, p));
    report("get again", CU(cuIpcGetMemHandle)(&b, p));
    report_value("handles are equal", memcmp(&a, &b, sizeof(a)) == 0);
    report("get null", CU(cuIpcGetMemHandle)(nullptr, p));
    report("get of 0", CU(cuIpcGetMemHandle)(&a, 0));
    report("get of the stack", CU(cuIpcGetMemHandle)(&a, reinterpret_cast<CUdeviceptr>(&p)));
    report("get interior", CU(cuIpcGetMemHandle)(&b, p + 4096));
    must("host alloc", CU(cuMemHostAlloc)(&pinned, 4096, 0));
    report("get pinned", CU(cuIpcGetMemHandle)(&b, reinterpret_cast<CUdeviceptr>(pinned)));
    must("managed", CU(cuMemAllocManaged)(&q, 4096, CU_MEM_ATTACH_GLOBAL));
    report("get managed", CU(cuIpcGetMemHandle)(&b, q));
    report("open own", CU(cuIpcOpenMemHandle_v2)(&q, a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    report("open zero", CU(cuIpcOpenMemHandle_v2)(&q, zero, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    report("open null", CU(cuIpcOpenMemHandle_v2)(nullptr, a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    report("close own", CU(cuIpcCloseMemHandle)(p));
    must("free", CU(cuMemFree_v2)(p));
    report("get freed", CU(cuIpcGetMemHandle)(&b, p));
}

// What the exporter sends: a handle, and how to go on when told.
struct offer {
    CUipcMemHandle handle;
};

void ipc_helper()
{
    start(0);
    CUdeviceptr p = allocate(1 << 20);
    offer       o{};
    must("fill", CU(cuMemsetD8_v2)(p, 0x42, 1 << 20));
    must("done", CU(cuCtxSynchronize)());
    must("get", CU(cuIpcGetMemHandle)(&o.handle, p));
    tell(&o, sizeof(o));
    char word = 0;
    hear(&word, 1);
    if (word == 'f') {
        CUresult code = CU(cuMemFree_v2)(p);
        tell(&code, sizeof(code));
    }
    hear(&word, 1);
}

void ipc_open_on(CUdevice device)
{
    helper exporter("ipc_helper");
    offer  o{};
    exporter.read_bytes(&o, sizeof(o));
    start(device);
    CUdeviceptr        p = 0, again = 0, base = 0;
    size_t             size  = 0;
    unsigned char      seen  = 0;
    int                value = -9;
    unsigned long long types = 9;
    report("open flags 0", CU(cuIpcOpenMemHandle_v2)(&again, o.handle, 0));
    report("open", CU(cuIpcOpenMemHandle_v2)(&p, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CUresult second =
        CU(cuIpcOpenMemHandle_v2)(&again, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    report("open again", second);
    report("range", CU(cuMemGetAddressRange_v2)(&base, &size, p + 1));
    report_value("range size", static_cast<long long>(size));
    report("type", CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    report_value("type", value);
    report("ordinal", CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    report_value("ordinal", value);
    report("legacy",
           CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    report_value("legacy", value);
    report("handle types",
           CU(cuPointerGetAttribute)(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
    report_value("handle types", static_cast<long long>(types));
    report("access", CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p));
    report_value("access", value);
    report("export imported", [&] {
        CUipcMemHandle handle;
        return CU(cuIpcGetMemHandle)(&handle, p);
    }());
    report("read", CU(cuMemcpyDtoH_v2)(&seen, p + 12345, 1));
    report_value("byte", seen);
    report("free imported", CU(cuMemFree_v2)(p));
    report("close interior", CU(cuIpcCloseMemHandle)(p + 4096));
    if (second == CUDA_SUCCESS)
        report("close second", CU(cuIpcCloseMemHandle)(again));
    report("close", CU(cuIpcCloseMemHandle)(p));
    report("close again", CU(cuIpcCloseMemHandle)(p));
    report("read closed", CU(cuMemcpyDtoH_v2)(&seen, p, 1));
    report("open after close",
           CU(cuIpcOpenMemHandle_v2)(&p, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    report("close after", CU(cuIpcCloseMemHandle)(p));
}

void ipc_same_device()
{
    ipc_open_on(0);
}

void ipc_other_device()
{
    if (has_two_gpus())
        ipc_open_on(1);
}

void ipc_exporter_frees()
{
    helper exporter("ipc_helper");
    offer  o{};
    exporter.read_bytes(&o, sizeof(o));
    start(0);
    CUdeviceptr p    = 0;
    CUresult    code = CUDA_SUCCESS;
    exporter.write_bytes("f", 1);
    exporter.read_bytes(&code, sizeof(code));
    report("exporter frees", code);
    report("open freed",
           CU(cuIpcOpenMemHandle_v2)(&p, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

void ipc_exporter_gone()
{
    offer o{};
    {
        helper exporter("ipc_helper");
        exporter.read_bytes(&o, sizeof(o));
    }
    start(0);
    CUdeviceptr p = 0;
    report("open", CU(cuIpcOpenMemHandle_v2)(&p, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

void ipc_exporter_ends_while_open()
{
    helper exporter("ipc_helper");
    offer  o{};
    exporter.read_bytes(&o, sizeof(o));
    start(0);
    CUdeviceptr   p    = 0;
    unsigned char seen = 0;
    must("open", CU(cuIpcOpenMemHandle_v2)(&p, o.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    exporter.finish();
    report("read", CU(cuMemcpyDtoH_v2)(&seen, p + 12345, 1));
    report_value("byte", seen);
    report("close", CU(cuIpcCloseMemHandle)(p));
}

} // namespace

const section sharing_sections[] = {
    {"peers", peers, false},
    {"vmm", vmm, false},
    {"vmm_export_without_type", vmm_export_without_type, false},
    {"vmm_map_nothing", vmm_map_nothing, false},
    {"vmm_release_twice", vmm_release_twice, false},
    {"vmm_two_chunks", vmm_two_chunks, false},
    {"fabric_handles", fabric_handles, false},
    {"pools", pools, false},
    {"ipc_export", ipc_export, false},
    {"ipc_helper", ipc_helper, true},
    {"ipc_same_device", ipc_same_device, false},
    {"ipc_other_device", ipc_other_device, false},
    {"ipc_exporter_frees", ipc_exporter_frees, false},
    {"ipc_exporter_gone", ipc_exporter_gone, false},
    {"ipc_exporter_ends_while_open", ipc_exporter_ends_while_open, false},
    {nullptr, nullptr, false},
};

} // namespace calls
