// SPDX-License-Identifier: BSD-3-Clause
//
// The figures behind the estimates.

#include "topo/figures.h"

namespace nvl {

int link_generation(unsigned nvml_version) noexcept
{
    static constexpr int generations[] = {0, 1, 2, 2, 3, 3, 4, 5};
    constexpr unsigned   count         = sizeof(generations) / sizeof(generations[0]);

    return nvml_version < count ? generations[nvml_version] : 0;
}

int link_speed_mb_s(int version) noexcept
{
    // As nvidia-smi nvlink -s prints for P100, V100, A100, H100/H200 and B200.
    static constexpr int speeds[] = {0, 20000, 25781, 25000, 26562, 53125};

    if (version < 1) {
        return 0;
    }
    return version < 6 ? speeds[version] : speeds[5];
}

int link_speed_mb_s(int version, const gpu_facts &gpu) noexcept
{
    // As nvidia-smi nvlink -s prints for A6000 and A40.
    const bool is_half = (gpu.compute_major == 8) && (gpu.compute_minor == 6);
    return is_half ? 14062 : link_speed_mb_s(version);
}

int assumed_links(const gpu_facts &gpu) noexcept
{
    const auto is = [&](const char *part) { return gpu.name.find(part) != std::string::npos; };

    switch (gpu.compute_major) {
    case 6:
        return 1; // P100: four links, of which a pair has one or two
    case 7:
        if (is("V100-SXM3")) {
            return 6; // all to the switches of a DGX-2
        }
        return gpu.compute_minor == 0 ? 1 : 2; // V100: six, one or two a pair outside of a DGX-2;
                                               // Turing: one bridge of two
    case 8:
        if (gpu.compute_minor == 9) {
            return 0; // L40S and its kind
        }
        // A100, on a board or with three bridges; a bridge of four on A30, A6000 and A40.
        return (gpu.compute_minor == 0) && !is("A30") ? 12 : 4;
    case 9:
        return is("H100 NVL") || is("H100 PCIe") ? 12 : 18; // three bridges of four (600 GB/s)
    case 10:
        return 18;
    default:
        return 0;
    }
}

int assumed_version(int compute_major) noexcept
{
    // Pascal 1, Volta and Turing 2, Ampere 3, Hopper 4, Blackwell 5.
    if (compute_major < 6) {
        return 0;
    }
    return compute_major >= 10 ? 5 : compute_major - 5;
}

double link_efficiency(int version) noexcept
{
    switch (version) {
    case 1:
        return 0.91; // P100: 36.4 of 40 GB/s (Dell, C4130, p2pBandwidthLatencyTest)
    case 2:
    case 3:
        return 0.93; // V100: 47.9 of 51.6 GB/s (Dell, C4130); A100 alike
    case 4:
        // 2 x H200, copies of 256 MiB: 395 GB/s push and 391 to 395 pull of 478.1. Alike for UCP, which
        // else takes a write for a large message: 256 MiB then take a quarter longer.
        return 0.823;
    default:
        return 0.80; // GB200: 771 of 956 GB/s (published matrix, both directions halved)
    }
}

double pcie_bytes_s(int generation, int width) noexcept
{
    // GB/s of one lane after line coding: 8 GT/s with 128b/130b is 0.985, and so on doubling.
    static constexpr double lane_gb_s[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    const int               known       = generation < 1 ? 3 : (generation > 6 ? 6 : generation);
    const int               lanes       = width < 1 ? 16 : width;

    return lane_gb_s[known] * lanes * 1e9;
}

double pcie_efficiency(pcie_level level) noexcept
{
    switch (level) {
    case pcie_level::internal:
    case pcie_level::single:
    case pcie_level::multiple:
    case pcie_level::hostbridge:
    case pcie_level::node:
        // Payloads of 128 bytes behind 24 bytes of header. Generation 5: 54 of 63 GB/s behind switches, 53 to
        // 57 through the root complex of EPYC; generation 4 there: 26.3 of 31.5.
        return 0.84;
    case pcie_level::system:
        // Through the link between the sockets: 39 to 51 of 63 GB/s, 26.3 of 31.5.
        return 0.72;
    case pcie_level::unknown:
        break;
    }
    return 0.50;
}

} // namespace nvl
