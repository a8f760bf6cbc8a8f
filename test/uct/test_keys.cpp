// SPDX-License-Identifier: BSD-3-Clause
//
// Keys: what is refused, what an old one may still do, and how often memory is exported and opened.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include <algorithm>
#include <random>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

} // namespace

class key : public every_pair {};

TEST_P(key, is_the_same_however_often_it_is_packed)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    EXPECT_EQ(c.far->key(c.remote), c.far->key(c.remote));
}

// Keys of other processes are kept, and known again by the head, which has a checksum over the
// rest: behind it damage has no say.
static size_t head_of(const bytes &good, far_kind kind)
{
    constexpr size_t head = 40;
    return (kind == far_kind::other_process) ? head : good.size();
}

TEST_P(key, is_refused_with_any_bit_wrong)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    bytes      good = c.far->key(c.remote);
    for (size_t bit = 0; bit < head_of(good, GetParam().kind) * 8; ++bit) {
        bytes bad = good;
        bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
        ASSERT_NE(try_unpack(bad), UCS_OK) << "bit " << bit;
    }
    EXPECT_EQ(try_unpack(good), UCS_OK);
}

TEST_P(key, is_refused_when_it_is_noise)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    bytes      good = c.far->key(c.remote);
    for (uint64_t seed = 1; seed < 2000; ++seed) {
        bytes bad = random_bytes(good.size(), seed);
        ASSERT_NE(try_unpack(bad), UCS_OK);
        // With the start of a good one.
        std::copy_n(good.begin(), 1 + seed % (head_of(good, GetParam().kind) - 1), bad.begin());
        if (bad != good) {
            ASSERT_NE(try_unpack(bad), UCS_OK);
        }
    }
}

TEST_P(key, of_another_version_is_refused_with_advice)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    bytes      other = c.far->key(c.remote);
    ++other[0];
    expect_log("one release of the plugin on both sides");
    // UCP takes another lane for it; any other error would end the operation.
    EXPECT_EQ(try_unpack(other), UCS_ERR_UNREACHABLE);
}

TEST_P(key, covers_its_allocation_and_nothing_else)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    expect_log("outside the peer's registered memory");
    uct_iov_t iov = c.iov(0, 4096);
    auto      put = [&](uint64_t to, size_t length) {
        iov.length = length;
        return uct_ep_put_zcopy(c.ep.get(), &iov, 1, to, c.rkey(), nullptr);
    };
    EXPECT_EQ(put(c.remote, 4096), UCS_INPROGRESS);
    EXPECT_EQ(put(c.remote + size - 1, 1), UCS_INPROGRESS);
    EXPECT_EQ(put(c.remote + size - 4096, 4096), UCS_INPROGRESS);
    EXPECT_EQ(put(c.remote - 1, 1), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(c.remote - 1, 4096), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(c.remote + size - 4095, 4096), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(c.remote + size, 1), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(0, 1), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(~0ull, 4096), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(c.remote, SIZE_MAX), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(put(c.remote + 1, SIZE_MAX), UCS_ERR_INVALID_ADDR);
    ASSERT_TRUE(c.drain());
}

TEST_P(key, lives_until_the_last_operation_through_it_ends)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    bytes      source = random_bytes(size, 9);
    c.local.write(0, source);
    completion done(10);
    for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(c.put(0, 0, size, &done), UCS_INPROGRESS);
    }
    c.remote_key.reset();
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.status, UCS_OK);
    EXPECT_EQ(difference(source, c.far->read(c.remote, 0, size)), "");
}

INSTANTIATE_TEST_SUITE_P(pairs, key, all_pairs(), name_of);

// ---- memory that was freed -----------------------------------------------------------------------------------------

TEST(freed_memory, is_not_written_when_its_address_is_used_again)
{
    connection c(far_kind::other_process, 0, 1, size);
    for (int round = 0; round < 50; ++round) {
        bytes source = random_bytes(size, 100 + static_cast<uint64_t>(round));
        c.local.write(0, source);
        ASSERT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
        ASSERT_TRUE(c.drain());
        ASSERT_EQ(difference(source, c.far->read(c.remote, 0, size)), "") << "round " << round;

        // The mapping stays in the cache when its last key goes.
        c.remote_key.reset();
        c.far->release(c.remote);
        c.remote = c.far->allocate(1, size);
        c.far->write(c.remote, 0, bytes(size, 0x11));
        c.remote_key = std::make_unique<unpacked>(c.far->key(c.remote));
    }
}

TEST(freed_memory, is_never_reached_by_its_old_key)
{
    connection c(far_kind::other_process, 0, 1, size);
    expect_log("cannot be reached");
    ASSERT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());

    uint64_t before = c.remote;
    c.far->release(before);
    uint64_t after = c.far->allocate(1, size);
    if (after != before) {
        GTEST_SKIP() << "the driver has not used the address again";
    }
    bytes fresh(size, 0x22);
    c.far->write(after, 0, fresh);

    // Through the old key: into the void, or an error.
    bytes source = random_bytes(size, 5);
    c.local.write(0, source);
    (void)c.put(0, 0, size, nullptr);
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(difference(fresh, c.far->read(after, 0, size)), "");

    // Through the new key, while somebody still holds the old one and when he has let go.
    for (bool is_held : {true, false}) {
        if (!is_held) {
            c.remote_key.reset();
        }
        unpacked   key_of_new(c.far->key(after));
        completion done;
        uct_iov_t  iov = c.iov(0, size);
        c.far->write(after, 0, fresh);
        ASSERT_EQ(uct_ep_put_zcopy(c.ep.get(), &iov, 1, after, key_of_new.rkey(), &done.super),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(difference(source, c.far->read(after, 0, size)), "");

        // Still not through the old one: refused, or, where the driver has both open, into the void.
        if (is_held) {
            c.far->write(after, 0, fresh);
            ucs_status_t status = c.put(0, 0, size, nullptr);
            if ((emulator() != nullptr) || (status != UCS_INPROGRESS)) {
                EXPECT_EQ(status, UCS_ERR_UNREACHABLE);
            }
            ASSERT_TRUE(c.drain());
            EXPECT_EQ(difference(fresh, c.far->read(after, 0, size)), "");
        }
    }
}

// The old mapping stays as long as a copy uses it; the new key waits for that, as for room.
TEST(freed_memory, is_reached_anew_when_the_operations_on_what_was_there_have_ended)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, size);
    bytes      source = random_bytes(size, 5);
    c.local.write(0, source);
    ASSERT_EQ(c.put(0, 0, size, nullptr), UCS_INPROGRESS);
    ASSERT_TRUE(c.drain());

    uint64_t     before = c.remote;
    completion   old_done, done;
    uct_iov_t    iov = c.iov(0, size);
    held_streams held;
    ASSERT_EQ(c.put(0, 0, size, &old_done), UCS_INPROGRESS);
    c.far->release(before);
    uint64_t after = c.far->allocate(1, size);
    if (after != before) {
        GTEST_SKIP() << "the driver has not used the address again";
    }
    unpacked key_of_new(c.far->key(after));
    auto     put = [&] {
        return uct_ep_put_zcopy(c.ep.get(), &iov, 1, after, key_of_new.rkey(), &done.super);
    };
    EXPECT_EQ(put(), UCS_ERR_NO_RESOURCE);
    EXPECT_EQ(put(), UCS_ERR_NO_RESOURCE);
    held.let_go();
    ASSERT_TRUE(c.wait(old_done));
    EXPECT_EQ(old_done.status, UCS_OK);
    ASSERT_EQ(put(), UCS_INPROGRESS);
    ASSERT_TRUE(c.wait(done));
    EXPECT_EQ(done.status, UCS_OK);
    EXPECT_EQ(difference(source, c.far->read(after, 0, size)), "");
}

TEST(freed_memory, of_this_process_is_refused)
{
    entity     here;
    local_side mine(here);
    uint64_t   first = mine.allocate(1, size);
    bytes      old   = mine.key(first);
    mine.release(first);
    EXPECT_EQ(try_unpack(old), UCS_ERR_UNREACHABLE);
    mine.allocate(1, size);
    EXPECT_EQ(try_unpack(old), UCS_ERR_UNREACHABLE) << "the key of the allocation before";
}

// ---- how often the driver is asked ---------------------------------------------------------------------------------

TEST(registrations, are_cheap_in_any_number_and_order)
{
    constexpr int                            blocks = 4, pieces = 1000;
    entity                                   here;
    std::vector<std::unique_ptr<gpu_memory>> memory;
    for (int i = 0; i < blocks; ++i) {
        memory.push_back(std::make_unique<gpu_memory>(i % 2, 1u << 20));
    }
    std::vector<std::unique_ptr<registered>> all;
    std::mt19937                             random(7);
    for (int i = 0; i < pieces; ++i) {
        gpu_memory &block  = *memory[static_cast<size_t>(i % blocks)];
        size_t      offset = random() % block.size();
        all.push_back(std::make_unique<registered>(here, block.address() + offset,
                                                   1 + random() % (block.size() - offset)));
    }
    std::shuffle(all.begin(), all.end(), random);
    for (size_t i = 0; i < all.size(); ++i) {
        if (i % 3 == 0) {
            EXPECT_EQ(try_unpack(all[i]->key()), UCS_OK);
        }
        all[i].reset();
    }
}

// The first registration is still there: the application has freed the memory under it.
TEST(registrations, of_what_was_allocated_anew_at_an_address_have_another_key)
{
    entity     here;
    auto       memory  = std::make_unique<gpu_memory>(0, size);
    uint64_t   address = memory->address();
    registered first(here, address, size);
    bytes      before = first.key();
    memory.reset();
    memory = std::make_unique<gpu_memory>(0, size);
    if (memory->address() != address) {
        GTEST_SKIP() << "the driver has not used the address again";
    }
    registered second(here, address, size);
    EXPECT_NE(second.key(), before);
    EXPECT_EQ(try_unpack(second.key()), UCS_OK);
    EXPECT_EQ(try_unpack(before), UCS_ERR_UNREACHABLE);
}

TEST(registrations, of_one_allocation_are_opened_once)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, size);
    emulator()->reset_counts();
    bytes                                  one = c.far->key(c.remote);
    std::vector<std::unique_ptr<unpacked>> keys;
    for (int i = 0; i < 1000; ++i) {
        keys.push_back(std::make_unique<unpacked>(one));
    }
    keys.clear();
    for (int i = 0; i < 1000; ++i) {
        unpacked again(one);
    }
    EXPECT_EQ(emulator()->call_count("cuIpcOpenMemHandle_v2"), 0) << "it was open";
    EXPECT_EQ(emulator()->call_count("cuIpcCloseMemHandle"), 0);
}

// As UCP unpacks one for every rendezvous: it says which GPU the local buffer is on.
TEST(registrations, of_a_peer_are_known_without_a_question_to_the_driver)
{
    NVL_NEEDS_EMULATOR();
    connection               c(far_kind::other_process, 0, 1, size);
    bytes                    one = c.far->key(c.remote);
    uct_md_mem_attr_v2_t     attr{};
    uct_rkey_unpack_params_t params{};
    attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV;
    ASSERT_EQ(ucx().uct_md_mem_query_v2(c.here.md(), reinterpret_cast<void *>(c.local.address()),
                                        size, &attr),
              UCS_OK);
    params.field_mask = UCT_RKEY_UNPACK_FIELD_SYS_DEVICE;
    params.sys_device = attr.sys_dev;
    for (bool in_use : {true, false}) {
        auto begin = std::chrono::steady_clock::now();
        emulator()->reset_counts();
        for (int i = 0; i < 10; ++i) {
            uct_rkey_bundle_t bundle{};
            ASSERT_EQ(ucx().uct_rkey_unpack_v2(nvlink_component(), one.data(), &params, &bundle),
                      UCS_OK);
            ucx().uct_rkey_release(nvlink_component(), &bundle);
        }
        auto made = calls_made();
        auto took = std::chrono::steady_clock::now() - begin;
        for (const auto &[name, count] : made) {
            // Now and then: is the context still there?
            bool is_look = ((name == "cuPointerGetAttribute") || (name == "cuCtxGetId")) &&
                           (count <= 1 + took / std::chrono::microseconds(100));
            EXPECT_TRUE(is_look) << count << " of " << name << (in_use ? " in use" : " idle");
        }
        c.remote_key.reset();
    }
}

TEST(registrations, pack_no_key_before_a_peer_wants_one)
{
    NVL_NEEDS_EMULATOR();
    entity     here;
    gpu_memory memory(0, size);
    emulator()->reset_counts();
    {
        registered one(here, memory.address(), size);
        EXPECT_EQ(emulator()->call_count("cuIpcGetMemHandle"), 0);
        (void)one.key();
        (void)one.key();
        EXPECT_EQ(emulator()->call_count("cuIpcGetMemHandle"), 1);
    }
}

TEST(imports, are_closed_beyond_their_limit)
{
    NVL_NEEDS_EMULATOR();
    connection            c(far_kind::other_process, 0, 1, size, {{"IMPORT_CACHE_COUNT", "3"}});
    std::vector<uint64_t> all;
    long                  before = emulator()->live_count("import");
    for (int i = 0; i < 10; ++i) {
        all.push_back(c.far->allocate(1, size));
        EXPECT_EQ(try_unpack(c.far->key(all.back())), UCS_OK);
    }
    EXPECT_LE(emulator()->live_count("import"), before + 3);
    for (uint64_t one : all) {
        c.far->release(one);
    }
}

TEST(imports, go_when_their_size_is_above_the_limit)
{
    NVL_NEEDS_EMULATOR();
    long before = emulator()->live_count("import");
    {
        connection c(far_kind::other_process, 0, 1, size, {{"IMPORT_CACHE_SIZE", "0"}});
        EXPECT_GT(emulator()->live_count("import"), 0);
        c.remote_key.reset();
        EXPECT_LE(emulator()->live_count("import"), before) << "unused, and still open";
    }
    // The limits are the process's: as they were.
    entity again;
}

} // namespace nvl::test
