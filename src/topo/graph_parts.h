// SPDX-License-Identifier: BSD-3-Clause
//
// What the parts of the graph hand to each other. For graph.cpp and dead_links.cpp only.
#ifndef NVLINK_TOPO_GRAPH_PARTS_H
#define NVLINK_TOPO_GRAPH_PARTS_H

#include "topo/graph.h"

namespace nvl {

// The evidence, besides link ends, that a pair is on NVLink.
bool says_nvlink(const machine_facts &facts, size_t a, size_t b);

// Marks the pairs that are slower than their hardware is made for since links are down. `paths`:
// of all pairs, by row; what each is made of links that are up is decided already.
void mark_dead_links(const machine_facts &facts, std::vector<pair_path> &paths);

int links_up(const gpu_facts &gpu);
int links_down(const gpu_facts &gpu);

// Makes a path degraded, and says that so many links are down.
void note_dead_links(pair_path &path, int dead);

} // namespace nvl

#endif
