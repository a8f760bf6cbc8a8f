// SPDX-License-Identifier: BSD-3-Clause
//
// The page as an anonymous file, sealed so that a peer can neither write it nor
// be hurt by its shrinking.
#include "mem/life_page.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/log.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace nvl {

namespace {

uint32_t slot_of(uint64_t serial) noexcept
{
    return static_cast<uint32_t>(serial);
}

uint32_t generation_of(uint64_t serial) noexcept
{
    return static_cast<uint32_t>(serial >> 32);
}

} // namespace

life_page &life_page::own(uint64_t token)
{
    static life_page *const only = new life_page(token);
    return *only;
}

life_page::life_page(uint64_t token)
{
    unique_fd fd(memfd_create("ucx-nvlink-life", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || (ftruncate(fd.get(), sizeof(life_layout)) != 0)) {
        NVL_DEBUG("no page for what is alive: peers let go of freed memory late");
        return;
    }
    void *at = mmap(nullptr, sizeof(life_layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) {
        return;
    }
    pid_         = getpid();
    page_        = static_cast<life_layout *>(at);
    page_->magic = life_layout::expected_magic;
    page_->token = token;
    (void)fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    (void)fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE); // Linux 5.1
    fd_ = std::move(fd);
}

uint64_t life_page::begin() noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    uint32_t                    index = no_slot;
    if (is_ours()) {
        if (!free_.empty()) {
            index = free_.back();
            free_.pop_back();
        } else if (used_ < life_layout::slot_count) {
            index = used_++;
        }
    }
    if (index == no_slot) {
        return (static_cast<uint64_t>(++no_slot_) << 32) | no_slot;
    }
    life_layout::slot &slot       = page_->slots[index];
    uint32_t           generation = slot.generation.load(std::memory_order_relaxed);
    if (generation == 0) {
        generation = 1;
        slot.record_fd.store(-1, std::memory_order_relaxed);
        slot.generation.store(generation, std::memory_order_release);
    }
    return (static_cast<uint64_t>(generation) << 32) | index;
}

// A forked child has the page too, and ends what it has inherited: that must not
// end it for its parent.
bool life_page::is_ours() const noexcept
{
    return (page_ != nullptr) && (pid_ == getpid());
}

void life_page::set_record(uint64_t serial, int record_fd) noexcept
{
    if ((slot_of(serial) != no_slot) && is_ours()) {
        page_->slots[slot_of(serial)].record_fd.store(record_fd, std::memory_order_release);
    }
}

void life_page::end(uint64_t serial) noexcept
{
    if ((slot_of(serial) == no_slot) || !is_ours()) {
        return;
    }
    life_layout::slot &slot = page_->slots[slot_of(serial)];
    slot.record_fd.store(-1, std::memory_order_relaxed);
    uint32_t next = generation_of(serial) + 1;
    slot.generation.store((next == 0) ? 1 : next, std::memory_order_release);
    // Partner: the acquire in life_view::changes(); who sees the new number sees
    // the new generation.
    page_->changes.fetch_add(1, std::memory_order_release);

    std::lock_guard<std::mutex> guard(mutex_);
    try {
        free_.push_back(slot_of(serial));
    } catch (const std::bad_alloc &) {
        // The slot is lost; there are many.
    }
}

void life_page::set_sample(unsigned gpu, const uint8_t *packed) noexcept
{
    if ((gpu >= max_gpus) || !is_ours()) {
        return;
    }
    life_layout::sample &to = page_->samples[gpu];
    if (packed != nullptr) {
        std::memcpy(to.key, packed, sizeof(to.key));
    }
    // Partner: the acquire in life_view::sample().
    to.state.store((packed != nullptr) ? 1 : 2, std::memory_order_release);
}

std::unique_ptr<life_view> life_view::map(unique_fd fd, uint64_t token) noexcept
{
    struct stat what;
    int         seals = fcntl(fd.get(), F_GET_SEALS);
    // Without the seal its owner could shrink it under our feet: SIGBUS.
    if ((seals < 0) || !(seals & F_SEAL_SHRINK) || (fstat(fd.get(), &what) != 0) ||
        (what.st_size != static_cast<off_t>(sizeof(life_layout)))) {
        return nullptr;
    }
    void *at = mmap(nullptr, sizeof(life_layout), PROT_READ, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) {
        return nullptr;
    }
    auto *page = static_cast<const life_layout *>(at);
    if ((page->magic != life_layout::expected_magic) || (page->token != token)) {
        (void)munmap(at, sizeof(life_layout));
        return nullptr;
    }
    std::unique_ptr<life_view> view(new (std::nothrow) life_view(page));
    if (!view) {
        (void)munmap(at, sizeof(life_layout));
    }
    return view;
}

life_view::~life_view()
{
    (void)munmap(const_cast<life_layout *>(page_), sizeof(life_layout));
}

bool life_view::is_alive(uint64_t serial) const noexcept
{
    uint32_t slot = slot_of(serial);
    if (slot == no_slot) {
        return true;
    }
    return (slot < life_layout::slot_count) &&
           (page_->slots[slot].generation.load(std::memory_order_acquire) == generation_of(serial));
}

bool life_view::sample(unsigned gpu, uint8_t (&packed)[key_packed_size_most]) const noexcept
{
    std::memset(packed, 0, sizeof(packed));
    if (gpu >= max_gpus) {
        return false;
    }
    const life_layout::sample &from = page_->samples[gpu];
    // What is read while the owner writes anew has a wrong checksum.
    if (from.state.load(std::memory_order_acquire) == 1) {
        std::memcpy(packed, from.key, sizeof(packed));
    }
    return true;
}

int life_view::record_fd(uint64_t serial) const noexcept
{
    uint32_t slot = slot_of(serial);
    if ((slot >= life_layout::slot_count) || !is_alive(serial)) {
        return -1;
    }
    return page_->slots[slot].record_fd.load(std::memory_order_acquire);
}

} // namespace nvl
