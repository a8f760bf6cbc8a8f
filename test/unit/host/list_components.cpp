// SPDX-License-Identifier: BSD-3-Clause
//
// list_components [-g] LIBUCT...
// Opens each libuct (-g: RTLD_GLOBAL) and prints on one line the components that it has once its loader has run,
// then all UCX libraries in the process. Has no part of the plugin in it: UCX's loader brings that.

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <link.h>

extern "C" {
#include <uct/api/uct.h>
}

namespace {

template<typename Function> Function *function_of(void *library, const char *name)
{
    return reinterpret_cast<Function *>(dlsym(library, name));
}

void list_components(const char *path, int mode)
{
    void *uct = dlopen(path, RTLD_LAZY | mode);
    if (uct == nullptr) {
        std::printf("not loaded: %s\n", dlerror());
        return;
    }

    auto query_all = function_of<decltype(uct_query_components)>(uct, "uct_query_components");
    auto query_one = function_of<decltype(uct_component_query)>(uct, "uct_component_query");
    auto release =
        function_of<decltype(uct_release_component_list)>(uct, "uct_release_component_list");

    uct_component_h *components = nullptr;
    unsigned         count      = 0;
    if (query_all(&components, &count) != UCS_OK) {
        std::printf("no components\n");
        return;
    }

    std::printf("components:");
    for (unsigned i = 0; i < count; ++i) {
        uct_component_attr_t attr = {};
        attr.field_mask           = UCT_COMPONENT_ATTR_FIELD_NAME;
        query_one(components[i], &attr);
        std::printf(" %s", attr.name);
    }
    std::printf("\n");
    release(components);
}

int print_ucx_library(dl_phdr_info *info, size_t, void *)
{
    const char *slash = std::strrchr(info->dlpi_name, '/');
    const char *name  = slash == nullptr ? info->dlpi_name : slash + 1;
    for (const char *prefix : {"libucs", "libuct", "libucp", "libucm"}) {
        if (std::strncmp(name, prefix, std::strlen(prefix)) == 0 &&
            std::strstr(name, "nvlink") == nullptr) {
            std::printf("library: %s\n", info->dlpi_name);
        }
    }
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    int mode = RTLD_LOCAL;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "-g") == 0) {
            mode = RTLD_GLOBAL;
        } else {
            list_components(argv[i], mode);
        }
    }
    dl_iterate_phdr(print_ucx_library, nullptr);
    return 0;
}
