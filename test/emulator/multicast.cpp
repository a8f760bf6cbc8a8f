// SPDX-License-Identifier: BSD-3-Clause
//
// Multicast needs switches whose memory all GPUs write at once: not emulated, as on a machine
// whose devices answer 0 for CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED.
#include "driver.h"

EMU_API(cuMulticastCreate,
        (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *prop), (handle, prop))
{
    EMU_REQUIRE(handle != nullptr && prop != nullptr, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

EMU_API(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice dev), (handle, dev))
{
    EMU_UNUSED(handle, dev);
    return CUDA_ERROR_NOT_SUPPORTED;
}

EMU_API(cuMulticastBindMem,
        (CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
         size_t memory_offset, size_t size, unsigned long long flags),
        (handle, offset, memory, memory_offset, size, flags))
{
    EMU_UNUSED(handle, offset, memory, memory_offset, size, flags);
    return CUDA_ERROR_NOT_SUPPORTED;
}

EMU_API(cuMulticastBindAddr,
        (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer, size_t size,
         unsigned long long flags),
        (handle, offset, pointer, size, flags))
{
    EMU_UNUSED(handle, offset, pointer, size, flags);
    return CUDA_ERROR_NOT_SUPPORTED;
}

EMU_API(cuMulticastUnbind,
        (CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, size_t size),
        (handle, dev, offset, size))
{
    EMU_UNUSED(handle, dev, offset, size);
    return CUDA_ERROR_NOT_SUPPORTED;
}

EMU_API(cuMulticastGetGranularity,
        (size_t * granularity, const CUmulticastObjectProp *prop,
         CUmulticastGranularity_flags option),
        (granularity, prop, option))
{
    EMU_UNUSED(option);
    EMU_REQUIRE(granularity != nullptr && prop != nullptr, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}
