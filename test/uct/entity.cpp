// SPDX-License-Identifier: BSD-3-Clause
//
// See entity.h.
#include "uct/entity.h"

#include <cstring>

namespace nvl::test {

void expect_ok(ucs_status_t status, const char *call)
{
    if (status != UCS_OK) {
        throw set_up_failed(std::string(call) + ": " + words(status));
    }
}

namespace {

// How many of the settings this table knows; the others are for the other one.
size_t modify(void *config, const settings &with)
{
    size_t known = 0;
    for (const auto &[name, value] : with) {
        std::string  full   = std::string("NVLINK_") + name;
        ucs_status_t status = ucx().uct_config_modify(config, full.c_str(), value);
        if (status == UCS_OK) {
            ++known;
        } else if (status != UCS_ERR_NO_ELEM) {
            throw set_up_failed(full + "=" + value + ": " + words(status));
        }
    }
    return known;
}

uct_component_h find_component()
{
    uct_component_h *components = nullptr;
    unsigned         count      = 0;
    expect_ok(ucx().uct_query_components(&components, &count), "uct_query_components");
    uct_component_h found = nullptr;
    for (unsigned i = 0; i < count; ++i) {
        uct_component_attr_t attr{};
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
        expect_ok(ucx().uct_component_query(components[i], &attr), "uct_component_query");
        if (std::strcmp(attr.name, "nvlink") == 0) {
            found = components[i];
        }
    }
    ucx().uct_release_component_list(components);
    return found;
}

ucs_status_t note_error(void *arg, uct_ep_h ep, ucs_status_t status)
{
    static_cast<entity *>(arg)->errors.emplace_back(ep, status);
    return UCS_OK;
}

} // namespace

uct_component_h nvlink_component()
{
    static const uct_component_h found = find_component();
    return found;
}

entity::entity(const settings &with, ucs_thread_mode_t mode)
{
    expect_ok(ucx().ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async_),
              "ucs_async_context_create");
    expect_ok(ucx().uct_worker_create(async_, mode, &worker_), "uct_worker_create");
    open_md(with);
    open_iface(with);
    if (settings_taken_ != with.size()) {
        throw set_up_failed("a setting that nvlink does not know");
    }
}

entity::~entity()
{
    close_iface();
    ucx().uct_md_close(md_);
    ucx().ucs_async_context_destroy(async_);
}

void entity::close_iface()
{
    if (iface_ != nullptr) {
        ucx().uct_iface_close(iface_);
        ucx().uct_worker_destroy(worker_);
        iface_ = nullptr;
    }
}

void entity::open_md(const settings &with)
{
    uct_component_h component = nvlink_component();
    if (component == nullptr) {
        throw set_up_failed("UCX has not loaded the plugin");
    }
    uct_md_config_t *config = nullptr;
    expect_ok(ucx().uct_md_config_read(component, nullptr, nullptr, &config), "uct_md_config_read");
    settings_taken_     = modify(config, with);
    ucs_status_t status = ucx().uct_md_open(component, "nvlink", config, &md_);
    ucx().uct_config_release(config);
    expect_ok(status, "uct_md_open");
}

void entity::open_iface(const settings &with)
{
    uct_iface_config_t *config = nullptr;
    expect_ok(ucx().uct_md_iface_config_read(md_, "nvlink", nullptr, nullptr, &config),
              "uct_md_iface_config_read");
    settings_taken_ += modify(config, with);
    uct_iface_params_t params{};
    params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
                        UCT_IFACE_PARAM_FIELD_ERR_HANDLER | UCT_IFACE_PARAM_FIELD_ERR_HANDLER_ARG;
    params.err_handler          = note_error;
    params.err_handler_arg      = this;
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = "nvlink";
    params.mode.device.dev_name = "cuda";
    ucs_status_t status         = ucx().uct_iface_open(md_, worker_, &params, config, &iface_);
    ucx().uct_config_release(config);
    expect_ok(status, "uct_iface_open");
    uct_iface_progress_enable(iface_, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
}

uct_iface_attr_t entity::attributes() const
{
    uct_iface_attr_t attr{};
    expect_ok(ucx().uct_iface_query(iface_, &attr), "uct_iface_query");
    return attr;
}

addresses entity::address() const
{
    uct_iface_attr_t attr = attributes();
    addresses        made;
    made.device.resize(attr.device_addr_len);
    made.iface.resize(attr.iface_addr_len);
    expect_ok(ucx().uct_iface_get_device_address(
                  iface_, reinterpret_cast<uct_device_addr_t *>(made.device.data())),
              "uct_iface_get_device_address");
    expect_ok(ucx().uct_iface_get_address(iface_,
                                          reinterpret_cast<uct_iface_addr_t *>(made.iface.data())),
              "uct_iface_get_address");
    return made;
}

endpoint::endpoint(const entity &from, const addresses &to)
{
    uct_ep_params_t params{};
    params.field_mask =
        UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface      = from.iface();
    params.dev_addr   = reinterpret_cast<const uct_device_addr_t *>(to.device.data());
    params.iface_addr = reinterpret_cast<const uct_iface_addr_t *>(to.iface.data());
    expect_ok(ucx().uct_ep_create(&params, &ep_), "uct_ep_create");
}

endpoint::~endpoint()
{
    ucx().uct_ep_destroy(ep_);
}

registered::registered(const entity &owner, uint64_t address, size_t size) : md_(owner.md())
{
    expect_ok(ucx().uct_md_mem_reg(md_, reinterpret_cast<void *>(address), size,
                                   UCT_MD_MEM_ACCESS_RMA, &memh_),
              "uct_md_mem_reg");
}

registered::~registered()
{
    ucx().uct_md_mem_dereg(md_, memh_);
}

bytes registered::key() const
{
    uct_md_attr_v2_t attr{};
    attr.field_mask = UCT_MD_ATTR_FIELD_RKEY_PACKED_SIZE;
    expect_ok(ucx().uct_md_query_v2(md_, &attr), "uct_md_query_v2");
    bytes packed(attr.rkey_packed_size);
    expect_ok(ucx().uct_md_mkey_pack(md_, memh_, packed.data()), "uct_md_mkey_pack");
    return packed;
}

unpacked::unpacked(const bytes &key)
{
    expect_ok(ucx().uct_rkey_unpack(nvlink_component(), key.data(), &bundle_), "uct_rkey_unpack");
}

unpacked::~unpacked()
{
    ucx().uct_rkey_release(nvlink_component(), &bundle_);
}

ucs_status_t try_unpack(const bytes &key)
{
    uct_rkey_bundle_t bundle{};
    ucs_status_t      status = ucx().uct_rkey_unpack(nvlink_component(), key.data(), &bundle);
    if (status == UCS_OK) {
        ucx().uct_rkey_release(nvlink_component(), &bundle);
    }
    return status;
}

namespace {

void completed(uct_completion_t *super)
{
    auto *self = reinterpret_cast<completion *>(super);
    ++self->called;
    self->status = super->status;
}

} // namespace

completion::completion(int count)
{
    super.func   = completed;
    super.count  = count;
    super.status = UCS_OK;
}

} // namespace nvl::test
