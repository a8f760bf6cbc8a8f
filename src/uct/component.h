// SPDX-License-Identifier: BSD-3-Clause
//
// The component `nvlink` as one UCX knows it. A process with two UCXs that load
// the plugin has one instance for each; an instance is never freed, because UCX
// keeps it in its lists. Called by UCX at load and by md, iface and ep.
#ifndef NVLINK_UCT_COMPONENT_H
#define NVLINK_UCT_COMPONENT_H

#include <array>
#include <atomic>

#include "host/binding.h"
#include "mem/place.h"
#include "uct/config.h"

namespace nvl {

constexpr const char *component_name = "nvlink";
// UCP takes one of the resources of one device for a lane; cuda_ipc's and
// cuda_copy's device has this name.
constexpr const char *device_name = "cuda";

// `super` comes first: UCX's pointer to it is a pointer to the instance.
struct component {
    uct_component_t     super;
    uct_tl_t            transport;
    const host_binding *host;
    config_rows         rows;
    // By index of the GPU; -1: not asked yet.
    mutable std::array<std::atomic<int>, max_gpus> sys_devices;
};

inline const component &component_of(const uct_component_t *super) noexcept
{
    return *reinterpret_cast<const component *>(super);
}

} // namespace nvl

#endif
