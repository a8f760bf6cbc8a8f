// SPDX-License-Identifier: BSD-3-Clause
//
// Maps, locks, unlocks.
#include "driver/pinned_block.h"

#include <sys/mman.h>
#include <unistd.h>

namespace nvl {

result<pinned_block> pinned_block::make(const cuda_api &cuda, const life_ref &life,
                                        size_t size_bytes, CUresult *code) noexcept
{
    auto page  = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_bytes = (size_bytes + page - 1) / page * page;
    void *at =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        *code = CUDA_ERROR_OUT_OF_MEMORY;
        return UCS_ERR_NO_MEMORY;
    }
    pinned_block made(cuda, at, size_bytes);
    // Else the process that writes first after a fork gets another page, and the GPU
    // keeps the old one.
    (void)madvise(at, size_bytes, MADV_DONTFORK);

    context_guard   guard(cuda, *life);
    relaxed_capture relaxed(cuda);
    *code = guard.ok()
                ? cuda.cuMemHostRegister(at, size_bytes,
                                         CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)
                : guard.code();
    if (*code != CUDA_SUCCESS) {
        return cuda_status(*code);
    }
    made.life_ = life;
    return made;
}

pinned_block::pinned_block(pinned_block &&other) noexcept
    : cuda_(other.cuda_),
      life_(std::move(other.life_)),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_bytes_(other.size_bytes_)
{
}

pinned_block &pinned_block::operator=(pinned_block &&other) noexcept
{
    std::swap(cuda_, other.cuda_);
    std::swap(life_, other.life_);
    std::swap(bytes_, other.bytes_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
}

pinned_block::~pinned_block()
{
    if ((bytes_ == nullptr) || process_is_exiting()) {
        return;
    }
    if (life_) {
        context_guard   guard(*cuda_, *life_);
        relaxed_capture relaxed(*cuda_);
        if (guard.ok()) {
            (void)cuda_->cuMemHostUnregister(bytes_);
        }
    }
    (void)munmap(bytes_, size_bytes_);
}

} // namespace nvl
