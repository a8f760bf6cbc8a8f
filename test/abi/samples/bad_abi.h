// SPDX-License-Identifier: BSD-3-Clause
//
// Wrong on purpose, once for each kind of mistake that abi_check has to find; the .test names the lines that
// it expects. Everything else in here is right.

#ifndef NVLINK_TEST_ABI_BAD_ABI_H
#define NVLINK_TEST_ABI_BAD_ABI_H

#include <cstddef>
#include <cstdint>

extern "C" {
#include <uct/api/uct.h>

typedef struct uct_component uct_component_t;
struct uct_md_attr_v2_t;

// Two members changed places: a wrong offset, the size stays.
struct uct_tl_device_resource {
    char              name[UCT_DEVICE_NAME_MAX];
    uct_device_type_t type;
    uint16_t          padding_that_is_not_there;
    ucs_sys_device_t  sys_device;
};

// A member is missing: a wrong size.
struct uct_md_mem_reg_params {
    uint64_t field_mask;
    uint64_t flags;
    int      dmabuf_fd;
    size_t   dmabuf_offset;
};

// A slot with another prototype, all offsets right.
struct uct_md_ops {
    void (*close)(uct_md_h md);
    ucs_status_t (*query)(uct_md_h md, uct_md_attr_v2_t *attr);
    ucs_status_t (*mem_alloc)(uct_md_h md, size_t *length_p, void **address_p, unsigned mem_type);
    void *rest[9];
};

// Right.
struct uct_md_mkey_pack_params {
    uint64_t field_mask;
    unsigned flags;
};

enum : uint64_t {
    UCT_PERF_ATTR_FIELD_OPERATION = 0x1, // right
    UCT_PERF_ATTR_FIELD_LATENCY   = 0x800,
};

// Not in any UCX.
struct uct_no_such_thing {
    int member;
};
}

#endif
