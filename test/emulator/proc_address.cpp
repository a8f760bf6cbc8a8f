// SPDX-License-Identifier: BSD-3-Clause
//
// cuGetProcAddress, as the driver answers it: the newest form of a function that is not newer
// than the version asked for.
#include "call.h"
#include "machine.h"
#include "symbol_table.h"

#include <cstring>

using namespace emu;

namespace {

struct found_symbol {
    const symbol *best   = nullptr; // not newer than asked for
    bool          exists = false;   // in some version of this driver
};

found_symbol search(const char *base, int version, symbol_variant variant)
{
    found_symbol found;
    for (unsigned i = 0; i < fn_count; i++) {
        const symbol &s = symbols[i];
        if (s.variant != variant || strcmp(s.base, base) != 0 || s.since > machine().cuda_version)
            continue;
        found.exists = true;
        if (s.since <= version && (found.best == nullptr || s.since > found.best->since))
            found.best = &s;
    }
    return found;
}

found_symbol search(const char *base, int version, cuuint64_t flags)
{
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
        for (symbol_variant v : {symbol_variant::ptsz, symbol_variant::ptds}) {
            found_symbol found = search(base, version, v);
            if (found.best != nullptr)
                return found;
        }
    }
    return search(base, version, symbol_variant::legacy);
}

CUresult check(const char *name, void **function, int version, cuuint64_t flags)
{
    EMU_REQUIRE(name != nullptr && function != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(machine().cuda_version > 0, CUDA_ERROR_STUB_LIBRARY);
    EMU_REQUIRE(version <= machine().cuda_version, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

} // namespace

EMU_API(cuGetProcAddress_v2,
        (const char *name, void **function, int version, cuuint64_t flags,
         CUdriverProcAddressQueryResult *status),
        (name, function, version, flags, status))
{
    EMU_TRY(check(name, function, version, flags));
    found_symbol found = search(name, version, flags);
    *function          = found.best == nullptr ? nullptr : found.best->address;
    if (status != nullptr)
        *status = found.best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : found.exists        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS; // with a null function where there is none
}

EMU_API(cuGetProcAddress, (const char *name, void **function, int version, cuuint64_t flags),
        (name, function, version, flags))
{
    EMU_TRY(check(name, function, version, flags));
    found_symbol found = search(name, version, flags);
    *function          = found.best == nullptr ? nullptr : found.best->address;
    return found.best != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
