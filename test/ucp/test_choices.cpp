// SPDX-License-Identifier: BSD-3-Clause
//
// What stock UCP chooses between two GPUs, on every machine of test/machines, with the settings that people use, alone
// and beside a network card that registers GPU memory (test/network). Four things are held: a pair that can copy goes
// through nvlink and the card gets no byte; a pair that cannot gets what UCX gives it without the plugin; the choices
// are those written down in <machine>.choices; the bytes arrive. UPDATE_GOLDEN=1 writes the choices anew: read the
// difference before you commit it. Then the same for two hosts of one fabric, where the memory decides.
#include "ucp/job.h"

#include "emulator/host_files.h"

#include "topo/graph.h"
#include "unit/topo/machine_file.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

namespace nvl::test {

namespace {

namespace fs = std::filesystem;

// ---- what is run ---------------------------------------------------------------------------------------------------

struct setting {
    const char *name; // as in the golden files
    const char *tls;
    bool        network; // the card is there
    bool        nvlink;  // and nvlink is not excluded
    const char *stock;   // the same with cuda_ipc for nvlink: see expect_as_without
};

const setting settings[] = {
    {"all", "all", false, true, "all"},
    {"all + network", "all", true, true, "all"},
    {"^cuda_ipc", "^cuda_ipc", false, true, "all"},
    {"^cuda_ipc + network", "^cuda_ipc", true, true, "all"},
    {"nvlink,tcp,cuda_copy", "nvlink,tcp,cuda_copy", false, true, "cuda_ipc,tcp,cuda_copy"},
    {"nvlink,sm,cuda_copy", "nvlink,sm,cuda_copy", false, true, "cuda_ipc,sm,cuda_copy"},
    {"nvlink,sm,cuda_copy,network", "nvlink,sm,cuda_copy,standin", true, true,
     "cuda_ipc,sm,cuda_copy,standin"},
    {"nvlink,cuda_copy,network", "nvlink,cuda_copy,standin", true, true,
     "cuda_ipc,cuda_copy,standin"},
    {"nvlink,cuda_copy", "nvlink,cuda_copy", false, true, "cuda_ipc,cuda_copy"},
    {"cuda", "cuda", false, false, "cuda"},
};

bool update_g = std::getenv("UPDATE_GOLDEN") != nullptr;

std::string required(const char *variable)
{
    const char *value = std::getenv(variable);
    EXPECT_NE(value, nullptr) << variable;
    return value == nullptr ? "" : value;
}

std::string file_text(const fs::path &path)
{
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

struct outcome {
    int         status = -1;
    std::string error;                    // the first line of it, if the program failed
    std::string log[2];                   // of the two processes
    uint64_t    am = 0, put = 0, get = 0; // what the network carried
};

struct run_request {
    std::string machine;
    std::string other_host; // the second process's machine, if it is another one
    int         gpus[2] = {0, 1};
    std::string tls     = "all";
    bool        network = false;
    bool        plugin  = true;
    std::string more; // options of ucp_choices
    std::string env;  // for both, "A=1 B=2"
};

outcome run(const run_request &wanted)
{
    char              folder_name[] = "/tmp/nvl-choices-XXXXXX";
    const fs::path    folder        = mkdtemp(folder_name);
    const std::string build         = required("NVL_BUILD");
    std::string       plugins       = wanted.plugin ? build + "/src/.libs" : "";
    if (wanted.network) {
        plugins += (plugins.empty() ? "" : ":") + build + "/test/ucp/.libs";
    }
    std::string more = wanted.more, env = wanted.env;
    if (!wanted.other_host.empty()) {
        make_host_files(folder / "host0", 1);
        make_host_files(folder / "host1", 2);
        env += fmt::format(" NVL_EMU_FILES={}/host0", folder.string());
        more += fmt::format(" --env1 NVL_EMU_FILES={}/host1 --env1 NVL_EMU_MACHINE={}/{}.machine",
                            folder.string(), NVL_TEST_MACHINES, wanted.other_host);
    }
    // The processor's model, and what its kernel lets processes do to each other, must not decide.
    const std::string command = fmt::format(
        "exec env 'UCX_TLS={}' UCX_PROTO_INFO=y UCX_BCOPY_BW=12000MBs UCX_TOPO_PRIO=default "
        "UCX_MODULES=^cma,xpmem,knem,ib,rdmacm,gdrcopy NVL_STANDIN_COUNTERS={}/counts {} timeout "
        "100 {} "
        "--emulated {}/{}.machine env 'UCX_PLUGIN_PATH={}' {}/test/ucp/ucp_choices --gpu-only "
        "--gpus "
        "{},{} {} {}/0 {}/1 > {}/out 2>&1",
        wanted.tls, folder.string(), env, required("NVL_RUN_WITH_UCX"), NVL_TEST_MACHINES,
        wanted.machine, plugins, build, wanted.gpus[0], wanted.gpus[1], more, folder.string(),
        folder.string(), folder.string());
    const int raw = std::system(command.c_str()); // NOLINT(cert-env33-c)

    outcome got;
    got.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + WTERMSIG(raw);
    for (int i = 0; i < 2; ++i) {
        got.log[i] = file_text(folder / std::to_string(i));
    }
    if (got.status != 0) {
        got.error = file_text(folder / "out") + got.log[0] + got.log[1];
    }
    std::istringstream counts(file_text(folder / "counts"));
    for (std::string word; counts >> word;) {
        uint64_t bytes = 0;
        counts >> bytes;
        (word == "am" ? got.am : word == "put" ? got.put : got.get) += bytes;
    }
    fs::remove_all(folder);
    return got;
}

// ---- what UCX said, so that it can be compared ---------------------------------------------------------------------

// Far from where UCP changes its mind: the exact limits follow the processor's model.
constexpr std::array<uint64_t, 5> sizes        = {8, 1 << 10, 64 << 10, 1 << 20, 64 << 20};
const char *const                 size_words[] = {"8", "1K", "64K", "1M", "64M"};

uint64_t size_of(std::string text)
{
    if (text == "inf") {
        return UINT64_MAX;
    }
    const std::string units = "KMGT";
    uint64_t          value = std::strtoull(text.c_str(), nullptr, 10);
    const size_t      unit  = text.empty() ? std::string::npos : units.find(text.back());
    return unit == std::string::npos ? value : value << (10 * (unit + 1));
}

// The row that holds for a size, or null.
const protocol_row *row_at(const protocol_table &table, uint64_t size)
{
    for (const protocol_row &row : table.rows) {
        const size_t dots = row.range.find("..");
        const bool   one  = dots == std::string::npos;
        if (size >= size_of(row.range.substr(0, dots)) &&
            size <= size_of(one ? row.range : row.range.substr(dots + 2))) {
            return &row;
        }
    }
    return nullptr;
}

void replace_all(std::string *text, const std::string &from, const std::string &to)
{
    for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size()) {
        text->replace(at, from.size(), to);
    }
}

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

size_t count_of(const std::string &text, const std::string &part)
{
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
        ++count;
    }
    return count;
}

// "put", "tag", "data fetch", ... if the table is about GPU memory at both ends, as far as it says.
std::string subject_of(const protocol_table &table)
{
    const std::string &title = table.title;
    const bool         between =
        has(title, "from cuda") && (has(title, "to cuda") || has(title, "into cuda"));
    if (!has(title, "-node") || has(title, "(multi)") || has(title, "(fast-completion)") ||
        has(title, "reply flag")) {
        return "";
    }
    if (has(title, "rendezvous data fetch") && between) {
        return "data fetch";
    }
    if (has(title, "rendezvous data send") && has(title, "from cuda")) {
        return has(title, "to cuda") ? "data send" : "";
    }
    if (has(title, "ucp_put") && between) {
        return "put";
    }
    if (has(title, "ucp_get") && between) {
        return "get";
    }
    if (has(title, "ucp_tag_send") && has(title, "from cuda")) {
        return "tag";
    }
    return has(title, "ucp_am_send") && has(title, "from cuda") ? "am" : "";
}

std::string config_text(const protocol_row &row)
{
    std::string text = row.description + (row.config.empty() ? "" : " " + row.config);
    // Whatever the machine calls its network interfaces.
    for (size_t at = 0; (at = text.find("tcp/", at)) != std::string::npos; at += 4) {
        const size_t end = text.find_first_of(" ,", at);
        text.replace(at, (end == std::string::npos ? text.size() : end) - at, "tcp/any");
    }
    replace_all(&text, "standin/card0:1", "network");
    return text;
}

// By subject: what is chosen at each size.
std::map<std::string, std::vector<std::string>> choices_of(const outcome &got)
{
    std::map<std::string, std::vector<std::string>> choices;
    for (const std::string &log : got.log) {
        for (const protocol_table &table : protocol_tables(log)) {
            const std::string subject = subject_of(table);
            if (subject.empty()) {
                continue;
            }
            std::vector<std::string> rows;
            for (uint64_t size : sizes) {
                const protocol_row *row = row_at(table, size);
                rows.push_back(row == nullptr ? "-" : config_text(*row));
            }
            choices[subject] = rows;
        }
    }
    return choices;
}

// "8..64M  zero-copy nvlink/cuda", one for each run of equal choices.
std::string choices_text(const outcome &got)
{
    std::string text;
    if (got.status != 0) {
        std::istringstream lines(got.error);
        for (std::string line; std::getline(lines, line);) {
            const size_t at = line.find("ERROR ");
            if (at != std::string::npos) {
                return "  fails: " + line.substr(line.find_first_not_of(' ', at + 6)) + "\n";
            }
        }
        return fmt::format("  fails with status {}\n", got.status);
    }
    for (const auto &[subject, rows] : choices_of(got)) {
        for (size_t first = 0, last; first < rows.size(); first = last + 1) {
            last = first;
            while (last + 1 < rows.size() && rows[last + 1] == rows[first]) {
                ++last;
            }
            text += fmt::format("  {:10}  {:>8}  {}\n", subject,
                                first == last
                                    ? size_words[first]
                                    : fmt::format("{}..{}", size_words[first], size_words[last]),
                                rows[first]);
        }
    }
    return text;
}

// ---- which pairs ---------------------------------------------------------------------------------------------------

struct gpu_pair {
    int       gpus[2]; // CUDA ordinals
    pair_path path;
    bool      served; // by nvlink
};

// One pair of each kind that the machine has, and two processes on one GPU.
std::vector<gpu_pair> pairs_of(const graph &machine)
{
    std::vector<gpu_pair> pairs;
    std::set<std::string> seen;
    for (size_t a = 0; a < machine.size(); ++a) {
        for (size_t b = a; b < machine.size(); ++b) {
            const auto      &gpus = machine.facts().gpus;
            const pair_path &path = machine.path(a, b), &back = machine.path(b, a);
            if (gpus[a].cuda < 0 || gpus[b].cuda < 0) {
                continue;
            }
            const bool mig = gpus[a].mig != mig_mode::disabled || gpus[b].mig != mig_mode::disabled;
            // Processes that see several GPUs of which none has a peer are left to UCX.
            const bool        is_own  = (a == b) && (machine.size() > 1) && !machine.has_peers();
            const bool        served  = path.reachable() && back.reachable() && !mig && !is_own;
            const bool        one_way = path.reachable() != back.reachable();
            const std::string kind    = fmt::format("{} {} {}{}", to_text(path.kind), path.links,
                                                 mig ? "mig" : "", one_way ? "one way" : "");
            if (seen.insert(kind).second) {
                pairs.push_back({{gpus[a].cuda, gpus[b].cuda}, path, served});
            }
        }
    }
    return pairs;
}

// ---- the files -----------------------------------------------------------------------------------------------------

// "0 -> 1  nvlink x2 | all | ^cuda_ipc": the pair and the settings that have the lines below it.
using golden = std::map<std::string, std::string>; // "0 -> 1 | all" to lines

golden read_golden(const fs::path &path)
{
    golden                   known;
    std::vector<std::string> keys;
    std::istringstream       lines(file_text(path));
    for (std::string line; std::getline(lines, line);) {
        if (line.empty() || line[0] == '#') {
            continue;
        }
        if (line[0] == ' ') {
            for (const std::string &key : keys) {
                known[key] += line + "\n";
            }
            continue;
        }
        const size_t bar  = line.find(" | ");
        std::string  pair = line.substr(0, line.find("  "));
        keys.clear();
        for (size_t at = bar; at != std::string::npos;) {
            const size_t next = line.find(" | ", at + 3);
            keys.push_back(pair + " | " +
                           line.substr(at + 3, next == std::string::npos ? next : next - at - 3));
            at = next;
        }
    }
    return known;
}

// Keys that are written down and that no run gives any more: a setting or a kind of pair that is gone.
std::vector<std::string> stale_keys(const golden &written, const golden &found)
{
    std::vector<std::string> stale;
    for (const auto &[key, text] : written) {
        if (found.count(key) == 0) {
            stale.push_back(key);
        }
    }
    return stale;
}

// What a golden file has blocks for: "0 -> 1" and "nvlink x2".
using block_name = std::pair<std::string, std::string>;

block_name name_of(const gpu_pair &pair)
{
    return {fmt::format("{} -> {}", pair.gpus[0], pair.gpus[1]),
            to_text(pair.path.kind) +
                (pair.path.links > 0 ? fmt::format(" x{}", pair.path.links) : "")};
}

void write_golden(const fs::path &path, const std::string &what,
                  const std::vector<block_name> &blocks, const golden &found)
{
    std::ofstream file(path);
    file << "# What UCP chooses between " << what
         << ", and through which transport.\n"
            "# Written by UPDATE_GOLDEN=1 make -C test/ucp check TESTS=choices.test; see "
            "README.md.\n";
    for (const auto &[name, words] : blocks) {
        std::set<std::string> written;
        for (const setting &one : settings) {
            auto text = found.find(name + " | " + one.name);
            if (text == found.end() || !written.insert(text->second).second) {
                continue;
            }
            file << fmt::format("\n{}  {}", name, words);
            for (const setting &other : settings) {
                auto same = found.find(name + " | " + other.name);
                if (same != found.end() && same->second == text->second) {
                    file << " | " << other.name;
                }
            }
            file << "\n" << text->second;
        }
    }
}

} // namespace

class machine : public testing::TestWithParam<std::string> {};

// ---- the tests -----------------------------------------------------------------------------------------------------

namespace {

// Active messages of the card carry UCP's own talk, a few hundred bytes an operation.
constexpr uint64_t talk_bytes = 20000;

// Where the card carries UCP's messages it carries the small ones whole, as it would without us.
void expect_nvlink(const outcome &got, bool network_messages, const std::string &where)
{
    ASSERT_EQ(got.status, 0) << where << "\n" << got.error;
    auto choices = choices_of(got);
    for (const char *subject : {"put", "get", "tag", "am", "data fetch"}) {
        ASSERT_EQ(choices.count(subject), 1u) << where << ": " << subject << "\n" << got.log[0];
        for (size_t i = 0; i < sizes.size(); ++i) {
            const std::string &choice = choices[subject][i];
            // Small messages are copied through whatever carries messages.
            const bool message = subject == std::string("tag") || subject == std::string("am");
            const bool whole   = message && sizes[i] <= 8192;
            EXPECT_TRUE(whole || has(choice, "nvlink/cuda"))
                << where << ": " << subject << " of " << size_words[i] << ": " << choice;
            EXPECT_FALSE(has(choice, "cuda_ipc") ||
                         (has(choice, "network") && !(whole && network_messages)))
                << where << ": " << subject << " of " << size_words[i] << ": " << choice;
        }
    }
    EXPECT_EQ(got.put, 0u) << where;
    EXPECT_EQ(got.get, 0u) << where;
    EXPECT_LT(got.am, talk_bytes) << where;
}

// What a sender expects of a rendezvous before it has seen a key: cuda_ipc does not offer get to GPUs without NVLink.
std::string without_forecast(const std::string &text)
{
    std::istringstream lines(text);
    std::string        kept;
    for (std::string line; std::getline(lines, line);) {
        const bool forecast = has(line, "(?) rendezvous") && !has(line, "data ");
        kept += forecast ? "" : line + "\n";
    }
    return kept;
}

// The lines of messages of up to 1 KiB that the network carries whole.
std::string without_small_messages(const std::string &text)
{
    std::istringstream lines(text);
    std::string        kept;
    for (std::string line; std::getline(lines, line);) {
        const bool small = has(line, " 8..1K ") && has(line, "zero-copy") &&
                           has(line, " network") && (has(line, "  am ") || has(line, "  tag "));
        kept += small ? "" : line + "\n";
    }
    return kept;
}

// Just as without the plugin. Or, where other pairs of the machine reach each other, so that the endpoint has our lane
// although this pair cannot use it, as UCX's own direct lane would be in its place.
void expect_as_without(const outcome &with, run_request request, const setting &one,
                       const std::string &where)
{
    request.plugin  = false;
    outcome without = run(request);
    if ((choices_text(with) != choices_text(without)) &&
        graph(machine_named(request.machine)).has_peers()) {
        request.tls = one.stock;
        without     = run(request);
    }
    if (with.status != 0) {
        EXPECT_NE(without.status, 0) << where << ": only the plugin makes it fail: " << with.error;
        return; // in other words perhaps
    }
    std::string ours = choices_text(with), theirs = choices_text(without);
    if (ours != theirs) {
        replace_all(&ours, "nvlink/cuda", "cuda_ipc/cuda");
        ours   = without_forecast(ours);
        theirs = without_forecast(theirs);
    }
    if ((ours != theirs) && (without_small_messages(ours) == theirs)) {
        // Without our lane these would have taken a rendezvous, which is no better.
        EXPECT_EQ(with.put, without.put) << where;
        EXPECT_LT(with.get, without.get) << where;
        return;
    }
    EXPECT_EQ(ours, theirs) << where;
    EXPECT_EQ(with.put, without.put) << where;
    EXPECT_EQ(with.get, without.get) << where;
}

} // namespace

TEST_P(machine, gets_the_choices_that_are_written_down)
{
    const graph  known(machine_named(GetParam()));
    const auto   pairs  = pairs_of(known);
    const auto   path   = fs::path(NVL_TEST_MACHINES) / (GetParam() + ".choices");
    const golden wanted = read_golden(path);
    golden       found;

    ASSERT_FALSE(pairs.empty());
    for (const gpu_pair &pair : pairs) {
        for (const setting &one : settings) {
            run_request request;
            request.machine = GetParam();
            request.gpus[0] = pair.gpus[0];
            request.gpus[1] = pair.gpus[1];
            request.tls     = one.tls;
            request.network = one.network;
            const std::string key =
                fmt::format("{} -> {} | {}", pair.gpus[0], pair.gpus[1], one.name);
            const std::string where    = GetParam() + " " + key;
            const outcome     got      = run(request);
            const bool        endpoint = one.network || has(one.tls, "all") || has(one.tls, "^") ||
                                  has(one.tls, "tcp") || has(one.tls, "sm");
            found[key] = choices_text(got);
            if (pair.served && one.nvlink && endpoint) {
                expect_nvlink(got,
                              one.network && !has(one.tls, "all") && !has(one.tls, "^") &&
                                  !has(one.tls, "sm"),
                              where);
            } else {
                expect_as_without(got, request, one, where);
            }
            if (one.nvlink && !known.has_peers()) {
                EXPECT_FALSE(has(got.log[0] + got.log[1], " WARN ")) << where << got.log[0];
            }
            if (!update_g) {
                auto golden_text = wanted.find(key);
                ASSERT_NE(golden_text, wanted.end())
                    << where << ": not written down: run with UPDATE_GOLDEN=1 and look at it";
                EXPECT_EQ(found[key], golden_text->second) << where;
            }
        }
    }
    if (!update_g) {
        EXPECT_THAT(stale_keys(wanted, found), testing::IsEmpty()) << "run with UPDATE_GOLDEN=1";
    }
    if (update_g) {
        std::vector<block_name> blocks;
        for (const gpu_pair &pair : pairs) {
            blocks.push_back(name_of(pair));
        }
        write_golden(path, "two GPUs of this machine", blocks, found);
    }
}

TEST(golden_choices, that_no_run_gives_any_more_are_named)
{
    const golden found  = {{"0 -> 1 | all", "  put"}};
    golden       wanted = found;
    EXPECT_THAT(stale_keys(wanted, found), testing::IsEmpty());
    wanted["0 -> 7 | all"] = "  put";
    wanted["0 -> 1 | old"] = "  put";
    EXPECT_THAT(stale_keys(wanted, found), testing::ElementsAre("0 -> 1 | old", "0 -> 7 | all"));
}

// ---- two hosts of one fabric ---------------------------------------------------------------------------------------

namespace {

constexpr const char *host_a = "gb200-host-a", *host_b = "gb200-host-b";

// As allocators have it, and whether another host can open it.
const std::pair<const char *, bool> host_memory[] = {
    {"vmm_fabric", true}, {"pool_fabric", true}, {"vmm", false}, {"alloc", false}};

// Shared memory ends at the host.
bool makes_sense_between_hosts(const setting &one)
{
    return one.nvlink && !has(one.tls, "sm");
}

} // namespace

TEST(two_hosts, get_the_choices_that_are_written_down)
{
    const auto   path = fs::path(NVL_TEST_MACHINES) / fmt::format("{}--{}.choices", host_a, host_b);
    const golden wanted = read_golden(path);
    golden       found;
    std::vector<block_name> blocks;
    for (const auto &[memory, opened] : host_memory) {
        blocks.emplace_back(memory, opened ? "fabric x18" : "no fabric handle");
        for (const setting &one : settings) {
            if (!makes_sense_between_hosts(one)) {
                continue;
            }
            run_request request;
            request.machine       = host_a;
            request.other_host    = host_b;
            request.gpus[1]       = 0;
            request.tls           = one.tls;
            request.network       = one.network;
            request.more          = fmt::format("--memory {}", memory);
            const std::string key = fmt::format("{} | {}", memory, one.name);
            const outcome     got = run(request);
            // Without a transport for messages there is no endpoint, as on one host.
            const bool endpoint =
                one.network || has(one.tls, "all") || has(one.tls, "^") || has(one.tls, "tcp");
            found[key] = choices_text(got);
            if (opened && endpoint) {
                expect_nvlink(got, one.network, key);
            } else {
                expect_as_without(got, request, one, key);
            }
            if (!update_g) {
                auto golden_text = wanted.find(key);
                ASSERT_NE(golden_text, wanted.end()) << key << ": not written down";
                EXPECT_EQ(found[key], golden_text->second) << key;
            }
        }
    }
    if (!update_g) {
        EXPECT_THAT(stale_keys(wanted, found), testing::IsEmpty()) << "run with UPDATE_GOLDEN=1";
    }
    if (update_g) {
        write_golden(path, "two hosts of one fabric, by the kind of memory", blocks, found);
    }
}

// UCX's cuda_ipc would try, since it looks at neither cluster nor clique.
TEST(two_hosts, of_different_cliques_have_no_lane_of_ours)
{
    run_request request;
    request.machine    = host_a;
    request.other_host = "gb200-other-clique";
    request.gpus[1]    = 0;
    request.network    = true;
    for (const char *memory : {"vmm_fabric", "alloc"}) {
        request.more      = fmt::format("--memory {}", memory);
        const outcome got = run(request);
        EXPECT_EQ(got.status, 0) << got.error;
        EXPECT_FALSE(has(got.log[0] + got.log[1], "nvlink/cuda")) << got.log[0];
    }
}

// Once, though UCP asks several times for an endpoint.
TEST(two_hosts, that_do_not_reach_each_other_say_why)
{
    run_request request;
    request.machine    = host_a;
    request.other_host = "gb200-other-clique";
    request.gpus[1]    = 0;
    request.env        = "UCX_LOG_LEVEL=info";
    const outcome got  = run(request);
    EXPECT_EQ(got.status, 0) << got.error;
    EXPECT_EQ(count_of(got.log[0], "takes UCX's other paths: another host, in another clique"), 1u)
        << got.log[0];
}

TEST(two_hosts, are_named_in_the_log)
{
    run_request request;
    request.machine    = host_a;
    request.other_host = host_b;
    request.gpus[1]    = 2;
    request.env        = "UCX_LOG_LEVEL=info";
    request.more       = "--memory vmm_fabric";
    const outcome got  = run(request);
    EXPECT_EQ(got.status, 0) << got.error;
    EXPECT_EQ(count_of(got.log[0], "of a peer on another host: another host of the same fabric"),
              1u)
        << got.log[0];

    request.more          = "--memory alloc";
    request.env           = "";
    const outcome refused = run(request);
    EXPECT_EQ(refused.status, 0) << refused.error;
    EXPECT_EQ(count_of(refused.log[0], "WARN"), 1u) << refused.log[0];
    EXPECT_TRUE(has(refused.log[0], "it has no fabric handle")) << refused.log[0];
}

// ---- GPUs that the two processes see differently, and an NVML that does not help ------------------------------------

namespace {

struct view {
    const char *name, *machine;
    const char *env[2]; // of each process
    const char *both;   // of both
    int         gpus[2];
    bool        served;
};

const view views[] = {
    {"one_gpu_each",
     "h200-vm-x2",
     {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"},
     "",
     {0, 0},
     true},
    {"the_same_gpu",
     "h200-vm-x2",
     {"CUDA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1"},
     "",
     {0, 0},
     true},
    {"two_orders_other_gpu",
     "h200-vm-x2",
     {"CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=1,0"},
     "",
     {0, 0},
     true},
    {"two_orders_same_gpu",
     "h200-vm-x2",
     {"CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=1,0"},
     "",
     {0, 1},
     true},
    {"by_uuid",
     "h200-vm-x2",
     {"CUDA_VISIBLE_DEVICES=UUID0", "CUDA_VISIBLE_DEVICES=UUID1"},
     "",
     {0, 0},
     true},
    {"one_gpu_each_without_nvml",
     "h200-vm-x2-no-nvml",
     {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"},
     "",
     {0, 0},
     true},
    {"nvml_stub", "h200-vm-x2", {"A=1", "A=1"}, "NVL_EMU_NVML=stub", {0, 1}, true},
    {"nvml_missing", "h200-vm-x2", {"A=1", "A=1"}, "NVL_EMU_NVML=missing", {0, 1}, true},
    {"nvml_init_fails", "h200-vm-x2", {"A=1", "A=1"}, "NVL_EMU_NVML=999", {0, 1}, true},
    // Each call takes a while, UCX's own too: ours are given up after two seconds.
    {"nvml_slow", "h200-vm-x2", {"A=1", "A=1"}, "'NVL_EMU_FAULTS=nvml*=sleep100000'", {0, 1}, true},
    {"nvml_links_fail",
     "h200-vm-x2",
     {"A=1", "A=1"},
     "NVL_EMU_FAULTS=nvmlDeviceGetNvLinkState=999",
     {0, 1},
     true},
    {"nvml_handles_fail",
     "h200-vm-x2",
     {"A=1", "A=1"},
     "NVL_EMU_FAULTS=nvmlDeviceGetHandleByIndex_v2=999",
     {0, 1},
     true},
    {"no_peer_access",
     "dgx1-v100",
     {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=5"},
     "",
     {0, 0},
     false},
    {"one_link",
     "dgx1-v100",
     {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"},
     "",
     {0, 0},
     true},
    {"mig_instance",
     "h100-mig",
     {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=0"},
     "",
     {0, 0},
     false},
};

} // namespace

class gpus_seen_differently : public testing::TestWithParam<view> {};

TEST_P(gpus_seen_differently, take_the_same_path)
{
    const view &wanted = GetParam();
    run_request request;
    request.machine           = wanted.machine;
    request.network           = true;
    request.env               = wanted.both;
    request.gpus[0]           = wanted.gpus[0];
    request.gpus[1]           = wanted.gpus[1];
    const machine_facts facts = machine_named(wanted.machine);
    for (int i = 0; i < 2; ++i) {
        std::string variable = wanted.env[i];
        for (size_t gpu = 0; gpu < facts.gpus.size(); ++gpu) {
            replace_all(&variable, fmt::format("UUID{}", gpu), facts.gpus[gpu].uuid);
        }
        request.more += fmt::format("--env{} {} ", i, variable);
    }
    const outcome got = run(request);
    if (wanted.served) {
        expect_nvlink(got, false, wanted.name);
        return;
    }
    // Known before any key: the endpoint has no lane of ours, and all is as without the plugin, to the word.
    request.plugin        = false;
    const outcome without = run(request);
    EXPECT_EQ(choices_text(got), choices_text(without));
    EXPECT_EQ(got.put, without.put);
    EXPECT_EQ(got.get, without.get);
    EXPECT_FALSE(has(got.log[0] + got.log[1], "nvlink/cuda"));
}

INSTANTIATE_TEST_SUITE_P(all, gpus_seen_differently, testing::ValuesIn(views),
                         [](const auto &one) { return std::string(one.param.name); });

// ---- what the log says ---------------------------------------------------------------------------------------------

// One that we alone call, so that UCX goes on.
TEST(log_of_nvml, that_hangs_is_one_warning_and_the_pair_is_served)
{
    run_request request;
    request.machine   = "h200-vm-x2";
    request.gpus[1]   = 1;
    request.network   = true;
    request.env       = "NVL_EMU_FAULTS=nvmlSystemGetDriverVersion=hang";
    const outcome got = run(request);
    expect_nvlink(got, false, "NVML hangs");
    for (const std::string &log : got.log) {
        EXPECT_EQ(count_of(log, "NVML has not returned from nvmlSystemGetDriverVersion"), 1u)
            << log;
    }
}

TEST(log_of_a_pair, is_one_line_at_info_level)
{
    run_request request;
    request.machine   = "dgx1-v100";
    request.gpus[1]   = 3;
    request.env       = "UCX_LOG_LEVEL=info";
    const outcome got = run(request);
    EXPECT_EQ(got.status, 0) << got.error;
    EXPECT_EQ(count_of(got.log[0], "GPU 0 reaches"), 1u) << got.log[0];
    EXPECT_EQ(count_of(got.log[1], "GPU 3 reaches"), 1u) << got.log[1];
    EXPECT_TRUE(has(got.log[0], "2 NVLinks")) << got.log[0];
}

TEST(log_of_a_pair, is_a_warning_once_where_links_are_down)
{
    run_request request;
    request.machine   = "h100-x4-dead-links";
    const outcome got = run(request);
    EXPECT_EQ(got.status, 0) << got.error;
    EXPECT_EQ(count_of(got.log[0], "WARN"), 1u) << got.log[0];
    EXPECT_TRUE(has(got.log[0], "4 links are down")) << got.log[0];

    request.machine     = "h200-vm-x2";
    const outcome sound = run(request);
    EXPECT_EQ(count_of(sound.log[0] + sound.log[1], "WARN"), 0u) << sound.log[0];
}

// ---- more peers than the hardware allows ---------------------------------------------------------------------------

// Others have taken all that GPU 0 may enable. Refused by the key, so the endpoint has our lane; UCX's other paths take
// the bytes, as they would for its own.
TEST(peers_beyond_the_limit, take_the_path_that_ucx_has_without_the_plugin)
{
    run_request request;
    request.machine   = "a40-pcie-x10-peer-limit";
    request.env       = "NVL_EMU_PEERS_TAKEN=8";
    request.network   = true;
    const outcome got = run(request);
    EXPECT_EQ(got.status, 0) << got.error;
    EXPECT_EQ(count_of(got.log[0], "limit of peers"), 1u) << got.log[0];
    expect_as_without(got, request, settings[1], request.env);

    // The eighth is served.
    request.env       = "NVL_EMU_PEERS_TAKEN=7";
    const outcome had = run(request);
    EXPECT_EQ(count_of(had.log[0] + had.log[1], "WARN"), 0u) << had.log[0];
    expect_nvlink(had, false, request.env);
}

// ---- a GPU that the container does not show --------------------------------------------------------------------------

TEST(gpus_of_another_container, are_refused_with_a_hint_and_reached_otherwise)
{
    run_request request;
    request.machine   = "h200-vm-x2";
    request.env       = "NVL_EMU_FAULTS=cuIpcOpenMemHandle_v2=101";
    request.network   = true;
    const outcome got = run(request);
    EXPECT_EQ(got.status, 0) << got.error;
    EXPECT_EQ(count_of(got.log[0], "hidden from this process: GPU binding, container"), 1u)
        << got.log[0];
    expect_as_without(got, request, settings[1], request.env);
}

// ---- copies over PCIe that succeed and bring other bytes -------------------------------------------------------------

TEST(pairs_that_garble, are_found_out_before_their_first_use)
{
    run_request request;
    request.machine   = "l40s-pcie-x4";
    request.env       = "NVL_EMU_FAULTS=peer=garble";
    request.network   = true;
    const outcome got = run(request);
    EXPECT_EQ(got.status, 0) << "wrong bytes, or none: " << got.error;
    EXPECT_EQ(count_of(got.log[0], "wrong bytes at GPU-"), 1u) << got.log[0];
    auto choices = choices_of(got);
    for (const char *subject : {"put", "get"}) {
        ASSERT_FALSE(choices[subject].empty());
        for (const std::string &choice : choices[subject]) {
            EXPECT_TRUE(has(choice, "network")) << subject << ": " << choice;
        }
    }
}

// ---- rather fail than fall back ------------------------------------------------------------------------------------

TEST(strict, fails_where_a_pair_has_no_direct_path_and_nowhere_else)
{
    run_request request;
    request.machine = "dgx1-v100";
    request.env     = "UCX_NVLINK_STRICT=y";
    request.gpus[1] = 3;
    EXPECT_EQ(run(request).status, 0);

    request.gpus[1]       = 5;
    const outcome refused = run(request);
    EXPECT_NE(refused.status, 0);
    EXPECT_TRUE(has(refused.error, "UCX_NVLINK_STRICT=y")) << refused.error;

    request.env = "";
    EXPECT_EQ(run(request).status, 0);
}

INSTANTIATE_TEST_SUITE_P(all, machine, testing::ValuesIn(all_machine_names()),
                         [](const auto &name) { return test_name(name.param); });

} // namespace nvl::test
