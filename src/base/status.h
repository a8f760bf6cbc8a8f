// SPDX-License-Identifier: BSD-3-Clause
//
// Status codes between the three worlds: the CUDA driver's CUresult, UCX's
// ucs_status_t, and `result<T>` for set-up code. Called by everybody; calls
// nothing.
#ifndef NVLINK_BASE_STATUS_H
#define NVLINK_BASE_STATUS_H

#include <utility>

extern "C" {
#include <ucs/type/status.h>
}

namespace nvl {

// A value, or the status that says why there is none. Set-up code returns it
// from `create()`; the data path returns ucs_status_t alone.
template<typename T> class [[nodiscard]] result {
public:
    result(T &&value) : value_(std::move(value)), status_(UCS_OK)
    {
    }

    result(ucs_status_t status) : value_(), status_(status)
    {
    }

    bool ok() const noexcept
    {
        return status_ == UCS_OK;
    }

    ucs_status_t status() const noexcept
    {
        return status_;
    }

    // Only when ok().
    T &value() noexcept
    {
        return value_;
    }

private:
    T            value_;
    ucs_status_t status_;
};

} // namespace nvl

#endif
