// SPDX-License-Identifier: BSD-3-Clause
//
// Every UCX_NVLINK_* variable: what it is, its default, where it lands. Called
// by component, md and iface; calls host/config_types.
#ifndef NVLINK_UCT_CONFIG_H
#define NVLINK_UCT_CONFIG_H

#include "host/config_types.h"

namespace nvl {

// Filled by UCX's parser at md_open.
struct md_config {
    uct_md_config_t super;
    unsigned long   import_cache_count;
    size_t          import_cache_size;
    char           *socket_dir;
    int             host_memory;
    int             atomics;
    int             strict;
};

// Filled by UCX's parser at iface_open.
struct iface_config {
    uct_iface_config_t       super;
    ucs_ternary_auto_value_t kernel;
    double                   idle;   // seconds
    double                   narrow; // seconds
    double                   stay;   // seconds
    double                   hello;  // seconds
    double                   gap;    // seconds
    unsigned                 blocks;
    unsigned                 warps;
    size_t                   alone;
    size_t                   chunk_small;
    size_t                   chunk_large;
    size_t                   chunk_stream;
    unsigned                 ahead;
    size_t                   put_lone_max;
    size_t                   get_lone_max;
    size_t                   put_stream_max;
    size_t                   get_stream_max;
    unsigned                 completion; // index into completion_names
    unsigned                 depth;
    unsigned                 max_poll;
    double                   bandwidth;          // bytes/s, or UCS_CONFIG_DBL_AUTO
    double                   latency;            // seconds, of the estimate
    double                   overhead;           // seconds, of the estimate
    double                   host_put_bandwidth; // bytes/s, of the estimate
    double                   host_get_bandwidth; // bytes/s, of the estimate
    size_t                   host_stage;
    size_t                   host_chunk;
    size_t                   host_inline;
};

// The rows for a host; `rows` live as long as the process.
struct config_rows {
    ucs_config_field_t md[8];
    ucs_config_field_t iface[31];
};

void config_fill(const ucx_api &api, config_rows *rows) noexcept;

} // namespace nvl

#endif
