// SPDX-License-Identifier: BSD-3-Clause
//
// Which pairs dead links have made slower. A dead link does not say where it led: it may have been
// another pair's, or lead to a GPU that this guest does not have, or to a bridge that nobody
// bought. So a pair is blamed only where all pairs together show that the link was its own.

#include "topo/graph_parts.h"

#include <algorithm>

namespace nvl {

namespace {

class dead_links {
public:
    dead_links(const machine_facts &facts, std::vector<pair_path> &paths)
        : facts_(facts), paths_(paths), count_(facts.gpus.size()), regular_(regular_count())
    {
    }

    void mark(size_t a, size_t b);

private:
    pair_path &path(size_t a, size_t b) const
    {
        return paths_[a * count_ + b];
    }
    int down(size_t gpu) const
    {
        return links_down(facts_.gpus[gpu]);
    }
    bool all_down(size_t gpu) const
    {
        return down(gpu) > 0 && links_up(facts_.gpus[gpu]) == 0;
    }
    // Both ends of a link are down at once, so no more can be missing than the less damaged has.
    int dead_at_both(size_t a, size_t b) const
    {
        return std::min(down(a), down(b));
    }

    bool has_direct_links(size_t a, size_t b) const;
    int  peers(size_t gpu) const;
    bool on_switch(size_t gpu) const;
    bool was_on_switch(size_t gpu) const;
    int  regular_count() const;
    int  missing(size_t a, size_t b) const;
    void mark_pcie(size_t a, size_t b);

    const machine_facts    &facts_;
    std::vector<pair_path> &paths_;
    size_t                  count_;
    int                     regular_; // links that each pair of a mesh has; 0: they differ
};

// Or had: a pair that is said to be on NVLink and goes over PCIe.
bool dead_links::has_direct_links(size_t a, size_t b) const
{
    return a != b && (path(a, b).kind == path_kind::nvlink ||
                      (path(a, b).kind == path_kind::pcie && says_nvlink(facts_, a, b)));
}

int dead_links::peers(size_t gpu) const
{
    int found = 0;
    for (size_t i = 0; i < count_; ++i) {
        found += has_direct_links(gpu, i) ? 1 : 0;
    }
    return found;
}

bool dead_links::on_switch(size_t gpu) const
{
    for (size_t i = 0; i < count_; ++i) {
        if (path(gpu, i).kind == path_kind::nvswitch) {
            return true;
        }
    }
    return false;
}

// Its links are all dead, but a GPU like it is on a switch.
bool dead_links::was_on_switch(size_t gpu) const
{
    for (size_t i = 0; all_down(gpu) && i < count_; ++i) {
        if (on_switch(i) && facts_.gpus[i].links.size() == facts_.gpus[gpu].links.size()) {
            return true;
        }
    }
    return false;
}

// More than half of the pairs have that many, and the others lack just what their GPUs have lost:
// in a part of an irregular mesh one of the two is not so.
int dead_links::regular_count() const
{
    std::vector<int> missing(count_);
    int              most = 0, pairs = 0, whole = 0;

    for (const auto &one : paths_) {
        most = std::max(most, one.kind == path_kind::nvlink ? one.links : 0);
    }
    for (size_t a = 0; a < count_; ++a) {
        for (size_t b = 0; b < count_; ++b) {
            if (has_direct_links(a, b)) {
                ++pairs;
                whole += path(a, b).links == most ? 1 : 0;
                missing[a] += most - path(a, b).links;
            }
        }
    }
    for (size_t a = 0; a < count_; ++a) {
        if (missing[a] > 0 && missing[a] != down(a)) {
            return 0;
        }
    }
    return 2 * whole > pairs ? most : 0;
}

// How many links more a pair with direct links should have.
int dead_links::missing(size_t a, size_t b) const
{
    const int here = path(a, b).links, dead = dead_at_both(a, b);

    // A bridge: both have no other peer, and most of it is still up.
    if (peers(a) == 1 && peers(b) == 1 && dead < here) {
        return dead;
    }
    return std::min(std::max(regular_ - here, 0), dead);
}

void dead_links::mark_pcie(size_t a, size_t b)
{
    if (says_nvlink(facts_, a, b)) {
        const int dead = dead_at_both(a, b);
        // A GPU that NVML is silent about: the other one tells.
        note_dead_links(path(a, b), dead > 0 ? dead : std::max(down(a), down(b)));
    } else if ((was_on_switch(a) || on_switch(a)) && (was_on_switch(b) || on_switch(b)) &&
               (all_down(a) || all_down(b))) {
        path(a, b).degraded = true;
        path(a, b).reason +=
            "; all " + std::to_string(std::max(down(a), down(b))) + " NVLinks of one GPU are down";
    }
}

void dead_links::mark(size_t a, size_t b)
{
    switch (path(a, b).kind) {
    case path_kind::nvswitch: // any link may carry any pair
        note_dead_links(path(a, b), std::max(down(a), down(b)));
        break;
    case path_kind::nvlink:
        note_dead_links(path(a, b), missing(a, b));
        break;
    case path_kind::pcie:
        mark_pcie(a, b);
        break;
    case path_kind::none:
    case path_kind::same_gpu:
    case path_kind::fabric:
        break;
    }
}

} // namespace

int links_up(const gpu_facts &gpu)
{
    return static_cast<int>(std::count_if(gpu.links.begin(), gpu.links.end(),
                                          [](const auto &link) { return link.active; }));
}

int links_down(const gpu_facts &gpu)
{
    return static_cast<int>(gpu.links.size()) - links_up(gpu);
}

void note_dead_links(pair_path &path, int dead)
{
    if (dead > 0) {
        path.degraded = true;
        path.reason +=
            "; " + std::to_string(dead) + (dead == 1 ? " link is" : " links are") + " down";
    }
}

void mark_dead_links(const machine_facts &facts, std::vector<pair_path> &paths)
{
    if (std::all_of(facts.gpus.begin(), facts.gpus.end(),
                    [](const auto &gpu) { return links_down(gpu) == 0; })) {
        return;
    }
    dead_links marks(facts, paths);
    for (size_t a = 0; a < facts.gpus.size(); ++a) {
        for (size_t b = 0; b < facts.gpus.size(); ++b) {
            marks.mark(a, b);
        }
    }
}

} // namespace nvl
