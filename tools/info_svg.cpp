// SPDX-License-Identifier: BSD-3-Clause
//
// nvlink_info --svg: a picture of the machine. GPUs stand in one row, or in two with the links
// between the rows in the middle; links inside a row bend outwards, so that they cross nothing.
// A box is a NUMA node. Widths of lines grow with the number of links.

#include "info.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

namespace nvl {

namespace {

constexpr double card_width      = 168;
constexpr double card_height     = 92;
constexpr double card_gap        = 34;
constexpr double margin          = 40;
constexpr double node_pad        = 18;
constexpr double title_height    = 58;
constexpr double middle_height   = 190;
constexpr double plane_height    = 54;
constexpr double legend_line     = 22;
constexpr size_t pcie_lines_most = 12; // pairs that still have a line each
constexpr size_t one_row_most    = 4;  // GPUs that still stand in one row

constexpr char ink[]         = "#1f2933";
constexpr char faint[]       = "#616e7c";
constexpr char node_fill[]   = "#f3f6f9";
constexpr char node_line[]   = "#c9d3dd";
constexpr char pcie_line[]   = "#8795a5";
constexpr char switch_fill[] = "#e8e0f5";
constexpr char switch_line[] = "#6f4fb0";
constexpr char dead_line[]   = "#c62f2f";

struct point {
    double x = 0;
    double y = 0;
};

struct place {
    size_t row    = 0;
    size_t column = 0;
    point  at; // upper left corner
};

std::string escape(const std::string &text)
{
    std::string out;

    for (char c : valid_utf8(text)) {
        switch (c) {
        case '<':
            out += "&lt;";
            break;
        case '>':
            out += "&gt;";
            break;
        case '&':
            out += "&amp;";
            break;
        default: // XML has no control characters
            out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
        }
    }
    return out;
}

// Green for NVLink, darker with more links.
const char *link_colour(int links)
{
    return links >= 4 ? "#2f7d32" : links >= 2 ? "#43a047" : "#8cc78f";
}

double link_width(int links)
{
    return std::min(2.0 + 1.6 * links, 11.0);
}

const char *pcie_words(pcie_level level)
{
    switch (level) {
    case pcie_level::internal:
    case pcie_level::single:
    case pcie_level::multiple:
        return " below one host bridge, through switches";
    case pcie_level::hostbridge:
    case pcie_level::node:
        return " within a NUMA node";
    case pcie_level::system:
        return " between NUMA nodes";
    default:
        return "";
    }
}

class picture {
public:
    explicit picture(const machine_report &report)
        : report_(report), pairs_(report.pairs), facts_(report.pairs.facts())
    {
    }

    std::string draw();

private:
    void   choose_places();
    void   set_heights();
    bool   has_kind(path_kind kind) const;
    size_t count_pcie() const;
    double bend_room(size_t row) const;
    double width() const;
    point  centre(size_t gpu) const;

    void put(const std::string &text)
    {
        body_ += text + "\n";
    }
    void        put_text(point at, const std::string &text, int size, const char *colour,
                         const char *anchor = "middle", bool bold = false);
    void        put_nodes();
    void        put_card(size_t gpu);
    void        put_switches();
    void        put_direct_links();
    void        put_pcie();
    void        put_bend(size_t a, size_t b, const char *colour, double line, const char *dash,
                         const std::string &label);
    void        put_straight(size_t a, size_t b, const char *colour, double line, const char *dash,
                             const std::string &label);
    void        put_pair(size_t a, size_t b, const char *colour, double line, const char *dash,
                         const std::string &label);
    void        put_label(point at, const std::string &label, const char *colour);
    const char *pcie_dash(const pair_path &path) const;
    std::string fabric_text() const;
    void        put_title();
    void        put_legend();

    const machine_report &report_;
    const graph          &pairs_;
    const machine_facts  &facts_;
    std::vector<place>    places_;
    std::vector<size_t>   rows_;       // GPUs in each
    std::vector<double>   row_top_;    // of the cards
    double                middle_ = 0; // of the switches
    double                height_ = 0;
    std::string           labels_; // above everything else
    std::string           body_;
};

bool picture::has_kind(path_kind kind) const
{
    for (size_t a = 0; a < pairs_.size(); ++a) {
        for (size_t b = 0; b < pairs_.size(); ++b) {
            if (pairs_.path(a, b).kind == kind) {
                return true;
            }
        }
    }
    return false;
}

size_t picture::count_pcie() const
{
    size_t count = 0;

    for (size_t a = 0; a < pairs_.size(); ++a) {
        for (size_t b = a + 1; b < pairs_.size(); ++b) {
            count += pairs_.path(a, b).kind == path_kind::pcie ? 1 : 0;
        }
    }
    return count;
}

// Pairs over PCIe that are not equally fast have different lines: the slower, the shorter dashes.
const char *picture::pcie_dash(const pair_path &path) const
{
    static constexpr const char *dashes[] = {
        " stroke-dasharray=\"6 4\"", " stroke-dasharray=\"3 4\"", " stroke-dasharray=\"1 4\""};
    std::set<double> faster;

    if (count_pcie() > pcie_lines_most) {
        return dashes[0]; // a line stands for many pairs
    }
    for (size_t a = 0; a < pairs_.size(); ++a) {
        for (size_t b = 0; b < pairs_.size(); ++b) {
            const pair_path &other = pairs_.path(a, b);
            if (other.kind == path_kind::pcie && other.push_bytes_s > path.push_bytes_s) {
                faster.insert(other.push_bytes_s);
            }
        }
    }
    return dashes[std::min<size_t>(faster.size(), std::size(dashes) - 1)];
}

// GPUs of one NUMA node side by side; more than four in two rows.
void picture::choose_places()
{
    std::vector<size_t> order(pairs_.size());

    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    // DGX-like machines number their nodes in another order than their GPUs: the first GPU of a
    // node decides where the node stands.
    std::map<int, size_t> first_of_node;
    for (size_t i = 0; i < order.size(); ++i) {
        first_of_node.emplace(facts_.gpus[i].numa, i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return first_of_node[facts_.gpus[a].numa] < first_of_node[facts_.gpus[b].numa];
    });
    const size_t in_row = order.size() > one_row_most ? (order.size() + 1) / 2 : order.size();
    places_.resize(order.size());
    rows_.assign(order.size() > one_row_most ? 2 : 1, 0);
    for (size_t i = 0; i < order.size(); ++i) {
        place &gpu = places_[order[i]];
        gpu.row    = in_row == 0 ? 0 : i / in_row;
        gpu.column = in_row == 0 ? 0 : i % in_row;
        ++rows_[gpu.row];
    }
}

// The height that the bent lines of a row need.
double picture::bend_room(size_t row) const
{
    const bool pcie_bends = count_pcie() <= pcie_lines_most;
    size_t     widest     = 0;

    for (size_t a = 0; a < pairs_.size(); ++a) {
        for (size_t b = 0; b < pairs_.size(); ++b) {
            const pair_path &path = pairs_.path(a, b);
            if (places_[a].row == row && places_[b].row == row && a != b &&
                (path.kind == path_kind::nvlink || (path.kind == path_kind::pcie && pcie_bends))) {
                widest = std::max(widest, places_[b].column > places_[a].column
                                              ? places_[b].column - places_[a].column
                                              : places_[a].column - places_[b].column);
            }
        }
    }
    return widest == 0 ? 0 : 26.0 + 30.0 * static_cast<double>(std::min<size_t>(widest, 6));
}

double picture::width() const
{
    const size_t columns = rows_.empty() ? 1 : std::max<size_t>(rows_[0], 1);
    const double cards   = static_cast<double>(columns) * (card_width + card_gap) - card_gap;

    return std::max(cards + 2 * (margin + node_pad), 760.0);
}

void picture::set_heights()
{
    const bool   plane   = has_kind(path_kind::nvswitch) || count_pcie() > pcie_lines_most;
    const double columns = static_cast<double>(rows_.empty() ? 0 : rows_[0]);
    const double left    = (width() - columns * (card_width + card_gap) + card_gap) / 2;
    double       y       = margin + title_height + node_pad + 20;

    row_top_.clear();
    if (!rows_.empty()) {
        y += bend_room(0);
        row_top_.push_back(y);
        y += card_height;
    }
    if (plane || rows_.size() > 1) {
        middle_ = y + middle_height / 2;
        y += rows_.size() > 1 ? middle_height : middle_height / 2 + plane_height / 2;
    }
    if (rows_.size() > 1) {
        row_top_.push_back(y);
        y += card_height + bend_room(1);
    }
    height_ = y + node_pad + 20;
    for (auto &gpu : places_) {
        gpu.at = {left + static_cast<double>(gpu.column) * (card_width + card_gap),
                  row_top_[gpu.row]};
    }
}

point picture::centre(size_t gpu) const
{
    return {places_[gpu].at.x + card_width / 2, places_[gpu].at.y + card_height / 2};
}

void picture::put_text(point at, const std::string &text, int size, const char *colour,
                       const char *anchor, bool bold)
{
    put(fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\" "
                    "text-anchor=\"{}\"{}>{}</text>",
                    at.x, at.y, size, colour, anchor, bold ? " font-weight=\"bold\"" : "",
                    escape(text)));
}

void picture::put_nodes()
{
    std::map<std::pair<size_t, int>, std::pair<double, double>> spans; // row, node -> left, right

    for (size_t i = 0; i < places_.size(); ++i) {
        const double left   = places_[i].at.x;
        auto [known, added] = spans.emplace(std::make_pair(places_[i].row, facts_.gpus[i].numa),
                                            std::make_pair(left, left + card_width));
        if (!added) {
            known->second.first  = std::min(known->second.first, left);
            known->second.second = std::max(known->second.second, left + card_width);
        }
    }
    for (const auto &[key, span] : spans) {
        const bool   lower = key.first == 1;
        const double room  = bend_room(key.first) + 24;
        const double pad   = card_gap / 2 - 3;
        const double top   = row_top_[key.first] - (lower ? 12 : room);
        put(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                        "rx=\"12\" fill=\"{}\" stroke=\"{}\"/>",
                        span.first - pad, top, span.second - span.first + 2 * pad,
                        card_height + room + 12, node_fill, node_line));
        put_text({span.first - pad + 10, lower ? top + card_height + room + 4 : top + 16},
                 key.second < 0 ? "NUMA node not known" : fmt::format("NUMA node {}", key.second),
                 12, faint, "start");
    }
}

std::string memory_text(const gpu_facts &gpu)
{
    return fmt::format("{} GiB", (gpu.memory_bytes + (1ull << 29)) >> 30);
}

// Text that fits into the width of a card.
std::string fitted(const std::string &text, size_t characters)
{
    return text.size() <= characters ? text : text.substr(0, characters - 1) + "\xe2\x80\xa6";
}

void picture::put_card(size_t gpu)
{
    const gpu_facts &facts  = facts_.gpus[gpu];
    const point      at     = places_[gpu].at;
    const double     middle = at.x + card_width / 2;
    const bool       usable = facts.cuda >= 0;
    const auto       down   = std::count_if(facts.links.begin(), facts.links.end(),
                                            [](const auto &link) { return !link.active; });
    const auto       up     = static_cast<long>(facts.links.size()) - down;
    std::string      order  = usable ? fmt::format("CUDA {}", facts.cuda) : "hidden from CUDA";

    if (facts.mig == mig_mode::enabled) {
        order = "cut into MIG instances";
    } else if (facts.mig == mig_mode::instance) {
        order = (usable ? order : "hidden") + " \xc2\xb7 MIG instance";
    } else if (facts.nvml >= 0) {
        order += fmt::format(" \xc2\xb7 NVML {}", facts.nvml);
    }
    put(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"8\" "
                    "fill=\"{}\" stroke=\"{}\" stroke-width=\"1.5\"{}/>",
                    at.x, at.y, card_width, card_height, usable ? "#ffffff" : "#e9edf1",
                    usable ? "#4a5a6a" : node_line,
                    facts.mig == mig_mode::disabled ? "" : " stroke-dasharray=\"5 3\""));
    put_text({middle, at.y + 23}, fmt::format("GPU {}", gpu), 16, usable ? ink : faint, "middle",
             true);
    put_text({middle, at.y + 41}, fitted(short_name(facts), 20), 12, usable ? ink : faint);
    put_text({middle, at.y + 57},
             fmt::format("{} \xc2\xb7 {}", facts.pci.substr(4), memory_text(facts)), 11, faint);
    put_text({middle, at.y + 72}, order, 11, faint);
    if (down > 0 && up > 0) {
        put_text({middle, at.y + 86}, fmt::format("{} of {} links down", down, facts.links.size()),
                 11, dead_line, "middle", true);
    } else if (down > 0) {
        // A card without a bridge has none either: only beside others is that a fault.
        put_text({middle, at.y + 86}, "no link is up", 11,
                 has_kind(path_kind::nvswitch) || has_kind(path_kind::nvlink) ? dead_line : faint,
                 "middle", true);
    }
}

void picture::put_label(point at, const std::string &label, const char *colour)
{
    const double half = 4.0 + 3.4 * static_cast<double>(label.size());

    labels_ +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" rx=\"9\" "
                    "fill=\"#ffffff\" stroke=\"{}\"/>\n"
                    "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" fill=\"{}\" "
                    "text-anchor=\"middle\">{}</text>\n",
                    at.x - half, at.y - 9, 2 * half, colour, at.x, at.y + 4, ink, escape(label));
}

// A line within a row, bent outwards: up from the upper row, down from the lower one.
void picture::put_bend(size_t a, size_t b, const char *colour, double line, const char *dash,
                       const std::string &label)
{
    const size_t left  = places_[a].column < places_[b].column ? a : b;
    const size_t right = left == a ? b : a;
    const auto   span  = static_cast<double>(places_[right].column - places_[left].column);
    const double side  = places_[a].row == 0 ? -1 : 1;
    const double edge  = places_[a].at.y + (side < 0 ? 0 : card_height);
    const double bend  = side * (20 + 30 * std::min(span, 6.0)) * 4 / 3;
    // Lines to the right leave a card on its right half, the farther the more to the middle.
    const double shift = std::max(card_width / 2 - 22 - 18 * (span - 1), 8.0);
    const point  from  = {centre(left).x + shift, edge};
    const point  to    = {centre(right).x - shift, edge};

    put(fmt::format("<path d=\"M{:.1f} {:.1f} C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\" "
                    "fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\"{}/>",
                    from.x, from.y, from.x, from.y + bend, to.x, to.y + bend, to.x, to.y, colour,
                    line, dash));
    if (!label.empty()) {
        put_label({(from.x + to.x) / 2, edge + bend * 0.75}, label, colour);
    }
}

// A line between the rows.
void picture::put_straight(size_t a, size_t b, const char *colour, double line, const char *dash,
                           const std::string &label)
{
    const size_t upper = places_[a].row == 0 ? a : b;
    const size_t lower = upper == a ? b : a;
    const point  from  = {centre(upper).x, places_[upper].at.y + card_height};
    const point  to    = {centre(lower).x, places_[lower].at.y};

    put(fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
                    "stroke-width=\"{:.1f}\"{}/>",
                    from.x, from.y, to.x, to.y, colour, line, dash));
    if (!label.empty()) {
        put_label({(from.x + to.x) / 2, (from.y + to.y) / 2}, label, colour);
    }
}

void picture::put_pair(size_t a, size_t b, const char *colour, double line, const char *dash,
                       const std::string &label)
{
    if (places_[a].row == places_[b].row) {
        put_bend(a, b, colour, line, dash, label);
    } else {
        put_straight(a, b, colour, line, dash, label);
    }
}

void picture::put_direct_links()
{
    for (size_t a = 0; a < pairs_.size(); ++a) {
        for (size_t b = a + 1; b < pairs_.size(); ++b) {
            const pair_path &path = pairs_.path(a, b);
            if (path.kind == path_kind::nvlink) {
                put_pair(a, b, path.degraded ? dead_line : link_colour(path.links),
                         link_width(path.links), "",
                         path.links > 0 ? fmt::format("{}\xc3\x97", path.links) : "");
            }
        }
    }
}

// Peer access over PCIe: a thin line for each pair or, where they are too many to be seen, one
// for each GPU to a plane that stands for PCIe and the processors.
void picture::put_pcie()
{
    const bool   plane = count_pcie() > pcie_lines_most;
    const double y     = middle_ - plane_height / 2;

    for (size_t a = 0; a < pairs_.size(); ++a) {
        bool reached = false;
        for (size_t b = 0; b < pairs_.size(); ++b) {
            const bool pcie = pairs_.path(a, b).kind == path_kind::pcie;
            reached |= pcie;
            if (pcie && !plane && a < b) {
                put_pair(a, b, pcie_line, 1.6, pcie_dash(pairs_.path(a, b)), "");
            }
        }
        if (plane && reached) {
            const bool   upper = places_[a].row == 0;
            const double edge  = places_[a].at.y + (upper ? card_height : 0);
            put(fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" "
                            "stroke=\"{3}\" stroke-width=\"1.6\"{4}/>",
                            centre(a).x, edge, upper ? y : y + plane_height, pcie_line,
                            pcie_dash({})));
        }
    }
    if (plane && !has_kind(path_kind::nvswitch)) {
        put(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"10\" "
                        "fill=\"{}\" stroke=\"{}\"/>",
                        margin + 20, y, width() - 2 * margin - 40, plane_height, node_fill,
                        pcie_line));
        put_text({width() / 2, middle_ + 5}, "PCIe and processors", 13, ink, "middle", true);
    }
}

// The switches that the links name, or one in broken lines that nobody may see.
void picture::put_switches()
{
    std::set<std::string> named;

    if (!has_kind(path_kind::nvswitch)) {
        return;
    }
    for (const auto &gpu : facts_.gpus) {
        for (const auto &link : gpu.links) {
            if (link.remote == link_remote::nvswitch && link.active) {
                named.insert(link.remote_pci);
            }
        }
    }
    named.erase("ffffffff:ff:ff.0");
    const double left  = margin + 20;
    const double right = width() - margin - 20;
    const double y     = middle_ - plane_height / 2;

    for (size_t i = 0; i < pairs_.size(); ++i) {
        int  links    = 0;
        bool degraded = false;
        for (size_t b = 0; b < pairs_.size(); ++b) {
            if (pairs_.path(i, b).kind == path_kind::nvswitch) {
                links = std::max(links, pairs_.path(i, b).links);
            }
        }
        for (const auto &link : facts_.gpus[i].links) {
            degraded |= !link.active;
        }
        if (links == 0) {
            continue;
        }
        const double edge   = places_[i].row == 0 ? places_[i].at.y + card_height : places_[i].at.y;
        const double target = places_[i].row == 0 ? y : y + plane_height;
        put(fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
                        "stroke=\"{}\" stroke-width=\"{:.1f}\"/>",
                        centre(i).x, edge, centre(i).x, target,
                        degraded ? dead_line : link_colour(links), link_width(links)));
        put_label({centre(i).x, (edge + target) / 2}, fmt::format("{}\xc3\x97", links),
                  degraded ? dead_line : link_colour(links));
    }
    // One plane for all of them: a GPU's links are spread over the switches.
    put(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"10\" "
                    "fill=\"{}\" stroke=\"{}\" stroke-width=\"1.5\"{}/>",
                    left, y, right - left, plane_height, switch_fill, switch_line,
                    named.empty() ? " stroke-dasharray=\"7 4\"" : ""));
    put_text({(left + right) / 2, y + (named.empty() ? plane_height / 2 + 5 : 18)},
             named.empty()
                 ? fabric_text().empty() ? "NVSwitch, hidden from this machine"
                                         : "NVSwitches of the fabric, which other hosts share"
                 : fmt::format("{} NVSwitch{}", named.size(), named.size() == 1 ? "" : "es"),
             13, ink, "middle", true);
    const double each =
        (right - left - 16) / static_cast<double>(std::max<size_t>(named.size(), 1));
    double x = left + 8;
    for (const auto &pci : named) {
        put(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"20\" rx=\"5\" "
                        "fill=\"#ffffff\" stroke=\"{}\"/>",
                        x + 3, y + 26, each - 6, switch_line));
        put_text({x + each / 2, y + 40}, each > 92 ? pci.substr(4) : pci.substr(9, 5), 11, faint);
        x += each;
    }
}

// Which fabric the GPUs share with other hosts, or nothing.
std::string picture::fabric_text() const
{
    for (const auto &gpu : facts_.gpus) {
        const fabric_facts &fabric = gpu.fabric;
        if (fabric.state == fabric_state::completed && fabric.status == 0 &&
            !fabric.cluster_uuid.empty() && !uuid_is_zero(fabric.cluster_uuid)) {
            return fmt::format("fabric {}, clique {}{}", fabric.cluster_uuid.substr(0, 8),
                               fabric.clique, facts_.imex ? "" : ", no IMEX channel");
        }
    }
    return "";
}

void picture::put_title()
{
    const double speed = [&] {
        for (const auto &gpu : facts_.gpus) {
            for (const auto &link : gpu.links) {
                if (link.active && link.speed_mb_s > 0) {
                    return link.speed_mb_s / 1000.0;
                }
            }
        }
        return 0.0;
    }();
    put_text({margin, margin + 12}, facts_.machine, 22, ink, "start", true);
    std::string line = fmt::format(
        "{} GPU{} \xc2\xb7 driver {} \xc2\xb7 CUDA {}.{} \xc2\xb7 NVML {}", pairs_.size(),
        pairs_.size() == 1 ? "" : "s", facts_.driver.empty() ? "unknown" : facts_.driver,
        facts_.cuda_version / 1000, facts_.cuda_version % 1000 / 10, to_text(facts_.nvml));
    if (!fabric_text().empty()) {
        line += " \xc2\xb7 " + fabric_text();
    }
    if (speed > 0) {
        line += fmt::format(" \xc2\xb7 {:.1f} GB/s a link and direction", speed);
    }
    put_text({margin, margin + 34}, line, 13, faint, "start");
    if (report_.emulated) {
        put_text({margin, margin + 52}, "emulated driver", 13, dead_line, "start", true);
    }
}

void picture::put_legend()
{
    struct group {
        std::string words;
        std::string colour;
        double      line;
        const char *dash;
    };
    std::vector<group> entries;

    for (size_t a = 0; a < pairs_.size(); ++a) {
        for (size_t b = 0; b < pairs_.size(); ++b) {
            const pair_path &path = pairs_.path(a, b);
            if (a == b || path.kind == path_kind::same_gpu) {
                continue;
            }
            group one{
                "pairs without a line have no peer access: their data goes through host memory",
                "none", 0, ""};
            if (path.kind == path_kind::pcie) {
                one = {std::string("peer access over PCIe") + pcie_words(path.pcie), pcie_line, 1.6,
                       pcie_dash(path)};
            } else if (path.over_nvlink()) {
                one = {fmt::format("{} NVLink{} {}", path.links, path.links == 1 ? "" : "s",
                                   path.kind == path_kind::nvswitch ? "through a switch"
                                                                    : "to the peer"),
                       path.degraded ? dead_line : link_colour(path.links), link_width(path.links),
                       ""};
            }
            if (path.reachable()) {
                one.words += fmt::format(": push {} GB/s, pull {} GB/s", gb_s(path.push_bytes_s),
                                         gb_s(path.pull_bytes_s));
            }
            const bool known = std::any_of(entries.begin(), entries.end(),
                                           [&](const group &g) { return g.words == one.words; });
            if (!known) {
                entries.push_back(one);
            }
        }
    }
    double y = height_ + 6;
    for (const auto &entry : entries) {
        if (entry.colour != "none") {
            put(fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
                            "stroke=\"{}\" stroke-width=\"{:.1f}\"{}/>",
                            margin, y, margin + 46, y, entry.colour, entry.line, entry.dash));
        }
        put_text({margin + 58, y + 4}, entry.words, 12, ink, "start");
        y += legend_line;
    }
    height_ = y + margin / 2;
}

std::string picture::draw()
{
    choose_places();
    set_heights();
    put_title();
    put_nodes();
    put_pcie();
    put_direct_links();
    put_switches();
    for (size_t i = 0; i < pairs_.size(); ++i) {
        put_card(i);
    }
    put_legend();
    return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
                       "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
                       "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n"
                       "<title>{2}</title>\n"
                       "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{3}{4}</svg>\n",
                       width(), height_, escape(facts_.machine), body_, labels_);
}

} // namespace

std::string svg_picture(const machine_report &report)
{
    return picture(report).draw();
}

} // namespace nvl
