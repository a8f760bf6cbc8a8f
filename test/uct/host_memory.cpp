// SPDX-License-Identifier: BSD-3-Clause
//
// See host_memory.h.
#include "uct/host_memory.h"

#include "uct/driver.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace nvl::test {

namespace {

constexpr size_t page      = 4096;
constexpr size_t huge_page = 2u << 20;
constexpr size_t margin    = 16 * page; // around what lies inside of a registration

size_t round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

} // namespace

const char *to_text(host_kind kind)
{
    const char *const names[] = {"allocated_pinned",
                                 "registered",
                                 "inside_of_registered",
                                 "partly_registered",
                                 "ordinary",
                                 "read_only",
                                 "shared",
                                 "huge_pages"};
    return names[static_cast<int>(kind)];
}

host_memory::host_memory(host_kind kind, const bytes &from)
    : kind_(kind), size_(from.size()), block_size_(round_up(from.size(), page) + 2 * margin)
{
    current_context scope(primary_context(0));
    switch (kind) {
    case host_kind::allocated_pinned:
        NVL_MUST(cuMemAllocHost_v2, (reinterpret_cast<void **>(&block_), block_size_));
        break;
    case host_kind::ordinary:
        block_ = static_cast<uint8_t *>(std::malloc(block_size_));
        break;
    case host_kind::shared:
        map(MAP_SHARED | MAP_ANONYMOUS);
        break;
    case host_kind::huge_pages:
        block_size_ = round_up(block_size_, huge_page);
        map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB);
        break;
    default:
        map(MAP_PRIVATE | MAP_ANONYMOUS);
        break;
    }
    if (block_ == nullptr) {
        return;
    }
    address_ = block_ + margin;
    std::memcpy(address_, from.data(), size_);

    if (kind == host_kind::registered) {
        pin(margin, round_up(size_, page));
    } else if (kind == host_kind::inside_of_registered) {
        pin(0, block_size_);
    } else if (kind == host_kind::partly_registered) {
        pin(margin, round_up(size_ / 2 + 1, page));
    } else if (kind == host_kind::read_only) {
        mprotect(block_, block_size_, PROT_READ);
    }
}

host_memory::~host_memory()
{
    current_context scope(primary_context(0));
    if (pinned_ != nullptr) {
        NVL_MUST(cuMemHostUnregister, (pinned_));
    }
    if (block_ == nullptr) {
        return;
    }
    if (kind_ == host_kind::allocated_pinned) {
        NVL_MUST(cuMemFreeHost, (block_));
    } else if (kind_ == host_kind::ordinary) {
        std::free(block_);
    } else {
        munmap(block_, block_size_);
    }
}

void host_memory::map(int flags)
{
    void *mapped = mmap(nullptr, block_size_, PROT_READ | PROT_WRITE, flags, -1, 0);
    block_       = (mapped == MAP_FAILED) ? nullptr : static_cast<uint8_t *>(mapped);
}

void host_memory::pin(size_t offset, size_t size)
{
    pinned_ = block_ + offset;
    NVL_MUST(cuMemHostRegister_v2, (pinned_, size, 0));
}

} // namespace nvl::test
