// SPDX-License-Identifier: BSD-3-Clause
//
// The facts' text form, read. One statement a line, '#' starts a comment, words are separated
// by blanks; test/machines/README.md shows every key. What is not known to this file is an
// error that names the line: a typing error must not become a machine.
// Called by tools, tests and the emulated driver. Calls nothing but the C++ library.

#include "topo/facts.h"

#include "topo/facts_words.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>
#include <new>
#include <set>
#include <vector>

namespace nvl {

namespace {

// Thrown and caught within facts_parse.
struct syntax_error {
    std::string text;
    size_t      line; // 0: that which is being read
};

[[noreturn]] void fail(std::string text, size_t line = 0)
{
    throw syntax_error{std::move(text), line};
}

std::string quoted(std::string_view text)
{
    return "'" + std::string(text) + "'";
}

// The words of one line, taken from the left.
class line_words {
public:
    explicit line_words(std::string_view line) : rest_(line)
    {
        skip_blanks();
    }

    bool empty() const
    {
        return rest_.empty();
    }

    std::string_view next(const char *what)
    {
        if (rest_.empty()) {
            fail(std::string("expected ") + what + " at the end of the line");
        }
        const size_t           end   = std::min(rest_.find_first_of(" \t"), rest_.size());
        const std::string_view taken = rest_.substr(0, end);
        rest_.remove_prefix(end);
        skip_blanks();
        return taken;
    }

    std::string_view peek() const
    {
        return rest_.substr(0, rest_.find_first_of(" \t"));
    }

    std::string_view remainder(const char *what)
    {
        if (rest_.empty()) {
            fail(std::string("expected ") + what + " at the end of the line");
        }
        const std::string_view taken = rest_;
        rest_                        = {};
        return taken;
    }

private:
    void skip_blanks()
    {
        rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size()));
    }

    std::string_view rest_;
};

// The keys that a line has had: each may come once.
class line_keys {
public:
    std::string_view next(line_words &words, const char *what = "a key")
    {
        const std::string_view key = words.next(what);
        if (!seen_.insert(key).second) {
            fail(quoted(key) + " stands twice in this line: leave one of them out");
        }
        return key;
    }

private:
    std::set<std::string_view> seen_;
};

template<typename T> T number(std::string_view text, T low, T high)
{
    T          value{};
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value);

    if (end.ec != std::errc() || end.ptr != text.data() + text.size()) {
        fail(quoted(text) + " is not a number");
    }
    if (value < low || value > high) {
        fail(quoted(text) + " is out of range, " + std::to_string(low) + " to " +
             std::to_string(high));
    }
    return value;
}

double decimal(std::string_view text)
{
    const std::string copy(text);
    char             *end   = nullptr;
    const double      value = std::strtod(copy.c_str(), &end);

    if (copy.empty() || *end != '\0' || !(value >= 0) || value > 1e9) {
        fail(quoted(text) + " is not a positive number");
    }
    return value;
}

template<typename T, size_t N> T choice(std::string_view text, const word<T> (&words)[N])
{
    std::string known;
    for (const auto &entry : words) {
        if (text == entry.text) {
            return entry.value;
        }
        known += known.empty() ? entry.text : std::string(", ") + entry.text;
    }
    fail(quoted(text) + " is none of " + known);
}

bool yes_or_no(std::string_view text)
{
    if (text == "yes") {
        return true;
    }
    if (text != "no") {
        fail(quoted(text) + " is neither 'yes' nor 'no'");
    }
    return false;
}

int number_or_hidden(std::string_view text, int high)
{
    return text == "hidden" ? facts_unknown : number(text, 0, high);
}

uint64_t bytes(std::string_view text)
{
    static constexpr struct {
        std::string_view suffix;
        uint64_t         factor;
    } units[] = {{"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}};

    for (const auto &unit : units) {
        if (text.size() > 3 && text.substr(text.size() - 3) == unit.suffix) {
            const auto count = text.substr(0, text.size() - 3);
            return number<uint64_t>(count, 0, (1ull << 50) / unit.factor) * unit.factor;
        }
    }
    return number<uint64_t>(text, 0, 1ull << 50);
}

// Where the driver could not tell.
constexpr std::string_view not_told = "unknown";

std::string pci(std::string_view text)
{
    if (text == not_told) {
        return {};
    }
    std::string normal = pci_normal(text);
    if (normal.empty()) {
        fail(quoted(text) + " is not a PCI address");
    }
    return normal;
}

std::string uuid(std::string_view text, std::string_view prefix)
{
    static constexpr std::string_view form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    std::string                       lower(text);

    if (text == not_told) {
        return {};
    }
    for (size_t i = prefix.size(); i < lower.size(); ++i) {
        lower[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(lower[i])));
    }
    bool good =
        lower.size() == prefix.size() + form.size() && lower.substr(0, prefix.size()) == prefix;
    for (size_t i = 0; good && i < form.size(); ++i) {
        const char c   = lower[prefix.size() + i];
        const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        good           = (form[i] == '-') ? c == '-' : hex;
    }
    if (!good) {
        fail(quoted(text) + " is not a UUID like " + std::string(prefix) + std::string(form));
    }
    return lower;
}

// "0-3,7", or "*" for all below count.
std::vector<int> index_list(std::string_view text, int count)
{
    std::vector<int> list;

    if (text == "*") {
        for (int i = 0; i < count; ++i) {
            list.push_back(i);
        }
        return list;
    }
    while (true) {
        const std::string_view item  = text.substr(0, text.find(','));
        const size_t           dash  = item.find('-');
        const int              first = number(item.substr(0, dash), 0, count - 1);
        const int              last  = dash == std::string_view::npos
                                           ? first
                                           : number(item.substr(dash + 1), first, count - 1);
        for (int i = first; i <= last; ++i) {
            list.push_back(i);
        }
        if (item.size() == text.size()) {
            return list;
        }
        text.remove_prefix(item.size() + 1);
    }
}

class parser {
public:
    machine_facts take_facts()
    {
        check_machine();
        facts_.pairs.resize(facts_.gpus.size() * facts_.gpus.size());
        for (auto &gpu : facts_.gpus) {
            std::sort(gpu.links.begin(), gpu.links.end(),
                      [](const auto &one, const auto &other) { return one.index < other.index; });
        }
        return std::move(facts_);
    }

    void line(std::string_view text, size_t line_number)
    {
        line_words words(text);
        line_ = line_number;
        if (words.empty()) {
            return;
        }
        const std::string_view key = words.next("a key");
        if (!machine_key(key, words) && !gpu_key(key, words)) {
            fail("unknown key " + quoted(key));
        }
        if (!words.empty()) {
            fail("unexpected " + quoted(words.peek()) + " after " + quoted(key));
        }
    }

private:
    bool machine_key(std::string_view key, line_words &words);
    bool gpu_key(std::string_view key, line_words &words);
    bool gpu_flag(gpu_facts &gpu, std::string_view key, line_words &words);
    void begin_gpu(line_words &words);
    void read_source(line_words &words);
    void read_nvml(line_words &words);
    void read_fabric(fabric_facts &fabric, line_words &words);
    void read_links(gpu_facts &gpu, line_words &words);
    void read_pairs(line_words &words);
    void read_pair_keys(pair_facts &pair, line_words words);
    void check_machine() const;
    void check_addresses() const;
    void check_instances() const;

    // Where a GPU has what others must not have; 0: nowhere.
    struct gpu_lines {
        size_t gpu, uuid, pci, mig;
    };

    machine_facts          facts_;
    size_t                 line_        = 0; // that which is being read
    bool                   pairs_begun_ = false;
    std::vector<gpu_lines> lines_; // of each GPU
};

void parser::read_source(line_words &words)
{
    if (!facts_.source.empty()) {
        facts_.source += '\n';
    }
    facts_.source += words.remainder("text");
}

void parser::read_nvml(line_words &words)
{
    facts_.nvml = choice(words.next("a state"), nvml_state_words);
    if (facts_.nvml == nvml_state::failing) {
        facts_.nvml_code = number(words.next("a code"), 1, 999);
    } else if (facts_.nvml == nvml_state::hanging) {
        facts_.nvml_call = words.next("a call");
    }
}

bool parser::machine_key(std::string_view key, line_words &words)
{
    if (key == "pair") {
        read_pairs(words);
        return true;
    }
    if (key == "gpu") {
        begin_gpu(words);
        return true;
    }
    if (!facts_.gpus.empty()) {
        return false; // the machine's own keys stand above its GPUs
    }
    if (key == "machine") {
        facts_.machine = words.next("a name");
    } else if (key == "source") {
        read_source(words);
    } else if (key == "host") {
        facts_.host = words.next("an id");
    } else if (key == "driver") {
        facts_.driver = words.next("a version");
    } else if (key == "cuda_version") {
        facts_.cuda_version = number(words.next("a number"), 0, 1000000);
    } else if (key == "nvml_state") {
        read_nvml(words);
    } else if (key == "nvml_untold") {
        facts_.nvml_untold = number(words.next("a count"), 0, facts_max_gpus);
    } else if (key == "numa_nodes") {
        facts_.numa_nodes = number(words.next("a count"), 1, 1024);
    } else if (key == "peer_limit") {
        facts_.peer_limit = number(words.next("a count"), 0, facts_max_gpus);
    } else if (key == "imex") {
        facts_.imex = yes_or_no(words.next("yes or no"));
    } else {
        return false;
    }
    return true;
}

void parser::begin_gpu(line_words &words)
{
    const int position = number(words.next("a position"), 0, facts_max_gpus - 1);

    if (pairs_begun_) {
        fail("a gpu after the first pair");
    }
    if (position < static_cast<int>(facts_.gpus.size())) {
        const size_t first = lines_[static_cast<size_t>(position)].gpu;
        fail("gpu " + std::to_string(position) + " is there already, from line " +
             std::to_string(first) + " on: put all of its keys there");
    }
    if (position != static_cast<int>(facts_.gpus.size())) {
        fail("expected gpu " + std::to_string(facts_.gpus.size()) + ", positions are in order");
    }
    facts_.gpus.emplace_back();
    lines_.push_back({line_, 0, 0, 0});
    facts_.gpus.back().cuda = position;
    facts_.gpus.back().nvml = position;
}

bool parser::gpu_flag(gpu_facts &gpu, std::string_view key, line_words &words)
{
    if (key == "integrated") {
        gpu.integrated = yes_or_no(words.next("yes or no"));
    } else if (key == "coherent") {
        gpu.coherent = yes_or_no(words.next("yes or no"));
    } else if (key == "handles") {
        gpu.legacy_ipc = gpu.posix_fd = gpu.fabric_ipc = false;
        line_keys kinds;
        do {
            const std::string_view kind = kinds.next(words, "a handle type or 'none'");
            if (kind == "legacy_ipc") {
                gpu.legacy_ipc = true;
            } else if (kind == "posix_fd") {
                gpu.posix_fd = true;
            } else if (kind == "fabric") {
                gpu.fabric_ipc = true;
            } else if (kind != "none") {
                fail(quoted(kind) + " is none of legacy_ipc, posix_fd, fabric, none");
            }
        } while (!words.empty());
    } else if (key == "attribute") {
        const int attribute = number(words.next("a number"), 1, 999);
        const int value     = number(words.next("a value"), INT32_MIN, INT32_MAX);
        gpu.attributes.emplace_back(attribute, value);
    } else {
        return false;
    }
    return true;
}

bool parser::gpu_key(std::string_view key, line_words &words)
{
    if (facts_.gpus.empty() || pairs_begun_) {
        return false;
    }
    gpu_facts &gpu = facts_.gpus.back();

    if (key == "cuda") {
        gpu.cuda = number_or_hidden(words.next("an ordinal"), facts_max_gpus - 1);
    } else if (key == "nvml") {
        gpu.nvml = number_or_hidden(words.next("an index"), facts_max_gpus - 1);
    } else if (key == "uuid") {
        gpu.uuid           = uuid(words.next("a UUID"), "GPU-");
        lines_.back().uuid = line_;
    } else if (key == "pci") {
        gpu.pci           = pci(words.next("a PCI address"));
        lines_.back().pci = line_;
    } else if (key == "name") {
        gpu.name = words.remainder("a name");
    } else if (key == "compute") {
        const std::string_view text = words.next("a compute capability");
        const size_t           dot  = text.find('.');
        gpu.compute_major           = number(text.substr(0, dot), 1, 99);
        gpu.compute_minor = dot == std::string_view::npos ? 0 : number(text.substr(dot + 1), 0, 99);
    } else if (key == "memory") {
        gpu.memory_bytes = bytes(words.next("a size"));
    } else if (key == "sms") {
        gpu.sm_count = number(words.next("a count"), 0, 10000);
    } else if (key == "copy_engines") {
        gpu.copy_engines = number(words.next("a count"), 0, 100);
    } else if (key == "numa") {
        gpu.numa = number(words.next("a node"), facts_unknown, 1023);
    } else if (key == "pcie") {
        gpu.pcie_gen   = number(words.next("a generation"), 1, 9);
        gpu.pcie_width = number(words.next("a width"), 1, 32);
    } else if (key == "mig") {
        gpu.mig           = choice(words.next("a mode"), mig_mode_words);
        lines_.back().mig = line_;
        if (gpu.mig == mig_mode::instance) {
            gpu.mig_uuid = uuid(words.next("a UUID"), "MIG-");
            gpu.mig_parent =
                number(words.next("the parent's position"), facts_unknown, facts_max_gpus - 1);
        }
    } else if (key == "virtualization") {
        gpu.virt = choice(words.next("a mode"), virtualization_words);
    } else if (key == "fabric") {
        read_fabric(gpu.fabric, words);
    } else if (key == "links") {
        read_links(gpu, words);
    } else {
        return gpu_flag(gpu, key, words);
    }
    return true;
}

void parser::read_fabric(fabric_facts &fabric, line_words &words)
{
    fabric.state = choice(words.next("a state"), fabric_state_words);
    line_keys keys;
    while (!words.empty()) {
        const std::string_view key = keys.next(words);
        if (key == "status") {
            fabric.status = number(words.next("a code"), 0, 999);
        } else if (key == "cluster") {
            fabric.cluster_uuid = uuid(words.next("a UUID"), "");
        } else if (key == "clique") {
            fabric.clique = number<uint32_t>(words.next("a number"), 0, UINT32_MAX);
        } else {
            fail("unknown key " + quoted(key) + " of fabric");
        }
    }
}

void parser::read_links(gpu_facts &gpu, line_words &words)
{
    const std::vector<int> indices = index_list(words.next("link numbers"), facts_max_links);
    const std::string_view state   = words.next("'up' or 'down'");
    link_facts             link;

    if (state != "up" && state != "down") {
        fail(quoted(state) + " is neither 'up' nor 'down'");
    }
    link.active = state == "up";
    line_keys keys;
    while (!words.empty()) {
        const std::string_view key = keys.next(words);
        if (key == "version") {
            link.version = number(words.next("a version"), 1, 99);
        } else if (key == "speed") {
            link.speed_mb_s = number(words.next("a speed in MB/s"), 0, 10000000);
        } else if (key == "remote") {
            link.remote = choice(words.next("what is there"), link_remote_words);
            if (link.remote == link_remote::gpu || link.remote == link_remote::nvswitch ||
                (link.remote == link_remote::cpu && !words.empty())) {
                link.remote_pci = pci(words.next("a PCI address"));
            }
        } else {
            fail("unknown key " + quoted(key) + " of links");
        }
    }
    for (int index : indices) {
        for (const auto &other : gpu.links) {
            if (other.index == index) {
                fail("link " + std::to_string(index) + " is there already");
            }
        }
        link.index = index;
        gpu.links.push_back(link);
    }
}

void parser::read_pair_keys(pair_facts &pair, line_words words)
{
    line_keys keys;
    do {
        const std::string_view key = keys.next(words);
        if (key == "access") {
            pair.peer_access = yes_or_no(words.next("yes or no"));
        } else if (key == "atomics") {
            pair.native_atomics = yes_or_no(words.next("yes or no"));
        } else if (key == "rank") {
            pair.perf_rank = number(words.next("a rank"), facts_unknown, 1000);
        } else if (key == "pcie") {
            pair.pcie = choice(words.next("a level"), pcie_level_words);
        } else if (key == "nvml_read") {
            pair.nvml_read = choice(words.next("a status"), p2p_status_words);
        } else if (key == "nvml_write") {
            pair.nvml_write = choice(words.next("a status"), p2p_status_words);
        } else if (key == "nvml_nvlink") {
            pair.nvml_nvlink = choice(words.next("a status"), p2p_status_words);
        } else if (key == "nvml_atomics") {
            pair.nvml_atomics = choice(words.next("a status"), p2p_status_words);
        } else if (key == "hwloc") {
            pair.hwloc_mb_s = number(words.next("a rate in MB/s"), 0, 100000000);
        } else if (key == "push" || key == "pull") {
            emulated_speed &speed = key == "push" ? pair.push : pair.pull;
            speed.rate_gb_s       = decimal(words.next("a rate in GB/s"));
            speed.latency_us      = decimal(words.next("a latency in us"));
        } else {
            fail("unknown key " + quoted(key) + " of pair");
        }
    } while (!words.empty());
}

void parser::read_pairs(line_words &words)
{
    const size_t count = facts_.gpus.size();
    if (count == 0) {
        fail("a pair before the first gpu");
    }
    if (!pairs_begun_) {
        facts_.pairs.resize(count * count);
        pairs_begun_ = true;
    }

    const auto             from  = index_list(words.next("GPU numbers"), static_cast<int>(count));
    const std::string_view arrow = words.next("'->' or '<->'");
    const auto             to    = index_list(words.next("GPU numbers"), static_cast<int>(count));
    if (arrow != "->" && arrow != "<->") {
        fail(quoted(arrow) + " is neither '->' nor '<->'");
    }
    bool any = count == 1; // which stands for the pairs that it does not have
    for (int a : from) {
        for (int b : to) {
            if (a == b) {
                continue;
            }
            any = true;
            read_pair_keys(facts_.pair(static_cast<size_t>(a), static_cast<size_t>(b)), words);
            if (arrow == "<->") {
                read_pair_keys(facts_.pair(static_cast<size_t>(b), static_cast<size_t>(a)), words);
            }
        }
    }
    if (!any) {
        fail("a GPU and itself are no pair: name two");
    }
    if (count == 1) {
        pair_facts ignored;
        read_pair_keys(ignored, words);
    }
    words = line_words({});
}

std::string name_of(size_t position)
{
    return "gpu " + std::to_string(position);
}

// One UUID and one PCI address each; an instance shares those of its GPU and has a UUID of its own besides.
void parser::check_addresses() const
{
    std::map<std::string, size_t> ids, places; // whose

    for (size_t i = 0; i < facts_.gpus.size(); ++i) {
        const gpu_facts &gpu         = facts_.gpus[i];
        const bool       is_instance = gpu.mig == mig_mode::instance;
        const size_t     line        = is_instance ? lines_[i].mig : lines_[i].uuid;
        if (lines_[i].uuid == 0 || lines_[i].pci == 0) {
            fail(name_of(i) + " has no uuid or no pci: add it, or 'unknown'", lines_[i].gpu);
        }
        const std::string &id    = is_instance ? gpu.mig_uuid : gpu.uuid;
        const auto         other = ids.emplace(id, i);
        if (!id.empty() && !other.second) {
            fail(name_of(i) + " has the UUID of another one, " + name_of(other.first->second) +
                     ": give it its own, or 'unknown'",
                 line);
        }
        if (is_instance || gpu.pci.empty()) {
            continue;
        }
        const auto neighbour = places.emplace(gpu.pci, i);
        if (!neighbour.second) {
            fail(name_of(i) + " has the PCI address of another one, " +
                     name_of(neighbour.first->second) + ": give it its own, or 'unknown'",
                 lines_[i].pci);
        }
    }
}

void parser::check_instances() const
{
    for (size_t i = 0; i < facts_.gpus.size(); ++i) {
        const int parent = facts_.gpus[i].mig_parent;
        if (facts_.gpus[i].mig != mig_mode::instance || parent < 0) {
            continue;
        }
        const auto position = static_cast<size_t>(parent);
        if (position >= facts_.gpus.size()) {
            fail(name_of(i) + " is an instance of a gpu that is not there", lines_[i].mig);
        }
        if (facts_.gpus[position].mig == mig_mode::instance) {
            fail(
                name_of(i) + " is an instance of " +
                    (position == i ? std::string("itself") : name_of(position) + ", which is one") +
                    ": name the position of the whole GPU, or -1",
                lines_[i].mig);
        }
    }
}

// What belongs to no single line.
void parser::check_machine() const
{
    std::set<int> ordinals, indices;

    if (facts_.machine.empty()) {
        fail("the machine has no name");
    }
    check_addresses();
    check_instances();
    for (const auto &gpu : facts_.gpus) {
        const std::string who = name_of(static_cast<size_t>(&gpu - facts_.gpus.data()));
        if (gpu.cuda >= 0 && !ordinals.insert(gpu.cuda).second) {
            fail(who + " has the CUDA ordinal of another one");
        }
        if (gpu.nvml >= 0 && !indices.insert(gpu.nvml).second) {
            fail(who + " has the NVML index of another one");
        }
    }
    if (!ordinals.empty() && *ordinals.rbegin() + 1 != static_cast<int>(ordinals.size())) {
        fail("the CUDA ordinals have a gap");
    }
}

std::string_view without_comment(std::string_view line)
{
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
            line = line.substr(0, i);
            break;
        }
    }
    const size_t last = line.find_last_not_of(" \t\r");
    return line.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

} // namespace

facts_result facts_parse(std::string_view text, machine_facts *out, std::string *error) noexcept
try {
    parser parsed;
    size_t line_number = 0;

    try {
        while (!text.empty()) {
            const size_t end = std::min(text.find('\n'), text.size());
            ++line_number;
            parsed.line(without_comment(text.substr(0, end)), line_number);
            text.remove_prefix(std::min(end + 1, text.size()));
        }
        line_number = 0;
        *out        = parsed.take_facts();
    } catch (const syntax_error &found) {
        const size_t where = found.line > 0 ? found.line : line_number;
        *error = where > 0 ? "line " + std::to_string(where) + ": " + found.text : found.text;
        return facts_result::malformed;
    }
    return facts_result::ok;
} catch (const std::bad_alloc &) {
    return facts_result::no_memory;
}

} // namespace nvl
