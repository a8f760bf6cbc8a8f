// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of a few bytes of the host: short puts, the copying forms, and atomic operations on a peer's memory.
#include "uct/connection.h"
#include "uct/emulated.h"
#include "uct/log_watch.h"

#include <cstring>
#include <limits>
#include <thread>

namespace nvl::test {

namespace {

constexpr size_t size = 64 * 1024;

bool has_atomics(const connection &c)
{
    return (c.here.attributes().cap.flags & UCT_IFACE_FLAG_ATOMIC_CPU) != 0;
}

// The copy engines cannot do them: then they are not offered, and are refused.
#define NVL_NEEDS_ATOMICS(_c)                                                                \
    do {                                                                                     \
        if (!has_atomics(_c)) {                                                              \
            EXPECT_EQ(uct_ep_atomic64_post((_c).ep.get(), UCT_ATOMIC_OP_ADD, 1, (_c).remote, \
                                           (_c).rkey()),                                     \
                      UCS_ERR_UNSUPPORTED);                                                  \
            return;                                                                          \
        }                                                                                    \
    } while (0)

// Posts until it is taken.
template<typename F> ucs_status_t post(const connection &c, F call)
{
    ucs_status_t status = UCS_ERR_NO_RESOURCE;
    c.wait([&] {
        status = call();
        return status != UCS_ERR_NO_RESOURCE;
    });
    return status;
}

ucs_status_t put_short(const connection &c, const void *from, size_t bytes, size_t to)
{
    return post(c, [&] {
        return uct_ep_put_short(c.ep.get(), from, static_cast<unsigned>(bytes), c.remote + to,
                                c.rkey());
    });
}

template<typename word> bytes as_bytes(word value)
{
    bytes made(sizeof(value));
    std::memcpy(made.data(), &value, sizeof(value));
    return made;
}

template<typename word> word value_at(const connection &c, size_t offset)
{
    bytes read = c.far->read(c.remote, offset, sizeof(word));
    word  value;
    std::memcpy(&value, read.data(), sizeof(value));
    return value;
}

} // namespace

class short_put : public every_pair {};

TEST_P(short_put, of_every_size_arrives_at_any_address_and_leaves_its_source_at_once)
{
    connection   c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    const size_t most = c.here.attributes().cap.put.max_short;
    ASSERT_GE(most, 32u);
    bytes expected = random_bytes(size, 1);
    c.far->write(c.remote, 0, expected);

    size_t at = 1;
    for (size_t length = 1; length <= most; ++length) {
        for (size_t shift : {0, 1, 3}) {
            bytes  source = random_bytes(length, length * 7 + shift);
            size_t to     = at + shift;
            std::copy(source.begin(), source.end(), expected.begin() + to);
            ASSERT_EQ(put_short(c, source.data(), length, to), UCS_OK);
            std::fill(source.begin(), source.end(), 0xee);
            at += length + 9;
        }
    }
    ASSERT_LT(at, size);
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, size)), "");
    uint8_t byte = 1;
    EXPECT_EQ(put_short(c, &byte, 0, 0), UCS_OK);
    EXPECT_EQ(put_short(c, expected.data(), most + 1, 0), UCS_ERR_INVALID_PARAM);
}

INSTANTIATE_TEST_SUITE_P(all, short_put, all_pairs(), name_of);

TEST_P(short_put, keeps_its_place_beside_copies_where_a_fence_is_between)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    bytes      large = random_bytes(size, 3);
    c.local.write(0, large);
    for (uint64_t round = 0; round < 8; ++round) {
        // Behind a copy it is what is there in the end, in front of one it is not.
        ASSERT_EQ(post(c, [&] { return c.put(0, 0, size, nullptr); }), UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
        ASSERT_EQ(put_short(c, &round, sizeof(round), size - 9), UCS_OK);
        ASSERT_TRUE(c.drain());
        ASSERT_EQ(value_at<uint64_t>(c, size - 9), round);
        ASSERT_EQ(put_short(c, &round, sizeof(round), 11), UCS_OK);
        ASSERT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
        ASSERT_EQ(post(c, [&] { return c.put(0, 0, size, nullptr); }), UCS_INPROGRESS);
        ASSERT_TRUE(c.drain());
        ASSERT_EQ(difference(large, c.far->read(c.remote, 0, size)), "");
    }
}

TEST(short_puts, are_taken_in_any_number)
{
    connection         c(far_kind::other_process, 0, 1, size);
    std::vector<bytes> sources;
    bytes              expected(size);
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t value = at * 3 + 1;
        std::memcpy(expected.data() + at, &value, sizeof(value));
        ASSERT_EQ(put_short(c, &value, sizeof(value), at), UCS_OK);
    }
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(difference(expected, c.far->read(c.remote, 0, size)), "");
}

TEST(short_puts, outside_of_the_registered_memory_are_refused)
{
    connection c(far_kind::other_worker, 0, 1, size);
    uint64_t   value = 0;
    expect_log("outside the peer's registered memory");
    EXPECT_EQ(put_short(c, &value, 8, size - 7), UCS_ERR_INVALID_ADDR);
}

TEST(short_puts, of_host_memory_are_not_offered_where_host_memory_is_left_alone)
{
    connection c(far_kind::other_worker, 0, 1, size, {{"HOST_MEMORY", "n"}});
    EXPECT_EQ(c.here.attributes().cap.flags & UCT_IFACE_FLAG_PUT_SHORT, 0u);
}

TEST(copying_forms, put_what_is_packed_and_hand_over_what_is_got)
{
    connection   c(far_kind::other_process, 0, 1, size);
    const size_t most = c.here.attributes().cap.put.max_bcopy;
    for (size_t length = 1; length <= most; length += 9) {
        struct parcel {
            bytes  data;
            size_t unpacked = 0;
        } out{random_bytes(length, length)}, in;
        in.data.resize(length);
        auto pack = [](void *to, void *arg) {
            auto *what = static_cast<parcel *>(arg);
            std::memcpy(to, what->data.data(), what->data.size());
            return what->data.size();
        };
        auto unpack = [](void *arg, const void *from, size_t got) {
            auto *what = static_cast<parcel *>(arg);
            std::memcpy(what->data.data(), from, got);
            what->unpacked += got;
        };
        ssize_t packed = UCS_ERR_NO_RESOURCE;
        c.wait([&] {
            packed = uct_ep_put_bcopy(c.ep.get(), pack, &out, c.remote + 13, c.rkey());
            return packed != UCS_ERR_NO_RESOURCE;
        });
        ASSERT_EQ(packed, static_cast<ssize_t>(length));
        ASSERT_TRUE(c.drain());
        completion done;
        ASSERT_EQ(
            uct_ep_get_bcopy(c.ep.get(), unpack, &in, length, c.remote + 13, c.rkey(), &done.super),
            UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(done.status, UCS_OK);
        EXPECT_EQ(in.unpacked, length);
        EXPECT_EQ(difference(out.data, in.data), "");
    }
}

// Whoever counts allocations finds nothing left behind.
TEST(copying_forms, are_let_go_of_when_their_interface_closes)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, size);
    entity     other;
    auto       unpack = [](void *, const void *, size_t) {};
    {
        endpoint     ep(other, c.far->address());
        held_streams held;
        for (size_t i = 0; i < 8; ++i) {
            ASSERT_EQ(uct_ep_get_bcopy(ep.get(), unpack, nullptr, 8, c.remote, c.rkey(), nullptr),
                      UCS_INPROGRESS);
        }
    }
    other.close_iface();
}

// ---- atomic operations ---------------------------------------------------------------------------------------------

namespace {

template<typename word> struct width;

template<> struct width<uint32_t> {
    static ucs_status_t post(const connection &c, uct_atomic_op_t what, uint32_t value, size_t at)
    {
        return uct_ep_atomic32_post(c.ep.get(), what, value, c.remote + at, c.rkey());
    }
    static ucs_status_t fetch(const connection &c, uct_atomic_op_t what, uint32_t value,
                              uint32_t *result, size_t at, completion *done)
    {
        return uct_ep_atomic32_fetch(c.ep.get(), what, value, result, c.remote + at, c.rkey(),
                                     &done->super);
    }
    static ucs_status_t swap(const connection &c, uint32_t compare, uint32_t value,
                             uint32_t *result, size_t at, completion *done)
    {
        return uct_ep_atomic_cswap32(c.ep.get(), compare, value, c.remote + at, c.rkey(), result,
                                     &done->super);
    }
};

template<> struct width<uint64_t> {
    static ucs_status_t post(const connection &c, uct_atomic_op_t what, uint64_t value, size_t at)
    {
        return uct_ep_atomic64_post(c.ep.get(), what, value, c.remote + at, c.rkey());
    }
    static ucs_status_t fetch(const connection &c, uct_atomic_op_t what, uint64_t value,
                              uint64_t *result, size_t at, completion *done)
    {
        return uct_ep_atomic64_fetch(c.ep.get(), what, value, result, c.remote + at, c.rkey(),
                                     &done->super);
    }
    static ucs_status_t swap(const connection &c, uint64_t compare, uint64_t value,
                             uint64_t *result, size_t at, completion *done)
    {
        return uct_ep_atomic_cswap64(c.ep.get(), compare, value, c.remote + at, c.rkey(), result,
                                     &done->super);
    }
};

template<typename word> word applied(uct_atomic_op_t what, word before, word operand)
{
    switch (what) {
    case UCT_ATOMIC_OP_ADD:
        return static_cast<word>(before + operand);
    case UCT_ATOMIC_OP_AND:
        return before & operand;
    case UCT_ATOMIC_OP_OR:
        return before | operand;
    case UCT_ATOMIC_OP_XOR:
        return before ^ operand;
    default:
        return operand;
    }
}

// The word and its neighbours, after what was posted has ended.
template<typename word> void expect_word(const connection &c, size_t at, word value)
{
    ASSERT_TRUE(c.drain());
    EXPECT_EQ(value_at<word>(c, at), value);
    EXPECT_EQ(value_at<word>(c, at - sizeof(word)), static_cast<word>(0x11));
    EXPECT_EQ(value_at<word>(c, at + sizeof(word)), static_cast<word>(0x22));
}

template<typename word> void check_operations(const connection &c, size_t at)
{
    const word before  = static_cast<word>(0xf0e1d2c3b4a59687ull);
    const word operand = static_cast<word>(0x123456789abcdef1ull);
    c.far->write(c.remote, at - sizeof(word), as_bytes(static_cast<word>(0x11)));
    c.far->write(c.remote, at + sizeof(word), as_bytes(static_cast<word>(0x22)));

    for (uct_atomic_op_t what : {UCT_ATOMIC_OP_ADD, UCT_ATOMIC_OP_AND, UCT_ATOMIC_OP_OR,
                                 UCT_ATOMIC_OP_XOR, UCT_ATOMIC_OP_SWAP}) {
        if (what != UCT_ATOMIC_OP_SWAP) {
            c.far->write(c.remote, at, as_bytes(before));
            ASSERT_EQ(post(c, [&] { return width<word>::post(c, what, operand, at); }), UCS_OK);
            expect_word(c, at, applied(what, before, operand));
        }
        c.far->write(c.remote, at, as_bytes(before));
        completion done;
        word       result = 0;
        ASSERT_EQ(post(c, [&] { return width<word>::fetch(c, what, operand, &result, at, &done); }),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(done.status, UCS_OK);
        EXPECT_EQ(result, before);
        expect_word(c, at, applied(what, before, operand));
    }
    for (word compare : {before, static_cast<word>(before + 1)}) {
        c.far->write(c.remote, at, as_bytes(before));
        completion done;
        word       result = 0;
        ASSERT_EQ(
            post(c, [&] { return width<word>::swap(c, compare, operand, &result, at, &done); }),
            UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        EXPECT_EQ(result, before);
        expect_word(c, at, (compare == before) ? operand : before);
    }
}

} // namespace

class atomic_operation : public every_pair {};

TEST_P(atomic_operation, of_each_kind_and_width_does_what_it_is_named_after)
{
    connection c(GetParam().kind, GetParam().here_gpu, GetParam().far_gpu, size);
    NVL_NEEDS_ATOMICS(c);
    check_operations<uint32_t>(c, 4 * 1021);
    check_operations<uint64_t>(c, 8 * 511);
}

INSTANTIATE_TEST_SUITE_P(all, atomic_operation, all_pairs(), name_of);

TEST(atomic_operations, of_two_peers_and_this_process_at_once_add_up)
{
    connection c(far_kind::other_process, 0, 1, size);
    NVL_NEEDS_ATOMICS(c);
    constexpr size_t count = 3000;
    peer_side        second;
    const bytes      key = c.far->key(c.remote);
    c.far->write(c.remote, 64, as_bytes(uint64_t{0}));

    ucs_status_t status = UCS_INPROGRESS;
    std::thread  other([&] { status = second.add(count, c.far->address(), c.remote + 64, key); });
    uint64_t     seen = 0, last = 0;
    for (size_t i = 0; i < count; ++i) {
        completion done;
        uint64_t   before = 0;
        ASSERT_EQ(post(c,
                       [&] {
                           return width<uint64_t>::fetch(c, UCT_ATOMIC_OP_ADD, 1, &before, 64,
                                                         &done);
                       }),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        ASSERT_TRUE((i == 0) || (before > last)); // ours alone would be 0, 1, 2 ...
        last = before;
        ++seen;
    }
    other.join();
    ASSERT_EQ(status, UCS_OK);
    EXPECT_EQ(seen, count);
    EXPECT_EQ(value_at<uint64_t>(c, 64), 2 * count);
}

TEST(atomic_operations, of_two_processes_on_memory_of_this_one_add_up)
{
    connection c(far_kind::other_process, 0, 1, size);
    NVL_NEEDS_ATOMICS(c);
    constexpr size_t count = 4000;
    peer_side        second;
    const bytes      key = c.local_registration.key();
    c.local.write(0, as_bytes(uint64_t{7}));
    ucs_status_t status[2] = {UCS_INPROGRESS, UCS_INPROGRESS};
    side        *sides[2]  = {c.far.get(), &second};
    const auto   here      = c.here.address();
    std::thread  threads[2];
    for (int i = 0; i < 2; ++i) {
        threads[i] =
            std::thread([&, i] { status[i] = sides[i]->add(count, here, c.local.address(), key); });
    }
    for (std::thread &one : threads) {
        one.join();
    }
    EXPECT_EQ(status[0], UCS_OK);
    EXPECT_EQ(status[1], UCS_OK);
    EXPECT_EQ(difference(as_bytes(uint64_t{7 + 2 * count}), c.local.read(0, 8)), "");
}

TEST(atomic_operations, keep_their_place_beside_copies_where_a_fence_is_between)
{
    connection c(far_kind::other_process, 0, 1, size);
    NVL_NEEDS_ATOMICS(c);
    bytes zeros(size);
    c.local.write(0, zeros);
    for (uint64_t round = 0; round < 20; ++round) {
        ASSERT_EQ(post(c, [&] { return c.put(0, 0, size, nullptr); }), UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
        ASSERT_EQ(
            post(c,
                 [&] { return width<uint64_t>::post(c, UCT_ATOMIC_OP_ADD, round + 1, size - 8); }),
            UCS_OK);
        ASSERT_EQ(uct_ep_fence(c.ep.get(), 0), UCS_OK);
        completion done;
        ASSERT_EQ(post(c, [&] { return c.get(8, size - 8, 8, &done); }), UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        ASSERT_EQ(difference(as_bytes(round + 1), c.local.read(8, 8)), "");
        c.local.write(8, as_bytes(uint64_t{0}));
    }
}

TEST(atomic_operations, that_are_posted_are_done_when_a_flush_is)
{
    connection c(far_kind::other_process, 0, 1, size);
    NVL_NEEDS_ATOMICS(c);
    c.far->write(c.remote, 0, as_bytes(uint32_t{0}));
    constexpr uint32_t count = 2000;
    for (uint32_t i = 0; i < count; ++i) {
        ASSERT_EQ(post(c, [&] { return width<uint32_t>::post(c, UCT_ATOMIC_OP_ADD, 1, 0); }),
                  UCS_OK);
    }
    completion   flushed;
    ucs_status_t status = post(c, [&] { return uct_ep_flush(c.ep.get(), 0, &flushed.super); });
    if (status == UCS_INPROGRESS) {
        ASSERT_TRUE(c.wait(flushed));
    }
    EXPECT_EQ(value_at<uint32_t>(c, 0), count);
}

// Each ends the kernel: it leaves after 20 us without work, and the next one calls another.
TEST(atomic_operations, with_pauses_between_them_are_done_once)
{
    NVL_NEEDS_EMULATOR();
    connection c(far_kind::other_process, 0, 1, size, {{"IDLE", "20us"}, {"STAY", "1ms"}});
    NVL_NEEDS_ATOMICS(c);
    c.far->write(c.remote, 0, as_bytes(uint64_t{0}));
    constexpr uint64_t count = 200;
    for (uint64_t i = 0; i < count; ++i) {
        completion done;
        uint64_t   before = 0;
        ASSERT_EQ(post(c,
                       [&] {
                           return width<uint64_t>::fetch(c, UCT_ATOMIC_OP_ADD, 1, &before, 0,
                                                         &done);
                       }),
                  UCS_INPROGRESS);
        ASSERT_TRUE(c.wait(done));
        ASSERT_EQ(before, i);
    }
    EXPECT_EQ(value_at<uint64_t>(c, 0), count);
}

TEST(atomic_operations, that_make_no_sense_are_refused)
{
    connection c(far_kind::other_worker, 0, 1, size);
    NVL_NEEDS_ATOMICS(c);
    completion done;
    uint64_t   result = 0;
    EXPECT_EQ(width<uint64_t>::post(c, UCT_ATOMIC_OP_ADD, 1, 4), UCS_ERR_INVALID_PARAM);
    EXPECT_EQ(width<uint32_t>::post(c, UCT_ATOMIC_OP_ADD, 1, 2), UCS_ERR_INVALID_PARAM);
    expect_log("outside the peer's registered memory");
    EXPECT_EQ(width<uint64_t>::post(c, UCT_ATOMIC_OP_ADD, 1, size), UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(width<uint64_t>::post(c, UCT_ATOMIC_OP_SWAP, 1, 0), UCS_ERR_UNSUPPORTED);
    EXPECT_EQ(width<uint64_t>::fetch(c, UCT_ATOMIC_OP_CSWAP, 1, &result, 0, &done),
              UCS_ERR_UNSUPPORTED);
    EXPECT_EQ(width<uint64_t>::post(c, UCT_ATOMIC_OP_LAST, 1, 0), UCS_ERR_UNSUPPORTED);
}

TEST(atomic_operations, are_offered_with_the_kernel_alone)
{
    const char *kernel = std::getenv("UCX_NVLINK_KERNEL");
    if ((emulator() != nullptr) && (kernel != nullptr) && (kernel[0] == 'y')) {
        uct_iface_attr_t attr = entity().attributes();
        EXPECT_NE(attr.cap.flags & UCT_IFACE_FLAG_ATOMIC_CPU, 0u);
        EXPECT_EQ(attr.cap.flags & UCT_IFACE_FLAG_ATOMIC_DEVICE, 0u);
        EXPECT_EQ(attr.cap.atomic32.op_flags, attr.cap.atomic64.op_flags);
        EXPECT_EQ(attr.cap.atomic32.fop_flags, 0x3fu);
    }
    for (const settings &with : {settings{{"KERNEL", "n"}}, settings{{"ATOMICS", "n"}}}) {
        entity           one(with);
        uct_iface_attr_t attr = one.attributes();
        EXPECT_EQ(attr.cap.flags & (UCT_IFACE_FLAG_ATOMIC_CPU | UCT_IFACE_FLAG_ATOMIC_DEVICE), 0u);
        EXPECT_EQ(attr.cap.atomic64.fop_flags | attr.cap.atomic32.op_flags, 0u);
    }
}

// Host memory of the domain itself: UCP asks for it where nobody else allocates, packs a key of it, and finds that
// nobody can use that.
TEST(host_allocation, is_memory_that_no_peer_reaches)
{
    entity           one;
    uct_md_attr_v2_t attr{};
    attr.field_mask = UCT_MD_ATTR_FIELD_FLAGS | UCT_MD_ATTR_FIELD_ALLOC_MEM_TYPES |
                      UCT_MD_ATTR_FIELD_REG_MEM_TYPES;
    ASSERT_EQ(ucx().uct_md_query_v2(one.md(), &attr), UCS_OK);
    if (!(attr.flags & UCT_MD_FLAG_ALLOC)) {
        EXPECT_EQ(emulator(), nullptr); // two H200, which have atomic operations
        return;
    }
    EXPECT_EQ(attr.alloc_mem_types, 1u << UCS_MEMORY_TYPE_HOST);
    EXPECT_EQ(attr.reg_mem_types, 1u << UCS_MEMORY_TYPE_CUDA);
    uct_md_h               mds[] = {one.md()};
    uct_alloc_method_t     how   = UCT_ALLOC_METHOD_MD;
    uct_mem_alloc_params_t params{};
    params.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_MDS | UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE;
    params.mds        = {mds, 1};
    params.mem_type   = UCS_MEMORY_TYPE_HOST;
    uct_allocated_memory_t memory{};
    ASSERT_EQ(ucx().uct_mem_alloc(10000, &how, 1, &params, &memory), UCS_OK);
    EXPECT_GE(memory.length, 10000u);
    std::memset(memory.address, 1, memory.length);
    bytes key(256);
    EXPECT_EQ(ucx().uct_md_mkey_pack(one.md(), memory.memh, key.data()), UCS_OK);
    EXPECT_EQ(try_unpack(key), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(ucx().uct_mem_free(&memory), UCS_OK);
}

} // namespace nvl::test
