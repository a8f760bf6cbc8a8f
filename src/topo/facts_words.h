// SPDX-License-Identifier: BSD-3-Clause
//
// The words of the facts' text form, one table per kind of value, so that what facts_print
// writes and what facts_parse reads cannot drift apart. For facts*.cpp only.
#ifndef NVLINK_TOPO_FACTS_WORDS_H
#define NVLINK_TOPO_FACTS_WORDS_H

#include "topo/facts.h"

namespace nvl {

template<typename T> struct word {
    const char *text;
    T           value;
};

constexpr word<nvml_state> nvml_state_words[] = {
    {"present", nvml_state::present}, {"slow", nvml_state::slow},
    {"missing", nvml_state::missing}, {"stub", nvml_state::stub},
    {"failing", nvml_state::failing}, {"hanging", nvml_state::hanging},
};

constexpr word<link_remote> link_remote_words[] = {
    {"unknown", link_remote::unknown}, {"gpu", link_remote::gpu},
    {"switch", link_remote::nvswitch}, {"cpu", link_remote::cpu},
    {"hidden", link_remote::hidden},   {"unreadable", link_remote::unreadable},
};

constexpr word<p2p_status> p2p_status_words[] = {
    {"ok", p2p_status::ok},           {"chipset", p2p_status::chipset},
    {"gpu", p2p_status::gpu},         {"topology", p2p_status::topology},
    {"regkey", p2p_status::regkey},   {"not_supported", p2p_status::not_supported},
    {"unknown", p2p_status::unknown},
};

constexpr word<pcie_level> pcie_level_words[] = {
    {"internal", pcie_level::internal}, {"single", pcie_level::single},
    {"multiple", pcie_level::multiple}, {"hostbridge", pcie_level::hostbridge},
    {"node", pcie_level::node},         {"system", pcie_level::system},
    {"unknown", pcie_level::unknown},
};

constexpr word<fabric_state> fabric_state_words[] = {
    {"not_supported", fabric_state::not_supported},
    {"not_started", fabric_state::not_started},
    {"in_progress", fabric_state::in_progress},
    {"completed", fabric_state::completed},
};

constexpr word<mig_mode> mig_mode_words[] = {
    {"disabled", mig_mode::disabled},
    {"enabled", mig_mode::enabled},
    {"instance", mig_mode::instance},
};

constexpr word<virtualization> virtualization_words[] = {
    {"unknown", virtualization::unknown},
    {"none", virtualization::none},
    {"passthrough", virtualization::passthrough},
    {"vgpu", virtualization::vgpu},
};

} // namespace nvl

#endif
