// SPDX-License-Identifier: BSD-3-Clause
//
// Sharing of memory by descriptor and by fabric handle, common to vmm.cpp and pool.cpp.
#ifndef NVLINK_EMULATOR_SHARING_H
#define NVLINK_EMULATOR_SHARING_H

#include "driver.h"
#include "handle_file.h"

namespace emu {

CUresult check_handle_types(const device &dev, unsigned types);
CUresult open_shared_fd(int fd, std::shared_ptr<backing> *memory);
CUresult open_shared_fabric(const void *raw, handle_purpose purpose,
                            std::shared_ptr<backing> *memory);
// CU_DEVICE_INVALID: a GPU of another host, reached over the fabric.
CUresult device_of_shared(const backing &memory, int *ordinal);
CUresult share_memory(void *out, const backing &memory, size_t size, unsigned type,
                      unsigned allowed, handle_purpose purpose);
CUresult check_access_to(const CUmemLocation &location, int memory_device);
bool     is_access(unsigned long long flags);

} // namespace emu

#endif
