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

    ucs_status_t status = made.lock(life, code);
    return (status == UCS_OK) ? result<pinned_block>(std::move(made))
                              : result<pinned_block>(status);
}

ucs_status_t pinned_block::lock(const life_ref &life, CUresult *code) noexcept
{
    context_guard   guard(*cuda_, *life);
    relaxed_capture relaxed(*cuda_);
    *code =
        guard.ok()
            ? cuda_->cuMemHostRegister(bytes_, size_bytes_,
                                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)
            : guard.code();
    if (*code != CUDA_SUCCESS) {
        return cuda_status(*code);
    }
    life_ = life;
    *code = cuda_->cuMemHostGetDevicePointer(&on_gpu_, bytes_, 0);
    return (*code == CUDA_SUCCESS) ? UCS_OK : cuda_status(*code);
}

pinned_block::pinned_block(pinned_block &&other) noexcept
    : cuda_(other.cuda_),
      life_(std::move(other.life_)),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_bytes_(other.size_bytes_),
      on_gpu_(other.on_gpu_)
{
}

pinned_block &pinned_block::operator=(pinned_block &&other) noexcept
{
    std::swap(cuda_, other.cuda_);
    std::swap(life_, other.life_);
    std::swap(bytes_, other.bytes_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(on_gpu_, other.on_gpu_);
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
