// SPDX-License-Identifier: BSD-3-Clause
//
// Facts to paths. What is believed, in this order:
//   1. Whether a pair reaches each other at all: CUDA's peer access, whatever NVML says, since it
//      is CUDA that copies. For a GPU that CUDA hides from this process: NVML's P2P status; of one
//      that NVML tells nothing of either nobody knows, and it is taken for reached.
//   2. Over what: link ends that name the other GPU; then links to a switch on both sides, where
//      an end that cannot be read, or reads all ones, may be one, but not on a machine where some
//      end names a GPU or a processor: there it leads to a GPU; then NVML's NVLink status of
//      the pair, or the driver's native atomics, whatever NVML says (no PCIe peer of an x86 or Arm
//      host has them). A GPU that NVML is silent about has the links of its peer.
//   3. How fast: the pair's links that are up at the speed that NVML gives; hwloc's figure; what
//      such a GPU usually has.

#include "topo/graph.h"

#include "topo/figures.h"
#include "topo/graph_parts.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace nvl {

namespace {

// The links of one GPU, sorted by what is at their other end.
struct link_sums {
    int    up         = 0;
    int    direct     = 0; // up, the end names the GPU asked about
    int    to_switch  = 0;
    bool   names_none = false; // a switch, but not where it is: a guest does not see it
    int    unknown    = 0;     // up, the end hides itself
    int    version    = facts_unknown;
    double speed_mb_s = 0; // of one link
};

link_sums sum_links(const gpu_facts &gpu, const std::string &peer_pci)
{
    link_sums sums;

    for (const auto &link : gpu.links) {
        if (!link.active) {
            continue;
        }
        ++sums.up;
        sums.version = std::max(sums.version, link.version);
        if (link.speed_mb_s > 0) {
            sums.speed_mb_s = link.speed_mb_s;
        }
        switch (link.remote) {
        case link_remote::gpu:
            sums.direct += link.remote_pci == peer_pci ? 1 : 0;
            break;
        case link_remote::nvswitch:
            ++sums.to_switch;
            sums.names_none = sums.names_none || link.remote_pci.compare(0, 8, "ffffffff") == 0;
            break;
        case link_remote::cpu:
            break;
        case link_remote::hidden:
        case link_remote::unreadable:
        case link_remote::unknown:
            ++sums.unknown;
            break;
        }
    }
    if (sums.version < 0) {
        sums.version = assumed_version(gpu.compute_major);
    }
    if (sums.speed_mb_s <= 0) {
        sums.speed_mb_s = link_speed_mb_s(sums.version, gpu);
    }
    return sums;
}

[[gnu::format(printf, 1, 2)]] std::string text(const char *format, ...)
{
    char    buffer[256];
    va_list arguments;

    va_start(arguments, format);
    std::vsnprintf(buffer, sizeof(buffer), format, arguments);
    va_end(arguments);
    return buffer;
}

const char *words(p2p_status status)
{
    switch (status) {
    case p2p_status::ok:
        return "ok";
    case p2p_status::chipset:
        return "the chipset does not support it";
    case p2p_status::gpu:
        return "the GPU does not support it";
    case p2p_status::topology:
        return "the I/O topology does not support it";
    case p2p_status::regkey:
        return "a driver setting forbids it";
    case p2p_status::not_supported:
        return "not supported";
    case p2p_status::unknown:
        break;
    }
    return "it does not say why";
}

bool is_refusal(p2p_status status)
{
    return status != p2p_status::ok && status != p2p_status::unknown;
}

const char *words(pcie_level level)
{
    switch (level) {
    case pcie_level::internal:
        return "on one board";
    case pcie_level::single:
        return "behind one PCIe switch";
    case pcie_level::multiple:
        return "through several PCIe switches";
    case pcie_level::hostbridge:
        return "through one host bridge";
    case pcie_level::node:
        return "within one NUMA node";
    case pcie_level::system:
        return "across NUMA nodes";
    case pcie_level::unknown:
        break;
    }
    return "over PCIe";
}

const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

bool in_fabric(const fabric_facts &fabric)
{
    return fabric.state == fabric_state::completed && fabric.status == 0 &&
           !fabric.cluster_uuid.empty() && !uuid_is_zero(fabric.cluster_uuid);
}

bool visible(const gpu_facts &gpu)
{
    return gpu.cuda >= 0 || gpu.nvml >= 0;
}

bool names(const gpu_facts &gpu, const gpu_facts &other)
{
    return std::any_of(gpu.links.begin(), gpu.links.end(), [&](const auto &link) {
        return link.active && link.remote == link_remote::gpu && link.remote_pci == other.pci;
    });
}

// On a machine with switches every link of every GPU ends at one, so that an end which names
// a GPU or a processor says that there are none.
bool has_no_switch(const machine_facts &facts)
{
    return std::any_of(facts.gpus.begin(), facts.gpus.end(), [](const auto &gpu) {
        return std::any_of(gpu.links.begin(), gpu.links.end(), [](const auto &link) {
            return link.active &&
                   (link.remote == link_remote::gpu || link.remote == link_remote::cpu);
        });
    });
}

// What can be known without NVML: the file of a machine tells more than a process there sees.
void forget_nvml(machine_facts &facts)
{
    for (auto &gpu : facts.gpus) {
        gpu.nvml = facts_unknown;
        gpu.links.clear();
        gpu.fabric   = fabric_facts();
        gpu.pcie_gen = gpu.pcie_width = facts_unknown;
    }
    for (auto &pair : facts.pairs) {
        pair.nvml_read = pair.nvml_write = pair.nvml_nvlink = pair.nvml_atomics =
            p2p_status::unknown;
        pair.pcie = pcie_level::unknown;
    }
}

// On POWER9 a GPU's atomics also reach its peers through the processor; elsewhere only over NVLink.
bool has_atomics_elsewhere(const gpu_facts &gpu)
{
    return gpu.coherent && gpu.compute_major < 9;
}

bool is_answering(nvml_state state)
{
    return state == nvml_state::present || state == nvml_state::slow;
}

// A GPU of which an NVML that works tells nothing.
bool is_untold(const machine_facts &facts, const gpu_facts &gpu)
{
    return is_answering(facts.nvml) && gpu.nvml < 0 && gpu.mig == mig_mode::disabled;
}

// Of a GPU that NVML answers about, no link means that it has none.
bool links_are_known(const machine_facts &facts, const gpu_facts &gpu)
{
    return !gpu.links.empty() || (facts.nvml == nvml_state::present && gpu.nvml >= 0);
}

// What a lone GPU could do with a peer like itself: for estimates before any peer is known.
pair_path lone_path(const gpu_facts &gpu, bool links_known)
{
    pair_path       path;
    const link_sums sums = sum_links(gpu, std::string());

    path.push_latency_s = push_latency_s;
    path.pull_latency_s = pull_latency_s;
    if (gpu.mig != mig_mode::disabled) {
        path.reason = "MIG instances have no peer access";
        return path;
    }
    path.links = links_known ? sums.up : assumed_links(gpu);
    if (path.links > 0) {
        path.kind         = path_kind::nvlink;
        path.push_bytes_s = path.links * sums.speed_mb_s * 1e6 * link_efficiency(sums.version);
        path.pull_bytes_s = path.push_bytes_s;
        path.reason       = text(links_known ? "%d NVLink%s up, no peer known"
                                             : "taken for %d NVLink%s (not counted), no peer known",
                           path.links, plural(path.links));
    } else {
        path.kind         = path_kind::pcie;
        path.push_bytes_s = path.pull_bytes_s =
            pcie_bytes_s(gpu.pcie_gen, gpu.pcie_width) * pcie_efficiency(pcie_level::unknown);
        path.reason = "no NVLink, no peer known";
    }
    return path;
}

// One pair's decision; `a` runs the copy.
class judgement {
public:
    judgement(const machine_facts &facts, size_t a, size_t b)
        : facts_(facts),
          a_(facts.gpus[a]),
          b_(facts.gpus[b]),
          from_(a),
          to_(b),
          pair_(facts.pair(a, b)),
          ours_(sum_links(a_, b_.pci)),
          theirs_(sum_links(b_, a_.pci)),
          says_nvlink_(says_nvlink(facts, a, b))
    {
        // A GPU that NVML tells nothing of has the links of its peer, where the pair is on NVLink.
        if (says_nvlink_ && a_.links.empty()) {
            ours_ = theirs_;
        } else if (says_nvlink_ && b_.links.empty()) {
            theirs_ = ours_;
        }
    }

    pair_path decide();

private:
    bool refused();
    bool visible_to_cuda() const
    {
        return a_.cuda >= 0 && b_.cuda >= 0;
    }
    // CUDA has said whether the pair has peer access. Of a GPU that it hides from this process a
    // machine's file may know.
    bool told_by_cuda() const
    {
        return visible_to_cuda() || pair_.peer_access;
    }
    // NVML has an opinion on the pair, and it is no. A pair that nobody asked about is not denied.
    bool denies_nvlink() const
    {
        return pair_.nvml_nvlink != p2p_status::unknown && !says_nvlink_;
    }
    // The status that is a refusal, if one is.
    p2p_status nvml_refusal() const
    {
        return is_refusal(pair_.nvml_read) ? pair_.nvml_read : pair_.nvml_write;
    }
    bool nvml_refuses() const
    {
        return is_refusal(pair_.nvml_read) || is_refusal(pair_.nvml_write);
    }
    // CUDA hides one of the two, and NVML did not answer: nobody can tell.
    bool unasked() const
    {
        return !told_by_cuda() && !nvml_allows() && !nvml_refuses();
    }
    bool nvml_allows() const
    {
        return pair_.nvml_read == p2p_status::ok && pair_.nvml_write == p2p_status::ok;
    }
    int  direct_links() const;
    bool is_meshed(size_t gpu) const;
    int  share(size_t gpu, int ends) const;
    bool is_apart() const;
    bool direct();
    bool switched();
    bool by_hwloc();
    bool assumed();
    void pcie();
    void like_lone();
    void note_who_tells();
    void over_links(path_kind kind, int links, int version, double speed_mb_s);
    void note(const std::string &more);

    pair_path path_;

    const machine_facts &facts_;
    const gpu_facts     &a_;
    const gpu_facts     &b_;
    size_t               from_;
    size_t               to_;
    const pair_facts    &pair_;
    link_sums            ours_;
    link_sums            theirs_;
    bool                 says_nvlink_;
};

void judgement::note(const std::string &more)
{
    path_.reason += (path_.reason.empty() ? "" : "; ") + more;
}

bool judgement::refused()
{
    if (!visible(a_) || !visible(b_)) {
        note("neither CUDA nor NVML shows the GPU to this process");
    } else if (a_.mig == mig_mode::enabled || b_.mig == mig_mode::enabled) {
        note("the GPU is cut into MIG instances");
    } else if (a_.mig == mig_mode::instance || b_.mig == mig_mode::instance) {
        note("MIG instances have no peer access");
    } else if (told_by_cuda() && !pair_.peer_access) {
        note("the driver reports no peer access");
        if (pair_.nvml_read != p2p_status::unknown) {
            note(std::string("NVML: ") + words(nvml_refusal()));
        }
    } else if (!told_by_cuda() && nvml_refuses()) {
        note("CUDA hides the GPU from this process");
        note(std::string("NVML on peer access: ") + words(nvml_refusal()));
    } else {
        return false;
    }
    return true;
}

// Links whose ends name the other GPU. Both sides count the same links, so where both name
// them the smaller number holds; where one side cannot read its ends, the other's.
int judgement::direct_links() const
{
    if (ours_.direct > 0 && theirs_.direct > 0) {
        return std::min(ours_.direct, theirs_.direct);
    }
    return std::max(ours_.direct, theirs_.direct);
}

void judgement::over_links(path_kind kind, int links, int version, double speed_mb_s)
{
    const double wire = links * speed_mb_s * 1e6;

    path_.kind         = kind;
    path_.links        = links;
    path_.push_bytes_s = wire * link_efficiency(version);
    path_.pull_bytes_s = wire * link_efficiency(version);
}

bool judgement::direct()
{
    const int links = direct_links();

    if (links == 0) {
        return false;
    }
    over_links(path_kind::nvlink, links, std::min(ours_.version, theirs_.version),
               std::min(ours_.speed_mb_s, theirs_.speed_mb_s));
    note(text("%d NVLink%s of %.1f GB/s straight to the peer", links, plural(links),
              std::min(ours_.speed_mb_s, theirs_.speed_mb_s) / 1000));
    return true;
}

// Hidden ends of this GPU cannot be at a switch: another GPU with links is no NVLink peer of it, or
// ends name GPUs.
bool judgement::is_meshed(size_t gpu) const
{
    for (size_t i = 0; i < facts_.gpus.size(); ++i) {
        const gpu_facts &other = facts_.gpus[i];
        if (i != gpu && other.mig == mig_mode::disabled && links_up(other) > 0 &&
            !says_nvlink(facts_, gpu, i)) {
            return true;
        }
    }
    return has_no_switch(facts_);
}

// How many of the hidden ends of a GPU in a mesh may be at the other one of the pair: an equal part
// for each NVLink peer that no end names.
int judgement::share(size_t gpu, int ends) const
{
    const gpu_facts &self  = facts_.gpus[gpu];
    int              peers = 0;

    for (size_t i = 0; i < facts_.gpus.size(); ++i) {
        const gpu_facts &other  = facts_.gpus[i];
        const bool       silent = other.links.empty();
        if (i != gpu && other.mig == mig_mode::disabled && (silent || links_up(other) > 0) &&
            says_nvlink(facts_, gpu, i) && !names(self, other) && !names(other, self)) {
            ++peers;
        }
    }
    return peers > 1 ? std::max(1, ends / peers) : ends;
}

bool judgement::switched()
{
    const int ours   = ours_.to_switch + ours_.unknown;
    const int theirs = theirs_.to_switch + theirs_.unknown;

    if (ours == 0 || theirs == 0) {
        return false;
    }
    // A switch that both name needs no further evidence; ends that hide themselves do.
    const bool seen = ours_.to_switch > 0 && theirs_.to_switch > 0;
    if ((!seen && !says_nvlink_) || (seen && denies_nvlink())) {
        return false;
    }
    const bool meshed = !seen && (is_meshed(from_) || is_meshed(to_));
    const int  links =
        meshed ? std::min(share(from_, ours), share(to_, theirs)) : std::min(ours, theirs);
    over_links(meshed ? path_kind::nvlink : path_kind::nvswitch, links,
               std::min(ours_.version, theirs_.version),
               std::min(ours_.speed_mb_s, theirs_.speed_mb_s));
    const bool hidden = !seen || ours_.names_none || theirs_.names_none;
    note(text("%d NVLink%s of %.1f GB/s %s", links, plural(links),
              std::min(ours_.speed_mb_s, theirs_.speed_mb_s) / 1000,
              meshed   ? "whose ends NVML does not name"
              : hidden ? "through a switch that this machine hides"
                       : "through a switch"));
    return true;
}

bool judgement::by_hwloc()
{
    if (pair_.hwloc_mb_s <= 0) {
        return false;
    }
    const int version  = assumed_version(std::min(a_.compute_major, b_.compute_major));
    path_.kind         = path_kind::nvlink;
    path_.push_bytes_s = pair_.hwloc_mb_s * 1e6 * link_efficiency(version);
    path_.pull_bytes_s = pair_.hwloc_mb_s * 1e6 * link_efficiency(version);
    note(text("NVLink of %.0f GB/s by hwloc", pair_.hwloc_mb_s / 1000.0));
    return true;
}

// Nobody tells of links, but the pair is on NVLink.
bool judgement::assumed()
{
    const int links   = std::min(assumed_links(a_), assumed_links(b_));
    const int version = assumed_version(std::min(a_.compute_major, b_.compute_major));

    if (!says_nvlink_ || !a_.links.empty() || !b_.links.empty() || links == 0) {
        return false;
    }
    const int speed = std::min(link_speed_mb_s(version, a_), link_speed_mb_s(version, b_));
    over_links(path_kind::nvlink, links, version, speed);
    note(text("the driver reports NVLink (native atomics) and NVML is silent: taken for %d "
              "link%s of %.1f GB/s",
              links, plural(links), speed / 1000.0));
    return true;
}

void judgement::pcie()
{
    const double rate = std::min(pcie_bytes_s(a_.pcie_gen, a_.pcie_width),
                                 pcie_bytes_s(b_.pcie_gen, b_.pcie_width)) *
                        pcie_efficiency(pair_.pcie);

    path_.kind         = path_kind::pcie;
    path_.push_bytes_s = path_.pull_bytes_s = rate;
    path_.push_latency_s += pcie_extra_latency_s;
    path_.pull_latency_s += 2 * pcie_extra_latency_s; // a read crosses twice
    note(std::string("no NVLink between them, peer access ") + words(pair_.pcie));
}

pair_path judgement::decide()
{
    path_.pcie = pair_.pcie;
    path_.native_atomics =
        told_by_cuda() ? pair_.native_atomics : (pair_.nvml_atomics == p2p_status::ok);
    if (refused()) {
        path_.native_atomics = false;
        return path_;
    }
    path_.push_latency_s = push_latency_s;
    path_.pull_latency_s = pull_latency_s;
    if (!direct() && !switched() && !by_hwloc() && !assumed()) {
        if (unasked() && !is_apart()) {
            like_lone();
        } else {
            pcie();
        }
    }
    note_who_tells();
    return path_;
}

// Nobody says whether the pair is on NVLink: what this GPU could do with a peer like itself.
void judgement::like_lone()
{
    path_      = lone_path(a_, links_are_known(facts_, a_));
    path_.pcie = pair_.pcie;
    path_.reason.clear();
}

// In a mesh: all ends of one of the two are seen, and none is at the other.
bool judgement::is_apart() const
{
    const auto sees_all = [](const gpu_facts &gpu, const link_sums &sums) {
        return !gpu.links.empty() && sums.unknown == 0 && sums.to_switch == 0;
    };
    return sees_all(a_, ours_) || sees_all(b_, theirs_);
}

void judgement::note_who_tells()
{
    if (unasked()) {
        note("CUDA hides the peer from this process and NVML does not say whether it is reached: "
             "taken for reached");
    } else if (!visible_to_cuda() && nvml_allows()) {
        note("CUDA hides the peer from this process, NVML allows the pair");
    } else if (nvml_refuses()) {
        note(std::string("NVML denies peer access (") + words(nvml_refusal()) +
             "), the driver grants it and is believed");
    }
    const bool ours = is_untold(facts_, a_), theirs = is_untold(facts_, b_);
    if (ours || theirs) {
        note(std::string("NVML tells nothing of ") + (ours && theirs ? "the two GPUs"
                                                      : ours         ? "this GPU"
                                                                     : "the peer"));
    }
}

// Copies within one GPU: not ours to serve, so the figures are of its memory, roughly.
pair_path same_gpu_path(const gpu_facts &)
{
    pair_path path;

    path.kind           = path_kind::same_gpu;
    path.native_atomics = true;
    path.push_bytes_s = path.pull_bytes_s = 1e12; // 2 x H200: 1.05 TB/s at 4 MiB, more above
    path.push_latency_s = path.pull_latency_s = push_latency_s;
    path.reason                               = "one GPU";
    return path;
}

bool better(const pair_path &one, const pair_path &other)
{
    return one.push_bytes_s + one.pull_bytes_s > other.push_bytes_s + other.pull_bytes_s;
}

// Is this path one to another GPU that can be used?
bool is_peer_path(const pair_path &path)
{
    return path.reachable() && path.kind != path_kind::same_gpu;
}

constexpr const char *out_of_sight =
    "the peer's GPU is not visible in this container (neither to CUDA nor to NVML), so its memory "
    "cannot be opened here";

pair_path refusal(std::string reason)
{
    pair_path path;
    path.reason = std::move(reason);
    return path;
}

int hex_value(char c) noexcept
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return (c >= 'A' && c <= 'F') ? c - 'A' + 10 : -1;
}

} // namespace

const char *to_text(path_kind kind) noexcept
{
    switch (kind) {
    case path_kind::none:
        return "none";
    case path_kind::same_gpu:
        return "same";
    case path_kind::nvlink:
        return "nvlink";
    case path_kind::nvswitch:
        return "nvswitch";
    case path_kind::fabric:
        return "fabric";
    case path_kind::pcie:
        return "pcie";
    }
    return "?";
}

bool parse_uuid(std::string_view text, uuid_bytes *out) noexcept
{
    static constexpr std::string_view form   = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    size_t                            digits = 0;

    if (text.substr(0, 4) == "GPU-" || text.substr(0, 4) == "MIG-") {
        text.remove_prefix(4);
    }
    if (text.size() != form.size()) {
        return false;
    }
    uuid_bytes bytes{};
    for (size_t i = 0; i < form.size(); ++i) {
        const int value = hex_value(text[i]);
        if ((form[i] == '-') != (text[i] == '-') || (form[i] != '-' && value < 0)) {
            return false;
        }
        if (form[i] != '-') {
            bytes[digits / 2] = static_cast<uint8_t>(bytes[digits / 2] * 16 + value);
            ++digits;
        }
    }
    *out = bytes;
    return true;
}

uint64_t uuid_digest(const uuid_bytes &uuid) noexcept
{
    uint64_t half[2];

    if (uuid == uuid_bytes{}) {
        return 0;
    }
    std::memcpy(half, uuid.data(), sizeof(half));
    return (half[0] ^ half[1]) != 0 ? half[0] ^ half[1] : 1;
}

std::string format_uuid(const uuid_bytes &uuid, const char *prefix)
{
    std::string out = prefix;
    char        hex[3];

    for (size_t i = 0; i < uuid.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            out += '-';
        }
        std::snprintf(hex, sizeof(hex), "%02x", uuid[i]);
        out += hex;
    }
    return out;
}

bool says_nvlink(const machine_facts &facts, size_t a, size_t b)
{
    const pair_facts &pair = facts.pair(a, b);

    return pair.nvml_nvlink == p2p_status::ok || pair.hwloc_mb_s > 0 ||
           (pair.native_atomics && !has_atomics_elsewhere(facts.gpus[a]));
}

graph::graph(machine_facts facts) : facts_(std::move(facts))
{
    const size_t count = size();

    facts_.pairs.resize(count * count);
    best_.reason = "no GPU that it can reach";
    if (!is_answering(facts_.nvml)) {
        forget_nvml(facts_);
    }
    paths_.reserve(count * count);
    for (size_t a = 0; a < count; ++a) {
        for (size_t b = 0; b < count; ++b) {
            paths_.push_back(a == b ? same_gpu_path(facts_.gpus[a])
                                    : judgement(facts_, a, b).decide());
        }
    }
    mark_dead_links(facts_, paths_);
    for (size_t a = 0; a < count; ++a) {
        best_of_.push_back(fastest_from(a));
        if (count == 1) {
            best_of_[a] = lone_path(facts_.gpus[a], links_are_known(facts_, facts_.gpus[a]));
        }
        if (facts_.gpus[a].cuda >= 0 && better(best_of_[a], best_)) {
            best_ = best_of_[a];
        }
    }
}

// A peer that CUDA shows goes before one that it hides.
pair_path graph::fastest_from(size_t from) const
{
    pair_path fastest = refusal("no GPU that it can reach");
    bool      shown   = false;

    for (size_t to = 0; to < size(); ++to) {
        const bool to_shown = facts_.gpus[to].cuda >= 0;
        if (is_peer_path(path(from, to)) && to_shown >= shown &&
            (to_shown > shown || better(path(from, to), fastest))) {
            fastest = path(from, to);
            shown   = to_shown;
        }
    }
    return fastest;
}

bool graph::atomics_everywhere() const noexcept
{
    bool any = false;
    for (size_t from = 0; from < size(); ++from) {
        if ((facts_.gpus[from].cuda < 0) || (facts_.gpus[from].mig != mig_mode::disabled)) {
            continue;
        }
        for (size_t to = 0; to < size(); ++to) {
            if (path(from, to).reachable() && !path(from, to).native_atomics) {
                return false;
            }
        }
        any = true;
    }
    // Of a peer's GPU that nobody here can see, nobody can tell.
    return any && (knows_all_gpus() || (size() > 1));
}

// NVML shows every GPU of the host, or of the container; if it shows none it is as good as missing.
bool graph::knows_all_gpus() const noexcept
{
    // CUDA shows some of those that NVML counts and tells nothing of.
    const auto shown = std::count_if(facts_.gpus.begin(), facts_.gpus.end(), [&](const auto &gpu) {
        return gpu.cuda >= 0 && is_untold(facts_, gpu);
    });
    return facts_.nvml == nvml_state::present && facts_.nvml_untold <= shown &&
           std::any_of(facts_.gpus.begin(), facts_.gpus.end(),
                       [](const auto &gpu) { return gpu.nvml >= 0; });
}

pair_path graph::judge(size_t from, bool same_host, const gpu_identity &peer) const
{
    const gpu_facts &gpu  = facts_.gpus[from];
    const int        here = find(peer.uuid);

    if (gpu.mig != mig_mode::disabled) {
        return refusal("MIG instances have no peer access");
    }
    if (same_host) {
        if (here >= 0) {
            return path(from, static_cast<size_t>(here));
        }
        if (knows_all_gpus()) {
            return refusal(out_of_sight);
        }
        // With one GPU visible each and no NVML nobody can tell; stock UCX would try as well.
        pair_path path = best_of_[from];
        if (path.reachable()) {
            path.reason = "CUDA hides the peer's GPU and NVML is silent about it: taken for as "
                          "good as the best pair known";
        }
        return path;
    }

    const std::string missing = fabric_refusal(from, uuid_digest(peer.cluster), peer.clique);
    if (!missing.empty()) {
        return refusal("another host" + missing);
    }
    // What is in a fabric has links, told or not.
    const bool told = !gpu.links.empty();
    pair_path  path = lone_path(gpu, told);
    if (path.links == 0) {
        return refusal("all NVLinks of this GPU are down");
    }
    path.kind           = path_kind::fabric;
    path.native_atomics = true;
    path.reason = text("another host of the same fabric and clique, %d NVLinks%s", path.links,
                       told ? "" : " (not counted)");
    note_dead_links(path, links_down(gpu));
    return path;
}

// Why this GPU cannot share memory through the fabric with a GPU of that cluster and clique on
// another host; empty when it can.
std::string graph::fabric_refusal(size_t from, uint64_t cluster, uint32_t clique) const
{
    const gpu_facts   &gpu  = facts_.gpus[from];
    const gpu_identity self = identity(from);

    if (!in_fabric(gpu.fabric)) {
        return ", and this GPU is in no NVLink fabric";
    }
    if (cluster == 0) {
        return ", and the peer's GPU is in no NVLink fabric";
    }
    if (cluster != uuid_digest(self.cluster)) {
        return ", in another NVLink fabric";
    }
    if (clique != self.clique) {
        return text(", in another clique of the fabric (%u, here %u)", clique, self.clique);
    }
    if (!gpu.fabric_ipc) {
        return " of the fabric, but the driver offers no fabric handles";
    }
    if (!facts_.imex) {
        return " of the fabric, but this user has no IMEX channel "
               "(/dev/nvidia-caps-imex-channels)";
    }
    return std::string();
}

bool graph::has_peers() const noexcept
{
    for (size_t from = 0; from < size(); ++from) {
        for (size_t to = 0; to < size(); ++to) {
            if ((from != to) && path(from, to).reachable()) {
                return true;
            }
        }
    }
    return false;
}

// Why this GPU reaches no memory of a process on this host that has just that GPU, or several
// (0); empty when it may.
std::string graph::local_refusal(size_t from, uint64_t peer_gpu) const
{
    // Where none has a peer, of several GPUs each process has its own.
    const char *none = "no two GPUs of this machine reach each other";
    if (peer_gpu == 0) {
        return ((size() > 1) && knows_all_gpus() && !has_peers()) ? none : std::string();
    }
    for (size_t i = 0; i < size(); ++i) {
        if (!visible(facts_.gpus[i]) || (uuid_digest(identity(i).uuid) != peer_gpu)) {
            continue;
        }
        if (i == from) {
            return ((reach().gpu != 0) || has_peers()) ? std::string() : none;
        }
        return path(from, i).reachable() ? std::string() : path(from, i).reason;
    }
    // Of one that nobody here can tell of, a key will say.
    return knows_all_gpus() ? out_of_sight : std::string();
}

process_reach graph::reach() const noexcept
{
    process_reach told;
    int           shown = 0;

    for (size_t i = 0; i < size(); ++i) {
        const gpu_facts &gpu = facts_.gpus[i];
        if (gpu.cuda < 0 || gpu.mig != mig_mode::disabled) {
            continue;
        }
        const gpu_identity self = identity(i);
        told.peers              = true;
        told.gpu                = ++shown == 1 ? uuid_digest(self.uuid) : 0;
        if (!told.fabric && in_fabric(gpu.fabric)) {
            told.fabric  = gpu.fabric_ipc && facts_.imex;
            told.cluster = uuid_digest(self.cluster);
            told.clique  = self.clique;
        }
    }
    return told;
}

reach_answer graph::judge_process(bool same_host, const process_reach &peer) const
{
    std::string why;

    if (!reach().peers) {
        return {false, size() == 0 ? "this process has no GPU"
                                   : "this process has MIG instances only, which have no peer "
                                     "access"};
    }
    if (!peer.peers) {
        return {false, "the peer has no GPU but MIG instances, which have no peer access"};
    }
    for (size_t i = 0; i < size(); ++i) {
        const gpu_facts &gpu = facts_.gpus[i];
        if (gpu.cuda < 0 || gpu.mig != mig_mode::disabled) {
            continue;
        }
        const std::string missing =
            same_host ? local_refusal(i, peer.gpu) : fabric_refusal(i, peer.cluster, peer.clique);
        if (missing.empty() && (same_host || peer.fabric)) {
            return {true, same_host ? "one host" : "another host of the same fabric and clique"};
        }
        if (why.empty()) {
            why = missing.empty()
                      ? " of the fabric, but the peer's user has no IMEX channel or its "
                        "driver no fabric handles"
                      : missing;
        }
    }
    return {false, same_host ? why : "another host" + why};
}

gpu_identity graph::identity(size_t position) const noexcept
{
    const gpu_facts &gpu = facts_.gpus[position];
    gpu_identity     self;

    (void)parse_uuid(gpu.mig == mig_mode::instance ? gpu.mig_uuid : gpu.uuid, &self.uuid);
    if (in_fabric(gpu.fabric)) {
        (void)parse_uuid(gpu.fabric.cluster_uuid, &self.cluster);
        self.clique = gpu.fabric.clique;
    }
    return self;
}

int graph::find(const uuid_bytes &uuid) const noexcept
{
    for (size_t i = 0; i < size(); ++i) {
        if (visible(facts_.gpus[i]) && identity(i).uuid == uuid) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

int graph::find_cuda(int ordinal) const noexcept
{
    for (size_t i = 0; i < size(); ++i) {
        if (facts_.gpus[i].cuda == ordinal && ordinal >= 0) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

} // namespace nvl
