// SPDX-License-Identifier: BSD-3-Clause
//
// host_probe [-g] [-b] [-t] LIBRARY...
// Opens each library as an application would that uses a UCX (-g: RTLD_GLOBAL for the libraries behind it), and
// asks the binding for the UCX behind it; one line each, "bound: ..." or "refused: ...". The tests run this as a
// process of its own, because a library that is loaded once stays. At the end "loaded: N" counts the UCX
// libraries that the binding has brought into the process, which must be none.
//   -b  host_bind, as UCX's loader comes in, instead of host_find; -t  host_find from eight threads at once

#include "host/binding.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <thread>
#include <vector>

namespace {

struct options {
    int  mode    = RTLD_LOCAL;
    bool bind    = false;
    bool threads = false;
};

const char *file_name(const std::string &path)
{
    size_t slash = path.rfind('/');
    return path.c_str() + (slash == std::string::npos ? 0 : slash + 1);
}

size_t count_ucx_libraries()
{
    return nvl::loaded_paths("libucs").size() + nvl::loaded_paths("libuct").size() +
           nvl::loaded_paths("libucp").size();
}

void print_host(const nvl::host_binding &host)
{
    const nvl::ucx_version &version = host.version;
    std::printf("bound: layout %s version %u.%u %s %s\n", host.layout->name, version.major,
                version.minor, file_name(host.libucs.path()), file_name(host.libuct.path()));
}

void find_from_threads(const void *address)
{
    constexpr size_t                 num_threads = 8;
    std::vector<nvl::host_binding *> hosts(num_threads);
    std::vector<std::thread>         threads;
    for (size_t i = 0; i < num_threads; ++i) {
        threads.emplace_back([&hosts, i, address] { hosts[i] = nvl::host_find(address).host; });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (const nvl::host_binding *host : hosts) {
        if (host == nullptr || host != hosts[0]) {
            std::printf("threads: different answers\n");
            return;
        }
    }
    std::printf("threads: one answer\n");
}

void examine(const char *library, const options &how)
{
    void *handle = dlopen(library, RTLD_LAZY | how.mode);
    if (handle == nullptr) {
        std::printf("not loaded: %s\n", dlerror());
        return;
    }

    // UCX's loader is in libucs, so any address there serves for the return address.
    const void *address = dlsym(handle, "ucs_log_dispatch");
    size_t      before  = count_ucx_libraries();
    if (how.threads) {
        find_from_threads(address);
    }

    if (how.bind) {
        nvl::host_binding *host = nvl::host_bind(address);
        std::printf(host == nullptr ? "refused\n" : "bound\n");
    } else {
        nvl::host_bind_result result = nvl::host_find(address);
        if (result.host != nullptr) {
            print_host(*result.host);
            std::printf("again: %s\n",
                        nvl::host_find(address).host == result.host ? "same" : "different");
        } else {
            std::printf("refused: %s\n", result.refusal.c_str());
        }
    }
    std::printf("loaded: %zu\n", count_ucx_libraries() - before);
}

} // namespace

int main(int argc, char **argv)
{
    options how;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "-g") == 0) {
            how.mode = RTLD_GLOBAL;
        } else if (std::strcmp(argv[i], "-l") == 0) {
            how.mode = RTLD_LOCAL;
        } else if (std::strcmp(argv[i], "-b") == 0) {
            how.bind = true;
        } else if (std::strcmp(argv[i], "-t") == 0) {
            how.threads = true;
        } else {
            examine(argv[i], how);
        }
    }
    return 0;
}
