// SPDX-License-Identifier: BSD-3-Clause
//
// Which path the bytes of a pair of GPUs take, and why: one line in the log for each ordered pair
// and process, a warning where the hardware is made for more (dead links).
// Called by mem when memory of a peer becomes reachable; calls topology.
#ifndef NVLINK_TOPO_PATH_LOG_H
#define NVLINK_TOPO_PATH_LOG_H

#include "topo/topology.h"

namespace nvl {

// Whose GPU it is.
enum class peer_side { this_process, other_process, other_host };

// GPU `from` (a CUDA ordinal of this process) reaches memory of the GPU `peer`. Any thread; a
// look-up in a small table after the first time.
void path_log_reached(const cuda_api &cuda, int from, const gpu_identity &peer,
                      peer_side side) noexcept;

// The line, for tests.
std::string path_log_text(int from, const uuid_bytes &peer, peer_side side, const pair_path &path);

} // namespace nvl

#endif
