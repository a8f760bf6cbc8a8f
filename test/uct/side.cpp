// SPDX-License-Identifier: BSD-3-Clause
//
// See side.h. The far side within this process.
#include "uct/side.h"

#include <dirent.h>

namespace nvl::test {

local_side::block &local_side::at(uint64_t allocation)
{
    auto found = blocks_.find(allocation);
    if (found == blocks_.end()) {
        throw set_up_failed("no allocation at this address");
    }
    return *found->second;
}

addresses local_side::address()
{
    return entity_->address();
}

uint64_t local_side::allocate_kind(memory_kind kind, int gpu, size_t size)
{
    auto     made       = std::make_unique<block>(*entity_, kind, gpu, size);
    uint64_t allocation = made->memory.address();
    blocks_[allocation] = std::move(made);
    return allocation;
}

void local_side::replace_chunk(uint64_t allocation, size_t index)
{
    block &one = at(allocation);
    one.registration.reset();
    one.memory.replace_chunk(index);
    one.registration = std::make_unique<registered>(*entity_, allocation, one.memory.size());
}

void local_side::unmap_chunk(uint64_t allocation, size_t index)
{
    at(allocation).memory.unmap_chunk(index);
}

uint64_t local_side::register_part(uint64_t allocation, size_t offset, size_t size)
{
    parts_[++last_part_] = std::make_unique<registered>(*entity_, allocation + offset, size);
    return last_part_;
}

bytes local_side::part_key(uint64_t part)
{
    return parts_.at(part)->key();
}

void local_side::release_part(uint64_t part)
{
    parts_.erase(part);
}

uint64_t count_open_fds()
{
    uint64_t count = 0;
    DIR     *all   = opendir("/proc/self/fd");
    while (readdir(all) != nullptr) {
        ++count;
    }
    closedir(all);
    return count;
}

uint64_t local_side::open_fds()
{
    return count_open_fds();
}

uint64_t local_side::calls_made(const std::string &name)
{
    auto made = static_cast<uint64_t>(emulator()->call_count(name.c_str()));
    emulator()->reset_counts();
    return made;
}

void local_side::release(uint64_t allocation)
{
    blocks_.erase(allocation);
}

bytes local_side::key(uint64_t allocation)
{
    return at(allocation).registration->key();
}

void local_side::write(uint64_t allocation, size_t offset, const bytes &from)
{
    at(allocation).memory.write(offset, from);
}

bytes local_side::read(uint64_t allocation, size_t offset, size_t size)
{
    return at(allocation).memory.read(offset, size);
}

ucs_status_t local_side::copy(bool push, uint64_t allocation, size_t size, const addresses &with,
                              uint64_t remote_address, const bytes &key)
{
    endpoint   ep(*entity_, with);
    unpacked   remote(key);
    completion done;
    uct_iov_t  iov{reinterpret_cast<void *>(allocation), size, at(allocation).registration->memh(),
                  0, 1};
    auto       post     = push ? uct_ep_put_zcopy : uct_ep_get_zcopy;
    ucs_status_t status = post(ep.get(), &iov, 1, remote_address, remote.rkey(), &done.super);
    if (status != UCS_INPROGRESS) {
        return status;
    }
    while (done.called == 0) {
        entity_->progress();
    }
    return done.status;
}

ucs_status_t local_side::put(uint64_t allocation, size_t size, const addresses &to,
                             uint64_t remote_address, const bytes &key)
{
    return copy(true, allocation, size, to, remote_address, key);
}

ucs_status_t local_side::add(size_t count, const addresses &to, uint64_t remote_address,
                             const bytes &key)
{
    endpoint     ep(*entity_, to);
    unpacked     remote(key);
    ucs_status_t status = UCS_OK;
    while ((count != 0) && (status == UCS_OK)) {
        status =
            uct_ep_atomic64_post(ep.get(), UCT_ATOMIC_OP_ADD, 1, remote_address, remote.rkey());
        if (status == UCS_OK) {
            --count;
        } else if (status == UCS_ERR_NO_RESOURCE) {
            entity_->progress();
            status = UCS_OK;
        }
    }
    while (uct_iface_flush(entity_->iface(), 0, nullptr) == UCS_INPROGRESS) {
        entity_->progress();
    }
    return status;
}

ucs_status_t local_side::get(uint64_t allocation, size_t size, const addresses &from,
                             uint64_t remote_address, const bytes &key)
{
    return copy(false, allocation, size, from, remote_address, key);
}

} // namespace nvl::test
