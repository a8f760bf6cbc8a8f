// SPDX-License-Identifier: BSD-3-Clause
//
// Older forms of functions, with the arguments of the newer ones: each does what its successor
// does, and is counted together with it. The forms of CUDA 2 with 32-bit sizes are not emulated.
#include "older.h"
#include "driver.h"

#include <cstring>

namespace emu {
namespace {

struct older_form {
    older_form(const char *older_name, const char *newer_name)
        : older(older_name), newer(newer_name), next(first)
    {
        first = this;
    }
    const char       *older, *newer;
    const older_form *next;

    static const older_form *first;
};

const older_form *older_form::first = nullptr;

} // namespace

const char *newer_form_of(const char *name) noexcept
{
    for (const older_form *form = older_form::first; form != nullptr; form = form->next) {
        if (strcmp(form->older, name) == 0)
            return form->newer;
    }
    return nullptr;
}

} // namespace emu

#define EMU_OLDER(older, newer, params, args)                      \
    static const emu::older_form older##_is_older(#older, #newer); \
    EMU_FUNCTION(CUresult, older, params)                          \
    {                                                              \
        return newer args;                                         \
    }

EMU_OLDER(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice dev), (dev))
EMU_OLDER(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice dev), (dev))
EMU_OLDER(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2,
          (CUdevice dev, unsigned int flags), (dev, flags))
EMU_OLDER(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext ctx), (ctx))
EMU_OLDER(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext * ctx), (ctx))
EMU_OLDER(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext ctx), (ctx))
EMU_OLDER(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream), (stream))
EMU_OLDER(cuEventDestroy, cuEventDestroy_v2, (CUevent event), (event))
EMU_OLDER(cuMemHostRegister, cuMemHostRegister_v2, (void *pointer, size_t size, unsigned int flags),
          (pointer, size, flags))
EMU_OLDER(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream stream),
          (stream, CU_STREAM_CAPTURE_MODE_GLOBAL))
EMU_OLDER(cuStreamWriteValue32, cuStreamWriteValue32_v2,
          (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
          (stream, address, value, flags))
EMU_OLDER(cuStreamWaitValue32, cuStreamWaitValue32_v2,
          (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
          (stream, address, value, flags))
EMU_OLDER(cuStreamWriteValue64, cuStreamWriteValue64_v2,
          (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
          (stream, address, value, flags))
EMU_OLDER(cuStreamWaitValue64, cuStreamWaitValue64_v2,
          (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
          (stream, address, value, flags))
