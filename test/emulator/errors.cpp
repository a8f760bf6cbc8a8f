// SPDX-License-Identifier: BSD-3-Clause
//
// Names and texts of codes.
#include "call.h"

namespace {

struct error_text {
    int         code;
    const char *name;
    const char *text;
};

const error_text errors[] = {
#define EMU_ERROR(name, number, text) {number, #name, text},
#include "errors.def"
#undef EMU_ERROR
};

const error_text *find_error(int code)
{
    for (auto &error : errors) {
        if (error.code == code)
            return &error;
    }
    return nullptr;
}

} // namespace

EMU_API(cuGetErrorName, (CUresult code, const char **text), (code, text))
{
    EMU_REQUIRE(text != nullptr, CUDA_ERROR_INVALID_VALUE);
    const error_text *error = find_error(code);
    *text                   = error == nullptr ? nullptr : error->name;
    return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EMU_API(cuGetErrorString, (CUresult code, const char **text), (code, text))
{
    EMU_REQUIRE(text != nullptr, CUDA_ERROR_INVALID_VALUE);
    const error_text *error = find_error(code);
    *text                   = error == nullptr ? nullptr : error->text;
    return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
