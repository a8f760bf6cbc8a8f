// SPDX-License-Identifier: BSD-3-Clause
//
// The frame around every function of the emulated driver: it counts the call, applies planned
// faults, checks what the driver checks first (initialised? inside a host function?), writes the
// trace line, and lets no exception out.
//
// Each API file writes its functions with EMU_API; the list of all functions is symbols.def.
#ifndef NVLINK_EMULATOR_CALL_H
#define NVLINK_EMULATOR_CALL_H

#include "cuda_internal.h"
#include "entry.h"
#include "trace.h"

#include <new>

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

// EMU_API(cuCtxGetDevice, (CUdevice *device), (device)) { ...body, returns CUresult... }
#define EMU_API(name, params, args)                                                               \
    static CUresult name##_body params;                                                           \
    EMU_FUNCTION(CUresult, name, params)                                                          \
    {                                                                                             \
        return emu::enter(                                                                        \
            emu::fn::name, #args, [&]() -> CUresult { return name##_body args; }, EMU_ARGS args); \
    }                                                                                             \
    static CUresult name##_body params
#define EMU_ARGS(...) emu::pack(__VA_ARGS__)

#define EMU_UNUSED(...) static_cast<void>(emu::pack(__VA_ARGS__))

// Gives the caller's caller a code that is not success.
#define EMU_TRY(call)                     \
    do {                                  \
        CUresult emu_try_code = (call);   \
        if (emu_try_code != CUDA_SUCCESS) \
            return emu_try_code;          \
    } while (0)

#define EMU_REQUIRE(condition, code) \
    do {                             \
        if (!(condition))            \
            return (code);           \
    } while (0)

namespace emu {

// One enumerator a row of symbols.def.
enum class fn : unsigned {
#define EMU_FN(base, symbol, since, variant) symbol,
#define EMU_NO(base, symbol, since, variant) symbol,
#include "symbols.def"
#undef EMU_FN
#undef EMU_NO
    count
};
constexpr unsigned fn_count = static_cast<unsigned>(fn::count);

const char *name_of(fn id) noexcept;
const char *name_of_this_call() noexcept; // the last one that this thread began

// What the frame does before the body. Returns false when the body must not run; *code is then
// what the call returns.
bool call_begins(fn id, CUresult *code) noexcept;

// A call of a function that exists in the real driver and that nobody has written here yet.
[[noreturn]] void not_implemented(const char *symbol) noexcept;

// True on the thread that runs a host function or a stream callback: the driver refuses nearly
// every call there.
bool &inside_host_function() noexcept;

// True while this thread runs a ..._ptsz or ..._ptds function: stream 0 is the thread's own.
bool &stream_zero_is_per_thread() noexcept;

template<class... Args> std::tuple<const Args &...> pack(const Args &...args)
{
    return std::tuple<const Args &...>(args...);
}

template<class Body, class... Args>
CUresult enter(fn id, const char *names, Body &&body,
               const std::tuple<const Args &...> &args) noexcept
{
    CUresult code = CUDA_SUCCESS;
    try {
        if (stream_zero_is_per_thread())
            return body(); // the frame of the ..._ptsz form has done the rest
        if (call_begins(id, &code))
            code = body();
    } catch (const std::bad_alloc &) {
        code = CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
        code = CUDA_ERROR_UNKNOWN;
    }
    if (trace_is_on())
        trace_call(name_of(id), names, code, args);
    return code;
}

} // namespace emu

#endif
