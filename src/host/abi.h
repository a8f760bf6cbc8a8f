// SPDX-License-Identifier: BSD-3-Clause
//
// The inside of UCT as an out-of-tree component has to know it: the structures and constants that no
// UCX installs, declared from measured facts (sizes, offsets, names) of v1.22.0 on LP64 machines.
// Global names are UCX's own, so that the handles of the public headers point at these types; what
// differs in later versions stands in namespace nvl with the version in its name. test/abi compares
// every declaration in this file with the debug information of a stock libuct.
// May include UCX's public headers and nothing else; every file that talks to UCX includes this one.

#ifndef NVLINK_HOST_ABI_H
#define NVLINK_HOST_ABI_H

extern "C" {
#include <ucm/api/ucm.h>
#include <ucs/async/async_fwd.h>
#include <ucs/config/global_opts.h>
#include <ucs/config/parser.h>
#include <ucs/datastruct/callbackq.h>
#include <ucs/datastruct/list.h>
#include <ucs/datastruct/mpool.h>
#include <ucs/debug/log_def.h>
#include <ucs/debug/memtrack.h>
#include <ucs/memory/memory_type.h>
#include <ucs/memory/memtype_cache.h>
#include <ucs/sys/stubs.h>
#include <ucs/sys/topo/base/topo.h>
#include <ucs/sys/uid.h>
#include <ucs/type/class.h>
#include <ucs/vfs/base/vfs_obj.h>
#include <uct/api/uct.h>
}

#include <cstddef>
#include <cstdint>
#include <sys/socket.h>
#include <sys/types.h>

extern "C" {

// Named by a typedef alone in UCX.
struct uct_iface_attr_v2_t;
struct uct_md_attr_v2_t;
struct uct_perf_attr_t;
struct uct_ep_invalidate_params_t;

typedef struct uct_component                 uct_component_t;
typedef struct uct_tl                        uct_tl_t;
typedef struct uct_base_iface                uct_base_iface_t;
typedef struct uct_base_ep                   uct_base_ep_t;
typedef struct uct_iface_internal_ops        uct_iface_internal_ops_t;
typedef struct uct_priv_worker               uct_priv_worker_t;
typedef struct uct_worker_progress           uct_worker_progress_t;
typedef struct uct_am_handler                uct_am_handler_t;
typedef struct uct_tl_device_resource        uct_tl_device_resource_t;
typedef struct uct_md_mem_attr_v2            uct_md_mem_attr_v2_t;
typedef struct uct_md_mem_reg_params         uct_md_mem_reg_params_t;
typedef struct uct_md_mem_dereg_params       uct_md_mem_dereg_params_t;
typedef struct uct_md_mkey_pack_params       uct_md_mkey_pack_params_t;
typedef struct uct_md_mem_attach_params      uct_md_mem_attach_params_t;
typedef struct uct_rkey_unpack_params        uct_rkey_unpack_params_t;
typedef struct uct_rkey_compare_params       uct_rkey_compare_params_t;
typedef struct uct_iface_is_reachable_params uct_iface_is_reachable_params_t;
typedef struct uct_ep_is_connected_params    uct_ep_is_connected_params_t;
typedef struct uct_ep_connect_to_ep_params   uct_ep_connect_to_ep_params_t;

// ---- field masks and flags ---------------------------------------------------------------------

enum : uint64_t {
    UCT_PERF_ATTR_FIELD_OPERATION          = 0x1,
    UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE  = 0x2,
    UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE = 0x4,
    UCT_PERF_ATTR_FIELD_LOCAL_SYS_DEVICE   = 0x8,
    UCT_PERF_ATTR_FIELD_REMOTE_SYS_DEVICE  = 0x10,
    UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD  = 0x20,
    UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD = 0x40,
    UCT_PERF_ATTR_FIELD_RECV_OVERHEAD      = 0x80,
    UCT_PERF_ATTR_FIELD_BANDWIDTH          = 0x100,
    UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH     = 0x200,
    UCT_PERF_ATTR_FIELD_LATENCY            = 0x400,
    UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS   = 0x800,
    UCT_PERF_ATTR_FIELD_FLAGS              = 0x1000
};

enum : uint64_t { UCT_PERF_ATTR_FLAGS_TX_RX_SHARED = 0x1 };

enum : uint64_t {
    UCT_MD_ATTR_FIELD_MAX_ALLOC                 = 0x1,
    UCT_MD_ATTR_FIELD_MAX_REG                   = 0x2,
    UCT_MD_ATTR_FIELD_FLAGS                     = 0x4,
    UCT_MD_ATTR_FIELD_REG_MEM_TYPES             = 0x8,
    UCT_MD_ATTR_FIELD_REG_NONBLOCK_MEM_TYPES    = 0x10,
    UCT_MD_ATTR_FIELD_CACHE_MEM_TYPES           = 0x20,
    UCT_MD_ATTR_FIELD_DETECT_MEM_TYPES          = 0x40,
    UCT_MD_ATTR_FIELD_ALLOC_MEM_TYPES           = 0x80,
    UCT_MD_ATTR_FIELD_ACCESS_MEM_TYPES          = 0x100,
    UCT_MD_ATTR_FIELD_DMABUF_MEM_TYPES          = 0x200,
    UCT_MD_ATTR_FIELD_REG_COST                  = 0x400,
    UCT_MD_ATTR_FIELD_COMPONENT_NAME            = 0x800,
    UCT_MD_ATTR_FIELD_RKEY_PACKED_SIZE          = 0x1000,
    UCT_MD_ATTR_FIELD_LOCAL_CPUS                = 0x2000,
    UCT_MD_ATTR_FIELD_EXPORTED_MKEY_PACKED_SIZE = 0x4000,
    UCT_MD_ATTR_FIELD_GLOBAL_ID                 = 0x8000,
    UCT_MD_ATTR_FIELD_REG_ALIGNMENT             = 0x10000,
    UCT_MD_ATTR_FIELD_GVA_MEM_TYPES             = 0x20000,
    UCT_MD_ATTR_FIELD_REQUIRED_MEM_FLAGS        = 0x40000
};

// Continue the UCT_MD_FLAG_* of the public header.
enum : uint64_t {
    UCT_MD_FLAG_V2_FIRST       = 0x800,
    UCT_MD_FLAG_INVALIDATE_RMA = 0x800,
    UCT_MD_FLAG_INVALIDATE_AMO = 0x1000,
    UCT_MD_FLAG_MEMTYPE_COPY   = 0x2000
};

enum : uint64_t {
    UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE      = 0x1,
    UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV       = 0x2,
    UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS  = 0x4,
    UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH  = 0x8,
    UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD     = 0x10,
    UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET = 0x20,
    UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS     = 0x40
};

enum : uint64_t {
    UCT_MD_MEM_REG_FIELD_FLAGS         = 0x1,
    UCT_MD_MEM_REG_FIELD_DMABUF_FD     = 0x2,
    UCT_MD_MEM_REG_FIELD_DMABUF_OFFSET = 0x4,
    UCT_MD_MEM_REG_FIELD_MEM_TYPE      = 0x8
};

enum : uint64_t {
    UCT_MD_MEM_DEREG_FIELD_MEMH       = 0x1,
    UCT_MD_MEM_DEREG_FIELD_FLAGS      = 0x2,
    UCT_MD_MEM_DEREG_FIELD_COMPLETION = 0x4
};

enum : unsigned { UCT_MD_MEM_DEREG_FLAG_INVALIDATE = 0x1 };

enum : uint64_t { UCT_MD_MKEY_PACK_FIELD_FLAGS = 0x1 };

enum : unsigned {
    UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA = 0x1,
    UCT_MD_MKEY_PACK_FLAG_INVALIDATE_AMO = 0x2,
    UCT_MD_MKEY_PACK_FLAG_EXPORT         = 0x4
};

enum : uint64_t { UCT_MD_MEM_ATTACH_FIELD_FLAGS = 0x1, UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE = 0x2 };

enum : uint64_t { UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS = 0x1 };

enum : uint64_t { UCT_RKEY_UNPACK_FIELD_SYS_DEVICE = 0x1 };

enum : uint64_t {
    UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR        = 0x1,
    UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR         = 0x2,
    UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING        = 0x4,
    UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING_LENGTH = 0x8,
    UCT_IFACE_IS_REACHABLE_FIELD_SCOPE              = 0x10,
    UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR_LENGTH = 0x20,
    UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH  = 0x40
};

enum : uint64_t {
    UCT_EP_ATTR_FIELD_LOCAL_SOCKADDR  = 0x1,
    UCT_EP_ATTR_FIELD_REMOTE_SOCKADDR = 0x2,
    UCT_EP_ATTR_FIELD_TX_TOKEN        = 0x4,
    UCT_EP_ATTR_FIELD_RX_TOKEN        = 0x8
};

enum : uint64_t {
    UCT_EP_CONNECT_TO_EP_PARAM_FIELD_DEVICE_ADDR_LENGTH = 0x1,
    UCT_EP_CONNECT_TO_EP_PARAM_FIELD_EP_ADDR_LENGTH     = 0x2
};

enum : uint64_t {
    UCT_EP_IS_CONNECTED_FIELD_DEVICE_ADDR = 0x1,
    UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR  = 0x2,
    UCT_EP_IS_CONNECTED_FIELD_EP_ADDR     = 0x4
};

// Up to ATOMIC_FETCH the numbers hold in every version; 1.23 puts FLUSH where 1.22 has LAST.
typedef enum uct_ep_operation {
    UCT_EP_OP_AM_SHORT     = 0,
    UCT_EP_OP_AM_BCOPY     = 1,
    UCT_EP_OP_AM_ZCOPY     = 2,
    UCT_EP_OP_PUT_SHORT    = 3,
    UCT_EP_OP_PUT_BCOPY    = 4,
    UCT_EP_OP_PUT_ZCOPY    = 5,
    UCT_EP_OP_GET_SHORT    = 6,
    UCT_EP_OP_GET_BCOPY    = 7,
    UCT_EP_OP_GET_ZCOPY    = 8,
    UCT_EP_OP_EAGER_SHORT  = 9,
    UCT_EP_OP_EAGER_BCOPY  = 10,
    UCT_EP_OP_EAGER_ZCOPY  = 11,
    UCT_EP_OP_RNDV_ZCOPY   = 12,
    UCT_EP_OP_ATOMIC_POST  = 13,
    UCT_EP_OP_ATOMIC_FETCH = 14,
    UCT_EP_OP_LAST         = 15
} uct_ep_operation_t;

typedef enum {
    UCT_IFACE_REACHABILITY_SCOPE_DEVICE  = 0,
    UCT_IFACE_REACHABILITY_SCOPE_NETWORK = 1
} uct_iface_reachability_scope_t;

// ---- what UCP and UCT pass to a component ------------------------------------------------------

struct uct_md_attr_v2_t {
    uint64_t          field_mask;
    uint64_t          max_alloc;
    size_t            max_reg;
    uint64_t          flags;
    uint64_t          reg_mem_types;
    uint64_t          reg_nonblock_mem_types;
    uint64_t          cache_mem_types;
    uint64_t          gva_mem_types;
    uint64_t          detect_mem_types;
    uint64_t          alloc_mem_types;
    uint64_t          access_mem_types;
    uint64_t          dmabuf_mem_types;
    ucs_linear_func_t reg_cost;
    char              component_name[UCT_COMPONENT_NAME_MAX];
    size_t            rkey_packed_size;
    ucs_cpu_set_t     local_cpus;
    size_t            exported_mkey_packed_size;
    char              global_id[UCT_MD_GLOBAL_ID_MAX];
    size_t            reg_alignment;
    uint8_t           required_mem_flags;
};

struct uct_md_mem_attr_v2 {
    uint64_t          field_mask;
    ucs_memory_type_t mem_type;
    ucs_sys_device_t  sys_dev;
    void             *base_address;
    size_t            alloc_length;
    int               dmabuf_fd;
    size_t            dmabuf_offset;
    uint8_t           mem_flags;
};

struct uct_md_mem_reg_params {
    uint64_t          field_mask;
    uint64_t          flags;
    int               dmabuf_fd;
    size_t            dmabuf_offset;
    ucs_memory_type_t mem_type;
};

struct uct_md_mem_dereg_params {
    uint64_t          field_mask;
    unsigned          flags;
    uct_mem_h         memh;
    uct_completion_t *comp;
};

struct uct_md_mkey_pack_params {
    uint64_t field_mask;
    unsigned flags;
};

struct uct_md_mem_attach_params {
    uint64_t field_mask;
    uint64_t flags;
    size_t   mkey_size;
};

struct uct_rkey_unpack_params {
    uint64_t         field_mask;
    ucs_sys_device_t sys_device;
};

struct uct_rkey_compare_params {
    uint64_t field_mask;
};

struct uct_perf_attr_t {
    uint64_t            field_mask;
    uct_ep_operation_t  operation;
    ucs_memory_type_t   local_memory_type;
    ucs_memory_type_t   remote_memory_type;
    ucs_sys_device_t    local_sys_device;
    ucs_sys_device_t    remote_sys_device;
    double              send_pre_overhead;
    double              send_post_overhead;
    double              recv_overhead;
    uct_ppn_bandwidth_t bandwidth;
    uct_ppn_bandwidth_t path_bandwidth;
    ucs_linear_func_t   latency;
    size_t              max_inflight_eps;
    uint64_t            flags;
};

struct uct_iface_is_reachable_params {
    uint64_t                       field_mask;
    const uct_device_addr_t       *device_addr;
    const uct_iface_addr_t        *iface_addr;
    char                          *info_string;
    size_t                         info_string_length;
    uct_iface_reachability_scope_t scope;
    size_t                         device_addr_length;
    size_t                         iface_addr_length;
};

// As in 1.22; 1.23 is nvl::iface_attr_v2_1_23 with other mask bits: write by nvl::iface_attr_v2_ref.
struct uct_iface_attr_v2_t {
    uint64_t field_mask;
    size_t   max_put_sgl_zcopy_count;
    struct {
        uint64_t flags;
    } cap;
    size_t      tx_token_length;
    size_t      rx_token_length;
    const void *tx_token;
    void       *rx_token;
};

// As in 1.22; 1.23 ends before rx_token: write that field only when its mask bit is set.
struct uct_ep_attr {
    uint64_t                field_mask;
    struct sockaddr_storage local_address;
    struct sockaddr_storage remote_address;
    void                   *tx_token;
    void                   *rx_token;
};

struct uct_ep_invalidate_params_t {
    uint64_t field_mask;
};

struct uct_ep_connect_to_ep_params {
    uint64_t field_mask;
    size_t   device_addr_length;
    size_t   ep_addr_length;
};

struct uct_ep_is_connected_params {
    uint64_t                 field_mask;
    const uct_device_addr_t *device_addr;
    const uct_iface_addr_t  *iface_addr;
    const uct_ep_addr_t     *ep_addr;
};

// ---- memory domain -----------------------------------------------------------------------------

struct uct_md_config {
    char __dummy;
};

// As in 1.22; a component hands over nvl::md_ops, which has the slots of 1.23 as well.
struct uct_md_ops {
    void (*close)(uct_md_h md);
    ucs_status_t (*query)(uct_md_h md, uct_md_attr_v2_t *attr);
    ucs_status_t (*mem_alloc)(uct_md_h md, size_t *length_p, void **address_p,
                              ucs_memory_type_t mem_type, ucs_sys_device_t sys_dev, unsigned flags,
                              const char *name, uct_mem_h *memh_p);
    ucs_status_t (*mem_free)(uct_md_h md, uct_mem_h memh);
    ucs_status_t (*mem_advise)(uct_md_h md, uct_mem_h memh, void *address, size_t length,
                               unsigned advice);
    ucs_status_t (*mem_reg)(uct_md_h md, void *address, size_t length,
                            const uct_md_mem_reg_params_t *params, uct_mem_h *memh_p);
    ucs_status_t (*mem_dereg)(uct_md_h md, const uct_md_mem_dereg_params_t *params);
    ucs_status_t (*mem_query)(uct_md_h md, const void *address, size_t length,
                              uct_md_mem_attr_v2_t *attr);
    ucs_status_t (*mkey_pack)(uct_md_h md, uct_mem_h memh, void *address, size_t length,
                              const uct_md_mkey_pack_params_t *params, void *mkey_buffer);
    ucs_status_t (*mem_attach)(uct_md_h md, const void *mkey_buffer,
                               uct_md_mem_attach_params_t *params, uct_mem_h *memh_p);
    ucs_status_t (*detect_memory_type)(uct_md_h md, const void *address, size_t length,
                                       ucs_memory_type_t *mem_type_p);
    // 1.23 passes one more argument, void **: a function that ignores it serves both.
    ucs_status_t (*mem_elem_pack)(uct_md_h md, uct_mem_h memh, uct_rkey_t rkey,
                                  uct_device_mem_elem_t *mem_elem_p);
};

struct uct_md {
    uct_md_ops_t    *ops;
    uct_component_t *component;
};

// ---- component and transport -------------------------------------------------------------------

struct uct_component {
    char name[UCT_COMPONENT_NAME_MAX];
    ucs_status_t (*query_md_resources)(uct_component_t         *component,
                                       uct_md_resource_desc_t **resources_p,
                                       unsigned                *num_resources_p);
    ucs_status_t (*md_open)(uct_component_t *component, const char *md_name,
                            const uct_md_config_t *config, uct_md_h *md_p);
    ucs_status_t (*cm_open)(uct_component_t *component, uct_worker_h worker,
                            const uct_cm_config_t *config, uct_cm_h *cm_p);
    ucs_status_t (*rkey_unpack)(uct_component_t *component, const void *rkey_buffer,
                                const uct_rkey_unpack_params_t *params, uct_rkey_t *rkey_p,
                                void **handle_p);
    ucs_status_t (*rkey_ptr)(uct_component_t *component, uct_rkey_t rkey, void *handle,
                             uint64_t remote_addr, void **local_addr_p);
    ucs_status_t (*rkey_release)(uct_component_t *component, uct_rkey_t rkey, void *handle);
    ucs_status_t (*rkey_compare)(uct_component_t *component, uct_rkey_t rkey1, uct_rkey_t rkey2,
                                 const uct_rkey_compare_params_t *params, int *result);
    ucs_config_global_list_entry_t md_config;
    ucs_config_global_list_entry_t cm_config;
    ucs_list_link_t                tl_list;
    ucs_list_link_t                list;
    uint64_t                       flags;
    void (*md_vfs_init)(uct_md_h md);
};

struct uct_tl_device_resource {
    char              name[UCT_DEVICE_NAME_MAX];
    uct_device_type_t type;
    ucs_sys_device_t  sys_device;
};

struct uct_tl {
    char name[UCT_TL_NAME_MAX];
    ucs_status_t (*query_devices)(uct_md_h md, uct_tl_device_resource_t **devices_p,
                                  unsigned *num_devices_p);
    ucs_status_t (*iface_open)(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
                               const uct_iface_config_t *config, uct_iface_h *iface_p);
    ucs_config_global_list_entry_t config;
    ucs_list_link_t                list;
};

// ---- interface and endpoint --------------------------------------------------------------------

// As in 1.22; a component hands over nvl::iface_internal_ops, which has the slots of 1.23 as well.
struct uct_iface_internal_ops {
    ucs_status_t (*iface_query_v2)(uct_iface_h iface, uct_iface_attr_v2_t *attr);
    ucs_status_t (*iface_estimate_perf)(uct_iface_h iface, uct_perf_attr_t *attr);
    void (*iface_vfs_refresh)(uct_iface_h iface);
    ucs_status_t (*ep_query)(uct_ep_h ep, uct_ep_attr_t *attr);
    ucs_status_t (*ep_invalidate)(uct_ep_h ep, const uct_ep_invalidate_params_t *params);
    ucs_status_t (*ep_connect_to_ep_v2)(uct_ep_h ep, const uct_device_addr_t *device_addr,
                                        const uct_ep_addr_t                 *ep_addr,
                                        const uct_ep_connect_to_ep_params_t *params);
    int (*iface_is_reachable_v2)(uct_iface_h iface, const uct_iface_is_reachable_params_t *params);
    int (*ep_is_connected)(uct_ep_h ep, const uct_ep_is_connected_params_t *params);
    ucs_status_t (*ep_get_device_ep)(uct_ep_h ep, uct_device_ep_h *device_ep_p);
    ucs_status_t (*ep_put_sgl_zcopy)(uct_ep_h ep, void *const *buffers, const size_t *lengths,
                                     const uct_mem_h *memhs, const uint64_t *remote_addrs,
                                     const uct_rkey_t *rkeys, const size_t *counts,
                                     const size_t *strides, size_t count, uct_completion_t *comp);
};

struct uct_priv_worker {
    uct_worker_t         super;
    ucs_async_context_t *async;
    ucs_thread_mode_t    thread_mode;
    ucs_list_link_t      tl_data;
};

struct uct_worker_progress {
    uct_worker_cb_id_t id;
    uint32_t           refcount;
};

struct uct_am_handler {
    uct_am_callback_t cb;
    void             *arg;
    uint32_t          flags;
};

struct uct_iface_config {
    struct {
        uct_alloc_method_t *methods;
        unsigned            count;
    } alloc_methods;
    int    failure;
    size_t max_num_eps;
};

struct uct_base_iface {
    uct_iface_t               super;
    uct_iface_internal_ops_t *internal_ops;
    uct_md_h                  md;
    uct_priv_worker_t        *worker;
    uct_am_handler_t          am[UCT_AM_ID_MAX];
    uct_am_tracer_t           am_tracer;
    void                     *am_tracer_arg;
    uct_error_handler_t       err_handler;
    void                     *err_handler_arg;
    uint32_t                  err_handler_flags;
    uct_worker_progress_t     prog;
    unsigned                  progress_flags;
    struct {
        unsigned           num_alloc_methods;
        uct_alloc_method_t alloc_methods[UCT_ALLOC_METHOD_LAST];
        ucs_log_level_t    failure_level;
        size_t             max_num_eps;
    } config;
};

struct uct_base_ep {
    uct_ep_t super;
};

// ---- functions and data that the public headers do not declare ---------------------------------
// Never linked against: symbols.def takes their types by decltype, binding finds their addresses.

extern ucs_list_link_t    uct_components_list;
extern ucs_config_field_t uct_iface_config_table[];
extern ucs_config_field_t uct_md_config_table[];
extern ucs_class_t        uct_iface_t_class;
extern ucs_class_t        uct_ep_t_class;
extern ucs_class_t        uct_base_iface_t_class;
extern ucs_class_t        uct_base_ep_t_class;

void uct_component_register(uct_component_t *component);
void uct_component_unregister(uct_component_t *component);
void uct_tl_register(uct_component_t *component, uct_tl_t *tl);
void uct_tl_unregister(uct_tl_t *tl);

// The two constructors of UCS's class system: cls is the host's own class object.
ucs_status_t uct_base_iface_t_init(uct_base_iface_t *self, ucs_class_t *cls, int *init_count,
                                   uct_iface_ops_t *ops, uct_iface_internal_ops_t *internal_ops,
                                   uct_md_h md, uct_worker_h worker,
                                   const uct_iface_params_t *params,
                                   const uct_iface_config_t *config);
ucs_status_t uct_base_ep_t_init(uct_base_ep_t *self, ucs_class_t *cls, int *init_count,
                                uct_base_iface_t *iface);

void         uct_base_iface_query(uct_base_iface_t *iface, uct_iface_attr_t *attr);
ucs_status_t uct_iface_base_query_v2(uct_iface_h iface, uct_iface_attr_v2_t *attr);
ucs_status_t uct_base_iface_estimate_perf(uct_iface_h iface, uct_perf_attr_t *attr);
int          uct_base_iface_is_reachable(uct_iface_h iface, const uct_device_addr_t *device_addr,
                                         const uct_iface_addr_t *iface_addr);
int          uct_iface_is_reachable_params_valid(const uct_iface_is_reachable_params_t *params,
                                                 uint64_t                               flags);
int  uct_iface_is_reachable_params_addrs_valid(const uct_iface_is_reachable_params_t *params);
void uct_iface_fill_info_str_buf(const uct_iface_is_reachable_params_t *params, const char *format,
                                 ...) __attribute__((format(printf, 2, 3)));
void uct_base_iface_progress_enable(uct_iface_h iface, unsigned flags);
void uct_base_iface_progress_enable_cb(uct_base_iface_t *iface, ucs_callback_t cb, unsigned flags);
void uct_base_iface_progress_disable(uct_iface_h iface, unsigned flags);
ucs_status_t uct_base_iface_flush(uct_iface_h iface, unsigned flags, uct_completion_t *comp);
ucs_status_t uct_base_iface_fence(uct_iface_h iface, unsigned flags);
ucs_status_t uct_base_ep_flush(uct_ep_h ep, unsigned flags, uct_completion_t *comp);
ucs_status_t uct_base_ep_fence(uct_ep_h ep, unsigned flags);
int          uct_base_ep_is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *params);
ucs_status_t uct_base_ep_am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *iov, size_t iovcnt);
ucs_status_t uct_iface_handle_ep_err(uct_iface_h iface, uct_ep_h ep, ucs_status_t status);
ucs_status_t uct_single_device_resource(uct_md_h md, const char *dev_name,
                                        uct_device_type_t dev_type, ucs_sys_device_t sys_device,
                                        uct_tl_device_resource_t **devices_p,
                                        unsigned                  *num_devices_p);

ucs_status_t uct_md_query_single_md_resource(uct_component_t         *component,
                                             uct_md_resource_desc_t **resources_p,
                                             unsigned                *num_resources_p);
ucs_status_t uct_md_query_empty_md_resource(uct_md_resource_desc_t **resources_p,
                                            unsigned                *num_resources_p);
void         uct_md_base_md_query(uct_md_attr_v2_t *attr);
ucs_status_t uct_base_rkey_compare(uct_component_t *component, uct_rkey_t rkey1, uct_rkey_t rkey2,
                                   const uct_rkey_compare_params_t *params, int *result);
void         uct_md_vfs_init(uct_component_h component, uct_md_h md, const char *md_name);
void         uct_iface_vfs_set_dirty(uct_iface_h iface);

// Thin wrappers, called by the binding alone: on marker objects, to see which slot they read.
ucs_status_t uct_iface_query_v2(uct_iface_h iface, uct_iface_attr_v2_t *attr);
ucs_status_t uct_iface_estimate_perf(uct_iface_h iface, uct_perf_attr_t *attr);
int uct_iface_is_reachable_v2(uct_iface_h iface, const uct_iface_is_reachable_params_t *params);
ucs_status_t uct_ep_query(uct_ep_h ep, uct_ep_attr_t *attr);
ucs_status_t uct_ep_invalidate(uct_ep_h ep, const uct_ep_invalidate_params_t *params);
ucs_status_t uct_ep_connect_to_ep_v2(uct_ep_h ep, const uct_device_addr_t *device_addr,
                                     const uct_ep_addr_t                 *ep_addr,
                                     const uct_ep_connect_to_ep_params_t *params);
int          uct_ep_is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *params);
ucs_status_t uct_ep_get_device_ep(uct_ep_h ep, uct_device_ep_h *device_ep_p);
ucs_status_t uct_ep_put_sgl_zcopy(uct_ep_h ep, void *const *buffers, const size_t *lengths,
                                  const uct_mem_h *memhs, const uint64_t *remote_addrs,
                                  const uct_rkey_t *rkeys, const size_t *counts,
                                  const size_t *strides, size_t count, uct_completion_t *comp);
ucs_status_t uct_ep_get_sgl_zcopy(uct_ep_h ep, void *const *buffers, const size_t *lengths,
                                  const uct_mem_h *memhs, const uint64_t *remote_addrs,
                                  const uct_rkey_t *rkeys, const size_t *counts,
                                  const size_t *strides, size_t count, uct_completion_t *comp);
ucs_status_t uct_ep_outstanding_purge(uct_ep_h ep, const void *params);
ucs_status_t uct_md_query_v2(uct_md_h md, uct_md_attr_v2_t *attr);
ucs_status_t uct_md_mem_reg_v2(uct_md_h md, void *address, size_t length,
                               const uct_md_mem_reg_params_t *params, uct_mem_h *memh_p);
ucs_status_t uct_md_mem_dereg_v2(uct_md_h md, const uct_md_mem_dereg_params_t *params);
ucs_status_t uct_md_mem_query_v2(uct_md_h md, const void *address, size_t length,
                                 uct_md_mem_attr_v2_t *attr);
ucs_status_t uct_md_mem_attach(uct_md_h md, const void *mkey_buffer,
                               uct_md_mem_attach_params_t *params, uct_mem_h *memh_p);
void         uct_md_mem_elem_release(uct_md_h md, void *mem_elem);

// ---- UCS -----------------------------------------------------------------------------------------

typedef uint32_t ucs_sys_ns_t;

typedef enum {
    UCS_SYS_NS_TYPE_IPC  = 0,
    UCS_SYS_NS_TYPE_MNT  = 1,
    UCS_SYS_NS_TYPE_NET  = 2,
    UCS_SYS_NS_TYPE_PID  = 3,
    UCS_SYS_NS_TYPE_USER = 4,
    UCS_SYS_NS_TYPE_UTS  = 5,
    UCS_SYS_NS_TYPE_LAST = 6
} ucs_sys_namespace_type_t;

void         *ucs_malloc(size_t size, const char *name);
void         *ucs_calloc(size_t count, size_t size, const char *name);
void         *ucs_realloc(void *ptr, size_t size, const char *name);
int           ucs_posix_memalign(void **ptr_p, size_t alignment, size_t size, const char *name);
void          ucs_free(void *ptr);
uint64_t      ucs_machine_guid(void);
uint64_t      ucs_generate_uuid(uint64_t seed);
ucs_sys_ns_t  ucs_sys_get_ns(ucs_sys_namespace_type_t type);
ucs_sys_ns_t  ucs_sys_get_default_ns(ucs_sys_namespace_type_t type);
int           ucs_sys_ns_is_default(ucs_sys_namespace_type_t type);
unsigned long ucs_sys_get_proc_create_time(pid_t pid);
ucs_status_t  ucs_async_eventfd_create(int *fd_p);
void          ucs_async_eventfd_destroy(int fd);
ucs_status_t  ucs_async_eventfd_poll(int fd);
ucs_status_t  ucs_async_eventfd_signal(int fd);
}

// ---- later versions ----------------------------------------------------------------------------

namespace nvl {

// 1.23 appends to the table; a 1.22 host never looks past the slots that it knows.
struct md_ops : uct_md_ops {
    void (*mem_elem_release)(uct_md_h md, void *mem_elem);
};

// In the first snapshots of 1.23 the second slot does not exist and the first one means
// ep_outstanding_purge: fill ep_get_sgl_zcopy only where ucx_layout::has_get_sgl_zcopy says so, and
// leave both to functions that refuse otherwise.
struct iface_internal_ops : uct_iface_internal_ops {
    ucs_status_t (*ep_get_sgl_zcopy)(uct_ep_h ep, void *const *buffers, const size_t *lengths,
                                     const uct_mem_h *memhs, const uint64_t *remote_addrs,
                                     const uct_rkey_t *rkeys, const size_t *counts,
                                     const size_t *strides, size_t count, uct_completion_t *comp);
    ucs_status_t (*ep_outstanding_purge)(uct_ep_h ep, const void *params);
};

struct iface_attr_v2_1_23 {
    uint64_t field_mask;
    size_t   max_put_sgl_zcopy_count;
    size_t   max_get_sgl_zcopy_count;
    struct {
        uint64_t flags;
    } cap;
    size_t      tx_token_length;
    size_t      rx_token_length;
    const void *tx_token;
    void       *rx_token;
};

// Mask bits of uct_iface_attr_v2_t and its capability flags, which 1.23 renumbered. Macros in UCX
// or of two values, so they cannot keep UCX's names.
struct iface_attr_v2_bits {
    uint64_t max_put_sgl_zcopy_count;
    uint64_t max_get_sgl_zcopy_count;
    uint64_t cap_flags;
    uint64_t tx_token_length;
    uint64_t rx_token_length;
    uint64_t tx_token;
    uint64_t rx_token;
    uint64_t flag_put_sgl_zcopy;
    uint64_t flag_get_sgl_zcopy;
    uint64_t flag_query_token;
};

constexpr iface_attr_v2_bits iface_attr_v2_bits_1_22 = {0x1,  0,    0x2, 0x4, 0x8,
                                                        0x10, 0x20, 0x1, 0,   0x2};
constexpr iface_attr_v2_bits iface_attr_v2_bits_1_23 = {0x1,  0x2,  0x4, 0x8, 0x10,
                                                        0x20, 0x40, 0x1, 0x2, 0x4};

// ---- the facts, once more, for the compiler ----------------------------------------------------

#define NVL_ABI_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has changed size")
#define NVL_ABI_AT(type, member, at) \
    static_assert(offsetof(type, member) == (at), #type "::" #member " has moved")

NVL_ABI_SIZE(uct_component, 232);
NVL_ABI_AT(uct_component, query_md_resources, 16);
NVL_ABI_AT(uct_component, rkey_compare, 64);
NVL_ABI_AT(uct_component, md_config, 72);
NVL_ABI_AT(uct_component, cm_config, 128);
NVL_ABI_AT(uct_component, tl_list, 184);
NVL_ABI_AT(uct_component, list, 200);
NVL_ABI_AT(uct_component, flags, 216);
NVL_ABI_AT(uct_component, md_vfs_init, 224);
NVL_ABI_SIZE(uct_tl, 104);
NVL_ABI_AT(uct_tl, query_devices, 16);
NVL_ABI_AT(uct_tl, iface_open, 24);
NVL_ABI_AT(uct_tl, config, 32);
NVL_ABI_AT(uct_tl, list, 88);
NVL_ABI_SIZE(uct_md, 16);
NVL_ABI_SIZE(uct_md_ops, 96);
NVL_ABI_AT(uct_md_ops, mem_reg, 40);
NVL_ABI_AT(uct_md_ops, mem_query, 56);
NVL_ABI_AT(uct_md_ops, mkey_pack, 64);
NVL_ABI_AT(uct_md_ops, detect_memory_type, 80);
NVL_ABI_AT(uct_md_ops, mem_elem_pack, 88);
NVL_ABI_SIZE(md_ops, 104);
NVL_ABI_SIZE(uct_iface_ops_t, 400);
NVL_ABI_SIZE(uct_iface_internal_ops, 80);
NVL_ABI_AT(uct_iface_internal_ops, iface_estimate_perf, 8);
NVL_ABI_AT(uct_iface_internal_ops, ep_invalidate, 32);
NVL_ABI_AT(uct_iface_internal_ops, iface_is_reachable_v2, 48);
NVL_ABI_AT(uct_iface_internal_ops, ep_get_device_ep, 64);
NVL_ABI_AT(uct_iface_internal_ops, ep_put_sgl_zcopy, 72);
NVL_ABI_SIZE(iface_internal_ops, 96);
NVL_ABI_SIZE(uct_iface_t, 400);
NVL_ABI_SIZE(uct_base_iface, 1280);
NVL_ABI_AT(uct_base_iface, internal_ops, 400);
NVL_ABI_AT(uct_base_iface, md, 408);
NVL_ABI_AT(uct_base_iface, worker, 416);
NVL_ABI_AT(uct_base_iface, am, 424);
NVL_ABI_AT(uct_base_iface, am_tracer, 1192);
NVL_ABI_AT(uct_base_iface, err_handler, 1208);
NVL_ABI_AT(uct_base_iface, err_handler_flags, 1224);
NVL_ABI_AT(uct_base_iface, prog, 1228);
NVL_ABI_AT(uct_base_iface, progress_flags, 1236);
NVL_ABI_AT(uct_base_iface, config, 1240);
NVL_ABI_AT(uct_base_iface, config.failure_level, 1264);
NVL_ABI_AT(uct_base_iface, config.max_num_eps, 1272);
NVL_ABI_SIZE(uct_ep_t, 8);
NVL_ABI_SIZE(uct_base_ep, 8);
NVL_ABI_SIZE(uct_iface_config, 32);
NVL_ABI_AT(uct_iface_config, failure, 16);
NVL_ABI_AT(uct_iface_config, max_num_eps, 24);
NVL_ABI_SIZE(uct_md_config, 1);
NVL_ABI_SIZE(uct_md_attr_v2_t, 544);
NVL_ABI_AT(uct_md_attr_v2_t, reg_cost, 96);
NVL_ABI_AT(uct_md_attr_v2_t, rkey_packed_size, 128);
NVL_ABI_AT(uct_md_attr_v2_t, local_cpus, 136);
NVL_ABI_AT(uct_md_attr_v2_t, global_id, 272);
NVL_ABI_AT(uct_md_attr_v2_t, reg_alignment, 528);
NVL_ABI_AT(uct_md_attr_v2_t, required_mem_flags, 536);
NVL_ABI_SIZE(uct_md_mem_attr_v2, 56);
NVL_ABI_AT(uct_md_mem_attr_v2, sys_dev, 12);
NVL_ABI_AT(uct_md_mem_attr_v2, base_address, 16);
NVL_ABI_AT(uct_md_mem_attr_v2, dmabuf_offset, 40);
NVL_ABI_AT(uct_md_mem_attr_v2, mem_flags, 48);
NVL_ABI_SIZE(uct_iface_attr_t, 536);
NVL_ABI_AT(uct_iface_attr_t, cap.flags, 296);
NVL_ABI_AT(uct_iface_attr_t, device_addr_len, 312);
NVL_ABI_AT(uct_iface_attr_t, bandwidth, 480);
NVL_ABI_AT(uct_iface_attr_t, latency, 496);
NVL_ABI_AT(uct_iface_attr_t, max_num_eps, 520);
NVL_ABI_SIZE(uct_iface_attr_v2_t, 56);
NVL_ABI_AT(uct_iface_attr_v2_t, cap, 16);
NVL_ABI_AT(uct_iface_attr_v2_t, rx_token, 48);
NVL_ABI_SIZE(iface_attr_v2_1_23, 64);
NVL_ABI_AT(iface_attr_v2_1_23, max_get_sgl_zcopy_count, 16);
NVL_ABI_AT(iface_attr_v2_1_23, cap, 24);
NVL_ABI_AT(iface_attr_v2_1_23, tx_token_length, 32);
NVL_ABI_AT(iface_attr_v2_1_23, tx_token, 48);
NVL_ABI_AT(iface_attr_v2_1_23, rx_token, 56);
NVL_ABI_SIZE(uct_perf_attr_t, 112);
NVL_ABI_AT(uct_perf_attr_t, remote_sys_device, 21);
NVL_ABI_AT(uct_perf_attr_t, send_pre_overhead, 24);
NVL_ABI_AT(uct_perf_attr_t, bandwidth, 48);
NVL_ABI_AT(uct_perf_attr_t, latency, 80);
NVL_ABI_AT(uct_perf_attr_t, flags, 104);
NVL_ABI_SIZE(uct_iface_is_reachable_params, 64);
NVL_ABI_AT(uct_iface_is_reachable_params, scope, 40);
NVL_ABI_AT(uct_iface_is_reachable_params, iface_addr_length, 56);
NVL_ABI_SIZE(uct_rkey_unpack_params, 16);
NVL_ABI_SIZE(uct_rkey_compare_params, 8);
NVL_ABI_SIZE(uct_md_mem_reg_params, 40);
NVL_ABI_AT(uct_md_mem_reg_params, mem_type, 32);
NVL_ABI_SIZE(uct_md_mem_dereg_params, 32);
NVL_ABI_AT(uct_md_mem_dereg_params, comp, 24);
NVL_ABI_SIZE(uct_md_mkey_pack_params, 16);
NVL_ABI_SIZE(uct_md_mem_attach_params, 24);
NVL_ABI_SIZE(uct_ep_attr, 280);
NVL_ABI_AT(uct_ep_attr, tx_token, 264);
NVL_ABI_SIZE(uct_ep_invalidate_params_t, 8);
NVL_ABI_SIZE(uct_ep_connect_to_ep_params, 24);
NVL_ABI_SIZE(uct_ep_is_connected_params, 32);
NVL_ABI_SIZE(uct_tl_device_resource, 40);
NVL_ABI_AT(uct_tl_device_resource, sys_device, 36);
NVL_ABI_SIZE(uct_priv_worker, 168);
NVL_ABI_AT(uct_priv_worker, async, 136);
NVL_ABI_AT(uct_priv_worker, tl_data, 152);
NVL_ABI_SIZE(uct_am_handler, 24);
NVL_ABI_SIZE(uct_completion_t, 16);
NVL_ABI_SIZE(uct_iov_t, 40);
NVL_ABI_SIZE(ucs_config_field_t, 88);
NVL_ABI_SIZE(ucs_config_global_list_entry_t, 56);
NVL_ABI_SIZE(ucs_class_t, 40);
NVL_ABI_SIZE(ucs_status_t, 1);

#undef NVL_ABI_AT
#undef NVL_ABI_SIZE

} // namespace nvl

#endif
