// SPDX-License-Identifier: BSD-3-Clause
//
// What a machine's facts mean: for each ordered pair of GPUs the path that a copy takes, what it
// is worth, and why. Pure: the same facts give the same graph, on any machine.
// Called by topology.h, nvlink_info and tests; calls facts.h only.
#ifndef NVLINK_TOPO_GRAPH_H
#define NVLINK_TOPO_GRAPH_H

#include "topo/facts.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace nvl {

enum class path_kind {
    none,     // the pair cannot reach each other
    same_gpu, // one memory
    nvlink,   // links straight from one GPU to the other
    nvswitch, // links through a switch
    fabric,   // links through switches to another host
    pcie,     // peer access without NVLink
};

const char *to_text(path_kind kind) noexcept;

struct pair_path {
    path_kind   kind           = path_kind::none;
    int         links          = 0; // NVLinks that the pair has and that are up
    pcie_level  pcie           = pcie_level::unknown;
    bool        native_atomics = false;
    bool        degraded       = false; // slower than this hardware is made for; worth a warning
    double      push_bytes_s   = 0;     // the source's copy engine writes, large copies
    double      pull_bytes_s   = 0;     // the target's copy engine reads
    double      push_latency_s = 0;     // of one small copy by a copy engine, seen by the processor
    double      pull_latency_s = 0;
    std::string reason; // for people: one clause, no full stop

    bool reachable() const noexcept
    {
        return kind != path_kind::none;
    }

    bool over_nvlink() const noexcept
    {
        return kind == path_kind::nvlink || kind == path_kind::nvswitch ||
               kind == path_kind::fabric;
    }
};

using uuid_bytes = std::array<uint8_t, 16>;

// "GPU-", "MIG-" or nothing, then 8-4-4-4-12; false when it is not one.
bool        parse_uuid(std::string_view text, uuid_bytes *out) noexcept;
std::string format_uuid(const uuid_bytes &uuid, const char *prefix);

// What one process tells another about a GPU, so that the pair can be judged.
struct gpu_identity {
    uuid_bytes uuid{};    // of a MIG instance its own
    uuid_bytes cluster{}; // all zero: not in a fabric
    uint32_t   clique = 0;
};

// Eight bytes that stand for a UUID where sixteen are too many; 0 stands for none.
uint64_t uuid_digest(const uuid_bytes &uuid) noexcept;

// What one process tells another about all its GPUs, before either has named one.
struct process_reach {
    bool     peers   = false; // some GPU can have a peer, itself in another process included
    bool     fabric  = false; // some GPU can share memory with other hosts of `cluster`, `clique`
    uint32_t clique  = 0;
    uint64_t cluster = 0; // digest; 0: not in a fabric
    uint64_t gpu     = 0; // digest of the only GPU that CUDA shows; 0: there are several
};

// An answer with its reason: one clause for people, no full stop.
struct reach_answer {
    bool        reachable = false;
    std::string reason;
};

class graph {
public:
    graph() = default;

    // What NVML would tell is forgotten unless facts.nvml is present or slow. May throw std::bad_alloc
    // only.
    explicit graph(machine_facts facts);

    const machine_facts &facts() const noexcept
    {
        return facts_;
    }

    size_t size() const noexcept
    {
        return facts_.gpus.size();
    }

    // How a copy run by GPU `from` gets to the memory of GPU `to`; positions below size().
    const pair_path &path(size_t from, size_t to) const noexcept
    {
        return paths_[from * size() + to];
    }

    // The fastest path between two GPUs here: what an unknown pair may be taken for. With one
    // GPU, what that GPU could do; kind none when nothing is reachable.
    const pair_path &best() const noexcept
    {
        return best_;
    }

    // The same for the pairs of one GPU.
    const pair_path &best_of(size_t from) const noexcept
    {
        return best_of_[from];
    }

    // Do all pairs that GPUs of this process have, with a peer or with themselves, do atomic
    // operations in hardware? UCP is told for a process, not for a pair.
    bool atomics_everywhere() const noexcept;

    // A GPU of another process, known by what it told. It may be one that CUDA or NVML hides
    // from this process. May throw std::bad_alloc only.
    pair_path judge(size_t from, bool same_host, const gpu_identity &peer) const;

    // Some two GPUs of the machine reach each other.
    bool has_peers() const noexcept;

    // May any GPU of this process get at memory of that one? Says no only where no pair can: which
    // pairs do is known when a key names a GPU. May throw std::bad_alloc only.
    reach_answer  judge_process(bool same_host, const process_reach &peer) const;
    process_reach reach() const noexcept;

    gpu_identity identity(size_t position) const noexcept;

    // The position of a GPU that CUDA or NVML shows, or -1. A MIG instance is found by its own
    // UUID only.
    int find(const uuid_bytes &uuid) const noexcept;
    int find_cuda(int ordinal) const noexcept;

private:
    bool        knows_all_gpus() const noexcept;
    pair_path   fastest_from(size_t from) const;
    std::string fabric_refusal(size_t from, uint64_t cluster, uint32_t clique) const;
    std::string local_refusal(size_t from, uint64_t peer_gpu) const;

    machine_facts          facts_;
    std::vector<pair_path> paths_;
    std::vector<pair_path> best_of_;
    pair_path              best_;
};

} // namespace nvl

#endif
