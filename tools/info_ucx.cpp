// SPDX-License-Identifier: BSD-3-Clause
//
// Which UCXs this machine has, and what around them loads. Each is looked at in a child process
// of its own: two UCXs in one process do not mix, and a library that crashes when it is loaded
// must not take the tool along.

#include "info.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

extern "C" {
#include <uct/api/uct.h>
}

namespace nvl {

namespace {

namespace fs = std::filesystem;

constexpr unsigned patience_s = 20; // for a child that loads libraries

// Runs `body` in a child; what it prints comes back. Empty when the child died.
template<typename F> std::string in_child(F &&body)
{
    int         ends[2];
    std::string text;
    char        chunk[4096];
    ssize_t     length;

    if (pipe(ends) != 0) {
        return {};
    }
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        alarm(patience_s);
        close(ends[0]);
        FILE *out = fdopen(ends[1], "w");
        if (out != nullptr) {
            body(out);
            std::fflush(out);
        }
        _exit(0); // no exit handlers: half a UCX is loaded
    }
    close(ends[1]);
    while ((length = read(ends[0], chunk, sizeof(chunk))) > 0) {
        text.append(chunk, static_cast<size_t>(length));
    }
    close(ends[0]);
    if (child > 0) {
        int status = 0;
        (void)waitpid(child, &status, 0);
    }
    return text;
}

// Folders where python3's packages keep a UCX: that of libucx, and those of wheels that carry one.
std::string python_folders()
{
    static constexpr char script[] =
        "import glob, importlib.util as u, os, sys\n"
        "s = u.find_spec('libucx')\n"
        "if s: print('PyPI package libucx\\t' + "
        "os.path.join(next(iter(s.submodule_search_locations)), 'lib'))\n"
        "for p in sys.path:\n"
        "    for d in sorted(glob.glob(os.path.join(glob.escape(p or '.'), '*.libs'))):\n"
        "        if glob.glob(os.path.join(glob.escape(d), 'libucs*.so*')):\n"
        "            print('wheel ' + os.path.basename(d)[:-5] + '\\t' + d)\n";

    return in_child([](FILE *out) {
        dup2(fileno(out), STDOUT_FILENO);
        const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, STDERR_FILENO);
        execlp("python3", "python3", "-c", script, static_cast<char *>(nullptr));
    });
}

// "libucs-5dc7d7dc.so.0.0.0" is a library of this name; "libucs_signal.so" is not.
bool is_library(const std::string &file, const std::string &name)
{
    return file.compare(0, name.size(), name) == 0 &&
           (file.compare(name.size(), 3, ".so") == 0 || file.compare(name.size(), 1, "-") == 0) &&
           file.find(".so") != std::string::npos;
}

// Of several names of one library the one that programs ask for: with one number.
fs::path find_library(const fs::path &folder, const std::string &name)
{
    std::vector<fs::path> found;
    std::error_code       ignored;

    for (const auto &entry : fs::directory_iterator(folder, ignored)) {
        if (is_library(entry.path().filename().string(), name)) {
            found.push_back(entry.path());
        }
    }
    std::sort(found.begin(), found.end());
    for (const auto &path : found) {
        if (path.filename() == name + ".so.0") {
            return path;
        }
    }
    return found.empty() ? fs::path() : found.front();
}

// The loader's words for the file, or nothing when it loads.
std::string load_error(const fs::path &path, int flags)
{
    if (dlopen(path.c_str(), flags) != nullptr) {
        return {};
    }
    const char *error = dlerror();
    return error == nullptr ? "unknown error" : error;
}

std::string one_line(std::string text)
{
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::replace(text.begin(), text.end(), '\t', ' ');
    return text;
}

void report_module(FILE *out, const char *key, const std::string &name, const fs::path &path)
{
    const std::string error =
        path.empty() ? std::string() : load_error(path, RTLD_NOW | RTLD_LOCAL);
    std::fprintf(out, "%s\t%s\t%s\t%s\n", key, name.c_str(), path.c_str(), one_line(error).c_str());
}

// The folders in which the loader of UCX looks for plugins.
std::vector<fs::path> plugin_folders(const fs::path &modules)
{
    std::vector<fs::path> folders;
    std::string           list;

    if (const char *set = std::getenv("UCX_PLUGIN_PATH")) {
        list = set;
    }
    while (!list.empty()) {
        const size_t end = std::min(list.find(':'), list.size());
        if (end > 0) {
            folders.emplace_back(list.substr(0, end));
        }
        list.erase(0, end + 1);
    }
    folders.push_back(modules);
    return folders;
}

// In the child: lets the UCX that is loaded load its plugins, and asks for our component.
void report_offer(FILE *out)
{
    using query_all      = ucs_status_t (*)(uct_component_h **, unsigned *);
    using query_one      = ucs_status_t (*)(uct_component_h, uct_component_attr_t *);
    const auto       all = reinterpret_cast<query_all>(dlsym(RTLD_DEFAULT, "uct_query_components"));
    const auto       one = reinterpret_cast<query_one>(dlsym(RTLD_DEFAULT, "uct_component_query"));
    uct_component_h *components = nullptr;
    unsigned         count      = 0;

    if (all == nullptr || one == nullptr || all(&components, &count) != UCS_OK) {
        return;
    }
    for (unsigned i = 0; i < count; ++i) {
        uct_component_attr_t attr{};
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
        if (one(components[i], &attr) != UCS_OK || std::strcmp(attr.name, "nvlink") != 0) {
            continue;
        }
        attr.field_mask  = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
        const bool asked = one(components[i], &attr) == UCS_OK;
        std::fprintf(out, "offer\t%u\n", asked ? attr.md_resource_count : 0);
    }
}

// In the child: loads the UCX of a folder and says what is there, one line a thing.
void look_at_ucx(FILE *out, const fs::path &ucs)
{
    const fs::path folder  = ucs.parent_path();
    const fs::path ucp     = find_library(folder, "libucp");
    fs::path       modules = folder / "ucx";

    // Nothing of it may print into the report.
    setenv("UCX_LOG_LEVEL", "fatal", 1);
    if (const char *set = std::getenv("UCX_MODULE_DIR")) {
        modules = set;
    }
    std::fprintf(out, "modules\t%s\n", modules.c_str());
    std::string error = load_error(ucs, RTLD_NOW | RTLD_GLOBAL);
    if (error.empty() && !ucp.empty()) {
        error = load_error(ucp, RTLD_NOW | RTLD_GLOBAL);
    }
    for (const char *name : {"libucm_cuda", "libuct_cuda"}) {
        report_module(out, "module", name, find_library(modules, name));
    }
    if (error.empty()) {
        using version_function = const char *(*)();
        void   *symbol         = dlsym(RTLD_DEFAULT, "ucp_get_version_string");
        void   *marker         = dlsym(RTLD_DEFAULT, "ucs_global_opts");
        Dl_info where;
        if (symbol != nullptr) {
            const auto version = reinterpret_cast<version_function>(symbol);
            std::fprintf(out, "version\t%s\n", version());
        } else {
            error = "it has no libucp beside it";
        }
        if (marker != nullptr && dladdr(marker, &where) != 0 && where.dli_fname != nullptr) {
            const std::string name = fs::path(where.dli_fname).filename().string();
            std::fprintf(out, "suffix\t%s\n", name.substr(name.find(".so")).c_str());
            const std::string plugin = "libuct_nvlink" + name.substr(name.find(".so"));
            fs::path          found;
            for (const auto &place : plugin_folders(modules)) {
                if (found.empty() && access((place / plugin).c_str(), R_OK) == 0) {
                    found = place / plugin;
                }
            }
            report_module(out, "plugin", "libuct_nvlink", found);
            std::fflush(out); // what follows runs code of every plugin
            report_offer(out);
        }
    }
    if (!error.empty()) {
        std::fprintf(out, "error\t%s\n", one_line(error).c_str());
    }
}

std::vector<std::string> split(const std::string &line, char separator)
{
    std::vector<std::string> parts(1);

    for (char c : line) {
        if (c == separator) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

ucx_found examine(const std::string &found_by, const fs::path &ucs)
{
    ucx_found         ucx;
    const std::string text = in_child([&](FILE *out) { look_at_ucx(out, ucs); });

    ucx.found_by = found_by;
    ucx.library  = ucs.string();
    if (text.find("modules\t") == std::string::npos) {
        ucx.error = "loading it ends the process";
    }
    for (const auto &line : split(text, '\n')) {
        auto parts = split(line, '\t');
        parts.resize(4);
        if (parts[0] == "version") {
            ucx.version = parts[1];
        } else if (parts[0] == "suffix") {
            ucx.suffix = parts[1];
        } else if (parts[0] == "error") {
            ucx.error = parts[1];
        } else if (parts[0] == "modules") {
            ucx.module_dir = parts[1];
        } else if (parts[0] == "module") {
            ucx.modules.push_back({parts[1], parts[2], parts[3]});
        } else if (parts[0] == "offer") {
            ucx.offers_nvlink  = true;
            ucx.nvlink_domains = static_cast<unsigned>(std::atoi(parts[1].c_str()));
        } else if (parts[0] == "plugin") {
            ucx.plugin = {parts[1], parts[2], parts[3]};
        }
    }
    return ucx;
}

// Where the loader's search path finds libucs, if it does.
fs::path default_library()
{
    const std::string path = in_child([](FILE *out) {
        Dl_info where;
        void   *handle = dlopen("libucs.so.0", RTLD_LAZY | RTLD_LOCAL);
        void   *symbol = handle == nullptr ? nullptr : dlsym(handle, "ucs_global_opts");
        if (symbol != nullptr && dladdr(symbol, &where) != 0) {
            std::fprintf(out, "%s", where.dli_fname);
        }
    });
    return path;
}

} // namespace

std::vector<ucx_found> find_ucx(const std::string &dir)
{
    std::vector<std::pair<std::string, fs::path>> candidates;
    std::vector<ucx_found>                        found;
    std::set<std::string>                         seen;

    if (!dir.empty()) {
        for (const auto &folder :
             {fs::path(dir), fs::path(dir) / "lib", fs::path(dir) / "libucx/lib"}) {
            candidates.emplace_back("--ucx", find_library(folder, "libucs"));
        }
    } else {
        candidates.emplace_back("the loader's search path", default_library());
        for (const auto &line : split(python_folders(), '\n')) {
            const auto parts = split(line, '\t');
            if (parts.size() == 2) {
                candidates.emplace_back(parts[0], find_library(parts[1], "libucs"));
            }
        }
    }
    for (const auto &[found_by, path] : candidates) {
        std::error_code ignored;
        if (!path.empty() && seen.insert(fs::canonical(path, ignored).string()).second) {
            found.push_back(examine(found_by, path));
        }
    }
    return found;
}

} // namespace nvl
