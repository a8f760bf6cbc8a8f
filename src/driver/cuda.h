// SPDX-License-Identifier: BSD-3-Clause
//
// The CUDA driver as a table of typed function pointers, filled once from
// libcuda.so.1 through cuGetProcAddress. Nothing links to the driver: on a
// machine without one the table is empty and says why. Called by engine, mem,
// topo and uct; calls only library.h.
#ifndef NVLINK_DRIVER_CUDA_H
#define NVLINK_DRIVER_CUDA_H

#include <string>

#include <cuda.h>

#include "base/status.h"
#include "driver/cuda_newer.h"

namespace nvl {

template<typename T> using same_type = T;

struct cuda_api {
#define NVL_CUDA(_need, _name, _version, ...) same_type<__VA_ARGS__> _name = nullptr;
#include "driver/symbols.def"
#undef NVL_CUDA

    int version = 0; // of the driver, as 1000 * major + 10 * minor

    // Loads the driver and initialises it (cuInit). The first call that
    // succeeds decides for the process; a failure is not remembered, since a
    // later call may find a driver (fabric manager started meanwhile).
    // Returns null with the reason in words, for people, in *why. Any thread.
    static const cuda_api *load(std::string *why);

    // The table that load() made, or null.
    static const cuda_api *loaded() noexcept;

    // "CUDA_ERROR_INVALID_VALUE (invalid argument)"; text lives for ever.
    const char *error_text(CUresult code) const noexcept;
};

// After load() failed: true if a driver is there and is broken, false if there
// is simply no driver or no GPU. Decides how loud the log line is.
bool cuda_absence_is_fault() noexcept;

// What UCX is told about a driver's answer.
ucs_status_t cuda_status(CUresult code) noexcept;

// True once exit() has begun: the driver may be gone, so destructors leak
// rather than call it.
bool process_is_exiting() noexcept;

// Logs a failed call at `level` with the driver's own words; `call` names it.
ucs_status_t cuda_failed(const cuda_api &cuda, CUresult code, const char *call, int level) noexcept;

} // namespace nvl

// Calls a driver function in set-up code; logs at error level and turns the
// answer into a status. `_cuda` is a cuda_api.
#define NVL_CUDA_CALL(_cuda, _name, ...)                                                       \
    ([&]() -> ucs_status_t {                                                                   \
        CUresult code_ = (_cuda)._name(__VA_ARGS__);                                           \
        return (code_ == CUDA_SUCCESS) ? UCS_OK : ::nvl::cuda_failed(_cuda, code_, #_name, 1); \
    }())

#endif
