// SPDX-License-Identifier: BSD-3-Clause
//
// One probe for a process, and the tables for its look-ups.

#include "topo/topology.h"

#include "topo/probe.h"

#include <cstdio>

namespace nvl {

topology::topology(machine_facts facts) : pairs_(std::move(facts))
{
    for (int i = 0; i < facts_max_gpus; ++i) {
        by_ordinal_[static_cast<size_t>(i)] = pairs_.find_cuda(i);
    }
}

const topology &topology::get(const cuda_api &cuda) noexcept
{
    static const topology *const known = [&]() noexcept -> const topology * {
        try {
            // Never deleted: look-ups may come from destructors that run at exit.
            return new topology(probe_machine(&cuda, probe_depth::quick));
        } catch (...) {
            static topology nothing;
            nothing.by_ordinal_.fill(-1);
            return &nothing;
        }
    }();
    return *known;
}

pair_path topology::judge(int from, bool same_host, const gpu_identity &peer) const noexcept
{
    try {
        const int a = position(from);
        if (a >= 0) {
            return pairs_.judge(static_cast<size_t>(a), same_host, peer);
        }
        pair_path none;
        none.reason = "this process has no such GPU";
        return none;
    } catch (...) {
        return pair_path();
    }
}

reach_answer topology::judge_process(bool same_host, const process_reach &peer) const noexcept
{
    try {
        return pairs_.judge_process(same_host, peer);
    } catch (...) {
        return reach_answer();
    }
}

gpu_identity topology::identity(int ordinal) const noexcept
{
    const int a = position(ordinal);
    return a < 0 ? gpu_identity() : pairs_.identity(static_cast<size_t>(a));
}

int topology::find_pci(unsigned domain, unsigned bus, unsigned device) const noexcept
{
    int best = -1;

    for (const auto &gpu : pairs_.facts().gpus) {
        unsigned gpu_domain, gpu_bus, gpu_device;
        if (gpu.cuda >= 0 && (best < 0 || gpu.cuda < best) &&
            std::sscanf(gpu.pci.c_str(), "%8x:%2x:%2x", &gpu_domain, &gpu_bus, &gpu_device) == 3 &&
            gpu_domain == domain && gpu_bus == bus && gpu_device == device) {
            best = gpu.cuda;
        }
    }
    return best;
}

} // namespace nvl
