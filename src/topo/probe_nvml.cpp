// SPDX-License-Identifier: BSD-3-Clause
//
// What NVML answers. Every call may fail, alone or all of them, or take long: the answer then
// stays unknown and nothing else changes. A call that has begun cannot be given up, so NVML is asked
// in a thread of its own: where a call does not return, thread and answers are left behind.

#include "topo/probe_parts.h"

#include "base/log.h"
#include "driver/nvml.h"
#include "topo/figures.h"
#include "topo/graph.h"
#include "topo/probe_watch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

namespace nvl {

namespace {

using steady = std::chrono::steady_clock;

// No call is begun after this time, which includes nvmlInit. An NVML that needs longer for all its
// answers is broken (seconds a call are reported from machines with a lost GPU); a healthy one
// needs some milliseconds.
constexpr auto patience = std::chrono::seconds(2);

// Not asked, since time was up. No code of NVML's is negative.
constexpr nvml_return too_late = -1;

constexpr unsigned links_at_most = 18; // of a GPU whose NVML cannot count them

class nvml_probe {
public:
    nvml_probe(const nvml_session &nvml, machine_facts &facts, probe_watch &watch,
               steady::time_point deadline)
        : nvml_(nvml), facts_(facts), watch_(watch), deadline_(deadline)
    {
    }

    void run();

private:
    // Calls unless NVML lacks the function or time is up.
    template<typename F, typename... Args> nvml_return ask(F function, Args... args) const
    {
        if (function == nullptr) {
            return nvml_not_supported;
        }
        if (steady::now() > deadline_) {
            facts_.nvml = nvml_state::slow;
            return too_late;
        }
        watch_.begin(nvml_.api().name_of(function));
        return function(args...);
    }

    bool is_cut() const
    {
        return facts_.nvml == nvml_state::slow;
    }

    bool       find_gpu(unsigned index, nvml_device device);
    int        match(const std::string &uuid, const std::string &pci, bool mig) const;
    void       ask_gpu(size_t position, nvml_device device);
    void       ask_fabric(gpu_facts &gpu, nvml_device device) const;
    void       ask_links(gpu_facts &gpu, nvml_device device) const;
    unsigned   ask_link_count(nvml_device device) const;
    bool       ask_link(nvml_device device, unsigned index, link_facts &link) const;
    void       ask_remote(nvml_device device, unsigned index, link_facts &link) const;
    void       ask_speeds(gpu_facts &gpu, nvml_device device) const;
    void       ask_pair(size_t a, size_t b);
    p2p_status ask_p2p(size_t a, size_t b, int capability) const;

    const nvml_session      &nvml_;
    machine_facts           &facts_;
    probe_watch             &watch_;
    steady::time_point       deadline_;
    std::vector<nvml_device> devices_; // by position; null where NVML does not know the GPU
};

std::string pci_text(const nvml_pci_info &pci)
{
    char text[sizeof(pci.bus_id) + 1] = "";
    std::memcpy(text, pci.bus_id, sizeof(pci.bus_id));
    return pci_normal(text);
}

// All ones, or nothing at all: NVML does not say what is at the other end.
bool pci_is_hidden(const std::string &pci)
{
    return pci.empty() || pci.compare(0, 8, "ffffffff") == 0 || pci == "00000000:00:00.0";
}

// The position of the GPU that NVML speaks of. A MIG instance of CUDA has its parent's PCI
// address and another UUID: it is not the GPU itself.
int nvml_probe::match(const std::string &uuid, const std::string &pci, bool mig) const
{
    for (size_t i = 0; i < facts_.gpus.size(); ++i) {
        if (facts_.gpus[i].uuid == uuid && facts_.gpus[i].mig != mig_mode::instance) {
            return static_cast<int>(i);
        }
    }
    for (size_t i = 0; i < facts_.gpus.size() && !mig; ++i) {
        if (facts_.gpus[i].pci == pci && facts_.gpus[i].nvml < 0) {
            return static_cast<int>(i);
        }
    }
    return facts_unknown;
}

bool nvml_probe::find_gpu(unsigned index, nvml_device device)
{
    char          uuid[97] = "";
    nvml_pci_info pci{};
    unsigned      mig = 0, mig_pending = 0;

    if (ask(nvml_->nvmlDeviceGetPciInfo_v3, device, &pci) != nvml_success ||
        ask(nvml_->nvmlDeviceGetUUID, device, uuid, 96u) != nvml_success) {
        return false;
    }
    const std::string address = pci_text(pci);
    (void)ask(nvml_->nvmlDeviceGetMigMode, device, &mig, &mig_pending);
    int position = match(uuid, address, mig != 0);
    if (position < 0) {
        if (facts_.gpus.size() >= static_cast<size_t>(facts_max_gpus)) {
            return false;
        }
        gpu_facts &gpu = add_gpu(facts_);
        gpu.uuid       = uuid;
        gpu.pci        = address;
        position       = static_cast<int>(facts_.gpus.size()) - 1;
    }
    facts_.gpus[static_cast<size_t>(position)].nvml = static_cast<int>(index);
    if (mig != 0) {
        facts_.gpus[static_cast<size_t>(position)].mig = mig_mode::enabled;
    }
    for (auto &gpu : facts_.gpus) {
        if (mig != 0 && gpu.pci == address && gpu.nvml < 0) {
            gpu.mig        = mig_mode::instance;
            gpu.mig_uuid   = gpu.uuid.empty() ? "" : "MIG-" + gpu.uuid.substr(4);
            gpu.mig_parent = position;
            gpu.uuid       = uuid;
        }
    }
    devices_.resize(facts_.gpus.size());
    devices_[static_cast<size_t>(position)] = device;
    return true;
}

void nvml_probe::ask_gpu(size_t position, nvml_device device)
{
    gpu_facts &gpu   = facts_.gpus[position];
    unsigned   value = 0;
    int        mode  = 0;

    if (gpu.cuda < 0) { // CUDA has not told us
        char        name[97] = "";
        nvml_memory memory{};
        if (ask(nvml_->nvmlDeviceGetName, device, name, 96u) == nvml_success) {
            gpu.name = name;
        }
        if (ask(nvml_->nvmlDeviceGetMemoryInfo, device, &memory) == nvml_success) {
            gpu.memory_bytes = memory.total;
        }
        (void)ask(nvml_->nvmlDeviceGetCudaComputeCapability, device, &gpu.compute_major,
                  &gpu.compute_minor);
    }
    if (ask(nvml_->nvmlDeviceGetMaxPcieLinkGeneration, device, &value) == nvml_success) {
        gpu.pcie_gen = static_cast<int>(value);
    }
    if (ask(nvml_->nvmlDeviceGetMaxPcieLinkWidth, device, &value) == nvml_success) {
        gpu.pcie_width = static_cast<int>(value);
    }
    if (ask(nvml_->nvmlDeviceGetVirtualizationMode, device, &mode) == nvml_success) {
        gpu.virt = mode == 0   ? virtualization::none
                   : mode == 1 ? virtualization::passthrough
                   : mode == 2 ? virtualization::vgpu
                               : virtualization::unknown;
    }
    ask_fabric(gpu, device);
    ask_links(gpu, device);
}

void nvml_probe::ask_fabric(gpu_facts &gpu, nvml_device device) const
{
    nvml_fabric_info_v2 info{};
    nvml_fabric_info    old{};

    info.version     = nvml_fabric_info_v2_version;
    nvml_return code = ask(nvml_->nvmlDeviceGetGpuFabricInfoV, device, &info);
    if (code != nvml_success) {
        code = ask(nvml_->nvmlDeviceGetGpuFabricInfo, device, &old);
        std::memcpy(info.cluster_uuid, old.cluster_uuid, sizeof(info.cluster_uuid));
        info.status = old.status;
        info.clique = old.clique;
        info.state  = old.state;
    }
    if (code != nvml_success || info.state > 3) {
        return;
    }
    uuid_bytes cluster;
    std::memcpy(cluster.data(), info.cluster_uuid, cluster.size());
    gpu.fabric.state        = static_cast<fabric_state>(info.state);
    gpu.fabric.status       = info.status;
    gpu.fabric.clique       = info.clique;
    gpu.fabric.cluster_uuid = format_uuid(cluster, "");
}

unsigned nvml_probe::ask_link_count(nvml_device device) const
{
    nvml_field_value field{};

    field.field = nvml_field_link_count;
    if (ask(nvml_->nvmlDeviceGetFieldValues, device, 1, &field) == nvml_success &&
        field.code == nvml_success && field.type == nvml_type_unsigned_int) {
        return std::min(field.value.uint_value, static_cast<unsigned>(facts_max_links));
    }
    return links_at_most;
}

// What is at the other end. An end that hides its address, and whose kind is not told either,
// stays to be judged.
void nvml_probe::ask_remote(nvml_device device, unsigned index, link_facts &link) const
{
    nvml_pci_info     pci{};
    int               type = nvml_remote_unknown;
    const nvml_return code = ask(nvml_->nvmlDeviceGetNvLinkRemotePciInfo_v2, device, index, &pci);

    (void)ask(nvml_->nvmlDeviceGetNvLinkRemoteDeviceType, device, index, &type);
    const std::string address = code == nvml_success ? pci_text(pci) : std::string();
    if (type == nvml_remote_nvswitch) {
        link.remote     = link_remote::nvswitch;
        link.remote_pci = pci_is_hidden(address) ? "ffffffff:ff:ff.0" : address;
        return;
    }
    if (type == nvml_remote_npu) {
        link.remote = link_remote::cpu;
        return;
    }
    if (code != nvml_success) {
        link.remote = link_remote::unreadable;
        return;
    }
    if (pci_is_hidden(address)) {
        link.remote = link_remote::hidden;
        return;
    }
    const bool gpu = std::any_of(facts_.gpus.begin(), facts_.gpus.end(),
                                 [&](const auto &known) { return known.pci == address; });
    if (gpu || type == nvml_remote_gpu) {
        link.remote     = link_remote::gpu;
        link.remote_pci = address;
    }
}

// False: the GPU has no link of this number.
bool nvml_probe::ask_link(nvml_device device, unsigned index, link_facts &link) const
{
    int               active  = 0;
    unsigned          version = 0;
    const nvml_return code    = ask(nvml_->nvmlDeviceGetNvLinkState, device, index, &active);

    if (code == nvml_not_supported || code == nvml_invalid_argument) {
        return false;
    }
    // A state that cannot be read is no reason to call the link dead.
    link.index  = static_cast<int>(index);
    link.active = code != nvml_success || active != 0;
    if (!link.active) {
        return true;
    }
    if (ask(nvml_->nvmlDeviceGetNvLinkVersion, device, index, &version) == nvml_success &&
        link_generation(version) != 0) {
        link.version = link_generation(version);
    }
    ask_remote(device, index, link);
    return true;
}

// One call for all links; the field that takes the link as its scope first, the older ones that
// name a link each where NVML does not know it.
void nvml_probe::ask_speeds(gpu_facts &gpu, nvml_device device) const
{
    std::vector<nvml_field_value> fields;

    for (const auto &link : gpu.links) {
        nvml_field_value by_scope{}, by_name{};
        by_scope.field = nvml_field_link_speed;
        by_scope.scope = static_cast<unsigned>(link.index);
        by_name.field  = link.index < 6    ? nvml_field_speed_l0 + by_scope.scope
                         : link.index < 12 ? nvml_field_speed_l6 + by_scope.scope - 6
                                           : nvml_field_speed_common;
        fields.push_back(by_scope);
        fields.push_back(by_name);
    }
    if (fields.empty() || ask(nvml_->nvmlDeviceGetFieldValues, device,
                              static_cast<int>(fields.size()), fields.data()) != nvml_success) {
        return;
    }
    for (size_t i = 0; i < fields.size(); ++i) {
        link_facts &link = gpu.links[i / 2];
        if (link.active && link.speed_mb_s <= 0 && fields[i].code == nvml_success &&
            fields[i].type == nvml_type_unsigned_int && fields[i].value.uint_value > 0) {
            link.speed_mb_s = static_cast<int>(fields[i].value.uint_value);
        }
    }
}

void nvml_probe::ask_links(gpu_facts &gpu, nvml_device device) const
{
    const unsigned count = ask_link_count(device);

    for (unsigned index = 0; index < count; ++index) {
        link_facts link;
        if (ask_link(device, index, link)) {
            gpu.links.push_back(link);
        }
        if (is_cut()) { // a part of the links would be taken for all of them
            gpu.links.clear();
            return;
        }
    }
    ask_speeds(gpu, device);
}

p2p_status nvml_probe::ask_p2p(size_t a, size_t b, int capability) const
{
    int status = 0;

    if (ask(nvml_->nvmlDeviceGetP2PStatus, devices_[a], devices_[b], capability, &status) !=
            nvml_success ||
        status < 0 || status > static_cast<int>(p2p_status::unknown)) {
        return p2p_status::unknown;
    }
    return static_cast<p2p_status>(status);
}

void nvml_probe::ask_pair(size_t a, size_t b)
{
    pair_facts      &pair   = facts_.pair(a, b);
    const pair_facts before = pair;
    int              level  = 0;

    pair.nvml_read    = ask_p2p(a, b, nvml_p2p_read);
    pair.nvml_write   = ask_p2p(a, b, nvml_p2p_write);
    pair.nvml_nvlink  = ask_p2p(a, b, nvml_p2p_nvlink);
    pair.nvml_atomics = ask_p2p(a, b, nvml_p2p_atomics);
    if (is_cut()) { // a part of them would be taken for more than it says
        pair = before;
        return;
    }
    if (ask(nvml_->nvmlDeviceGetTopologyCommonAncestor, devices_[a], devices_[b], &level) ==
        nvml_success) {
        pair.pcie = static_cast<pcie_level>(level);
    }
}

void nvml_probe::run()
{
    unsigned count       = 0;
    char     version[97] = "";

    if (ask(nvml_->nvmlSystemGetDriverVersion, version, 96u) == nvml_success) {
        facts_.driver = version;
    }
    if (ask(nvml_->nvmlDeviceGetCount_v2, &count) != nvml_success) {
        return;
    }
    devices_.resize(facts_.gpus.size());
    for (unsigned index = 0; index < count; ++index) {
        nvml_device device = nullptr;
        if (ask(nvml_->nvmlDeviceGetHandleByIndex_v2, index, &device) != nvml_success ||
            !find_gpu(index, device)) {
            ++facts_.nvml_untold;
        }
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
        if (devices_[i] != nullptr) {
            ask_gpu(i, devices_[i]);
        }
    }
    for (size_t a = 0; a < devices_.size(); ++a) {
        for (size_t b = 0; b < devices_.size(); ++b) {
            if (a != b && devices_[a] != nullptr && devices_[b] != nullptr) {
                ask_pair(a, b);
            }
        }
    }
}

// All of NVML, in the thread that may be left behind.
void ask_nvml(machine_facts &facts, probe_watch &watch)
{
    const auto deadline = steady::now() + patience;

    watch.begin("dlopen");
    (void)nvml_api::get();
    watch.begin("nvmlInit_v2");
    auto nvml = std::make_unique<nvml_session>();
    switch (nvml->presence()) {
    case nvml_presence::missing:
        facts.nvml = nvml_state::missing;
        return;
    case nvml_presence::stub:
        facts.nvml = nvml_state::stub;
        return;
    case nvml_presence::failing:
        facts.nvml      = nvml_state::failing;
        facts.nvml_code = nvml->code();
        return;
    case nvml_presence::ready:
        break;
    }
    facts.nvml = nvml_state::present;
    nvml_probe(*nvml, facts, watch, deadline).run();
    watch.begin("nvmlShutdown");
    if (watch.is_left()) {
        (void)nvml.release(); // the process may be exiting, and NVML with it
    }
}

} // namespace

void probe_nvml(machine_facts &facts)
{
    const char *call = probe_within(nvml_limit, facts, ask_nvml);

    if (call != nullptr) {
        facts.nvml      = nvml_state::hanging;
        facts.nvml_call = call;
        NVL_WARN(
            "NVML has not returned from %s within %d seconds: the GPUs are judged as if it were "
            "missing; see whether nvidia-smi answers",
            call, static_cast<int>(nvml_limit.count()));
    }
}

} // namespace nvl
