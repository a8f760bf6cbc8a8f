// SPDX-License-Identifier: BSD-3-Clause
//
// See timing.h.
#include "timing.h"

#include <cstdlib>
#include <cstring>

namespace emu {
namespace {

// Where the machine file says nothing about host memory: PCIe 5 x16, as measured on an H200.
constexpr double host_gb_s    = 55;
constexpr double default_us   = 7;
constexpr double default_gb_s = 300;

bool is_on()
{
    static const bool on = [] {
        const char *text = getenv("NVL_EMU_TIMING");
        return text != nullptr && strcmp(text, "1") == 0;
    }();
    return on;
}

} // namespace

std::chrono::nanoseconds time_of_copy(const device &engine, int dst_device, int src_device,
                                      size_t size) noexcept
{
    if (!is_on())
        return {};
    double rate = host_gb_s, latency = default_us;
    if (dst_device >= 0 && src_device >= 0) {
        rate          = default_gb_s;
        int     peer  = dst_device == engine.ordinal ? src_device : dst_device;
        device *other = device_at(peer);
        if (other != nullptr && other != &engine) {
            const nvl::pair_facts     &pair  = pair_of(engine, *other);
            const nvl::emulated_speed &speed = dst_device == peer ? pair.push : pair.pull;
            if (speed.rate_gb_s > 0)
                rate = speed.rate_gb_s;
            if (speed.latency_us > 0)
                latency = speed.latency_us;
        }
    }
    return std::chrono::nanoseconds(
        static_cast<long>(latency * 1e3 + static_cast<double>(size) / rate));
}

} // namespace emu
