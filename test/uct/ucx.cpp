// SPDX-License-Identifier: BSD-3-Clause
//
// See ucx.h.
#include "uct/ucx.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace nvl::test {

namespace {

struct loaded {
    ucx_functions table;
    std::string   missing;
};

void *find(void *library, const char *name, std::string *missing)
{
    void *address = library == nullptr ? nullptr : dlsym(library, name);
    if (address == nullptr && missing->empty()) {
        *missing = std::string("UCX has no ") + name;
    }
    return address;
}

void *open(const char *name, std::string *missing)
{
    // Global, as a program that links UCX has it: its components look for it that way.
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr && missing->empty()) {
        *missing = std::string("no UCX: ") + dlerror();
    }
    return library;
}

loaded load()
{
    loaded self;
    void  *ucs = open("libucs.so.0", &self.missing);
    void  *uct = open("libuct.so.0", &self.missing);
#define NVL_UCX(_library, _name, ...) \
    self.table._name =                \
        reinterpret_cast<ucx_functions::_name##_type>(find(_library, #_name, &self.missing));
#include "uct/ucx.def"
#undef NVL_UCX
    return self;
}

const loaded &the_ucx()
{
    static const loaded self = load();
    return self;
}

} // namespace

const ucx_functions &ucx()
{
    if (!the_ucx().missing.empty()) {
        std::fprintf(stderr, "%s\n", the_ucx().missing.c_str());
        std::abort();
    }
    return the_ucx().table;
}

std::string ucx_missing()
{
    return the_ucx().missing;
}

std::string words(ucs_status_t status)
{
    return ucx().ucs_status_string(status);
}

} // namespace nvl::test
