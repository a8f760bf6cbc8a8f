// SPDX-License-Identifier: BSD-3-Clause
//
// The far side of a connection: memory of some GPU, registered and with a key, in this process or in another one.
// Tests are written against this and run with both.
#ifndef NVLINK_TEST_UCT_SIDE_H
#define NVLINK_TEST_UCT_SIDE_H

#include "uct/entity.h"
#include "uct/kinds.h"
#include "uct/memory.h"

#include <map>
#include <memory>
#include <sys/types.h>

namespace nvl::test {

class side {
public:
    virtual ~side() = default;

    virtual addresses address() = 0;

    // Allocates and registers; the allocation is named by its address from then on.
    virtual uint64_t allocate_kind(memory_kind kind, int gpu, size_t size)    = 0;
    virtual void     release(uint64_t allocation)                             = 0;
    virtual bytes    key(uint64_t allocation)                                 = 0;
    virtual void     write(uint64_t allocation, size_t offset, const bytes &) = 0;
    virtual bytes    read(uint64_t allocation, size_t offset, size_t size)    = 0;

    uint64_t allocate(int gpu, size_t size)
    {
        return allocate_kind(memory_kind::alloc, gpu, size);
    }

    // Other physical memory under one chunk of VMM memory, which is registered anew.
    virtual void replace_chunk(uint64_t allocation, size_t index) = 0;

    // Nothing there, the registration stays.
    virtual void unmap_chunk(uint64_t allocation, size_t index) = 0;

    // Registers a part once more; the key of that, from the registration with this number.
    virtual uint64_t register_part(uint64_t allocation, size_t offset, size_t size) = 0;
    virtual bytes    part_key(uint64_t part)                                        = 0;
    virtual void     release_part(uint64_t part)                                    = 0;

    // Of the process: open descriptors; on the emulated driver, calls of a function since the last question.
    virtual uint64_t open_fds()                          = 0;
    virtual uint64_t calls_made(const std::string &name) = 0;

    // Copies from here to the memory behind a key and the other way round, and waits for the end.
    virtual ucs_status_t put(uint64_t allocation, size_t size, const addresses &to,
                             uint64_t remote_address, const bytes &key) = 0;
    virtual ucs_status_t get(uint64_t allocation, size_t size, const addresses &from,
                             uint64_t remote_address, const bytes &key) = 0;

    // Adds 1, `count` times, to the 8 bytes at an address behind a key, and waits for the end.
    virtual ucs_status_t add(size_t count, const addresses &to, uint64_t remote_address,
                             const bytes &key) = 0;
};

class local_side : public side {
public:
    // With an entity of its own, or with that of somebody else.
    local_side() : own_(std::make_unique<entity>()), entity_(own_.get())
    {
    }

    explicit local_side(entity &shared) : entity_(&shared)
    {
    }

    addresses    address() override;
    uint64_t     allocate_kind(memory_kind kind, int gpu, size_t size) override;
    void         replace_chunk(uint64_t allocation, size_t index) override;
    void         unmap_chunk(uint64_t allocation, size_t index) override;
    uint64_t     register_part(uint64_t allocation, size_t offset, size_t size) override;
    bytes        part_key(uint64_t part) override;
    void         release_part(uint64_t part) override;
    uint64_t     open_fds() override;
    uint64_t     calls_made(const std::string &name) override;
    void         release(uint64_t allocation) override;
    bytes        key(uint64_t allocation) override;
    void         write(uint64_t allocation, size_t offset, const bytes &) override;
    bytes        read(uint64_t allocation, size_t offset, size_t size) override;
    ucs_status_t put(uint64_t allocation, size_t size, const addresses &to, uint64_t remote_address,
                     const bytes &key) override;
    ucs_status_t get(uint64_t allocation, size_t size, const addresses &from,
                     uint64_t remote_address, const bytes &key) override;
    ucs_status_t add(size_t count, const addresses &to, uint64_t remote_address,
                     const bytes &key) override;

private:
    struct block {
        block(const entity &owner, memory_kind kind, int gpu, size_t size)
            : memory(kind, gpu, size),
              registration(std::make_unique<registered>(owner, memory.address(), size))
        {
        }

        any_memory                  memory;
        std::unique_ptr<registered> registration;
    };

    block       &at(uint64_t allocation);
    ucs_status_t copy(bool push, uint64_t allocation, size_t size, const addresses &with,
                      uint64_t remote_address, const bytes &key);

    std::unique_ptr<entity>                    own_;
    entity                                    *entity_;
    std::map<uint64_t, std::unique_ptr<block>> blocks_;

    std::map<uint64_t, std::unique_ptr<registered>> parts_;
    uint64_t                                        last_part_ = 0;
};

// Of this process.
uint64_t count_open_fds();

// Another process: this program, started anew, with a local_side that obeys over a socket.
class peer_side : public side {
public:
    // `wrapper`: a command in front of the program, as "unshare -U".
    explicit peer_side(const std::vector<std::string> &environment = {},
                       const std::vector<std::string> &wrapper     = {});
    ~peer_side() override;

    addresses    address() override;
    uint64_t     allocate_kind(memory_kind kind, int gpu, size_t size) override;
    void         replace_chunk(uint64_t allocation, size_t index) override;
    void         unmap_chunk(uint64_t allocation, size_t index) override;
    uint64_t     register_part(uint64_t allocation, size_t offset, size_t size) override;
    bytes        part_key(uint64_t part) override;
    void         release_part(uint64_t part) override;
    uint64_t     open_fds() override;
    uint64_t     calls_made(const std::string &name) override;
    void         release(uint64_t allocation) override;
    bytes        key(uint64_t allocation) override;
    void         write(uint64_t allocation, size_t offset, const bytes &) override;
    bytes        read(uint64_t allocation, size_t offset, size_t size) override;
    ucs_status_t put(uint64_t allocation, size_t size, const addresses &to, uint64_t remote_address,
                     const bytes &key) override;
    ucs_status_t get(uint64_t allocation, size_t size, const addresses &from,
                     uint64_t remote_address, const bytes &key) override;
    ucs_status_t add(size_t count, const addresses &to, uint64_t remote_address,
                     const bytes &key) override;

    // kill -9, and waits until it is gone.
    void kill();

    pid_t pid() const
    {
        return pid_;
    }

private:
    ucs_status_t copy(uint64_t what, uint64_t allocation, size_t size, const addresses &with,
                      uint64_t remote_address, const bytes &key);

    int   socket_ = -1;
    pid_t pid_    = -1;
};

// What the other process runs.
int serve_peer(int socket);

} // namespace nvl::test

#endif
