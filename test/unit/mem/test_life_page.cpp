// SPDX-License-Identifier: BSD-3-Clause
//
// The page of what is alive, the record of an export, and how descriptors travel: between two threads of one process,
// without a driver.
#include "mem/descriptor_wire.h"
#include "mem/export_record.h"
#include "mem/life_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>

namespace nvl::test {

namespace {

constexpr uint64_t token = 0x1234;

std::unique_ptr<life_view> view(uint64_t expected = token)
{
    int copy = fcntl(life_page::own(token).fd(), F_DUPFD_CLOEXEC, 0);
    return life_view::map(unique_fd(copy), expected);
}

export_record some_record(size_t chunks)
{
    export_record made;
    made.token  = token;
    made.serial = 77;
    made.base   = 4u << 20;
    for (size_t i = 0; i < chunks; ++i) {
        shared_chunk chunk;
        chunk.size_bytes = 2u << 20;
        chunk.fd         = static_cast<int>(i);
        chunk.has_fabric = (i % 2) == 1;
        chunk.fabric.fill(static_cast<uint8_t>(i));
        made.chunks.push_back(chunk);
        made.size_bytes += chunk.size_bytes;
    }
    return made;
}

} // namespace

TEST(life_page, shows_an_export_from_its_begin_to_its_end)
{
    life_page &page = life_page::own(token);
    auto       seen = view();
    ASSERT_NE(seen, nullptr);
    uint64_t one = page.begin(), other = page.begin();
    EXPECT_TRUE(seen->is_alive(one));
    page.set_record(one, 9);
    EXPECT_EQ(seen->record_fd(one), 9);
    EXPECT_EQ(seen->record_fd(other), -1);
    uint64_t before = seen->changes();
    page.end(one);
    EXPECT_NE(seen->changes(), before);
    EXPECT_FALSE(seen->is_alive(one));
    EXPECT_EQ(seen->record_fd(one), -1);
    EXPECT_TRUE(seen->is_alive(other));
    page.end(other);
}

TEST(life_page, never_gives_a_serial_twice)
{
    life_page         &page = life_page::own(token);
    std::set<uint64_t> all;
    auto               seen = view();
    for (int i = 0; i < 1000; ++i) {
        uint64_t serial = page.begin();
        EXPECT_TRUE(all.insert(serial).second);
        page.end(serial);
    }
    for (uint64_t serial : all) {
        EXPECT_FALSE(seen->is_alive(serial));
    }
}

TEST(life_page, takes_more_exports_than_it_has_slots)
{
    life_page            &page = life_page::own(token);
    std::vector<uint64_t> all;
    std::set<uint64_t>    different;
    auto                  seen = view();
    for (uint32_t i = 0; i < life_layout::slot_count + 100; ++i) {
        all.push_back(page.begin());
        different.insert(all.back());
        ASSERT_TRUE(seen->is_alive(all.back()));
    }
    EXPECT_EQ(different.size(), all.size());
    for (uint64_t serial : all) {
        page.end(serial);
    }
    EXPECT_FALSE(seen->is_alive(all.front()));
}

TEST(life_page, is_left_alone_by_a_forked_child)
{
    life_page &page   = life_page::own(token);
    auto       seen   = view();
    uint64_t   serial = page.begin();
    page.set_record(serial, 5);
    pid_t child = fork();
    if (child == 0) {
        // As the destructors do at its exit.
        page.end(serial);
        page.set_record(page.begin(), 6);
        _exit(0);
    }
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(seen->is_alive(serial));
    EXPECT_EQ(seen->record_fd(serial), 5);
    page.end(serial);
}

TEST(life_page, of_another_process_or_file_is_refused)
{
    EXPECT_EQ(view(token + 1), nullptr);
    EXPECT_EQ(life_view::map(unique_fd(open("/dev/null", O_RDONLY)), token), nullptr);
    EXPECT_EQ(life_view::map(unique_fd(), token), nullptr);
    // Right in size, and it could shrink under the reader.
    unique_fd plain(memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(plain.get(), sizeof(life_layout)), 0);
    EXPECT_EQ(life_view::map(std::move(plain), token), nullptr);
}

TEST(life_page, cannot_be_written_by_a_peer)
{
    int   fd = life_page::own(token).fd();
    void *at = mmap(nullptr, sizeof(life_layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_EQ(at, MAP_FAILED);
    EXPECT_NE(ftruncate(fd, 0), 0);
}

TEST(export_record, brings_back_what_was_packed)
{
    for (size_t chunks : {1, 5, 1000}) {
        export_record made = some_record(chunks), back;
        ASSERT_TRUE(record_parse(record_pack(made), &back));
        EXPECT_EQ(back.base, made.base);
        EXPECT_EQ(back.size_bytes, made.size_bytes);
        ASSERT_EQ(back.chunks.size(), chunks);
        for (size_t i = 0; i < chunks; ++i) {
            EXPECT_EQ(back.chunks[i].fd, made.chunks[i].fd);
            EXPECT_EQ(back.chunks[i].has_fabric, made.chunks[i].has_fabric);
            EXPECT_EQ(back.chunks[i].fabric, made.chunks[i].fabric);
        }
    }
}

TEST(export_record, is_refused_when_it_makes_no_sense)
{
    export_record good = some_record(5), back;
    for (size_t cut = 0; cut < record_pack(good).size(); cut += 7) {
        std::vector<uint8_t> bytes = record_pack(good);
        bytes.resize(cut);
        EXPECT_FALSE(record_parse(bytes, &back)) << cut;
    }
    export_record longer = good;
    longer.size_bytes += 1;
    EXPECT_FALSE(record_parse(record_pack(longer), &back)) << "more than its chunks";
    export_record huge        = good;
    huge.chunks[1].size_bytes = UINT64_MAX - 100;
    EXPECT_FALSE(record_parse(record_pack(huge), &back)) << "a sum that wraps around";
    export_record around = good;
    around.base          = UINT64_MAX - 5;
    EXPECT_FALSE(record_parse(record_pack(around), &back));
    export_record pools = good;
    pools.pool          = 1;
    EXPECT_FALSE(record_parse(record_pack(pools), &back)) << "a pointer in five pools";
    export_record none = good;
    none.chunks.clear();
    EXPECT_FALSE(record_parse(record_pack(none), &back));
    std::mt19937 random(1);
    for (int round = 0; round < 2000; ++round) {
        std::vector<uint8_t> noise(random() % 600);
        for (uint8_t &byte : noise) {
            byte = static_cast<uint8_t>(random());
        }
        EXPECT_FALSE(record_parse(noise, &back));
    }
}

TEST(descriptors, arrive_in_order_and_close_on_exec_however_many)
{
    constexpr size_t       count = 300; // more than one message takes
    int                    ends[2];
    std::vector<unique_fd> sent, got;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    for (size_t i = 0; i < count; ++i) {
        sent.emplace_back(memfd_create("one", 0));
        auto number = static_cast<off_t>(i);
        ASSERT_EQ(ftruncate(sent.back().get(), number), 0);
    }
    std::thread sender([&] { EXPECT_TRUE(descriptor_send_fds(ends[0], sent)); });
    ASSERT_TRUE(descriptor_receive_fds(ends[1], count, &got));
    sender.join();
    ASSERT_EQ(got.size(), count);
    for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(lseek(got[i].get(), 0, SEEK_END), static_cast<off_t>(i));
        EXPECT_NE(fcntl(got[i].get(), F_GETFD) & FD_CLOEXEC, 0);
    }
    close(ends[0]);
    EXPECT_FALSE(descriptor_receive_fds(ends[1], count + 1, &got)) << "the other end is gone";
    close(ends[1]);
}

TEST(descriptors, are_waited_for_no_longer_than_the_limit)
{
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    descriptor_timeouts(ends[1], 20);
    uint8_t byte;
    EXPECT_FALSE(descriptor_receive(ends[1], &byte, 1));
    EXPECT_TRUE(descriptor_peer_is_us(ends[1]));
    close(ends[0]);
    close(ends[1]);
}

TEST(descriptors, have_an_address_that_fits)
{
    sockaddr_un address;
    socklen_t   length = 0;
    EXPECT_TRUE(descriptor_address(token, "", &address, &length));
    EXPECT_EQ(address.sun_path[0], '\0');
    EXPECT_LE(length, sizeof(address));
    EXPECT_TRUE(descriptor_address(token, "/run/folder", &address, &length));
    EXPECT_FALSE(descriptor_address(token, std::string(100, 'x'), &address, &length));
}

} // namespace nvl::test
