// SPDX-License-Identifier: BSD-3-Clause
//
// How memory is shared: how often it is exported and opened, on which way descriptors travel, what is left behind, and
// what happens when a side is not who or what it was.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace nvl::test {

namespace {

constexpr size_t size = 2u << 20;

// Put through the key, and see it on the other side.
void put_reaches(entity &here, side &far, uint64_t remote, const unpacked &key, uint64_t seed)
{
    gpu_memory local(0, size);
    registered registration(here, local.address(), size);
    endpoint   ep(here, far.address());
    bytes      source = random_bytes(size, seed);
    completion done;
    local.write(0, source);
    uct_iov_t iov{reinterpret_cast<void *>(local.address()), size, registration.memh(), 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, key.rkey(), &done.super), UCS_INPROGRESS);
    while (done.called == 0) {
        here.progress();
    }
    ASSERT_EQ(done.status, UCS_OK);
    EXPECT_EQ(difference(source, far.read(remote, 0, size)), "");
}

long live_imports()
{
    const emulator_functions *emu = emulator();
    return emu->live_count("import") + emu->live_count("mapping") + emu->live_count("reservation") +
           emu->live_count("pool") + emu->live_count("physical");
}

// True within five seconds.
template<typename F> bool comes_true(F what)
{
    for (int i = 0; i < 500; ++i) {
        if (what()) {
            return true;
        }
        usleep(10000);
    }
    return false;
}

// A key is opened for the GPU that copies here, and for the peer's own one, which copies to and from host memory.
constexpr long places = 2;

std::vector<memory_kind> shared_kinds()
{
    return {memory_kind::alloc,    memory_kind::vmm_fd,     memory_kind::vmm_fabric,
            memory_kind::vmm_both, memory_kind::vmm_chunks, memory_kind::vmm_mixed,
            memory_kind::pool_fd,  memory_kind::pool_fabric};
}

std::string name_of_kind(const testing::TestParamInfo<memory_kind> &kind)
{
    return to_text(kind.param);
}

} // namespace

class kind_sharing : public testing::TestWithParam<memory_kind> {
protected:
    void SetUp() override
    {
        NVL_NEEDS_EMULATOR();
        if (!can_make(GetParam())) {
            GTEST_SKIP() << "this machine has no fabric handles";
        }
    }
};

TEST_P(kind_sharing, leaves_nothing_behind)
{
    entity    here;
    peer_side far;
    uint64_t  warm = far.allocate_kind(GetParam(), 1, size);
    {
        unpacked key(far.key(warm)); // and what the first copy opens stays open
        ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, warm, key, 99));
    }
    far.release(warm);
    ASSERT_TRUE(comes_true([] { return live_imports() == 0; }));
    uint64_t fds = count_open_fds(), far_fds = far.open_fds();
    for (uint64_t round = 0; round < 10; ++round) {
        uint64_t remote = far.allocate_kind(GetParam(), 1, size);
        unpacked key(far.key(remote));
        ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, remote, key, round));
        far.release(remote);
    }
    EXPECT_TRUE(comes_true([] { return live_imports() == 0; })) << live_imports();
    EXPECT_TRUE(comes_true([&] { return count_open_fds() <= fds; }))
        << count_open_fds() << " " << fds;
    EXPECT_LE(far.open_fds(), far_fds);
}

TEST_P(kind_sharing, opens_once_for_all_registrations_of_an_allocation)
{
    entity                                 here;
    peer_side                              far;
    constexpr int                          blocks = 4, parts = 1000;
    std::vector<uint64_t>                  allocations, registrations;
    std::vector<std::unique_ptr<unpacked>> keys;
    std::mt19937                           random(3);
    // All on GPU 0, which copies here: memory of another GPU that this process uses as
    // well is opened there too, for host memory.
    for (int i = 0; i < blocks; ++i) {
        allocations.push_back(far.allocate_kind(GetParam(), 0, size));
    }
    emulator()->reset_counts();
    for (int i = 0; i < parts; ++i) {
        uint64_t block  = allocations[static_cast<size_t>(i % blocks)];
        size_t   offset = random() % size;
        registrations.push_back(far.register_part(block, offset, 1 + random() % (size - offset)));
        keys.push_back(std::make_unique<unpacked>(far.part_key(registrations.back())));
    }
    long opened = 0;
    for (const char *name :
         {"cuIpcOpenMemHandle_v2", "cuMemImportFromShareableHandle", "cuMemPoolImportPointer"}) {
        opened += emulator()->call_count(name);
    }
    EXPECT_GE(opened, blocks);
    EXPECT_LE(opened, places * blocks);
    std::shuffle(keys.begin(), keys.end(), random);
    std::shuffle(registrations.begin(), registrations.end(), random);
    for (int i = 0; i < parts; ++i) {
        keys[static_cast<size_t>(i)].reset();
        far.release_part(registrations[static_cast<size_t>(i)]);
    }
    for (uint64_t block : allocations) {
        far.release(block);
    }
    EXPECT_TRUE(comes_true([] { return live_imports() == 0; })) << live_imports();
}

TEST_P(kind_sharing, exports_an_allocation_once)
{
    peer_side     far;
    constexpr int blocks = 4, parts = 1000;
    for (const char *name : {"cuIpcGetMemHandle", "cuMemExportToShareableHandle",
                             "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle"}) {
        std::vector<uint64_t> allocations, registrations;
        std::mt19937          random(3);
        for (int i = 0; i < blocks; ++i) {
            allocations.push_back(far.allocate_kind(GetParam(), i % 2, size));
        }
        far.calls_made("");
        for (int i = 0; i < parts; ++i) {
            size_t offset = random() % size;
            registrations.push_back(far.register_part(allocations[static_cast<size_t>(i % blocks)],
                                                      offset, 1 + random() % (size - offset)));
            (void)far.part_key(registrations.back());
        }
        std::shuffle(registrations.begin(), registrations.end(), random);
        for (uint64_t one : registrations) {
            far.release_part(one);
        }
        uint64_t made = far.calls_made(name);
        // Both kinds of handle of memory that has both.
        EXPECT_TRUE(made == 0 || made == blocks ||
                    (GetParam() == memory_kind::vmm_both && made == 2 * blocks))
            << name << ": " << made;
        for (uint64_t block : allocations) {
            far.release(block);
        }
    }
}

TEST_P(kind_sharing, goes_over_the_socket_where_pidfd_getfd_is_refused)
{
    // The other process imports here: this one's memory, through its own filter.
    entity     here;
    gpu_memory plain(0, size);
    any_memory mine(GetParam(), 1, size);
    registered registration(here, mine.address(), size);
    peer_side  far({"NVL_TEST_REFUSE_PIDFD=1"});
    uint64_t   theirs = far.allocate(0, size);
    bytes      source = random_bytes(size, 4);
    far.write(theirs, 0, source);
    ASSERT_EQ(far.put(theirs, size, here.address(), mine.address(), registration.key()), UCS_OK);
    EXPECT_EQ(difference(source, mine.read(0, size)), "");
    bytes back = random_bytes(size, 5);
    mine.write(0, back);
    ASSERT_EQ(far.get(theirs, size, here.address(), mine.address(), registration.key()), UCS_OK);
    EXPECT_EQ(difference(back, far.read(theirs, 0, size)), "");
}

TEST_P(kind_sharing, is_let_go_of_when_its_owner_frees_it)
{
    entity    here;
    peer_side far;
    for (uint64_t round = 0; round < 100; ++round) {
        uint64_t remote = far.allocate_kind(GetParam(), 1, size);
        {
            unpacked key(far.key(remote));
            EXPECT_LE(emulator()->live_count("import") + emulator()->live_count("reservation") +
                          emulator()->live_count("pool"),
                      4 * places)
                << "one and its pool, and what is being closed: the ones before are gone";
        }
        far.release(remote);
    }
    EXPECT_TRUE(comes_true([] { return live_imports() == 0; })) << "unused, and nobody asks";
}

// Two imports of a pointer lead to the same memory, and freeing either ends both: seen on two H200, where the second
// free was refused.
TEST(kind_in_a_pool, is_imported_once_for_all_gpus)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, size);
    gpu_memory own(1, size);
    registered of_own(c.here, own.address(), size);
    uint64_t   remote = c.far->allocate_kind(memory_kind::pool_fd, 1, size);
    bytes      all    = random_bytes(size, 6);
    c.far->write(remote, 0, all);

    emulator()->reset_counts();
    {
        unpacked key(c.far->key(remote));
        for (bool is_own : {false, true}) {
            uint64_t   address = is_own ? own.address() : c.local.address();
            uct_iov_t  one{reinterpret_cast<void *>(address), size,
                          is_own ? of_own.memh() : c.local_registration.memh(), 0, 1};
            completion done;
            ASSERT_EQ(uct_ep_get_zcopy(c.ep.get(), &one, 1, remote, key.rkey(), &done.super),
                      UCS_INPROGRESS);
            ASSERT_TRUE(c.wait(done));
            EXPECT_EQ(difference(all, is_own ? own.read(0, size) : c.local.read(0, size)), "");
        }
    }
    EXPECT_EQ(emulator()->call_count("cuMemPoolImportFromShareableHandle"), 1);
    EXPECT_EQ(emulator()->call_count("cuMemPoolImportPointer"), 1);
    c.far->release(remote);
}

// A free in stream order may come before the peer's copy has ended, and the pool may go with it.
TEST_P(kind_sharing, may_be_freed_while_a_peer_copies)
{
    entity     here;
    peer_side  far;
    gpu_memory local(0, size);
    registered registration(here, local.address(), size);
    endpoint   ep(here, far.address());
    for (int round = 0; round < 3; ++round) {
        uint64_t   remote = far.allocate_kind(GetParam(), 1, size);
        auto       key    = std::make_unique<unpacked>(far.key(remote));
        completion done;
        uct_iov_t  iov{reinterpret_cast<void *>(local.address()), size, registration.memh(), 0, 1};
        held_streams held;
        ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, remote, key->rkey(), &done.super),
                  UCS_INPROGRESS);
        key.reset();
        far.release(remote);
        usleep(100000); // twice the time after which what its owner let go of is closed
        held.let_go();
        while (done.called == 0) {
            here.progress();
        }
        EXPECT_EQ(done.status, UCS_OK);
    }
    EXPECT_TRUE(comes_true([] { return live_imports() == 0; })) << live_imports();
}

// The memory of the owner, as its driver counts it: what peers hold open is not given back.
TEST(kind_freed, does_not_pile_up)
{
    NVL_NEEDS_EMULATOR();
    constexpr size_t large  = 256u << 20;
    const char      *asked  = std::getenv("NVL_TEST_ROUNDS");
    const int        rounds = asked != nullptr ? std::atoi(asked) : 500;
    entity           here;
    peer_side        far;
    gpu_memory       local(0, 4096);
    registered       registration(here, local.address(), 4096);
    endpoint         ep(here, far.address());
    long             most = 0;
    for (int round = 0; round < rounds; ++round) {
        uint64_t   remote = far.allocate(1, large);
        bytes      source = random_bytes(4096, static_cast<uint64_t>(round));
        completion done;
        local.write(0, source);
        uct_iov_t iov{reinterpret_cast<void *>(local.address()), 4096, registration.memh(), 0, 1};
        {
            unpacked key(far.key(remote));
            uint64_t at = remote + large - 4096;
            ASSERT_EQ(uct_ep_put_zcopy(ep.get(), &iov, 1, at, key.rkey(), &done.super),
                      UCS_INPROGRESS);
            while (done.called == 0) {
                here.progress();
            }
            ASSERT_EQ(done.status, UCS_OK);
            ASSERT_EQ(difference(source, far.read(remote, large - 4096, 4096)), "") << round;
            most = std::max(most, emulator()->live_count("import"));
        }
        far.release(remote);
    }
    EXPECT_LE(most, 2 * places) << "allocations that are kept from being given back";
    EXPECT_TRUE(comes_true([] { return emulator()->live_count("import") == 0; }));
}

TEST_P(kind_sharing, ends_with_its_owner)
{
    entity here;
    bytes  packed;
    {
        peer_side far;
        packed = far.key(far.allocate_kind(GetParam(), 1, size));
        EXPECT_EQ(try_unpack(packed), UCS_OK);
        far.kill();
    }
    expect_log("cannot open memory");
    EXPECT_TRUE(comes_true([] { return live_imports() == 0; })) << "the owner is dead";
    EXPECT_EQ(try_unpack(packed), UCS_ERR_UNREACHABLE);
}

TEST_P(kind_sharing, is_opened_once_for_32_threads)
{
    entity    here;
    peer_side far;
    bytes     packed = far.key(far.allocate_kind(GetParam(), 0, size));
    emulator()->reset_counts();
    std::vector<std::thread> all;
    std::atomic<int>         failed{0};
    for (int i = 0; i < 32; ++i) {
        all.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                failed += try_unpack(packed) == UCS_OK ? 0 : 1;
            }
        });
    }
    for (std::thread &one : all) {
        one.join();
    }
    EXPECT_EQ(failed.load(), 0);
    long opened = emulator()->call_count("cuIpcOpenMemHandle_v2") +
                  emulator()->call_count("cuMemAddressReserve") +
                  emulator()->call_count("cuMemPoolImportPointer");
    EXPECT_GE(opened, 1);
    EXPECT_LE(opened, places) << "once in each place";
}

TEST_P(kind_sharing, is_right_with_a_cache_of_one_and_addresses_used_again)
{
    entity    here(settings{{"IMPORT_CACHE_COUNT", "1"}});
    peer_side far;
    for (uint64_t round = 0; round < 30; ++round) {
        uint64_t first = far.allocate_kind(GetParam(), 1, size);
        uint64_t other = far.allocate_kind(GetParam(), 1, size);
        {
            unpacked one(far.key(first)), two(far.key(other));
            ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, first, one, round));
            ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, other, two, round + 1000));
        }
        unpacked again(far.key(first));
        far.release(other);
        ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, first, again, round + 2000));
        far.release(first);
    }
    // The limits are the process's: as they were.
    entity as_before;
}

INSTANTIATE_TEST_SUITE_P(kinds, kind_sharing, testing::ValuesIn(shared_kinds()), name_of_kind);

// ---- fabric handles that are refused ------------------------------------------------------------

TEST(kind_with_fabric, is_shared_by_descriptor_where_fabric_is_refused)
{
    NVL_NEEDS_EMULATOR();
    if (!can_make(memory_kind::vmm_both)) {
        GTEST_SKIP() << "this machine has no fabric handles";
    }
    for (const char *fault :
         {"cuMemExportToShareableHandle:2=800", "cuMemExportToShareableHandle:2=801"}) {
        entity     here;
        any_memory mine(memory_kind::vmm_both, 1, size);
        registered registration(here, mine.address(), size);
        bytes      packed;
        {
            planned_faults refuse(fault);
            packed = registration.key();
        }
        peer_side far;
        uint64_t  theirs = far.allocate(0, size);
        bytes     source = random_bytes(size, 4);
        far.write(theirs, 0, source);
        ASSERT_EQ(far.put(theirs, size, here.address(), mine.address(), packed), UCS_OK);
        EXPECT_EQ(difference(source, mine.read(0, size)), "");
    }
}

TEST(kind_with_fabric, is_imported_by_fabric_handle_where_its_descriptor_is_refused)
{
    NVL_NEEDS_EMULATOR();
    if (!can_make(memory_kind::vmm_both)) {
        GTEST_SKIP() << "this machine has no fabric handles";
    }
    entity         here;
    peer_side      far;
    uint64_t       remote = far.allocate_kind(memory_kind::vmm_both, 1, size);
    planned_faults refuse("cuMemImportFromShareableHandle:1=801");
    unpacked       key(far.key(remote));
    ASSERT_NO_FATAL_FAILURE(put_reaches(here, far, remote, key, 1));
}

// ---- the way of descriptors ---------------------------------------------------------------------

namespace {

// The words that run a command in namespaces of its own. Without what is preloaded: a sanitizer's runtime has a thread,
// and a process with threads may not leave its namespace. The peer is linked with it.
std::vector<std::string> unshare_words(const char *namespaces)
{
    return {"env",   "-u",     "LD_PRELOAD",   "unshare",     namespaces,
            "--pid", "--fork", "--mount-proc", "--kill-child"};
}

// Not by a shell, which does not live with such a runtime.
bool may_unshare(std::vector<std::string> words)
{
    words.emplace_back("true");
    std::vector<char *> arguments;
    for (std::string &word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 2);
        execvp(arguments[0], arguments.data());
        _exit(127);
    }
    int status = -1;
    return (waitpid(child, &status, 0) == child) && (status == 0);
}

} // namespace

// Two containers: each process is number 1 of a PID namespace of its own.
TEST(kind_in_containers, is_shared_between_processes_that_are_both_number_1)
{
    const std::vector<std::string> container = unshare_words("-Ur");
    if (!may_unshare(container)) {
        GTEST_SKIP() << "this user may not make PID namespaces";
    }
    peer_side one({}, container), two({}, container);
    uint64_t  from = one.allocate(0, size),
             to    = two.allocate_kind(memory_kind::vmm_chunks, 1, 2 * size);
    bytes source   = random_bytes(size, 8);
    one.write(from, 0, source);
    ASSERT_EQ(one.put(from, size, two.address(), to + 77, two.key(to)), UCS_OK);
    EXPECT_EQ(difference(source, two.read(to, 77, size)), "");
    two.release(to);

    // cuMemAlloc of another PID namespace: the emulated driver finds no process behind the handle. Refused, and no mix-up
    // with the importer's own memory, which is also of a process number 1.
    uint64_t plain = two.allocate(1, size);
    EXPECT_NE(one.put(from, size, two.address(), plain, two.key(plain)), UCS_OK);
}

// Nobody tells of the end of a process that has another number here; its memory is let go of all the same.
TEST(kind_in_containers, is_let_go_of_when_its_owner_dies)
{
    const std::vector<std::string> container = unshare_words("-Ur");
    if (!may_unshare(container)) {
        GTEST_SKIP() << "this user may not make PID namespaces";
    }
    NVL_NEEDS_EMULATOR();
    entity here;
    for (memory_kind kind : {memory_kind::vmm_fd, memory_kind::vmm_chunks}) {
        peer_side far({}, container);
        EXPECT_EQ(try_unpack(far.key(far.allocate_kind(kind, 1, size))), UCS_OK);
        EXPECT_GT(live_imports(), 0) << "kept for the next key";
        far.kill();
        EXPECT_TRUE(comes_true([] { return live_imports() == 0; })) << to_text(kind);
    }
}

// On a kernel that tells nothing of the process behind a socket the name is asked.
TEST(kind_in_containers, is_let_go_of_when_its_owner_dies_on_an_older_kernel)
{
    const std::vector<std::string> container = unshare_words("-Ur");
    if (!may_unshare(container)) {
        GTEST_SKIP() << "this user may not make PID namespaces";
    }
    NVL_NEEDS_EMULATOR();
    peer_side opener({"NVL_TEST_REFUSE_PIDFD=1"}), owner({}, container);
    uint64_t  from = opener.allocate(0, size),
             to    = owner.allocate_kind(memory_kind::vmm_fd, 1, size);
    ASSERT_EQ(opener.put(from, size, owner.address(), to, owner.key(to)), UCS_OK);
    usleep(1500000);
    EXPECT_EQ(opener.calls_made("cuMemUnmap"), 0u) << "it lives";
    owner.kill();
    uint64_t closed = 0;
    EXPECT_TRUE(comes_true([&] {
        closed += opener.calls_made("cuMemUnmap");
        return closed != 0;
    }));
}

// With network namespaces of their own as well, a folder that both see takes the place of the abstract name.
TEST(kind_in_containers, is_shared_through_a_folder_between_network_namespaces)
{
    const std::vector<std::string> container = unshare_words("-Urn");
    if (!may_unshare(container)) {
        GTEST_SKIP() << "this user may not make network namespaces";
    }
    char folder[] = "/tmp/nvlink-kinds-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    for (bool with_folder : {false, true}) {
        std::vector<std::string> environment;
        if (with_folder) {
            environment.push_back(std::string("UCX_NVLINK_SOCKET_DIR=") + folder);
        }
        peer_side one(environment, container), two(environment, container);
        uint64_t  from   = one.allocate(0, size);
        uint64_t  to     = two.allocate_kind(memory_kind::vmm_fd, 1, size);
        bytes     source = random_bytes(size, 8);
        one.write(from, 0, source);
        ucs_status_t status = one.put(from, size, two.address(), to, two.key(to));
        EXPECT_EQ(status == UCS_OK, with_folder);
        if (with_folder) {
            EXPECT_EQ(difference(source, two.read(to, 0, size)), "");
        }
    }
    EXPECT_EQ(rmdir(folder), 0) << "the sockets are gone with their processes";
}

// An export has a file for peers to read; the application wants to open files of its own.
TEST(kind_with_many_exports, leaves_descriptors_to_the_application)
{
    NVL_NEEDS_EMULATOR();
    constexpr size_t chunk = 2u << 20, chunks = 32, most = 400;
    entity           here;
    any_memory       mine(memory_kind::vmm_chunks, 1, chunks * chunk);
    rlimit           before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit few{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);

    // No range is part of one before it: each has an export.
    std::vector<std::unique_ptr<registered>> all;
    bytes                                    last;
    for (size_t length = 1; length <= chunks; ++length) {
        for (size_t first = 0; first + length <= chunks; ++first) {
            all.push_back(
                std::make_unique<registered>(here, mine.address() + first * chunk, length * chunk));
            last = all.back()->key();
        }
    }
    uint64_t used = count_open_fds();
    int      own  = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(own, 0) << "all descriptors are taken";
    if (own >= 0) {
        close(own);
    }
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_LE(used, most * 3 / 4);

    // What has no file is reached over the socket.
    peer_side far;
    uint64_t  theirs = far.allocate(0, size);
    bytes     source = random_bytes(size, 6);
    far.write(theirs, 0, source);
    ASSERT_EQ(far.put(theirs, size, here.address(), mine.address() + chunk, last), UCS_OK);
    EXPECT_EQ(difference(source, mine.read(chunk, size)), "");
}

// Those that have ended do not count: an application that runs for long shares its memory to the end.
TEST(kind_with_many_exports, gives_back_the_descriptors_of_those_that_have_ended)
{
    NVL_NEEDS_EMULATOR();
    constexpr unsigned most = 200, rounds = 150; // half of the descriptors may be of exports
    entity             here;
    rlimit             before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit few{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    emulator()->reset_counts();
    for (unsigned round = 0; round < rounds; ++round) {
        any_memory mine(memory_kind::vmm_fd, 1, size);
        registered one(here, mine.address(), size);
        (void)one.key();
    }
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(emulator()->call_count("cuMemExportToShareableHandle"), static_cast<long>(rounds));
}

namespace {

// A connection to the socket of this process's own server, as a peer would make it.
int connect_to_own_server(const bytes &packed)
{
    uint64_t    token = 0;
    sockaddr_un address{};
    std::memcpy(&token, packed.data() + 24, sizeof(token));
    address.sun_family = AF_UNIX;
    int used           = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                       "ucx-nvlink-%016llx", static_cast<unsigned long long>(token));
    int made           = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(made, reinterpret_cast<sockaddr *>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                       static_cast<size_t>(used))) != 0) {
        throw set_up_failed("no server");
    }
    return made;
}

} // namespace

// A pid or a name that is used again leads to another process: it must not answer for the one before.
TEST(kind_of_a_stranger, is_refused)
{
    entity     here;
    any_memory mine(memory_kind::vmm_fd, 1, size);
    registered registration(here, mine.address(), size);
    bytes      packed = registration.key();
    struct {
        uint32_t magic = 0x51444c4e, ask = 1;
        uint64_t token = 0, serial = 0;
    } question;
    std::memcpy(&question.token, packed.data() + 24, sizeof(question.token));
    std::memcpy(&question.serial, packed.data() + 32, sizeof(question.serial));
    struct {
        uint32_t magic;
        int32_t  status;
        uint64_t token, bytes, fds;
    } answer{};
    for (uint64_t wrong : {0, 1}) {
        question.token += wrong;
        int asking = connect_to_own_server(packed);
        ASSERT_EQ(send(asking, &question, sizeof(question), 0),
                  static_cast<ssize_t>(sizeof(question)));
        ASSERT_EQ(recv(asking, &answer, sizeof(answer), MSG_WAITALL),
                  static_cast<ssize_t>(sizeof(answer)));
        EXPECT_EQ(answer.status == UCS_OK, wrong == 0);
        EXPECT_EQ(answer.fds, 1 - wrong);
        close(asking);
    }
}

TEST(kind_served, survives_noise_and_peers_that_stand_still)
{
    entity     here;
    any_memory mine(memory_kind::vmm_fd, 1, size);
    registered registration(here, mine.address(), size);
    bytes      packed = registration.key();
    for (uint64_t seed = 0; seed < 200; ++seed) {
        int   noisy = connect_to_own_server(packed);
        bytes noise = random_bytes(1 + seed % 64, seed);
        (void)send(noisy, noise.data(), noise.size(), MSG_NOSIGNAL);
        close(noisy);
    }
    int       still = connect_to_own_server(packed);
    peer_side far({"NVL_TEST_REFUSE_PIDFD=1"});
    uint64_t  theirs = far.allocate(0, size);
    EXPECT_EQ(far.put(theirs, size, here.address(), mine.address(), packed), UCS_OK);
    close(still);
}

// A child has neither the thread nor the sockets: once the parent is gone, nobody keeps a peer waiting.
TEST(kind_served, is_not_served_by_a_forked_child)
{
    entity     here;
    any_memory mine(memory_kind::vmm_fd, 1, size);
    registered registration(here, mine.address(), size);
    (void)registration.key();
    uint64_t before = count_open_fds();
    pid_t    child  = fork();
    if (child == 0) {
        _exit(count_open_fds() < before ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "the child has closed the listening socket";
}

} // namespace nvl::test
