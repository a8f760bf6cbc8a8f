// SPDX-License-Identifier: BSD-3-Clause
//
// Within one process there are no handles: a GPU is given access to memory of
// another one. Called by remote_key; calls places and the driver.
#ifndef NVLINK_MEM_ACCESS_H
#define NVLINK_MEM_ACCESS_H

#include "mem/region.h"

namespace nvl {

// Lets copies that run in `from` touch [base, +size) of memory that `found`
// describes: peer access of the contexts for cuMemAlloc, access of the GPU for
// VMM and pools, whose other GPUs keep theirs. UCS_ERR_UNREACHABLE with the reason
// logged. Any thread.
ucs_status_t allow_access(places &where, const region &found, uint64_t base, size_t size_bytes,
                          const place &from) noexcept;

} // namespace nvl

#endif
