// SPDX-License-Identifier: BSD-3-Clause
//
// The parts of a probe, in the order in which probe.cpp asks them. Each fills in what it knows
// and leaves the rest. For probe*.cpp only. All may throw std::bad_alloc.
#ifndef NVLINK_TOPO_PROBE_PARTS_H
#define NVLINK_TOPO_PROBE_PARTS_H

#include "driver/cuda.h"
#include "topo/facts.h"
#include "topo/probe.h"

namespace nvl {

// Versions, the GPUs that this process may use, their attributes and the pairs'.
void probe_cuda(const cuda_api &cuda, machine_facts &facts);

// NVML's index, links, fabric, MIG and P2P status; adds the GPUs that CUDA hides.
void probe_nvml(machine_facts &facts);

// The operating system: boot id, NUMA nodes, IMEX channel, driver version.
void probe_system(machine_facts &facts);

// hwloc: NUMA node and PCI path where nobody else knew, NVLinkBandwidth on request.
void probe_hwloc(machine_facts &facts, bool distances);

// Appends a GPU and gives every pair its place in the larger table.
gpu_facts &add_gpu(machine_facts &facts);

} // namespace nvl

#endif
