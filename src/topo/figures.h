// SPDX-License-Identifier: BSD-3-Clause
//
// The figures that turn links and slots into estimates, each with its source. Called by
// graph.cpp only; pure.
#ifndef NVLINK_TOPO_FIGURES_H
#define NVLINK_TOPO_FIGURES_H

#include "topo/facts.h"

namespace nvl {

// The generation of a link by the number that NVML has for its version: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0
// and 5.0 are 1 to 7 (an H200 says 6); 0 for others.
int link_generation(unsigned nvml_version) noexcept;

// What an NVLink of this version carries in one direction when NVML does not say, MB/s; 0 for an
// unknown version.
int link_speed_mb_s(int version) noexcept;

// The same for a GPU of which nobody tells: those of 8.6 have links of 14.06 GB/s.
int link_speed_mb_s(int version, const gpu_facts &gpu) noexcept;

// How many links a GPU of its kind has, by its name and compute capability, where nobody can be asked
// but the driver says that the pair has atomics, that is, NVLink; 0: unknown.
int assumed_links(const gpu_facts &gpu) noexcept;
int assumed_version(int compute_major) noexcept;

// The part of the links' speed that a copy engine gets with large copies.
double link_efficiency(int version) noexcept;

// Bytes per second of a slot, one direction; unknown values count as generation 3, 16 lanes.
double pcie_bytes_s(int generation, int width) noexcept;

// The part of it that a peer copy gets on a path of this kind.
double pcie_efficiency(pcie_level level) noexcept;

// One small copy by a copy engine, from the call to its completion seen by the processor.
// 2 x H200, driver 580: 7.7 us push, 10.7 us pull (cuMemcpyAsync, event, query).
constexpr double push_latency_s = 7.7e-6;
constexpr double pull_latency_s = 10.7e-6;

// PCIe adds about this to each crossing: ping latencies of NVLink and PCIe peers in published
// p2pBandwidthLatencyTest matrices differ by 1 to 2 us.
constexpr double pcie_extra_latency_s = 1.5e-6;

} // namespace nvl

#endif
