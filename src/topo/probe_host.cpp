// SPDX-License-Identifier: BSD-3-Clause
//
// What the operating system and hwloc answer. hwloc is opened at run time and its absence is
// survived; its header is needed to build this part, else it is empty.

#include "topo/probe_parts.h"

#include "base/log.h"
#include "driver/library.h"
#include "topo/probe_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <memory>
#include <unistd.h>

#ifdef HAVE_CONFIG_H
#include "build_config.h"
#endif
#if defined(HAVE_HWLOC) && HAVE_HWLOC
#include <hwloc.h>
#include <hwloc/distances.h>
#endif

namespace nvl {

namespace {

struct file_closer {
    void operator()(FILE *file) const noexcept
    {
        std::fclose(file);
    }
};

struct folder_closer {
    void operator()(DIR *folder) const noexcept
    {
        closedir(folder);
    }
};

// The first word of a file, or nothing.
std::string first_word(const std::string &path)
{
    std::unique_ptr<FILE, file_closer> file(std::fopen(path.c_str(), "re"));
    char                               word[128] = "";

    if (file == nullptr || std::fscanf(file.get(), "%127s", word) != 1) {
        return {};
    }
    return word;
}

// sysfs writes domains of four digits where four are enough.
std::string sysfs_address(const std::string &pci)
{
    return pci.compare(0, 4, "0000") == 0 ? pci.substr(4) : pci;
}

int count_numa_nodes()
{
    std::unique_ptr<DIR, folder_closer> folder(opendir("/sys/devices/system/node"));
    int                                 count = 0;

    if (folder == nullptr) {
        return 1;
    }
    while (const dirent *entry = readdir(folder.get())) {
        count += std::strncmp(entry->d_name, "node", 4) == 0 && entry->d_name[4] >= '0' &&
                         entry->d_name[4] <= '9'
                     ? 1
                     : 0;
    }
    return std::max(count, 1);
}

// Fabric handles need a channel of the IMEX service that this user may open.
bool has_imex_channel()
{
    static constexpr char               path[] = "/dev/nvidia-caps-imex-channels";
    std::unique_ptr<DIR, folder_closer> folder(opendir(path));

    while (const dirent *entry = folder == nullptr ? nullptr : readdir(folder.get())) {
        const std::string channel = std::string(path) + "/" + entry->d_name;
        if (std::strncmp(entry->d_name, "channel", 7) == 0 &&
            access(channel.c_str(), R_OK | W_OK) == 0) {
            return true;
        }
    }
    return false;
}

} // namespace

void probe_system(machine_facts &facts)
{
    facts.host       = first_word("/proc/sys/kernel/random/boot_id");
    facts.numa_nodes = count_numa_nodes();
    facts.imex       = has_imex_channel();
    if (facts.driver.empty()) {
        facts.driver = first_word("/sys/module/nvidia/version");
    }
    for (auto &gpu : facts.gpus) {
        const std::string node =
            first_word("/sys/bus/pci/devices/" + sysfs_address(gpu.pci) + "/numa_node");
        if (gpu.numa < 0 && !node.empty()) {
            gpu.numa = std::atoi(node.c_str());
        }
    }
}

#if defined(HAVE_HWLOC) && HAVE_HWLOC

namespace {

// The functions of libhwloc.so.15 (hwloc 2) that are used, by their own prototypes.
struct hwloc_api {
#define NVL_HWLOC_FUNCTIONS(_row)                                                                 \
    _row(hwloc_topology_init) _row(hwloc_topology_destroy) _row(hwloc_topology_load)              \
        _row(hwloc_topology_set_io_types_filter) _row(hwloc_get_type_depth)                       \
            _row(hwloc_get_nbobjs_by_depth) _row(hwloc_get_obj_by_depth) _row(hwloc_bitmap_first) \
                _row(hwloc_topology_set_components) _row(hwloc_distances_get_by_name)             \
                    _row(hwloc_distances_release)
#define NVL_ROW(_name) decltype(&::_name) _name = nullptr;
    NVL_HWLOC_FUNCTIONS(NVL_ROW)
#undef NVL_ROW

    bool load()
    {
        const library hwloc({"libhwloc.so.15"});
#define NVL_ROW(_name)                                               \
    _name = reinterpret_cast<decltype(_name)>(hwloc.symbol(#_name)); \
    if (_name == nullptr) {                                          \
        return false;                                                \
    }
        NVL_HWLOC_FUNCTIONS(NVL_ROW)
#undef NVL_ROW
        return true;
    }
};

class hwloc_view {
public:
    hwloc_view(const hwloc_api &api, bool distances) : api_(api)
    {
        // Components that would load CUDA and other vendors' libraries, and NVML unless its
        // distances are wanted.
        static constexpr const char *unwanted[] = {"cuda", "opencl",    "gl",
                                                   "rsmi", "levelzero", "nvml"};

        if (api_.hwloc_topology_init(&topology_) != 0) {
            topology_ = nullptr;
            return;
        }
        for (const char *name : unwanted) {
            if (!distances || std::strcmp(name, "nvml") != 0) {
                (void)api_.hwloc_topology_set_components(
                    topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, name);
            }
        }
        (void)api_.hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_ALL);
        if (api_.hwloc_topology_load(topology_) != 0) {
            api_.hwloc_topology_destroy(topology_);
            topology_ = nullptr;
        }
    }

    ~hwloc_view()
    {
        if (topology_ != nullptr) {
            api_.hwloc_topology_destroy(topology_);
        }
    }

    hwloc_view(const hwloc_view &)            = delete;
    hwloc_view &operator=(const hwloc_view &) = delete;

    bool loaded() const
    {
        return topology_ != nullptr;
    }

    // The PCI device, or null.
    hwloc_obj_t find(const std::string &pci) const
    {
        unsigned       domain, bus, device;
        const int      depth = api_.hwloc_get_type_depth(topology_, HWLOC_OBJ_PCI_DEVICE);
        const unsigned count = api_.hwloc_get_nbobjs_by_depth(topology_, depth);

        if (std::sscanf(pci.c_str(), "%8x:%2x:%2x", &domain, &bus, &device) != 3) {
            return nullptr;
        }
        for (unsigned i = 0; i < count; ++i) {
            const hwloc_obj_t object = api_.hwloc_get_obj_by_depth(topology_, depth, i);
            const auto       &found  = object->attr->pcidev;
            if (found.domain == domain && found.bus == bus && found.dev == device) {
                return object;
            }
        }
        return nullptr;
    }

    int numa_of(hwloc_obj_t object) const
    {
        while (object != nullptr && object->nodeset == nullptr) {
            object = object->parent;
        }
        return object == nullptr ? facts_unknown : api_.hwloc_bitmap_first(object->nodeset);
    }

    void give_distances(machine_facts &facts) const;

private:
    const hwloc_api &api_;
    hwloc_topology_t topology_ = nullptr;
};

// The bridges between a device and what is above it; -1 when that is not above it.
int bridges_below(hwloc_obj_t device, hwloc_obj_t above)
{
    int count = 0;

    for (hwloc_obj_t object = device->parent; object != nullptr; object = object->parent) {
        if (object == above) {
            return count;
        }
        ++count;
    }
    return -1;
}

// How far two PCI devices are apart, in NVML's words. A switch is a bridge with one bridge more
// for each of its ports.
pcie_level level_between(hwloc_obj_t one, hwloc_obj_t other, bool same_node)
{
    for (hwloc_obj_t common = one->parent; common != nullptr; common = common->parent) {
        const int from_other = bridges_below(other, common);
        if (from_other < 0) {
            continue;
        }
        if (common->type != HWLOC_OBJ_BRIDGE) {
            return same_node ? pcie_level::node : pcie_level::system;
        }
        if (common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) {
            return pcie_level::hostbridge;
        }
        return std::max(bridges_below(one, common), from_other) <= 1 ? pcie_level::single
                                                                     : pcie_level::multiple;
    }
    return pcie_level::unknown;
}

void hwloc_view::give_distances(machine_facts &facts) const
{
    hwloc_distances_s *distances = nullptr;
    unsigned           count     = 1;

    if (api_.hwloc_distances_get_by_name(topology_, "NVLinkBandwidth", &count, &distances, 0) !=
            0 ||
        count < 1) {
        return;
    }
    std::vector<int> positions; // of each object in the matrix
    for (unsigned i = 0; i < distances->nbobjs; ++i) {
        const hwloc_obj_t pci      = distances->objs[i]->parent;
        int               position = facts_unknown;
        for (size_t g = 0; g < facts.gpus.size(); ++g) {
            if (pci != nullptr && pci == find(facts.gpus[g].pci)) {
                position = static_cast<int>(g);
            }
        }
        positions.push_back(position);
    }
    for (unsigned i = 0; i < distances->nbobjs; ++i) {
        for (unsigned j = 0; j < distances->nbobjs; ++j) {
            const auto value = distances->values[i * distances->nbobjs + j];
            if (i != j && positions[i] >= 0 && positions[j] >= 0 && value > 0) {
                facts.pair(static_cast<size_t>(positions[i]), static_cast<size_t>(positions[j]))
                    .hwloc_mb_s = static_cast<int>(std::min<hwloc_uint64_t>(value, 100000000));
            }
        }
    }
    api_.hwloc_distances_release(topology_, distances);
}

void ask_hwloc(machine_facts &facts, bool distances, bool nvml)
{
    hwloc_api api;

    if (!api.load()) {
        return;
    }
    const hwloc_view view(api, nvml);
    if (!view.loaded()) {
        return;
    }
    std::vector<hwloc_obj_t> devices;
    for (auto &gpu : facts.gpus) {
        devices.push_back(view.find(gpu.pci));
        if (gpu.numa < 0 && devices.back() != nullptr) {
            gpu.numa = view.numa_of(devices.back());
        }
    }
    for (size_t a = 0; a < devices.size(); ++a) {
        for (size_t b = 0; b < devices.size(); ++b) {
            pair_facts &pair = facts.pair(a, b);
            if (a != b && devices[a] != nullptr && devices[b] != nullptr &&
                pair.pcie == pcie_level::unknown) {
                pair.pcie =
                    level_between(devices[a], devices[b], facts.gpus[a].numa == facts.gpus[b].numa);
            }
        }
    }
    if (distances) {
        view.give_distances(facts);
    }
}

} // namespace

void probe_hwloc(machine_facts &facts, bool distances)
{
    const auto with_nvml = [](machine_facts &all, probe_watch &) { ask_hwloc(all, true, true); };

    if (!distances || facts.nvml != nvml_state::present) {
        ask_hwloc(facts, distances, false);
    } else if (probe_within(nvml_limit, facts, with_nvml) != nullptr) {
        NVL_WARN("hwloc, which asks NVML, has not returned within %d seconds: NVLinks are judged "
                 "without its distances",
                 static_cast<int>(nvml_limit.count()));
        ask_hwloc(facts, true, false);
    }
}

#else

void probe_hwloc(machine_facts &, bool)
{
}

#endif

} // namespace nvl
