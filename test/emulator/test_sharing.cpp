// SPDX-License-Identifier: BSD-3-Clause
//
// Memory that two processes share on the emulated driver: descriptors, pools, fabric handles, and
// what becomes of it when one of the two is killed or frees it. The other process is this program
// again, told on its command line what to export.
#include "test_driver.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using test::allocate;
using test::fill_pattern;
using test::pattern;

constexpr size_t chunk = 2u << 20;

// What an exporter tells: as much of it as the kind of handle needs.
struct offer {
    CUipcMemHandle         legacy;
    CUmemFabricHandle      fabric;
    CUmemPoolPtrExportData pointer;
    CUipcEventHandle       event;
    CUresult               code;
};

void send_offer(int socket, const offer &o, int fd)
{
    char   control[CMSG_SPACE(sizeof(int))] = {};
    iovec  data                             = {const_cast<offer *>(&o), sizeof(o)};
    msghdr message{};
    message.msg_iov    = &data;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control    = control;
        message.msg_controllen = sizeof(control);
        cmsghdr *header        = CMSG_FIRSTHDR(&message);
        header->cmsg_level     = SOL_SOCKET;
        header->cmsg_type      = SCM_RIGHTS;
        header->cmsg_len       = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    if (sendmsg(socket, &message, 0) != static_cast<ssize_t>(sizeof(o)))
        _exit(4);
}

CUmemAllocationProp prop_of(unsigned types)
{
    CUmemAllocationProp prop{};
    prop.type                 = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type        = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    return prop;
}

CUdeviceptr map_physical(CUmemGenericAllocationHandle h, CUdevice user)
{
    CUdeviceptr     va = 0;
    CUmemAccessDesc all{};
    all.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    all.location.id   = user;
    all.flags         = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(CU(cuMemAddressReserve)(&va, chunk, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemMap)(va, chunk, 0, h, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemSetAccess)(va, chunk, &all, 1), CUDA_SUCCESS);
    return va;
}

void unmap_physical(CUdeviceptr va)
{
    EXPECT_EQ(CU(cuMemUnmap)(va, chunk), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemAddressFree)(va, chunk), CUDA_SUCCESS);
}

void use_device(CUdevice device)
{
    CUcontext ctx = nullptr;
    if (CU(cuInit)(0) != CUDA_SUCCESS ||
        CU(cuDevicePrimaryCtxRetain)(&ctx, device) != CUDA_SUCCESS ||
        CU(cuCtxSetCurrent)(ctx) != CUDA_SUCCESS)
        _exit(5);
}

// --- the exporting process

int export_physical(offer *o, unsigned type)
{
    CUmemAllocationProp          prop = prop_of(type);
    CUmemGenericAllocationHandle h    = 0;
    int                          fd   = -1;
    o->code                           = CU(cuMemCreate)(&h, chunk, &prop, 0);
    if (o->code != CUDA_SUCCESS)
        return -1;
    CUdeviceptr va = map_physical(h, 0);
    fill_pattern(va, chunk, 3);
    bool  is_fabric = type == CU_MEM_HANDLE_TYPE_FABRIC;
    void *out       = is_fabric ? static_cast<void *>(&o->fabric) : &fd;
    o->code =
        CU(cuMemExportToShareableHandle)(out, h, static_cast<CUmemAllocationHandleType>(type), 0);
    return fd;
}

int export_pool(offer *o)
{
    CUmemPoolProps props{};
    CUmemoryPool   pool = nullptr;
    CUdeviceptr    p    = 0;
    int            fd   = -1;
    props.allocType     = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.handleTypes   = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CU(cuMemPoolCreate)(&pool, &props);
    CU(cuMemAllocFromPoolAsync)(&p, chunk, pool, nullptr);
    CU(cuStreamSynchronize)(nullptr);
    fill_pattern(p, chunk, 3);
    CU(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    o->code = CU(cuMemPoolExportPointer)(&o->pointer, p);
    return fd;
}

// An event of a stream whose work is held until the next order comes.
CUstream export_event(offer *o)
{
    CUstream stream = test::make_stream();
    CUevent  e      = nullptr;
    CU(cuEventCreate)(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    EMU(emu_hold)(1);
    CU(cuEventRecord)(e, stream);
    o->code = CU(cuIpcGetEventHandle)(&o->event, e);
    return stream;
}

// Exports one thing of the kind; at an 'f' frees it and tells the count of violations, at an 'r'
// frees it, allocates anew and offers that.
int be_exporter(const std::string &kind, int socket)
{
    use_device(0);
    offer       o{};
    int         fd = -1;
    CUdeviceptr p  = 0;
    if (kind == "legacy") {
        p = allocate(chunk);
        fill_pattern(p, chunk, 3);
        o.code = CU(cuIpcGetMemHandle)(&o.legacy, p);
    } else if (kind == "fd") {
        fd = export_physical(&o, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    } else if (kind == "fabric") {
        export_physical(&o, CU_MEM_HANDLE_TYPE_FABRIC);
    } else if (kind == "pool") {
        fd = export_pool(&o);
    }
    CU(cuCtxSynchronize)();
    if (kind == "event")
        export_event(&o);
    send_offer(socket, o, fd);
    char word = 0;
    while (read(socket, &word, 1) == 1) {
        EMU(emu_hold)(0);
        CU(cuMemFree_v2)(p);
        if (word == 'r') {
            p = allocate(chunk);
            CU(cuMemsetD8_v2)(p, 0x77, chunk);
            CU(cuCtxSynchronize)();
            CU(cuIpcGetMemHandle)(&o.legacy, p);
            send_offer(socket, o, -1);
            continue;
        }
        long violations = EMU(emu_violation_count)();
        if (write(socket, &violations, sizeof(violations)) != sizeof(violations))
            return 6;
    }
    return 0;
}

// --- the test's side

class exporter {
public:
    explicit exporter(const char *kind, const std::vector<std::string> &environment = {})
    {
        int sockets[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
        pid_ = fork();
        if (pid_ == 0) {
            for (auto &setting : environment)
                putenv(const_cast<char *>(setting.c_str()));
            close(sockets[0]);
            std::string number = std::to_string(sockets[1]);
            execl("/proc/self/exe", "exporter", kind, number.c_str(), nullptr);
            _exit(7);
        }
        close(sockets[1]);
        socket_ = sockets[0];
        receive();
    }
    ~exporter()
    {
        close(socket_);
        if (fd >= 0)
            close(fd);
        if (pid_ > 0) {
            int status = 0;
            waitpid(pid_, &status, 0);
            EXPECT_EQ(status, 0);
        }
    }
    exporter(const exporter &)            = delete;
    exporter &operator=(const exporter &) = delete;

    void kill_it()
    {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    long free_and_count_violations()
    {
        long violations = -1;
        EXPECT_EQ(write(socket_, "f", 1), 1);
        EXPECT_EQ(read(socket_, &violations, sizeof(violations)),
                  static_cast<ssize_t>(sizeof(violations)));
        return violations;
    }

    void replace()
    {
        EXPECT_EQ(write(socket_, "r", 1), 1);
        receive();
    }

    offer told{};
    int   fd = -1;

private:
    void receive()
    {
        char   control[CMSG_SPACE(sizeof(int))] = {};
        iovec  data                             = {&told, sizeof(told)};
        msghdr message{};
        message.msg_iov        = &data;
        message.msg_iovlen     = 1;
        message.msg_control    = control;
        message.msg_controllen = sizeof(control);
        EXPECT_EQ(recvmsg(socket_, &message, MSG_CMSG_CLOEXEC), static_cast<ssize_t>(sizeof(told)));
        if (cmsghdr *header = CMSG_FIRSTHDR(&message))
            memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    }
    int pid_ = 0, socket_ = -1;
};

class sharing : public testing::Test {
protected:
    void SetUp() override
    {
        use_device(1);
    }
    void TearDown() override
    {
        EXPECT_EQ(EMU(emu_live_count)("import"), 0);
        EXPECT_EQ(EMU(emu_live_count)("mapping"), 0);
        EXPECT_EQ(EMU(emu_live_count)("physical"), 0);
        EXPECT_EQ(EMU(emu_live_count)("reservation"), 0);
        CU(cuCtxSetCurrent)(nullptr);
        CU(cuDevicePrimaryCtxRelease_v2)(1);
    }

    static void expect_pattern(CUdeviceptr p)
    {
        std::vector<char> seen(chunk);
        EXPECT_EQ(CU(cuMemcpyDtoH_v2)(seen.data(), p, chunk), CUDA_SUCCESS);
        EXPECT_TRUE(seen == pattern(chunk, 3));
    }
    static CUresult open_legacy(const exporter &from, CUdeviceptr *p)
    {
        return CU(cuIpcOpenMemHandle_v2)(p, from.told.legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    }
};

TEST_F(sharing, descriptor_opens_the_same_bytes)
{
    exporter                     from("fd");
    CUmemGenericAllocationHandle h = 0;
    ASSERT_EQ(CU(cuMemImportFromShareableHandle)(
                  &h, reinterpret_cast<void *>(static_cast<intptr_t>(from.fd)),
                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS);
    CUdeviceptr va = map_physical(h, 1);
    EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
    from.kill_it();
    expect_pattern(va);
    int ordinal = -1;
    EXPECT_EQ(CU(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, va),
              CUDA_SUCCESS);
    EXPECT_EQ(ordinal, 0);
    unmap_physical(va);
}

TEST_F(sharing, pool_pointer_opens_the_same_bytes)
{
    exporter     from("pool");
    CUmemoryPool pool = nullptr;
    CUdeviceptr  p    = 0;
    ASSERT_EQ(CU(cuMemPoolImportFromShareableHandle)(
                  &pool, reinterpret_cast<void *>(static_cast<intptr_t>(from.fd)),
                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemPoolImportPointer)(&p, pool, &from.told.pointer), CUDA_SUCCESS);
    // This process's device has no access yet.
    EXPECT_EQ(CU(cuMemsetD8_v2)(p, 1, 1), CUDA_ERROR_INVALID_VALUE);
    CUmemAccessDesc all{};
    all.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    all.location.id   = 1;
    all.flags         = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_EQ(CU(cuMemPoolSetAccess)(pool, &all, 1), CUDA_SUCCESS);
    expect_pattern(p);
    EXPECT_EQ(CU(cuMemFree_v2)(p), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemPoolDestroy)(pool), CUDA_SUCCESS);
}

TEST_F(sharing, event_of_another_process_is_ready_when_its_stream_is)
{
    exporter from("event");
    CUevent  e = nullptr;
    CUstream s = test::make_stream();
    ASSERT_EQ(CU(cuIpcOpenEventHandle)(&e, from.told.event), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(CU(cuStreamWaitEvent)(s, e, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
    from.free_and_count_violations();
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventSynchronize)(e), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventDestroy_v2)(e), CUDA_SUCCESS);
    from.kill_it();
    EXPECT_EQ(CU(cuIpcOpenEventHandle)(&e, from.told.event), CUDA_ERROR_INVALID_HANDLE);
    CU(cuStreamDestroy_v2)(s);
}

TEST_F(sharing, event_is_for_other_processes_and_only_if_it_was_made_so)
{
    CUevent          own = nullptr, shared = nullptr, again = nullptr;
    CUipcEventHandle handle;
    ASSERT_EQ(CU(cuEventCreate)(&own, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventCreate)(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcGetEventHandle)(&handle, own), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_EQ(CU(cuIpcGetEventHandle)(&handle, shared), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcOpenEventHandle)(&again, handle), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(CU(cuEventQuery)(shared), CUDA_SUCCESS); // never recorded
    EXPECT_EQ(CU(cuEventDestroy_v2)(own), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventDestroy_v2)(shared), CUDA_SUCCESS);
}

TEST_F(sharing, killed_exporter_leaves_the_open_memory)
{
    exporter    from("legacy");
    CUdeviceptr p = 0;
    ASSERT_EQ(open_legacy(from, &p), CUDA_SUCCESS);
    from.kill_it();
    expect_pattern(p);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_SUCCESS);
    EXPECT_EQ(open_legacy(from, &p), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(sharing, second_open_in_a_context_counts)
{
    exporter    from("legacy");
    CUdeviceptr p = 0, again = 0;
    ASSERT_EQ(open_legacy(from, &p), CUDA_SUCCESS);
    ASSERT_EQ(open_legacy(from, &again), CUDA_SUCCESS);
    EXPECT_EQ(p, again);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_SUCCESS);
    expect_pattern(p);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(sharing, second_context_of_a_device_is_refused_an_open_handle)
{
    exporter    from("legacy");
    CUcontext   own = nullptr;
    CUdeviceptr p = 0, q = 0;
    ASSERT_EQ(open_legacy(from, &p), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(open_legacy(from, &q), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_EQ(CU(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxCreate_v2)(&own, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(open_legacy(from, &q), CUDA_SUCCESS);
    EXPECT_NE(p, q);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(q), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxDestroy_v2)(own), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_SUCCESS);
}

TEST_F(sharing, handle_of_reused_address_is_equal_and_opens_what_is_open)
{
    exporter    from("legacy");
    CUdeviceptr old = 0, now = 0;
    ASSERT_EQ(open_legacy(from, &old), CUDA_SUCCESS);
    CUipcMemHandle before = from.told.legacy;
    from.replace();
    EXPECT_EQ(memcmp(&before, &from.told.legacy, sizeof(before)), 0);
    ASSERT_EQ(open_legacy(from, &now), CUDA_SUCCESS);
    EXPECT_EQ(now, old); // the old memory: stale
    expect_pattern(now);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(now), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(old), CUDA_SUCCESS);
    ASSERT_EQ(open_legacy(from, &now), CUDA_SUCCESS);
    unsigned char seen = 0;
    EXPECT_EQ(CU(cuMemcpyDtoH_v2)(&seen, now, 1), CUDA_SUCCESS);
    EXPECT_EQ(seen, 0x77);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(now), CUDA_SUCCESS);
}

TEST_F(sharing, free_under_an_open_import_is_a_violation)
{
    exporter    from("legacy");
    CUdeviceptr p = 0;
    ASSERT_EQ(open_legacy(from, &p), CUDA_SUCCESS);
    EXPECT_EQ(from.free_and_count_violations(), 1);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_SUCCESS);
}

TEST_F(sharing, free_after_the_close_is_none)
{
    exporter    from("legacy");
    CUdeviceptr p = 0;
    ASSERT_EQ(open_legacy(from, &p), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcCloseMemHandle)(p), CUDA_SUCCESS);
    EXPECT_EQ(from.free_and_count_violations(), 0);
}

// The rest needs machines of a fabric: run with NVL_EMU_MACHINE=gb200-host-a.
class fabric : public sharing {
protected:
    void SetUp() override
    {
        const char *machine = getenv("NVL_EMU_MACHINE");
        if (machine == nullptr || strstr(machine, "gb200-host-a") == nullptr)
            GTEST_SKIP() << "for the machine gb200-host-a only";
        path = machine;
        sharing::SetUp();
    }
    void TearDown() override
    {
        if (!IsSkipped())
            sharing::TearDown();
    }
    std::vector<std::string> other_host(const char *name)
    {
        std::string other = path;
        other.replace(other.find("gb200-host-a"), strlen("gb200-host-a"), name);
        return {"NVL_EMU_MACHINE=" + other};
    }
    static CUresult import(const exporter &from, CUmemGenericAllocationHandle *h)
    {
        CUmemFabricHandle handle = from.told.fabric;
        return CU(cuMemImportFromShareableHandle)(h, &handle, CU_MEM_HANDLE_TYPE_FABRIC);
    }
    std::string path;
};

TEST_F(fabric, handle_opens_memory_of_another_host)
{
    exporter                     from("fabric", other_host("gb200-host-b"));
    CUmemGenericAllocationHandle h = 0;
    ASSERT_EQ(import(from, &h), CUDA_SUCCESS);
    CUdeviceptr va = map_physical(h, 1);
    EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
    expect_pattern(va);
    unmap_physical(va);
}

TEST_F(fabric, handle_of_another_clique_is_refused)
{
    exporter                     from("fabric", other_host("gb200-other-clique"));
    CUmemGenericAllocationHandle h = 0;
    ASSERT_EQ(from.told.code, CUDA_SUCCESS);
    EXPECT_EQ(import(from, &h), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(fabric, legacy_handle_of_another_host_is_refused)
{
    exporter    from("legacy", other_host("gb200-host-b"));
    CUdeviceptr p = 0;
    EXPECT_EQ(open_legacy(from, &p), CUDA_ERROR_INVALID_VALUE);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[0], "exporter") == 0)
        return be_exporter(argv[1], atoi(argv[2]));
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
