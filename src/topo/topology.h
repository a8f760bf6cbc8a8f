// SPDX-License-Identifier: BSD-3-Clause
//
// The topology of the machine that this process runs on: asked once, at the first get(), and
// the same for the process's life. Look-ups take no lock and ask no driver.
// Called by uct (device address, reachability, estimates); calls probe and graph.
#ifndef NVLINK_TOPO_TOPOLOGY_H
#define NVLINK_TOPO_TOPOLOGY_H

#include "driver/cuda.h"
#include "topo/graph.h"

namespace nvl {

class topology {
public:
    // Any thread; the first call probes (milliseconds; a slow NVML is given up on). Never fails:
    // without knowledge, every pair is `none` with a reason, or memory ran out and there is none.
    static const topology &get(const cuda_api &cuda) noexcept;

    // For tests: of facts that are known already.
    explicit topology(machine_facts facts);

    const graph &pairs() const noexcept
    {
        return pairs_;
    }

    // By CUDA ordinals of this process, as a copy run by `from` reaches the memory of `to`. An
    // ordinal that is not known gives best().
    const pair_path &path(int from, int to) const noexcept
    {
        const int a = position(from);
        const int b = position(to);
        return (a < 0 || b < 0) ? pairs_.best()
                                : pairs_.path(static_cast<size_t>(a), static_cast<size_t>(b));
    }

    // The fastest pair that this process has: the answer for unknown devices.
    const pair_path &best() const noexcept
    {
        return pairs_.best();
    }

    // The fastest pair of one GPU, by CUDA ordinal.
    const pair_path &best_of(int from) const noexcept
    {
        const int a = position(from);
        return a < 0 ? pairs_.best() : pairs_.best_of(static_cast<size_t>(a));
    }

    // A GPU of another process, known by what it told. The reason is in the path. Set-up only.
    pair_path judge(int from, bool same_host, const gpu_identity &peer) const noexcept;

    // A process, known by what it told before any GPU was named. Set-up only.
    reach_answer judge_process(bool same_host, const process_reach &peer) const noexcept;

    // What this process tells others about its GPU `ordinal`.
    gpu_identity identity(int ordinal) const noexcept;

    // The CUDA ordinal of the GPU at this PCI address, or -1 (also for MIG instances that share
    // one: the first).
    int find_pci(unsigned domain, unsigned bus, unsigned device) const noexcept;

private:
    topology() = default;

    int position(int ordinal) const noexcept
    {
        return (ordinal < 0 || ordinal >= facts_max_gpus)
                   ? -1
                   : by_ordinal_[static_cast<size_t>(ordinal)];
    }

    graph                           pairs_;
    std::array<int, facts_max_gpus> by_ordinal_{};
};

} // namespace nvl

#endif
