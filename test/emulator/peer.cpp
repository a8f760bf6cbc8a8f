// SPDX-License-Identifier: BSD-3-Clause
//
// Access between devices: what is possible (the machine file says), and what was enabled.
#include "driver.h"
#include "stale.h"

#include <algorithm>
#include <cstdlib>

namespace emu {

// The limit is of the device, for all processes; what others took of it is told by the test.
size_t peer_room()
{
    static const size_t room = [] {
        int         limit = machine().peer_limit;
        const char *taken = getenv("NVL_EMU_PEERS_TAKEN");
        int         left  = taken == nullptr ? limit : limit - atoi(taken);
        return limit == 0 ? ~static_cast<size_t>(0) : static_cast<size_t>(left < 0 ? 0 : left);
    }();
    return room;
}

bool has_peer_device(const context &ctx, int ordinal)
{
    return std::any_of(ctx.peers.begin(), ctx.peers.end(),
                       [&](const auto &peer) { return peer.second == ordinal; });
}

size_t peer_devices(const context &ctx)
{
    std::set<int> devices;
    for (auto &peer : ctx.peers)
        devices.insert(peer.second);
    return devices.size() + ctx.ipc_peers.size();
}

} // namespace emu

using namespace emu;

EMU_API(cuDeviceCanAccessPeer, (int *can, CUdevice from, CUdevice to), (can, from, to))
{
    EMU_REQUIRE(can != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *a = device_at(from);
    device *b = device_at(to);
    EMU_REQUIRE(a != nullptr && b != nullptr, CUDA_ERROR_INVALID_DEVICE);
    *can = can_reach(*a, *b);
    return CUDA_SUCCESS;
}

EMU_API(cuDeviceGetP2PAttribute,
        (int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to),
        (value, attribute, from, to))
{
    EMU_REQUIRE(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    device *a = device_at(from);
    device *b = device_at(to);
    EMU_REQUIRE(a != nullptr && b != nullptr && a != b, CUDA_ERROR_INVALID_DEVICE);
    const nvl::pair_facts &pair = pair_of(*a, *b);
    switch (static_cast<int>(attribute)) { // some are newer than the toolkit
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = pair.perf_rank == nvl::facts_unknown ? 0 : pair.perf_rank;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = pair.peer_access;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = pair.native_atomics;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

EMU_API(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags), (peer, flags))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    refuse_stale(peer);
    auto other = drv().contexts.find(peer);
    EMU_REQUIRE(other != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    EMU_REQUIRE(can_reach(*ctx->dev, *other->dev), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    std::lock_guard lock(ctx->peers_mutex);
    EMU_REQUIRE(ctx->peers.count(other->id) == 0, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EMU_REQUIRE(has_peer_device(*ctx, other->dev->ordinal) || peer_devices(*ctx) < peer_room(),
                CUDA_ERROR_TOO_MANY_PEERS);
    ctx->peers[other->id] = other->dev->ordinal;
    return CUDA_SUCCESS;
}

EMU_API(cuCtxDisablePeerAccess, (CUcontext peer), (peer))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    refuse_stale(peer);
    auto other = drv().contexts.find(peer);
    EMU_REQUIRE(other != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    std::lock_guard lock(ctx->peers_mutex);
    EMU_REQUIRE(ctx->peers.erase(other->id) == 1, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    return CUDA_SUCCESS;
}
