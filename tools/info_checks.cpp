// SPDX-License-Identifier: BSD-3-Clause
//
// What is wrong with a machine, from its facts and its pairs, and how to mend it.

#include "info.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <set>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

namespace nvl {

namespace {

void add(machine_report &report, severity level, std::string what, std::string mend)
{
    report.problems.push_back({level, std::move(what), std::move(mend)});
}

// The first device file of the driver that is there and that this user may not open, or nothing.
std::string refused_device_file()
{
    std::vector<std::string> files = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    for (int i = 0; i < facts_max_gpus; ++i) {
        files.push_back(fmt::format("/dev/nvidia{}", i));
    }
    for (const auto &file : files) {
        const int opened = open(file.c_str(), O_RDWR | O_CLOEXEC);
        if (opened < 0 && (errno == EACCES || errno == EPERM)) {
            return file;
        }
        if (opened >= 0) {
            close(opened);
        }
    }
    return "";
}

void check_driver(machine_report &report, bool live)
{
    if (report.cuda_error.empty()) {
        return;
    }
    if (!live) {
        add(report, severity::broken, report.cuda_error,
            "start nvlink_info there without --from: it says why; without a driver install it, or "
            "start the container with its GPUs (--gpus all)");
        return;
    }
    const std::string refused = refused_device_file();
    if (!refused.empty()) {
        add(report, severity::broken,
            fmt::format("no permission for {}: {}", refused, report.cuda_error),
            "let the container or the user open /dev/nvidia* (nvidia-container-toolkit, the "
            "cgroup's device list, the group of the device files)");
    } else if (report.cuda_error.find("libcuda.so.1: cannot open") != std::string::npos) {
        add(report, severity::broken, report.cuda_error,
            "install the NVIDIA driver, or start the container with its GPUs (--gpus all); for a "
            "machine that is described in a file use --from FILE");
    } else {
        add(report, severity::broken, "the CUDA driver does not work: " + report.cuda_error,
            "see that nvidia-smi works, that libcuda.so.1 is of the version of the kernel driver "
            "(cat /proc/driver/nvidia/version), and on machines with switches that "
            "nvidia-fabricmanager runs in the same version");
    }
}

// GPUs that NVML, which works, does not show or cannot be asked about.
void check_silence(machine_report &report)
{
    const machine_facts &facts  = report.pairs.facts();
    int                  hidden = facts.nvml_untold;

    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        const gpu_facts &gpu = facts.gpus[i];
        if (gpu.cuda >= 0 && gpu.nvml < 0 && gpu.mig != mig_mode::instance) {
            --hidden;
            add(report, severity::slower,
                fmt::format("NVML says nothing about GPU {}: its links are taken for those of its "
                            "peers, or of its model",
                            i),
                "see whether nvidia-smi shows the GPU, and look at dmesg for Xid messages");
        }
    }
    if (hidden > 0) {
        add(report, severity::slower,
            fmt::format("NVML says nothing about {} GPU{} that CUDA hides from this process: taken "
                        "for reached as well as the best pair",
                        hidden, hidden == 1 ? "" : "s"),
            "see whether nvidia-smi shows all GPUs, and look at dmesg for Xid messages");
    }
}

void check_nvml(machine_report &report)
{
    const machine_facts &facts = report.pairs.facts();

    switch (facts.nvml) {
    case nvml_state::present:
        check_silence(report);
        return;
    case nvml_state::slow:
        add(report, severity::slower,
            "NVML is too slow to be asked everything: what is missing is taken from what the "
            "driver says, and links may not be counted",
            "see how long nvidia-smi takes and whether it shows every GPU; a GPU that has fallen "
            "off the bus (dmesg, Xid 79) and a driver without persistence mode (nvidia-smi -pm 1) "
            "make NVML slow");
        return;
    case nvml_state::missing:
        add(report, severity::slower,
            "NVML (libnvidia-ml.so.1) is missing: pairs are judged by what the driver says alone, "
            "and links cannot be counted",
            "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility");
        return;
    case nvml_state::stub:
        add(report, severity::slower,
            "libnvidia-ml.so.1 is the toolkit's stub, not the driver's library",
            "take the toolkit's folder \"stubs\" out of LD_LIBRARY_PATH");
        return;
    case nvml_state::failing:
        add(report, severity::slower,
            fmt::format("NVML cannot be initialised (code {})", facts.nvml_code),
            "run nvidia-smi, which uses the same library, and see what it says");
        return;
    case nvml_state::hanging:
        add(report, severity::slower,
            fmt::format("NVML does not return from {}: pairs are judged by what the driver says "
                        "alone, and links cannot be counted",
                        facts.nvml_call),
            "see whether nvidia-smi answers, which uses the same library, and look at dmesg for "
            "Xid "
            "messages; a GPU that has fallen off the bus (Xid 79) makes NVML hang");
        return;
    }
}

// A dead link counts where a pair shows that it was its own. A card without a bridge has all its
// links down, a guest's GPU those to GPUs of others, and nothing is wrong with that.
void check_links(machine_report &report)
{
    const machine_facts &facts = report.pairs.facts();

    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        const auto &links  = facts.gpus[i].links;
        const auto  down   = static_cast<size_t>(std::count_if(
               links.begin(), links.end(), [](const auto &link) { return !link.active; }));
        bool        slower = false;
        for (size_t to = 0; to < facts.gpus.size(); ++to) {
            slower |= report.pairs.path(i, to).degraded;
        }
        if (down > 0 && slower) {
            add(report, severity::slower,
                fmt::format("GPU {}: {} of {} NVLinks are down", i, down, links.size()),
                "look at nvidia-smi nvlink -s and -e, and at dmesg for Xid 74; with switches, "
                "at the log of nvidia-fabricmanager; a reset of the GPU or a reseat may be due");
        } else if (down > 0 && down < links.size()) {
            add(report, severity::note,
                fmt::format("GPU {}: {} of {} NVLinks are down, and no pair here is known to have "
                            "had them",
                            i, down, links.size()),
                "nothing to mend if they lead to GPUs that this guest or container does not have");
        }
    }
}

// Pairs that nothing reaches although both GPUs have links up.
void check_pairs(machine_report &report)
{
    const machine_facts               &facts = report.pairs.facts();
    std::map<std::string, size_t>      refused; // reason -> pairs
    std::map<std::string, std::string> example;
    size_t                             pairs = 0;

    for (size_t a = 0; a < report.pairs.size(); ++a) {
        for (size_t b = 0; b < report.pairs.size(); ++b) {
            const bool ours = facts.gpus[a].cuda >= 0 && facts.gpus[b].cuda >= 0;
            if (a == b || !ours) {
                continue;
            }
            ++pairs;
            const pair_path &path = report.pairs.path(a, b);
            if (!path.reachable()) {
                ++refused[path.reason];
                example.emplace(path.reason, fmt::format("{} -> {}", a, b));
            }
        }
    }
    size_t all_refused = 0;
    for (const auto &[reason, count] : refused) {
        all_refused += count;
    }
    for (const auto &[reason, count] : refused) {
        add(report, all_refused == pairs ? severity::slower : severity::note,
            fmt::format("{} of {} pairs have no peer access ({}): {}; UCX moves their data through "
                        "host memory",
                        count, pairs, example[reason], reason),
            "nothing to mend where the hardware has no path; else see that ACS is off on the PCIe "
            "switches, that the IOMMU is off or in passthrough, and that the driver allows peer "
            "access on this GPU (nvidia-smi topo -p2p rw)");
    }
}

void check_fabric(machine_report &report, bool live)
{
    const machine_facts &facts      = report.pairs.facts();
    bool                 multi_node = false;

    for (size_t i = 0; i < facts.gpus.size(); ++i) {
        const fabric_facts &fabric = facts.gpus[i].fabric;
        if (fabric.state == fabric_state::in_progress ||
            fabric.state == fabric_state::not_started) {
            add(report, severity::broken,
                fmt::format("GPU {}: joining the NVLink fabric is {}", i, to_text(fabric.state)),
                "start nvidia-fabricmanager (or nvidia-imex and the switches' controller) in the "
                "driver's version");
        } else if (fabric.state == fabric_state::completed && fabric.status != 0) {
            add(report, severity::broken,
                fmt::format("GPU {}: joining the NVLink fabric failed (code {})", i, fabric.status),
                "see nvidia-smi -q, section Fabric, and the log of nvidia-fabricmanager");
        }
        multi_node |= fabric.state == fabric_state::completed && !uuid_is_zero(fabric.cluster_uuid);
    }
    if (multi_node && !facts.imex && live) {
        add(report, severity::slower,
            "the GPUs are in a multi-node NVLink fabric, but this user has no IMEX channel: other "
            "hosts are reached by the network only",
            "start nvidia-imex and give the container /dev/nvidia-caps-imex-channels/channel0");
    }
}

void check_visibility(machine_report &report)
{
    const machine_facts &facts  = report.pairs.facts();
    const auto           hidden = std::count_if(facts.gpus.begin(), facts.gpus.end(),
                                                [](const auto &gpu) { return gpu.cuda < 0; });
    const auto           limit  = static_cast<size_t>(facts.peer_limit);

    if (!facts.gpus.empty() && hidden == static_cast<long>(facts.gpus.size()) &&
        report.cuda_error.empty()) {
        add(report, severity::broken, "CUDA shows no GPU to this process",
            "look at CUDA_VISIBLE_DEVICES and, with MIG, whether an instance exists");
    }
    const bool instances = std::any_of(facts.gpus.begin(), facts.gpus.end(), [](const auto &gpu) {
        return gpu.cuda >= 0 && gpu.mig == mig_mode::instance;
    });
    if (instances) {
        add(report, severity::note,
            "this process uses a MIG instance: it has neither peer access nor CUDA IPC, so nvlink "
            "serves no pair of it",
            "use whole GPUs where data has to move between GPUs");
    }
    const bool vgpus = std::any_of(facts.gpus.begin(), facts.gpus.end(), [](const auto &gpu) {
        return gpu.cuda >= 0 && gpu.virt == virtualization::vgpu;
    });
    if (vgpus && facts.gpus.size() > 1) {
        add(report, severity::note,
            "this guest has vGPUs: they reach each other over NVLink only, and not over PCIe",
            "pass whole GPUs through, or use vGPU types with the whole frame buffer of cards that "
            "NVLink connects");
    }
    if (limit > 0 && facts.gpus.size() > limit + 1) {
        add(report, severity::note,
            fmt::format("{} GPUs, and each may enable {} peers: pairs beyond that are refused when "
                        "they are first used",
                        facts.gpus.size(), limit),
            "have each process use a group of GPUs of that size");
    }
}

// How far a measured rate may be from the estimate without being worth a word.
constexpr double estimate_tolerance = 0.10;

// What gets less of its estimate is slow, whatever UCP is told: scripts see it in the exit status.
constexpr double slow_share = 0.75;

// What UCX_TLS names, without the "^" of a list of those to leave out.
std::vector<std::string> transport_names(const std::string &list)
{
    std::vector<std::string> names;
    std::istringstream       words(list[0] == '^' ? list.substr(1) : list);

    for (std::string word; std::getline(words, word, ',');) {
        names.push_back(word);
    }
    return names;
}

// By a backslash UCX takes a name as it stands, and not for a group.
bool is_transport(const std::string &name, const std::string &transport)
{
    return name == transport || name == "\\" + transport;
}

// Does the name stand for a transport with active messages? cma and knem have none.
bool carries_messages(const std::string &name)
{
    static const std::set<std::string> transports = {"posix",    "sysv",    "xpmem",    "tcp",
                                                     "self",     "rc_mlx5", "rc_verbs", "ud_mlx5",
                                                     "ud_verbs", "dc_mlx5", "srd"};
    static const std::set<std::string> groups     = {"sm", "shm",  "mm",   "ib",   "rc",   "ud",
                                                     "dc", "rc_x", "rc_v", "ud_x", "ud_v", "dc_x"};
    const bool                         explicitly = name[0] == '\\';

    return transports.count(explicitly ? name.substr(1) : name) != 0 ||
           (!explicitly && groups.count(name) != 0);
}

// UCX_TLS as the user has set it: does it let the transport in?
void check_transport_list(machine_report &report)
{
    const char *set = std::getenv("UCX_TLS");

    if (set == nullptr || *set == '\0') {
        return;
    }
    const std::string list  = set;
    const auto        names = transport_names(list);
    const auto        named = std::any_of(names.begin(), names.end(),
                                          [](const auto &name) { return is_transport(name, "nvlink"); });
    if (list[0] == '^') {
        if (named) {
            add(report, severity::broken, fmt::format("UCX_TLS={} leaves nvlink out", list),
                "take nvlink out of the list");
        }
        return;
    }
    if (std::find(names.begin(), names.end(), "all") != names.end()) {
        return;
    }
    if (!named) {
        add(report, severity::broken, fmt::format("UCX_TLS={} leaves nvlink out", list),
            "add nvlink to the list");
    } else if (list.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789,\\") ==
                   std::string::npos &&
               std::none_of(names.begin(), names.end(), carries_messages)) {
        add(report, severity::broken,
            fmt::format("UCX_TLS={} names no transport that carries messages: UCX makes no "
                        "endpoint with it",
                        list),
            "add sm (one host) or tcp");
    }
}

bool is_version_at_least(const std::string &version, int major, int minor)
{
    int found_major = 0, found_minor = 0;
    return std::sscanf(version.c_str(), "%d.%d", &found_major, &found_minor) == 2 &&
           (found_major > major || (found_major == major && found_minor >= minor));
}

// The plugin needs neither module, but UCX does: libucm_cuda tells it of GPU memory, and
// libuct_cuda moves what nvlink does not.
void check_cuda_modules(machine_report &report, const ucx_found &ucx, const std::string &who)
{
    std::map<std::string, std::string> names; // error -> modules
    std::string                        missing;

    for (const auto &module : ucx.modules) {
        std::string &list = module.path.empty() ? missing : names[module.error];
        list += (list.empty() ? "" : " and ") + module.name;
    }
    names.erase("");
    if (!missing.empty()) {
        add(report, severity::broken,
            fmt::format(
                "{} has no {}: it was built without CUDA and takes GPU memory for host memory", who,
                missing),
            "take a UCX with CUDA: pip install libucx-cu13 (or libucx-cu12), or configure "
            "--with-cuda");
    }
    for (const auto &[error, list] : names) {
        const bool driver = error.compare(0, 10, "libcuda.so") == 0;
        add(report, severity::broken,
            fmt::format("{}: {} cannot be loaded ({}), so UCX takes GPU memory for host memory",
                        who, list, error),
            driver ? "it will load once the driver is there"
                   : "install the library that the message names; the CUDA runtime comes with pip "
                     "install nvidia-cuda-runtime");
    }
}

void check_one_ucx(machine_report &report, const ucx_found &ucx)
{
    const std::string who = fmt::format("UCX {} ({})", ucx.version, ucx.library);

    if (ucx.version.empty()) {
        add(report, severity::slower,
            fmt::format("{} cannot be loaded: {}", ucx.library, ucx.error),
            "install what it asks for, or take it out of the search path");
        return;
    }
    if (!is_version_at_least(ucx.version, 1, 22)) {
        add(report, severity::broken, who + " is too old: plugins are loaded from 1.22 on",
            "pip install --upgrade libucx-cu13 (or libucx-cu12)");
        return;
    }
    check_cuda_modules(report, ucx, who);
    if (ucx.plugin.path.empty()) {
        add(report, severity::broken,
            fmt::format("{} does not find libuct_nvlink{}", who, ucx.suffix),
            fmt::format("export UCX_PLUGIN_PATH=DIR, the folder that has libuct_nvlink{}{}",
                        ucx.suffix,
                        std::getenv("UCX_PLUGIN_PATH") != nullptr
                            ? fmt::format(" (now {})", std::getenv("UCX_PLUGIN_PATH"))
                            : ""));
    } else if (!ucx.plugin.error.empty()) {
        add(report, severity::broken,
            fmt::format("{} does not load: {}", ucx.plugin.path, ucx.plugin.error),
            "build the plugin on this machine or install its release for this one");
    } else if (!ucx.offers_nvlink) {
        add(report, severity::broken,
            fmt::format("{} loads {} and gets no transport from it", who, ucx.plugin.path),
            "its reason is in the log: UCX_LOG_LEVEL=diag ucx_info -d; a UCX that the plugin does "
            "not know needs a newer plugin");
    } else if (ucx.nvlink_domains == 0 && report.cuda_error.empty()) {
        add(report, severity::broken, who + " has the nvlink transport, which finds no usable GPU",
            "its reason is in the log: UCX_LOG_LEVEL=diag ucx_info -d");
    }
}

} // namespace

void check_machine(machine_report &report, bool live)
{
    check_driver(report, live);
    if (report.cuda_error.empty()) {
        check_visibility(report);
        check_nvml(report);
    }
    check_links(report);
    check_pairs(report);
    check_fabric(report, live);
}

void check_estimates(machine_report &report)
{
    // The emulated driver keeps no time unless it is asked to.
    const char *timing = std::getenv("NVL_EMU_TIMING");
    if (report.emulated && (timing == nullptr || std::string_view(timing) != "1")) {
        return;
    }
    for (const auto &one : report.measurements) {
        const pair_path &path = report.pairs.path(one.from, one.to);
        if (one.from == one.to || !one.error.empty() || !path.reachable() ||
            one.push_bytes_s <= 0 || one.pull_bytes_s <= 0) {
            continue;
        }
        // The slower one, unless both are faster than they were taken for.
        const double push    = one.push_bytes_s / path.push_bytes_s;
        const double pull    = one.pull_bytes_s / path.pull_bytes_s;
        const bool   slow    = std::min(push, pull) < 1;
        const bool   is_pull = slow ? pull < push : pull > push;
        const double is      = is_pull ? one.pull_bytes_s : one.push_bytes_s;
        const double was     = is_pull ? path.pull_bytes_s : path.push_bytes_s;
        if (std::abs(was - is) <= estimate_tolerance * is) {
            continue;
        }
        add(report, (is < slow_share * was) ? severity::slower : severity::note,
            fmt::format("{} -> {}: {} measured at {} GB/s, taken for {}", one.from, one.to,
                        is_pull ? "pull" : "push", gb_s(is), gb_s(was)),
            "measure again when nothing else uses these GPUs; if it stays, UCX_NVLINK_BW sets what "
            "UCX is told, and a dump (--dump) helps to correct the estimate");
    }
}

void check_ucx(machine_report &report)
{
    check_transport_list(report);
    if (report.ucx.empty()) {
        add(report, severity::broken, "no UCX found",
            "pip install libucx-cu13 (or libucx-cu12), or name it with --ucx DIR");
    }
    for (const auto &ucx : report.ucx) {
        check_one_ucx(report, ucx);
    }
}

} // namespace nvl
