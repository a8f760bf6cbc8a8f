// SPDX-License-Identifier: BSD-3-Clause
//
// See backing.h. Uses Linux's memfd: nothing is left behind by a process that is killed, and the
// memory lives on for as long as anybody has it open.
#include "backing.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace emu {
namespace {

std::atomic<uint64_t> next_block_id{1};

uint64_t random_word()
{
    static std::random_device source;
    return (static_cast<uint64_t>(source()) << 32) | source();
}

char *map_file(int fd, size_t length)
{
    void *bytes = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    return bytes == MAP_FAILED ? nullptr : static_cast<char *>(bytes);
}

bool process_runs(int32_t pid)
{
    return kill(pid, 0) == 0 || errno != ESRCH;
}

} // namespace

backing::backing(int fd, char *bytes, size_t size)
    : fd_(fd),
      bytes_(bytes),
      size_(size),
      page_(reinterpret_cast<shared_page *>(bytes + size)),
      block_id_(next_block_id++)
{
}

std::shared_ptr<backing> backing::create(size_t size, memory_source source)
{
    int fd = memfd_create("nvl_emu", MFD_CLOEXEC);
    if (fd < 0)
        return nullptr;
    if (ftruncate(fd, static_cast<off_t>(size + page_size)) != 0) {
        close(fd);
        return nullptr;
    }
    char *bytes = map_file(fd, size + page_size);
    if (bytes == nullptr) {
        close(fd);
        return nullptr;
    }
    std::shared_ptr<backing> made(new backing(fd, bytes, size));
    shared_page             &page = made->page();
    page.magic                    = file_magic;
    page.source                   = source;
    page.size                     = size;
    page.nonce[0]                 = random_word();
    page.nonce[1]                 = random_word();
    page.owner_pid                = getpid();
    return made;
}

std::shared_ptr<backing> backing::adopt(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_size <= static_cast<off_t>(page_size) ||
        info.st_size % static_cast<off_t>(page_size) != 0) {
        close(fd);
        return nullptr;
    }
    size_t length = static_cast<size_t>(info.st_size);
    char  *bytes  = map_file(fd, length);
    if (bytes == nullptr) {
        close(fd);
        return nullptr;
    }
    std::shared_ptr<backing> made(new backing(fd, bytes, length - page_size));
    if (made->page().magic != file_magic || made->page().size != made->size())
        return nullptr;
    return made;
}

backing::~backing()
{
    if (used_bytes != nullptr)
        *used_bytes -= size_;
    munmap(bytes_, size_ + page_size);
    close(fd_);
}

void backing::count_import() noexcept
{
    int32_t self = getpid();
    for (auto &slot : page_->importers) {
        int32_t pid = slot.pid.load();
        if (pid == self) {
            slot.opens++;
            return;
        }
    }
    for (auto &slot : page_->importers) {
        int32_t pid = slot.pid.load();
        if (pid != 0 && process_runs(pid))
            continue;
        if (slot.pid.compare_exchange_strong(pid, self)) {
            slot.opens = 1;
            return;
        }
    }
}

void backing::uncount_import() noexcept
{
    int32_t self = getpid();
    for (auto &slot : page_->importers) {
        if (slot.pid.load() == self && slot.opens.load() > 0) {
            if (--slot.opens == 0)
                slot.pid.store(0);
            return;
        }
    }
}

unsigned backing::live_importers() const noexcept
{
    unsigned count = 0;
    for (auto &slot : page_->importers) {
        int32_t pid = slot.pid.load();
        if (pid != 0 && pid != getpid() && slot.opens.load() > 0 && process_runs(pid))
            count++;
    }
    return count;
}

} // namespace emu
