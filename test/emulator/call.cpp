// SPDX-License-Identifier: BSD-3-Clause
//
// See call.h. Counts here, so that a count is right whatever the call then does.
#include "counters.h"
#include "driver.h"
#include "faults.h"
#include "symbol_table.h"

#include <cstdio>
#include <cstdlib>

namespace emu {

const char *name_of(fn id) noexcept
{
    return symbols[static_cast<unsigned>(id)].name;
}

bool &inside_host_function() noexcept
{
    static thread_local bool inside = false;
    return inside;
}

void not_implemented(const char *symbol) noexcept
{
    fprintf(stderr, "emulated driver: %s is not implemented\n", symbol);
    abort();
}

namespace {

thread_local call_fault current_fault;
thread_local fn         current_call = fn::cuInit;

// What may be called before cuInit and from a host function.
bool is_always_allowed(fn id)
{
    switch (id) {
    case fn::cuInit:
    case fn::cuDriverGetVersion:
    case fn::cuGetErrorName:
    case fn::cuGetErrorString:
    case fn::cuGetProcAddress:
    case fn::cuGetProcAddress_v2:
        return true;
    default:
        return false;
    }
}

} // namespace

const char *name_of_this_call() noexcept
{
    return name_of(current_call);
}

const call_fault &fault_of_this_call() noexcept
{
    return current_fault;
}

bool call_begins(fn id, CUresult *code) noexcept
{
    call_numbers numbers = count_call(id);
    current_fault        = {};
    current_call         = id;
    if (faults_are_planned()) {
        current_fault = fault_of_call(id, numbers.in_process, numbers.in_thread);
        *code         = current_fault.code;
        if (*code != CUDA_SUCCESS || current_fault.skip)
            return false;
    }
    if (is_always_allowed(id))
        return true;
    if (!drv().initialised.load(std::memory_order_acquire)) {
        *code = CUDA_ERROR_NOT_INITIALIZED;
        return false;
    }
    if (inside_host_function()) {
        *code = CUDA_ERROR_NOT_PERMITTED;
        return false;
    }
    return true;
}

} // namespace emu
