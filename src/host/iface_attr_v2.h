// SPDX-License-Identifier: BSD-3-Clause
//
// The one structure whose offsets and mask bits differ between the UCX versions that we know. The
// interface's query_v2 (src/uct/iface.cpp) writes its answer through this and sees no version.

#ifndef NVLINK_HOST_IFACE_ATTR_V2_H
#define NVLINK_HOST_IFACE_ATTR_V2_H

#include "host/abi.h"
#include "host/binding.h"

namespace nvl {

// Writes only the fields that the caller asked for by the mask.
class iface_attr_v2_ref {
public:
    iface_attr_v2_ref(const ucx_layout &layout, uct_iface_attr_v2_t *attr) noexcept
        : bits_(layout.attr_bits), attr_(attr)
    {
    }

    bool wants(uint64_t bit) const noexcept
    {
        return (attr_->field_mask & bit) != 0;
    }

    const iface_attr_v2_bits &bits() const noexcept
    {
        return bits_;
    }

    // 1.23 only; elsewhere nobody can ask.
    void set_max_get_sgl_zcopy_count(size_t count) noexcept
    {
        if (is_1_23() && wants(bits_.max_get_sgl_zcopy_count)) {
            as_1_23()->max_get_sgl_zcopy_count = count;
        }
    }

    void set_max_put_sgl_zcopy_count(size_t count) noexcept
    {
        // At the same place in all versions.
        if (wants(bits_.max_put_sgl_zcopy_count)) {
            attr_->max_put_sgl_zcopy_count = count;
        }
    }

    // Out of bits().flag_*.
    void set_cap_flags(uint64_t flags) noexcept
    {
        if (wants(bits_.cap_flags)) {
            (is_1_23() ? as_1_23()->cap.flags : attr_->cap.flags) = flags;
        }
    }

    void set_token_lengths(size_t tx, size_t rx) noexcept
    {
        if (wants(bits_.tx_token_length)) {
            (is_1_23() ? as_1_23()->tx_token_length : attr_->tx_token_length) = tx;
        }
        if (wants(bits_.rx_token_length)) {
            (is_1_23() ? as_1_23()->rx_token_length : attr_->rx_token_length) = rx;
        }
    }

private:
    bool is_1_23() const noexcept
    {
        return bits_.max_get_sgl_zcopy_count != 0;
    }

    iface_attr_v2_1_23 *as_1_23() const noexcept
    {
        return reinterpret_cast<iface_attr_v2_1_23 *>(attr_);
    }

    const iface_attr_v2_bits &bits_;
    uct_iface_attr_v2_t      *attr_;
};

} // namespace nvl

#endif
