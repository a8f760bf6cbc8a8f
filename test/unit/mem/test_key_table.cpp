// SPDX-License-Identifier: BSD-3-Clause
//
// The table of known keys, on the emulated driver: who gets a key again, who does not, and what a known key costs.
#include "exporter.h"

#include "mem/export.h"
#include "mem/key_table.h"
#include "uct/emulated.h"
#include "uct/own_context.h"

#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <new>
#include <random>
#include <thread>
#include <unistd.h>

namespace {

thread_local long allocations_made = 0;

} // namespace

// Counts. All forms, since a sanitizer's runtime has each of its own. Inlined, g++ takes the pairs for
// unequal.
[[gnu::noinline]] void *operator new(size_t size)
{
    ++allocations_made;
    void *made = std::malloc(size);
    if (made == nullptr) {
        throw std::bad_alloc();
    }
    return made;
}

[[gnu::noinline]] void *operator new(size_t size, const std::nothrow_t &) noexcept
{
    ++allocations_made;
    return std::malloc(size);
}

[[gnu::noinline]] void *operator new[](size_t size)
{
    return operator new(size);
}

[[gnu::noinline]] void *operator new[](size_t size, const std::nothrow_t &) noexcept
{
    ++allocations_made;
    return std::malloc(size);
}

[[gnu::noinline]] void operator delete[](void *that) noexcept
{
    std::free(that);
}

[[gnu::noinline]] void operator delete[](void *that, size_t) noexcept
{
    std::free(that);
}

[[gnu::noinline]] void operator delete(void *that) noexcept
{
    std::free(that);
}

[[gnu::noinline]] void operator delete(void *that, size_t) noexcept
{
    std::free(that);
}

namespace nvl::test {

namespace {

constexpr size_t   size    = 1u << 20;
constexpr uint64_t host_id = 1; // as the exporter has it

long opens()
{
    return emulator()->call_count("cuIpcOpenMemHandle_v2");
}

class key_table_test : public testing::Test {
protected:
    key_table_test() : self_(process_self(host_id))
    {
        std::string why;
        where_ = places::get(&why);
        from_  = where_->primary(where_->gpus()[0].device).value();
        other_ = where_->primary(where_->gpus()[1].device).value();
        cache_ = std::make_unique<map_cache>(*where_);
        keys_  = std::make_unique<key_table>(*where_, *cache_);
        emulator()->reset_counts();
    }

    ~key_table_test() override
    {
        keys_.reset();
        cache_->purge();
        EXPECT_EQ(cache_->open_count(), 0u) << "somebody still uses an import";
        EXPECT_EQ(emulator()->live_count("import"), 0) << "an import was left open";
    }

    wire_key key()
    {
        return peer_.allocate_key(size);
    }

    static key_fields fields_of(const wire_key &wire)
    {
        key_fields fields;
        EXPECT_EQ(key_parse(wire.data(), &fields), UCS_OK);
        return fields;
    }

    // Null: not known.
    remote_key *known(const wire_key &wire, const place *from = nullptr)
    {
        result<remote_key *> got = keys_->find(wire.data(), from != nullptr ? *from : *from_);
        return got.ok() ? got.value() : nullptr;
    }

    ucs_status_t status_of(const wire_key &wire)
    {
        result<remote_key *> got = keys_->find(wire.data(), *from_);
        if (got.ok()) {
            got.value()->let_go();
        }
        return got.status();
    }

    remote_key *added(const wire_key &wire)
    {
        result<remote_key *> got = keys_->add(wire.data(), fields_of(wire), self_, *from_);
        EXPECT_TRUE(got.ok()) << static_cast<int>(got.status());
        return got.ok() ? got.value() : nullptr;
    }

    // Known and idle from then on.
    remote_key *introduced(const wire_key &wire)
    {
        remote_key *made = added(wire);
        made->let_go();
        return made;
    }

    // As uct does it.
    remote_key *unpacked(const wire_key &wire)
    {
        remote_key *got = known(wire);
        return (got != nullptr) ? got : added(wire);
    }

    // Of the memory that the peer allocates once that of `before` is free.
    wire_key key_behind(const wire_key &before)
    {
        peer_.free(fields_of(before).base);
        return key();
    }

    static bool is_at_its_address(const wire_key &after, const wire_key &before)
    {
        return fields_of(after).base == fields_of(before).base;
    }

    bool reaches(const remote_key *key, const place *from, const wire_key &wire)
    {
        uint64_t local = 0;
        return key->lookup(from->id(), fields_of(wire).base, size, &local);
    }

    exporter                   peer_;
    process_identity           self_;
    places                    *where_;
    const place               *from_;
    const place               *other_;
    std::unique_ptr<map_cache> cache_;
    std::unique_ptr<key_table> keys_;
};

// The same memory under another name, which nothing ever ends.
wire_key renamed(key_fields fields, uint32_t number)
{
    wire_key wire{};
    fields.serial = (static_cast<uint64_t>(number) << 32) | no_slot;
    key_pack(fields, wire.data());
    return wire;
}

} // namespace

TEST_F(key_table_test, hands_out_a_key_again)
{
    wire_key    one   = key();
    remote_key *first = nullptr;
    EXPECT_EQ(keys_->find(one.data(), *from_).status(), UCS_ERR_NO_ELEM);
    first = added(one);
    EXPECT_EQ(known(one), first) << "while it is used";
    first->let_go();
    first->let_go();
    EXPECT_EQ(keys_->idle_count(), 1u);
    EXPECT_EQ(known(one), first) << "when nobody uses it";
    EXPECT_EQ(keys_->idle_count(), 0u);
    EXPECT_TRUE(reaches(first, from_, one));
    first->let_go();
    EXPECT_EQ(opens(), 1);
}

TEST_F(key_table_test, asks_no_driver_and_allocates_nothing_for_a_known_key)
{
    wire_key one = key();
    introduced(one);
    EXPECT_GT(allocations_made, 0) << "they are not counted";
    for (bool in_use : {false, true}) {
        remote_key *other = in_use ? known(one) : nullptr;
        emulator()->reset_counts();
        long before = allocations_made;
        for (int i = 0; i < 100; ++i) {
            keys_->find(one.data(), *from_).value()->let_go();
        }
        EXPECT_EQ(allocations_made, before) << in_use;
        for (const auto &[name, count] : calls_made()) {
            ADD_FAILURE() << count << " of " << name;
        }
        if (other != nullptr) {
            other->let_go();
        }
    }
}

// Name, owner, kinds, checksum. Behind it damage has no say: what is used is what was checked.
TEST_F(key_table_test, knows_no_key_with_a_bit_of_its_head_wrong)
{
    constexpr size_t head = 40;
    wire_key         one  = key();
    introduced(one);
    for (bool in_use : {false, true}) {
        remote_key *other = in_use ? known(one) : nullptr;
        for (size_t bit = 0; bit < key_size_of(one.data()) * 8; ++bit) {
            wire_key bad = one;
            bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
            ASSERT_EQ(status_of(bad), (bit < 8 * head) ? UCS_ERR_NO_ELEM : UCS_OK) << "bit " << bit;
        }
        EXPECT_EQ(status_of(one), UCS_OK);
        if (other != nullptr) {
            other->let_go();
        }
    }
}

// A whole key with a good checksum that says something else of the same export.
TEST_F(key_table_test, gives_other_bytes_of_a_known_name_a_key_of_their_own)
{
    wire_key   one    = key(), lying{};
    key_fields fields = fields_of(one);
    fields.size_bytes /= 2;
    key_pack(fields, lying.data());

    remote_key *first = added(one);
    EXPECT_EQ(keys_->find(lying.data(), *from_).status(), UCS_ERR_NO_ELEM);
    remote_key *second = added(lying);
    EXPECT_NE(first, second);
    EXPECT_FALSE(reaches(second, from_, one)) << "as much as it says itself";
    EXPECT_EQ(known(one), first) << "who was first stays known while it is used";
    first->let_go();
    second->let_go();
    EXPECT_EQ(keys_->idle_count(), 0u);
    first->let_go();
    EXPECT_EQ(keys_->idle_count(), 1u);

    introduced(lying);
    EXPECT_EQ(status_of(one), UCS_ERR_NO_ELEM) << "nobody used it: the last one counts";
    EXPECT_EQ(status_of(lying), UCS_OK);
    EXPECT_EQ(keys_->idle_count(), 1u);
}

TEST_F(key_table_test, refuses_what_its_owner_has_let_go_of)
{
    wire_key    used = key(), idle = key();
    remote_key *held = added(used);
    introduced(idle);
    peer_.free(fields_of(used).base);
    peer_.free(fields_of(idle).base);
    EXPECT_EQ(status_of(used), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(status_of(idle), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(keys_->idle_count(), 0u) << "nothing to come back to";
    EXPECT_EQ(status_of(used), UCS_ERR_UNREACHABLE) << "the second time too";
    held->let_go();
    EXPECT_EQ(keys_->idle_count(), 0u);
    EXPECT_EQ(emulator()->live_count("import"), 0);
    EXPECT_EQ(opens(), 2) << "the handle of something else by now";
}

// The driver has one mapping for both: who only holds the old key must not keep the new one out for ever.
TEST_F(key_table_test, closes_a_key_that_is_only_held_for_what_is_at_its_address_now)
{
    wire_key    before = key();
    remote_key *held = added(before), *twice = unpacked(before);
    wire_key    after = key_behind(before);
    if (!is_at_its_address(after, before)) {
        held->let_go();
        twice->let_go();
        GTEST_SKIP() << "the address was not used again";
    }
    remote_key *fresh = added(after);
    EXPECT_TRUE(reaches(fresh, from_, after));
    EXPECT_FALSE(reaches(held, from_, before)) << "its mapping is that of the new one";
    EXPECT_FALSE(held->begin_use());
    EXPECT_FALSE(held->is_alive());
    EXPECT_EQ(held->connect(*from_), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(status_of(before), UCS_ERR_UNREACHABLE);
    held->let_go();
    twice->let_go();
    EXPECT_TRUE(reaches(fresh, from_, after));
    EXPECT_TRUE(fresh->begin_use());
    fresh->release();
    fresh->let_go();
}

TEST_F(key_table_test, closes_no_key_with_an_operation_under_way)
{
    wire_key    before = key();
    remote_key *held   = added(before);
    ASSERT_TRUE(held->begin_use());
    wire_key after = key_behind(before);
    if (!is_at_its_address(after, before)) {
        GTEST_SKIP() << "the address was not used again";
    }
    emulator()->reset_counts();
    remote_key *fresh = added(after);
    EXPECT_FALSE(reaches(fresh, from_, after));
    EXPECT_EQ(fresh->connect(*from_), UCS_ERR_BUSY);
    EXPECT_GT(emulator()->live_count("import"), 0) << "closed under an operation";
    EXPECT_FALSE(held->begin_use()) << "no other begins";
    held->release(); // it ends
    EXPECT_EQ(fresh->connect(*from_), UCS_OK);
    EXPECT_TRUE(reaches(fresh, from_, after));
    held->let_go();
    fresh->let_go();
}

TEST_F(key_table_test, closes_no_key_whose_address_was_lent)
{
    wire_key    before = key();
    remote_key *held   = added(before);
    uint64_t    lent   = 0;
    ASSERT_TRUE(held->lend(from_->id(), fields_of(before).base, &lent));
    wire_key after = key_behind(before);
    if (!is_at_its_address(after, before)) {
        GTEST_SKIP() << "the address was not used again";
    }
    remote_key *fresh = added(after);
    EXPECT_EQ(fresh->connect(*from_), UCS_ERR_BUSY);
    EXPECT_NE(mapping_number(where_->cuda(), lent), 0u) << "closed under whoever has the address";
    held->let_go();
    EXPECT_EQ(fresh->connect(*from_), UCS_OK);
    fresh->let_go();
}

// What was lent once is no longer when the key is unpacked anew.
TEST_F(key_table_test, closes_a_key_whose_lender_let_go)
{
    wire_key    before = key();
    remote_key *held   = added(before);
    uint64_t    lent   = 0;
    ASSERT_TRUE(held->lend(from_->id(), fields_of(before).base, &lent));
    held->let_go();
    ASSERT_EQ(known(before), held);
    wire_key after = key_behind(before);
    if (!is_at_its_address(after, before)) {
        GTEST_SKIP() << "the address was not used again";
    }
    remote_key *fresh = added(after);
    EXPECT_EQ(fresh->connect(*from_), UCS_OK);
    held->let_go();
    fresh->let_go();
}

// Whoever has begun a use finds under the address what was there when the key came.
TEST_F(key_table_test, closes_nothing_under_threads_that_use_it)
{
    int met = 0;
    for (int round = 0; round < 40; ++round) {
        wire_key    before = key();
        remote_key *held   = added(before);
        uint64_t    mapped = 0;
        ASSERT_TRUE(held->lookup(from_->id(), fields_of(before).base, 1, &mapped));
        unsigned long long       number = mapping_number(where_->cuda(), mapped);
        std::atomic<int>         wrong{0};
        std::atomic<bool>        stop{false};
        std::vector<std::thread> all;
        for (int t = 0; t < 2; ++t) {
            all.emplace_back([&] {
                uint64_t at = 0;
                while (!stop.load() && held->lookup(from_->id(), fields_of(before).base, 1, &at) &&
                       held->begin_use()) {
                    wrong += (mapping_number(where_->cuda(), at) == number) ? 0 : 1;
                    held->release();
                }
            });
        }
        peer_.free(fields_of(before).base);
        wire_key after = key();
        met += (fields_of(after).base == fields_of(before).base) ? 1 : 0;
        remote_key *fresh = added(after);
        // One of them may be in the middle of a use, without the processor.
        for (int i = 0; (i < 5000) && (fresh->connect(*from_) != UCS_OK); ++i) {
            usleep(1000);
        }
        EXPECT_TRUE(reaches(fresh, from_, after));
        stop.store(true);
        for (std::thread &thread : all) {
            thread.join();
        }
        EXPECT_EQ(wrong.load(), 0);
        held->let_go();
        fresh->let_go();
        peer_.free(fields_of(after).base);
    }
    EXPECT_GT(met, 0) << "no address was used again";
    // The cache's own thread may be about to close the last one.
    for (int i = 0; (i < 5000) && (emulator()->live_count("import") != 0); ++i) {
        usleep(1000);
    }
}

TEST_F(key_table_test, holds_nothing_open_that_is_idle)
{
    wire_key one = key();
    introduced(one);
    peer_.free(fields_of(one).base);
    for (int i = 0; (i < 500) && (emulator()->live_count("import") != 0); ++i) {
        usleep(10000);
    }
    EXPECT_EQ(emulator()->live_count("import"), 0);
    EXPECT_EQ(keys_->idle_count(), 1u);
    EXPECT_EQ(status_of(one), UCS_ERR_UNREACHABLE);
    EXPECT_EQ(keys_->idle_count(), 0u);
}

TEST_F(key_table_test, connects_anew_what_was_closed_meanwhile)
{
    wire_key    one = key(), another = key();
    remote_key *first = introduced(one);
    introduced(another);
    cache_->purge();
    EXPECT_EQ(emulator()->live_count("import"), 0);
    EXPECT_EQ(known(one), first);
    EXPECT_TRUE(reaches(first, from_, one));
    EXPECT_EQ(opens(), 3);
    first->let_go();

    // What was closed was another one.
    peer_.free(fields_of(another).base);
    cache_->sweep();
    EXPECT_EQ(known(one), first);
    EXPECT_TRUE(reaches(first, from_, one));
    EXPECT_EQ(opens(), 3);
    first->let_go();
}

TEST_F(key_table_test, serves_several_places_with_one_key)
{
    wire_key    one   = key();
    remote_key *first = added(one);
    EXPECT_FALSE(reaches(first, other_, one));
    EXPECT_EQ(known(one, other_), first);
    EXPECT_TRUE(reaches(first, from_, one) && reaches(first, other_, one));
    first->let_go();
    first->let_go();

    EXPECT_EQ(known(one, other_), first);
    EXPECT_TRUE(reaches(first, from_, one) && reaches(first, other_, one));
    EXPECT_EQ(opens(), 2) << "one for each";
    first->let_go();

    cache_->purge();
    EXPECT_EQ(known(one), first);
    EXPECT_TRUE(reaches(first, from_, one));
    EXPECT_FALSE(reaches(first, other_, one)) << "closed, and not asked for";
    first->let_go();
}

TEST_F(key_table_test, keeps_so_many_idle_keys_and_no_more)
{
    constexpr uint32_t more   = key_table::idle_most + 10;
    key_fields         fields = fields_of(key());
    introduced(renamed(fields, 0));
    for (uint32_t i = 1; i < more; ++i) {
        introduced(renamed(fields, i));
        EXPECT_EQ(status_of(renamed(fields, 0)), UCS_OK) << "used again and again";
    }
    EXPECT_EQ(keys_->idle_count(), size_t(key_table::idle_most));
    EXPECT_EQ(status_of(renamed(fields, 1)), UCS_ERR_NO_ELEM) << "unused longest";
    EXPECT_EQ(status_of(renamed(fields, more - 1)), UCS_OK);
    keys_->purge();
    EXPECT_EQ(keys_->idle_count(), 0u);
    EXPECT_EQ(status_of(renamed(fields, more - 1)), UCS_ERR_NO_ELEM);
}

TEST_F(key_table_test, lets_pass_what_is_busy_at_first)
{
    wire_key    before = key();
    remote_key *held   = added(before);
    wire_key    after  = key_behind(before);
    if (!is_at_its_address(after, before)) {
        held->let_go();
        GTEST_SKIP() << "the address was not used again";
    }
    ASSERT_TRUE(held->begin_use());
    held->let_go();
    remote_key *waiting = added(after);
    EXPECT_EQ(known(after), waiting);
    EXPECT_FALSE(reaches(waiting, from_, after));
    held->release(); // the operation ends
    EXPECT_EQ(waiting->connect(*from_), UCS_OK);
    EXPECT_TRUE(reaches(waiting, from_, after));
    EXPECT_EQ(known(after), waiting);
    waiting->let_go();
    waiting->let_go();
    waiting->let_go();
}

TEST_F(key_table_test, keeps_no_key_of_this_process)
{
    current_context scope(primary_context(1));
    CUdeviceptr     address = 0;
    wire_key        wire{};
    NVL_MUST(cuMemAlloc_v2, (&address, size));
    auto mine = registration::create(*where_, reinterpret_cast<void *>(address), size);
    ASSERT_TRUE(mine.ok());
    ASSERT_EQ(mine.value()->pack_key(self_, address, size, wire.data()), UCS_OK);
    remote_key *first = added(wire);
    EXPECT_EQ(status_of(wire), UCS_ERR_NO_ELEM);
    first->let_go();
    EXPECT_EQ(keys_->idle_count(), 0u);
    mine.value().reset();
    NVL_MUST(cuMemFree_v2, (address));
}

// Another GPU's context has the number by which the key knew an ended one.
TEST_F(key_table_test, forgets_for_which_place_it_was_opened_when_another_gets_its_number)
{
    wire_key       one    = key();
    remote_key    *held   = added(one);
    auto           ending = std::make_unique<own_context>(0);
    const place   *gone   = where_->find(where_->gpus()[0].device, ending->get()).value();
    const unsigned id     = gone->id();
    ASSERT_EQ(held->connect(*gone), UCS_OK);
    held->allow_atomics(id);
    EXPECT_TRUE(reaches(held, gone, one));
    ending.reset();

    std::vector<std::unique_ptr<own_context>> others;
    const place                              *heir = nullptr;
    while (heir == nullptr) {
        others.push_back(std::make_unique<own_context>(1));
        result<const place *> at = where_->find(where_->gpus()[1].device, others.back()->get());
        ASSERT_TRUE(at.ok()) << others.size();
        heir = (at.value()->id() == id) ? at.value() : nullptr;
    }
    EXPECT_FALSE(reaches(held, heir, one));
    EXPECT_FALSE(held->has_atomics(id));
    EXPECT_EQ(held->connect(*heir), UCS_OK);
    EXPECT_TRUE(reaches(held, heir, one));
    EXPECT_FALSE(reaches(held, gone, one));
    EXPECT_EQ(held->connect(*gone), UCS_ERR_IO_ERROR);
    held->let_go();
}

// Some let a key go in the moment in which others unpack it, and the cache closes what it can.
TEST_F(key_table_test, survives_16_threads_that_come_and_go)
{
    std::vector<wire_key> wires;
    for (int i = 0; i < 3; ++i) {
        wires.push_back(key());
    }
    std::atomic<int>         failed{0};
    std::atomic<bool>        stop{false};
    std::thread              closer([&] {
        for (unsigned i = 0; !stop.load(); ++i) {
            map_cache_limits few;
            few.count = i % 3;
            cache_->set_limits(few);
            keys_->purge();
            usleep(500);
        }
    });
    std::vector<std::thread> all;
    for (unsigned t = 0; t < 16; ++t) {
        all.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int round = 0; round < 500; ++round) {
                const wire_key &wire = wires[random() % wires.size()];
                remote_key     *one = unpacked(wire), *two = unpacked(wire);
                if ((one == nullptr) || (two == nullptr)) {
                    ++failed;
                    continue;
                }
                failed += reaches(one, from_, wire) ? 0 : 1;
                // As an operation that ends later than the key's owner lets go.
                one->acquire();
                one->let_go();
                failed += reaches(two, from_, wire) ? 0 : 1;
                two->let_go();
                one->release();
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    stop.store(true);
    closer.join();
    EXPECT_EQ(failed.load(), 0);
    EXPECT_LE(keys_->idle_count(), wires.size());
}

} // namespace nvl::test
