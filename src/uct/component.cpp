// SPDX-License-Identifier: BSD-3-Clause
//
// The way in: UCX has loaded the plugin and calls ucs_module_global_init. Finds
// out which UCX that is and registers the component and its transport with it.
#include "uct/component.h"

#include <cstring>
#include <mutex>
#include <new>

#include "base/log.h"
#include "uct/iface.h"
#include "uct/md.h"

namespace nvl {

namespace {

ucs_status_t nvl_cm_open(uct_component_t *, uct_worker_h, const uct_cm_config_t *,
                         uct_cm_h *) noexcept
{
    return UCS_ERR_UNSUPPORTED; // no connection manager; the flag for it is not set
}

void list_head_init(ucs_list_link_t *head) noexcept
{
    head->prev = head->next = head;
}

void fill_component(component *self) noexcept
{
    uct_component_t &c = self->super;
    std::strncpy(c.name, component_name, sizeof(c.name) - 1);
    c.query_md_resources = nvl_query_md_resources;
    c.md_open            = nvl_md_open;
    c.cm_open            = nvl_cm_open;
    c.rkey_unpack        = nvl_rkey_unpack;
    c.rkey_ptr           = nvl_rkey_ptr;
    c.rkey_release       = nvl_rkey_release;
    c.rkey_compare       = nvl_rkey_compare;
    c.md_config.name     = "NVLINK memory domain";
    c.md_config.prefix   = "NVLINK_";
    c.md_config.table    = self->rows.md;
    c.md_config.size     = sizeof(md_config);
    c.cm_config.name     = "";
    c.cm_config.prefix   = "";
    c.md_vfs_init        = nvl_md_vfs_init;
    list_head_init(&c.tl_list);
    list_head_init(&c.list);

    uct_tl_t &t = self->transport;
    std::strncpy(t.name, component_name, sizeof(t.name) - 1);
    t.query_devices = nvl_query_devices;
    t.iface_open    = nvl_iface_open;
    t.config.name   = "nvlink transport";
    t.config.prefix = "NVLINK_";
    t.config.table  = self->rows.iface;
    t.config.size   = sizeof(iface_config);
}

ucs_status_t register_with(host_binding *host)
{
    // One UCX calls once; two may call from two threads.
    static std::mutex           mutex;
    std::lock_guard<std::mutex> guard(mutex);
    if (host->component != nullptr) {
        return UCS_OK;
    }

    auto *self = new (std::nothrow) component();
    if (self == nullptr) {
        return UCS_ERR_NO_MEMORY;
    }
    self->host = host;
    for (auto &device : self->sys_devices) {
        device.store(-1, std::memory_order_relaxed);
    }
    config_fill(host->api, &self->rows);
    fill_component(self);
    host->api.uct_tl_register(&self->super, &self->transport);
    host->api.uct_component_register(&self->super);
    host->component = self;
    return UCS_OK;
}

} // namespace

} // namespace nvl

extern "C" __attribute__((visibility("default"))) ucs_status_t ucs_module_global_init(void);

// The one symbol that the plugin exports. An error makes UCX unload the plugin
// and go on without it. The return address tells which UCX is calling.
ucs_status_t ucs_module_global_init(void)
{
    nvl::host_binding *host = nvl::host_bind(__builtin_return_address(0));
    if (host == nullptr) {
        return UCS_ERR_UNSUPPORTED;
    }
    return nvl::register_with(host);
}
