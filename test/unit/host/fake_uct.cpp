// SPDX-License-Identifier: BSD-3-Clause
//
// A libuct of the layout of 1.22 that passes all checks, and, by a macro each, one that fails exactly one.
//   FAKE_1_23, FAKE_1_23_EARLY   the later layouts; FAKE_1_23_SWAPPED has its two new slots the wrong way round
//   FAKE_OPERATIONS=n            number of endpoint operations
//   FAKE_STATISTICS, FAKE_CLASS_SIZE=n    sizes of the base classes
//   FAKE_SHIFTED_SLOTS, FAKE_SHIFTED_MD   wrappers that read the neighbour of their slot
//   FAKE_WILD_LIST, FAKE_SELF_PREFIX, FAKE_NO_SELF     what stands in the list of components
//   FAKE_OLD                     without the functions that came with 1.22

#include "host/abi.h"

#ifndef FAKE_OPERATIONS
#ifdef FAKE_1_23_EARLY
#define FAKE_OPERATIONS 16
#elif defined(FAKE_1_23)
#define FAKE_OPERATIONS 16
#else
#define FAKE_OPERATIONS 15
#endif
#endif

#ifndef FAKE_CLASS_SIZE
#ifdef FAKE_STATISTICS
#define FAKE_CLASS_SIZE (sizeof(uct_base_iface) + 8)
#else
#define FAKE_CLASS_SIZE sizeof(uct_base_iface)
#endif
#endif

#ifndef FAKE_SELF_PREFIX
#define FAKE_SELF_PREFIX "SELF_"
#endif

#ifdef FAKE_SHIFTED_SLOTS
#define FAKE_ESTIMATE_SLOT 2
#else
#define FAKE_ESTIMATE_SLOT 1
#endif

#ifdef FAKE_SHIFTED_MD
#define FAKE_MEM_REG_SLOT 6
#else
#define FAKE_MEM_REG_SLOT 5
#endif

#ifdef FAKE_STATISTICS
#define FAKE_EP_SIZE (sizeof(uct_base_ep) + 8)
#else
#define FAKE_EP_SIZE sizeof(uct_base_ep)
#endif

// The slots are counted here, not taken from abi.h: the binding must agree with somebody else's numbers.
static ucs_status_t call_slot(void *table, unsigned slot, void *object)
{
    auto function = static_cast<ucs_status_t (**)(void *)>(table)[slot];
    return function(object);
}

static ucs_status_t call_iface(uct_iface_h iface, unsigned slot)
{
    void *table = *reinterpret_cast<void **>(reinterpret_cast<char *>(iface) + 400);
    return call_slot(table, slot, iface);
}

static ucs_status_t call_ep(uct_ep_h ep, unsigned slot)
{
    return call_iface(ep->iface, slot);
}

static ucs_status_t call_md(uct_md_h md, unsigned slot)
{
    return call_slot(*reinterpret_cast<void **>(md), slot, md);
}

#define FAKE_EXPORT __attribute__((visibility("default")))

extern "C" {

extern FAKE_EXPORT const char *uct_ep_operation_names[FAKE_OPERATIONS + 1];
FAKE_EXPORT const char        *uct_ep_operation_names[FAKE_OPERATIONS + 1] = {};

FAKE_EXPORT ucs_class_t uct_base_iface_t_class = {"uct_base_iface_t", FAKE_CLASS_SIZE, nullptr,
                                                  nullptr, nullptr};
FAKE_EXPORT ucs_class_t uct_base_ep_t_class    = {"uct_base_ep_t", FAKE_EP_SIZE, nullptr, nullptr,
                                                  nullptr};

// ---- the wrappers ------------------------------------------------------------------------------

FAKE_EXPORT ucs_status_t uct_iface_query_v2(uct_iface_h iface, uct_iface_attr_v2_t *)
{
    return call_iface(iface, 0);
}

FAKE_EXPORT ucs_status_t uct_iface_estimate_perf(uct_iface_h iface, uct_perf_attr_t *)
{
    return call_iface(iface, FAKE_ESTIMATE_SLOT);
}

FAKE_EXPORT ucs_status_t uct_ep_query(uct_ep_h ep, uct_ep_attr_t *)
{
    return call_ep(ep, 3);
}

FAKE_EXPORT ucs_status_t uct_ep_invalidate(uct_ep_h ep, const uct_ep_invalidate_params_t *)
{
    return call_ep(ep, 4);
}

FAKE_EXPORT ucs_status_t uct_ep_connect_to_ep_v2(uct_ep_h ep, const uct_device_addr_t *,
                                                 const uct_ep_addr_t *,
                                                 const uct_ep_connect_to_ep_params_t *)
{
    return call_ep(ep, 5);
}

FAKE_EXPORT int uct_iface_is_reachable_v2(uct_iface_h iface,
                                          const uct_iface_is_reachable_params_t *)
{
    return call_iface(iface, 6);
}

FAKE_EXPORT int uct_ep_is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *)
{
    return call_ep(ep, 7);
}

FAKE_EXPORT ucs_status_t uct_ep_get_device_ep(uct_ep_h ep, uct_device_ep_h *)
{
    return call_ep(ep, 8);
}

#ifndef FAKE_OLD
FAKE_EXPORT ucs_status_t uct_ep_put_sgl_zcopy(uct_ep_h ep, void *const *, const size_t *,
                                              const uct_mem_h *, const uint64_t *,
                                              const uct_rkey_t *, const size_t *, const size_t *,
                                              size_t, uct_completion_t *)
{
    return call_ep(ep, 9);
}
#endif

#if defined(FAKE_1_23) && defined(FAKE_1_23_SWAPPED)
enum { get_sgl_slot = 11, purge_slot = 10 };
#elif defined(FAKE_1_23)
enum { get_sgl_slot = 10, purge_slot = 11 };
#else
enum { get_sgl_slot = -1, purge_slot = 10 };
#endif

#ifdef FAKE_1_23
FAKE_EXPORT ucs_status_t uct_ep_get_sgl_zcopy(uct_ep_h ep, void *const *, const size_t *,
                                              const uct_mem_h *, const uint64_t *,
                                              const uct_rkey_t *, const size_t *, const size_t *,
                                              size_t, uct_completion_t *)
{
    return call_ep(ep, get_sgl_slot);
}

FAKE_EXPORT void uct_md_mem_elem_release(uct_md_h md, void *)
{
    call_md(md, 12);
}
#endif

#if defined(FAKE_1_23) || defined(FAKE_1_23_EARLY)
FAKE_EXPORT ucs_status_t uct_ep_outstanding_purge(uct_ep_h ep, const void *)
{
    return call_ep(ep, purge_slot);
}
#endif

FAKE_EXPORT ucs_status_t uct_md_query_v2(uct_md_h md, uct_md_attr_v2_t *)
{
    return call_md(md, 1);
}

FAKE_EXPORT ucs_status_t uct_md_mem_reg_v2(uct_md_h md, void *, size_t,
                                           const uct_md_mem_reg_params_t *, uct_mem_h *)
{
    return call_md(md, FAKE_MEM_REG_SLOT);
}

FAKE_EXPORT ucs_status_t uct_md_mem_dereg_v2(uct_md_h md, const uct_md_mem_dereg_params_t *)
{
    return call_md(md, 6);
}

#ifndef FAKE_OLD
FAKE_EXPORT ucs_status_t uct_md_mem_query_v2(uct_md_h md, const void *, size_t,
                                             uct_md_mem_attr_v2_t *)
{
    return call_md(md, 7);
}
#endif

FAKE_EXPORT ucs_status_t uct_md_mem_attach(uct_md_h md, const void *, uct_md_mem_attach_params_t *,
                                           uct_mem_h *)
{
    return call_md(md, 9);
}

// ---- the list of components --------------------------------------------------------------------

FAKE_EXPORT ucs_list_link_t uct_components_list;

// As a libuct refers to its libucs.
FAKE_EXPORT const void *fake_uct_needs_ucs();
FAKE_EXPORT const void *fake_uct_needs_ucs()
{
    return &ucs_global_opts;
}

static uct_component self;
static uct_tl        self_transport;

static ucs_status_t query_devices(uct_md_h, uct_tl_device_resource_t **, unsigned *)
{
    return UCS_ERR_NO_DEVICE;
}

static ucs_status_t iface_open(uct_md_h, uct_worker_h, const uct_iface_params_t *,
                               const uct_iface_config_t *, uct_iface_h *)
{
    return UCS_ERR_NO_DEVICE;
}

__attribute__((constructor)) static void fill_components()
{
    static const char name[] = "self";
#ifndef FAKE_NO_SELF
    __builtin_memcpy(self.name, name, sizeof(name));
#else
    self.name[0] = 'x';
#endif
    __builtin_memcpy(self_transport.name, name, sizeof(name));
    self_transport.query_devices = query_devices;
    self_transport.iface_open    = iface_open;
    self_transport.config.prefix = FAKE_SELF_PREFIX;
    self_transport.config.size   = 40;

    self.tl_list.next = self.tl_list.prev = &self_transport.list;
    self_transport.list.next = self_transport.list.prev = &self.tl_list;
    uct_components_list.next = uct_components_list.prev = &self.list;
    self.list.next = self.list.prev = &uct_components_list;
#ifdef FAKE_WILD_LIST
    self.list.next = reinterpret_cast<ucs_list_link_t *>(0x1000);
#endif
}
}
