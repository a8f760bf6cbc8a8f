// SPDX-License-Identifier: BSD-3-Clause
//
// Owning types for what the driver hands out: move-only, destroyed in their
// context, never throwing, silent once the process exits. Called by engine and
// mem; calls cuda.h.
#ifndef NVLINK_DRIVER_HANDLES_H
#define NVLINK_DRIVER_HANDLES_H

#include <utility>

#include "driver/context_life.h"

namespace nvl {

// Makes a context current for a scope and puts back what was current before,
// whatever that was. ok() is false if the driver refused, or is not to be asked.
class context_guard {
public:
    // For a context that the caller knows to live, or has retained: the driver takes
    // one that was destroyed, too, and frees memory twice behind it (580).
    context_guard(const cuda_api &cuda, CUcontext context) noexcept
        : cuda_(cuda), code_(cuda.cuCtxPushCurrent(context))
    {
    }

    // For any other: asks first.
    context_guard(const cuda_api &cuda, const context_life &life) noexcept
        : cuda_(cuda),
          code_(life.is_over() ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                               : cuda.cuCtxPushCurrent(life.context()))
    {
    }

    // None: refused for this reason.
    context_guard(const cuda_api &cuda, CUresult refused) noexcept : cuda_(cuda), code_(refused)
    {
    }

    ~context_guard()
    {
        if (code_ == CUDA_SUCCESS) {
            CUcontext popped;
            (void)cuda_.cuCtxPopCurrent(&popped);
        }
    }

    context_guard(const context_guard &)            = delete;
    context_guard &operator=(const context_guard &) = delete;

    bool ok() const noexcept
    {
        return code_ == CUDA_SUCCESS;
    }

    CUresult code() const noexcept
    {
        return code_;
    }

private:
    const cuda_api &cuda_;
    CUresult        code_;
};

// Driver calls in this scope are legal even while the process captures a graph;
// the mode is the thread's own and is put back.
class relaxed_capture {
public:
    explicit relaxed_capture(const cuda_api &cuda) noexcept : cuda_(cuda)
    {
        (void)cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
    }

    ~relaxed_capture()
    {
        (void)cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
    }

    relaxed_capture(const relaxed_capture &)            = delete;
    relaxed_capture &operator=(const relaxed_capture &) = delete;

private:
    const cuda_api     &cuda_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// One handle of type T in a context, destroyed by *destroy; forgotten if the context
// has taken it along.
template<typename T, CUresult (*cuda_api::*destroy)(T)> class context_handle {
public:
    context_handle() = default;

    context_handle(const cuda_api &cuda, const life_ref &life, T handle) noexcept
        : cuda_(&cuda), life_(life), handle_(handle)
    {
    }

    context_handle(context_handle &&other) noexcept
        : cuda_(other.cuda_),
          life_(std::move(other.life_)),
          handle_(std::exchange(other.handle_, T()))
    {
    }

    context_handle &operator=(context_handle &&other) noexcept
    {
        std::swap(cuda_, other.cuda_);
        std::swap(life_, other.life_);
        std::swap(handle_, other.handle_);
        return *this;
    }

    ~context_handle()
    {
        if ((handle_ == T()) || process_is_exiting()) {
            return;
        }
        context_guard   guard(*cuda_, *life_);
        relaxed_capture relaxed(*cuda_);
        if (guard.ok()) {
            (void)(cuda_->*destroy)(handle_);
        }
    }

    T get() const noexcept
    {
        return handle_;
    }

    explicit operator bool() const noexcept
    {
        return handle_ != T();
    }

    // True if its context is gone: not to be used.
    bool is_gone() const noexcept
    {
        return life_ && life_->is_over();
    }

private:
    const cuda_api *cuda_ = nullptr;
    life_ref        life_;
    T               handle_ = T();
};

using stream       = context_handle<CUstream, &cuda_api::cuStreamDestroy>;
using event        = context_handle<CUevent, &cuda_api::cuEventDestroy>;
using module       = context_handle<CUmodule, &cuda_api::cuModuleUnload>;
using device_block = context_handle<CUdeviceptr, &cuda_api::cuMemFree>;

// A retained primary context; released by the destructor.
class primary_context {
public:
    primary_context() = default;

    static result<primary_context> retain(const cuda_api &cuda, CUdevice device) noexcept
    {
        CUcontext context = nullptr;
        CUresult  code    = cuda.cuDevicePrimaryCtxRetain(&context, device);
        if (code != CUDA_SUCCESS) {
            return cuda_failed(cuda, code, "cuDevicePrimaryCtxRetain", 5);
        }
        return primary_context(cuda, device, context);
    }

    primary_context(primary_context &&other) noexcept
        : cuda_(other.cuda_),
          device_(other.device_),
          context_(std::exchange(other.context_, nullptr))
    {
    }

    primary_context &operator=(primary_context &&other) noexcept
    {
        std::swap(cuda_, other.cuda_);
        std::swap(device_, other.device_);
        std::swap(context_, other.context_);
        return *this;
    }

    ~primary_context()
    {
        if ((context_ != nullptr) && !process_is_exiting()) {
            (void)cuda_->cuDevicePrimaryCtxRelease(device_);
        }
    }

    CUcontext get() const noexcept
    {
        return context_;
    }

private:
    primary_context(const cuda_api &cuda, CUdevice device, CUcontext context) noexcept
        : cuda_(&cuda), device_(device), context_(context)
    {
    }

    const cuda_api *cuda_    = nullptr;
    CUdevice        device_  = 0;
    CUcontext       context_ = nullptr;
};

} // namespace nvl

#endif
