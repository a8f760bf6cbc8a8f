// SPDX-License-Identifier: BSD-3-Clause
//
// See export_list.h.
#include "export_list.h"

#include <cstdio>
#include <fcntl.h>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {
namespace {

constexpr uint64_t list_magic    = 0x5453494c4c564eULL; // "NVLLIST"
constexpr unsigned list_capacity = 65536;

struct list_entry {
    std::atomic<uint64_t> address; // 0: free
    std::atomic<int32_t>  fd;
    std::atomic<uint64_t> nonce; // of the memory file
    std::atomic<uint64_t> size;
};

struct export_list {
    uint64_t              magic;
    uint64_t              nonce;
    std::atomic<uint32_t> used; // entries that were ever in use
    list_entry            entries[list_capacity];
};

struct own_list {
    std::mutex   mutex;
    int          fd   = -1;
    export_list *list = nullptr;
};

export_list *map_list(int fd, int protection)
{
    void *at = mmap(nullptr, sizeof(export_list), protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<export_list *>(at);
}

own_list &own()
{
    static own_list *only = [] {
        auto *made = new own_list;
        made->fd   = memfd_create("nvl_emu_exports", MFD_CLOEXEC);
        if (made->fd < 0 || ftruncate(made->fd, sizeof(export_list)) != 0)
            return made;
        made->list = map_list(made->fd, PROT_READ | PROT_WRITE);
        if (made->list != nullptr) {
            std::random_device random;
            made->list->nonce = (static_cast<uint64_t>(random()) << 32) | random();
            made->list->magic = list_magic;
        }
        return made;
    }();
    return *only;
}

list_entry *find_entry(export_list &list, uint64_t address)
{
    uint32_t used = list.used.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < used; i++) {
        if (list.entries[i].address.load(std::memory_order_acquire) == address)
            return &list.entries[i];
    }
    return nullptr;
}

int open_in(int32_t pid, int32_t fd, int flags)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    return open(path, flags | O_CLOEXEC);
}

} // namespace

bool list_export(uint64_t address, const backing &memory, size_t size, ipc_handle *handle)
{
    own_list       &mine = own();
    std::lock_guard lock(mine.mutex);
    if (mine.list == nullptr)
        return false;
    list_entry *entry = find_entry(*mine.list, address);
    if (entry == nullptr) {
        entry = find_entry(*mine.list, 0);
        if (entry == nullptr) {
            uint32_t used = mine.list->used.load();
            if (used == list_capacity)
                return false;
            entry = &mine.list->entries[used];
            mine.list->used.store(used + 1, std::memory_order_release);
        }
        entry->fd    = memory.fd();
        entry->nonce = memory.page().nonce[0];
        entry->size  = size;
        entry->address.store(address, std::memory_order_release);
    }
    *handle            = {};
    handle->magic      = ipc_magic;
    handle->pid        = getpid();
    handle->list_fd    = mine.fd;
    handle->list_nonce = mine.list->nonce;
    handle->address    = address;
    return true;
}

void unlist_export(uint64_t address)
{
    own_list       &mine = own();
    std::lock_guard lock(mine.mutex);
    if (mine.list == nullptr)
        return;
    if (list_entry *entry = find_entry(*mine.list, address))
        entry->address.store(0, std::memory_order_release);
}

CUresult open_export(const ipc_handle &handle, std::shared_ptr<backing> *memory, size_t *size)
{
    int list_fd = open_in(handle.pid, handle.list_fd, O_RDONLY);
    if (list_fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    off_t        length = lseek(list_fd, 0, SEEK_END);
    bool         fits   = length == static_cast<off_t>(sizeof(export_list));
    export_list *list   = fits ? map_list(list_fd, PROT_READ) : nullptr;
    close(list_fd);
    if (list == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    bool        same  = list->magic == list_magic && list->nonce == handle.list_nonce;
    list_entry *entry = same ? find_entry(*list, handle.address) : nullptr;
    if (entry != nullptr) {
        uint64_t nonce = entry->nonce.load();
        *size          = entry->size.load();
        int fd         = open_in(handle.pid, entry->fd.load(), O_RDWR);
        *memory        = fd < 0 ? nullptr : backing::adopt(fd);
        if (*memory != nullptr &&
            ((*memory)->page().nonce[0] != nonce || *size > (*memory)->size()))
            *memory = nullptr; // given back while we looked
    }
    munmap(list, sizeof(export_list));
    if (!same)
        return CUDA_ERROR_INVALID_HANDLE;
    return *memory == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

} // namespace emu
