// SPDX-License-Identifier: BSD-3-Clause
//
// Host memory of a test, of every origin that a user's buffer may have.
#ifndef NVLINK_TEST_UCT_HOST_MEMORY_H
#define NVLINK_TEST_UCT_HOST_MEMORY_H

#include "uct/bytes.h"

#include <cstdint>

namespace nvl::test {

enum class host_kind {
    allocated_pinned, // cuMemAllocHost
    registered,       // cuMemHostRegister of just this memory
    inside_of_registered,
    partly_registered, // its first half
    ordinary,          // malloc
    read_only,
    shared,
    huge_pages,
    last
};

const char *to_text(host_kind kind);

class host_memory {
public:
    // Filled with `from`, whatever may be done with it later.
    host_memory(host_kind kind, const bytes &from);
    ~host_memory();
    host_memory(const host_memory &)            = delete;
    host_memory &operator=(const host_memory &) = delete;

    // False where the machine has no memory of the kind.
    bool exists() const
    {
        return address_ != nullptr;
    }

    uint8_t *address() const
    {
        return address_;
    }

    bytes read() const
    {
        return {address_, address_ + size_};
    }

private:
    void map(int flags);
    void pin(size_t offset, size_t size);

    host_kind kind_;
    size_t    size_;
    uint8_t  *block_ = nullptr; // what was allocated or mapped
    size_t    block_size_;
    uint8_t  *pinned_  = nullptr; // by cuMemHostRegister
    uint8_t  *address_ = nullptr;
};

} // namespace nvl::test

#endif
