// SPDX-License-Identifier: BSD-3-Clause
//
// Asks the machine: CUDA first, then NVML, the operating system and hwloc for what CUDA does not
// know. Decides nothing; what could not be asked stays unknown. Called by topology.cpp and
// nvlink_info; calls the driver's tables.
#ifndef NVLINK_TOPO_PROBE_H
#define NVLINK_TOPO_PROBE_H

#include "driver/cuda.h"
#include "topo/facts.h"

namespace nvl {

enum class probe_depth {
    quick, // for a transport that opens: hwloc only where NVML gave no PCI path, or tells nothing of
           // a pair's links
    full,  // for a tool: hwloc always, with its NVLinkBandwidth distances
};

// `cuda`: an initialised driver, or null where there is none. Needs no context and makes none.
// Takes milliseconds. An NVML that is slow is given up on after two seconds and the call that is
// then on its way, the rest of its answers stays unknown; where a call does not return within five
// all of them do, with a warning, and the thread that made it is left behind. May throw
// std::bad_alloc only. Any thread.
machine_facts probe_machine(const cuda_api *cuda, probe_depth depth);

} // namespace nvl

#endif
