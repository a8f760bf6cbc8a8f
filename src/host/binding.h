// SPDX-License-Identifier: BSD-3-Clause
//
// The UCX that loads the plugin: which one it is, its symbols, and the proof that its internals are those
// of abi.h. src/uct/component.cpp calls host_bind() from ucs_module_global_init and passes the result on
// by reference; everything that calls into UCX does so through host_binding::api.
// May use the dynamic linker and base/log.h; never loads a library.

#ifndef NVLINK_HOST_BINDING_H
#define NVLINK_HOST_BINDING_H

#include "host/abi.h"
#include "host/loaded_object.h"

#include <string>

namespace nvl {

// Typed pointers to everything that symbols.def lists, under UCX's own names.
struct ucx_api {
#define NVL_HOST_FUNCTION(library, need, name)   decltype(&::name) name = nullptr;
#define NVL_HOST_DATA(library, need, type, name) type *name = nullptr;
#include "host/symbols.def"
#undef NVL_HOST_DATA
#undef NVL_HOST_FUNCTION
};

// What differs between the versions that we know. One row of a table in versions.cpp each.
struct ucx_layout {
    const char        *name;
    bool               has_get_sgl_zcopy;     // slot 10 of the internal operations
    bool               has_outstanding_purge; // slot 10 or, behind get_sgl_zcopy, 11
    size_t             num_ep_operations;     // UCT_EP_OP_LAST
    iface_attr_v2_bits attr_bits;
};

struct ucx_version {
    unsigned major   = 0; // 0: no libucp in the process, so nobody to ask
    unsigned minor   = 0;
    unsigned release = 0;
};

struct host_binding {
    ucx_api           api;
    const ucx_layout *layout = nullptr;
    ucx_version       version;
    loaded_object     libucs; // both keep their library loaded
    loaded_object     libuct;

    // For the caller: the component that it has registered with this host, null at first.
    void *component = nullptr;
};

// Why a UCX was refused, in one sentence, or the binding.
struct host_bind_result {
    host_binding *host = nullptr; // never freed: UCX keeps pointers into what is registered with it
    std::string   refusal;
};

// Finds the UCX whose libucs contains `address`, and checks it. The same UCX gives the same binding each
// time, another one in the same process gives another. Logs nothing. May throw std::bad_alloc.
host_bind_result host_find(const void *address);

// For ucs_module_global_init: host_find(return address), with the log of that UCX as our log, one line at
// info on success and one at warn on refusal. Null: return an error to UCX, nothing has been changed.
host_binding *host_bind(const void *return_address) noexcept;

} // namespace nvl

#endif
