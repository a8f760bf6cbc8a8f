// SPDX-License-Identifier: BSD-3-Clause
//
// Fills the driver's table.
#include "driver/cuda.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/log.h"
#include "driver/library.h"

namespace nvl {

namespace {

using get_proc_address = CUresult (*)(const char *, void **, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult *);

std::mutex                    load_mutex_g;
std::atomic<const cuda_api *> loaded_g{nullptr};
std::atomic<bool>             exiting_g{false};
std::atomic<bool>             fault_g{false};

const library &cuda_library()
{
    static const library cuda{"libcuda.so.1"};
    return cuda;
}

// What a person can do about a driver that refuses to start.
const char *init_hint(CUresult code) noexcept
{
    switch (code) {
    case CUDA_ERROR_NO_DEVICE:
        return "no GPU is visible (check CUDA_VISIBLE_DEVICES and the container's device list)";
    case CUDA_ERROR_SYSTEM_NOT_READY:
        return "the system is not ready: is nvidia-fabricmanager running, in the driver's version?";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return "the kernel driver and libcuda.so.1 are of different versions";
    case CUDA_ERROR_STUB_LIBRARY:
        return "libcuda.so.1 is the toolkit's stub, not a driver";
    case CUDA_ERROR_OPERATING_SYSTEM:
        return "no permission for /dev/nvidia* or the devices are missing";
    default:
        return "cuInit failed";
    }
}

bool fill(cuda_api &api, get_proc_address get, std::string *why)
{
    CUdriverProcAddressQueryResult found;

#define NVL_CUDA(_need, _name, _version, ...)                                                \
    {                                                                                        \
        void          *address = nullptr;                                                    \
        const CUresult code =                                                                \
            get(#_name, &address, _version, CU_GET_PROC_ADDRESS_DEFAULT, &found);            \
        if ((code != CUDA_SUCCESS) || (address == nullptr)) {                                \
            if (#_need[0] == 'R') {                                                          \
                *why = (code == CUDA_ERROR_STUB_LIBRARY)                                     \
                           ? std::string(init_hint(code))                                    \
                           : std::string("the CUDA driver is too old: it has no ") + #_name; \
                return false;                                                                \
            }                                                                                \
            address = nullptr;                                                               \
        }                                                                                    \
        api._name = reinterpret_cast<__VA_ARGS__>(address);                                  \
    }
#include "driver/symbols.def"
#undef NVL_CUDA
    return true;
}

} // namespace

const cuda_api *cuda_api::loaded() noexcept
{
    return loaded_g.load(std::memory_order_acquire);
}

const cuda_api *cuda_api::load(std::string *why)
{
    if (const cuda_api *api = loaded()) {
        return api;
    }

    std::lock_guard<std::mutex> guard(load_mutex_g);
    if (const cuda_api *api = loaded()) {
        return api;
    }

    fault_g.store(false);
    const library &lib = cuda_library();
    if (!lib.is_open()) {
        *why = "no CUDA driver: " + lib.error();
        return nullptr;
    }

    fault_g.store(true);
    auto get = reinterpret_cast<get_proc_address>(lib.symbol("cuGetProcAddress_v2"));
    if (get == nullptr) {
        *why = "the CUDA driver is too old: 12.2 or later is needed";
        return nullptr;
    }

    auto api = std::make_unique<cuda_api>();
    if (!fill(*api, get, why)) {
        return nullptr;
    }

    CUresult code = api->cuInit(0);
    if (code != CUDA_SUCCESS) {
        fault_g.store(code != CUDA_ERROR_NO_DEVICE);
        *why = std::string(init_hint(code)) + ": " + api->error_text(code);
        return nullptr;
    }

    (void)api->cuDriverGetVersion(&api->version);
    std::atexit([] { exiting_g.store(true, std::memory_order_release); });
    loaded_g.store(api.get(), std::memory_order_release);
    return api.release();
}

const char *cuda_api::error_text(CUresult code) const noexcept
{
    const char *name = nullptr;
    if ((cuGetErrorName(code, &name) != CUDA_SUCCESS) || (name == nullptr)) {
        return "unknown CUDA error";
    }
    return name;
}

ucs_status_t cuda_status(CUresult code) noexcept
{
    switch (code) {
    case CUDA_SUCCESS:
        return UCS_OK;
    case CUDA_ERROR_NOT_READY:
        return UCS_INPROGRESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return UCS_ERR_NO_MEMORY;
    case CUDA_ERROR_INVALID_VALUE:
        return UCS_ERR_INVALID_PARAM;
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NO_DEVICE:
        return UCS_ERR_NO_DEVICE;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
        return UCS_ERR_UNSUPPORTED;
    case CUDA_ERROR_ALREADY_MAPPED:
        return UCS_ERR_ALREADY_EXISTS;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_TOO_MANY_PEERS:
        return UCS_ERR_UNREACHABLE;
    default:
        return UCS_ERR_IO_ERROR;
    }
}

bool cuda_absence_is_fault() noexcept
{
    return fault_g.load();
}

bool process_is_exiting() noexcept
{
    return exiting_g.load(std::memory_order_acquire);
}

ucs_status_t cuda_failed(const cuda_api &cuda, CUresult code, const char *call, int level) noexcept
{
    const char *text = nullptr;
    (void)cuda.cuGetErrorString(code, &text);
    NVL_LOG(static_cast<log_level>(level), "%s failed: %s (%s)", call, cuda.error_text(code),
            (text != nullptr) ? text : "no text");
    return cuda_status(code);
}

} // namespace nvl
