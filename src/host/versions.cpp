// SPDX-License-Identifier: BSD-3-Clause
//
// The table of known versions and the checks that a UCX has to pass. Numbers are measured on v1.22.0, on
// the PyPI wheel of it, on a master of August 2026 that calls itself 1.23.0, and on NIXL's bundled 1.23.0.

#include "host/versions.h"

#include <array>
#include <cstring>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace nvl {

namespace {

constexpr ucx_layout known_layouts[] = {
    {"1.22", false, false, 15, iface_attr_v2_bits_1_22},
    // Snapshots of 1.23 from the middle of July to the middle of August 2026.
    {"1.23 before get_sgl_zcopy", false, true, 16, iface_attr_v2_bits_1_22},
    {"1.23", true, true, 16, iface_attr_v2_bits_1_23},
};

constexpr unsigned first_known_minor = 22;
constexpr unsigned last_known_minor  = 23;

constexpr size_t base_iface_size = sizeof(uct_base_iface);
constexpr size_t base_ep_size    = sizeof(uct_base_ep);

std::string number(size_t value)
{
    return std::to_string(value);
}

std::string version_text(const ucx_version &version)
{
    return number(version.major) + "." + number(version.minor) + "." + number(version.release);
}

// ---- reading what may not be there -------------------------------------------------------------

// Copies memory that a wrong layout may have led us to: the kernel reports a bad address where a load
// would end the process.
class careful_reader {
public:
    careful_reader() noexcept
    {
        if (pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) {
            ends_[0] = ends_[1] = -1;
        }
    }

    ~careful_reader()
    {
        if (ends_[0] >= 0) {
            close(ends_[0]);
            close(ends_[1]);
        }
    }

    careful_reader(const careful_reader &)            = delete;
    careful_reader &operator=(const careful_reader &) = delete;

    template<typename T> bool read(const void *from, T &to) noexcept
    {
        static_assert(sizeof(T) <= 512, "a pipe takes that much in one piece");
        // Not write(): a sanitizer would check the address that we do not trust.
        return syscall(SYS_write, ends_[1], from, sizeof(T)) == static_cast<long>(sizeof(T)) &&
               ::read(ends_[0], &to, sizeof(T)) == static_cast<ssize_t>(sizeof(T));
    }

    bool reads_as(const void *from, const char *text) noexcept
    {
        char found[16] = {};
        return std::strlen(text) < sizeof(found) && read_string(from, found) &&
               std::strcmp(found, text) == 0;
    }

private:
    // Byte by byte, so that a string at the end of a page does not look unreadable.
    bool read_string(const void *from, char (&to)[16]) noexcept
    {
        auto *text = static_cast<const char *>(from);
        for (char &byte : to) {
            if (!read(text++, byte)) {
                return false;
            }
            if (byte == '\0') {
                return true;
            }
        }
        return false;
    }

    int ends_[2];
};

// The fields of a component or transport that lie behind each other in memory, by way of its list link.
template<typename T> const T *owner_of(const ucs_list_link_t *link, size_t link_offset) noexcept
{
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(link) - link_offset);
}

// The transport "self" is part of every UCX: its prefix and the size of its configuration are known.
bool self_transport_reads_well(careful_reader &reader, const uct_component &component)
{
    uct_tl transport;
    return reader.read(owner_of<uct_tl>(component.tl_list.next, offsetof(uct_tl, list)),
                       transport) &&
           std::strncmp(transport.name, "self", sizeof(transport.name)) == 0 &&
           transport.query_devices != nullptr && transport.iface_open != nullptr &&
           transport.config.size >= sizeof(uct_iface_config) && transport.config.size < 4096 &&
           reader.reads_as(transport.config.prefix, "SELF_");
}

bool is_component_name(const char (&name)[UCT_COMPONENT_NAME_MAX])
{
    size_t length = strnlen(name, sizeof(name));
    if (length == 0 || length == sizeof(name)) {
        return false;
    }
    for (size_t i = 0; i < length; ++i) {
        if (name[i] <= ' ' || name[i] > '~') {
            return false;
        }
    }
    return true;
}

// ---- the slot probe ----------------------------------------------------------------------------

constexpr size_t num_markers = 64;
constexpr int    no_slot     = -1;

thread_local int last_slot = no_slot;

// Stands in every slot of every table; the arguments do not matter, and an error ends every wrapper.
template<int Slot> ucs_status_t marker()
{
    last_slot = Slot;
    return UCS_ERR_UNSUPPORTED;
}

using marker_table = std::array<ucs_status_t (*)(), num_markers>;

template<int... Slots> constexpr marker_table make_markers(std::integer_sequence<int, Slots...>)
{
    return {marker<Slots>...};
}

constexpr marker_table markers = make_markers(std::make_integer_sequence<int, num_markers>());

// An interface, an endpoint on it and a memory domain that consist of markers and of zeros, with room
// behind them for a UCX that looks further than it should.
struct marker_objects {
    marker_table md_ops       = markers;
    marker_table internal_ops = markers;
    struct {
        marker_table ops; // 400 bytes of it are uct_iface_ops
        char         rest[4096 - sizeof(marker_table)];
    } iface_bytes                 = {};
    void *md[64]                  = {};
    void *ep[64]                  = {};
    alignas(16) char params[1024] = {};

    marker_objects()
    {
        void *internal  = &internal_ops;
        iface_bytes.ops = markers;
        std::memcpy(reinterpret_cast<char *>(&iface_bytes) + offsetof(uct_base_iface, internal_ops),
                    &internal, sizeof(internal));
        md[0] = &md_ops;
        ep[0] = &iface_bytes;
    }

    uct_iface_h iface()
    {
        return reinterpret_cast<uct_iface_h>(&iface_bytes);
    }

    uct_ep_h endpoint()
    {
        return reinterpret_cast<uct_ep_h>(ep);
    }

    uct_md_h domain()
    {
        return reinterpret_cast<uct_md_h>(md);
    }

    template<typename T> T *zeros()
    {
        std::memset(params, 0, sizeof(params));
        return reinterpret_cast<T *>(params);
    }
};

class slot_check {
public:
    template<typename Call> void expect(const char *name, size_t slot, Call call)
    {
        last_slot = no_slot;
        call();
        if (refusal_.empty() && last_slot != static_cast<int>(slot)) {
            refusal_ = std::string("its ") + name + " is in slot " + std::to_string(last_slot) +
                       " instead of " + number(slot);
        }
    }

    std::string refusal_;
};

#define NVL_SLOT(table, member) (offsetof(table, member) / sizeof(void *))

void check_iface_slots(slot_check &check, const ucx_api &api, marker_objects &objects)
{
    uct_iface_h iface = objects.iface();
    uct_ep_h    ep    = objects.endpoint();

    check.expect("iface_query_v2", NVL_SLOT(uct_iface_internal_ops, iface_query_v2),
                 [&] { api.uct_iface_query_v2(iface, objects.zeros<uct_iface_attr_v2_t>()); });
    check.expect("iface_estimate_perf", NVL_SLOT(uct_iface_internal_ops, iface_estimate_perf),
                 [&] { api.uct_iface_estimate_perf(iface, objects.zeros<uct_perf_attr_t>()); });
    check.expect("ep_query", NVL_SLOT(uct_iface_internal_ops, ep_query),
                 [&] { api.uct_ep_query(ep, objects.zeros<uct_ep_attr_t>()); });
    check.expect("ep_invalidate", NVL_SLOT(uct_iface_internal_ops, ep_invalidate),
                 [&] { api.uct_ep_invalidate(ep, objects.zeros<uct_ep_invalidate_params_t>()); });
    check.expect("ep_connect_to_ep_v2", NVL_SLOT(uct_iface_internal_ops, ep_connect_to_ep_v2), [&] {
        api.uct_ep_connect_to_ep_v2(ep, nullptr, nullptr,
                                    objects.zeros<uct_ep_connect_to_ep_params_t>());
    });
    check.expect(
        "iface_is_reachable_v2", NVL_SLOT(uct_iface_internal_ops, iface_is_reachable_v2), [&] {
            api.uct_iface_is_reachable_v2(iface, objects.zeros<uct_iface_is_reachable_params_t>());
        });
    check.expect("ep_is_connected", NVL_SLOT(uct_iface_internal_ops, ep_is_connected), [&] {
        api.uct_ep_is_connected(ep, objects.zeros<uct_ep_is_connected_params_t>());
    });
    check.expect("ep_get_device_ep", NVL_SLOT(uct_iface_internal_ops, ep_get_device_ep),
                 [&] { api.uct_ep_get_device_ep(ep, objects.zeros<uct_device_ep_h>()); });
    check.expect("ep_put_sgl_zcopy", NVL_SLOT(uct_iface_internal_ops, ep_put_sgl_zcopy), [&] {
        api.uct_ep_put_sgl_zcopy(ep, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                 0, nullptr);
    });
}

// iface_internal_ops is not of standard layout, so its slots are counted.
constexpr size_t first_appended_slot = sizeof(uct_iface_internal_ops) / sizeof(void *);

void check_appended_slots(slot_check &check, const host_binding &host, marker_objects &objects)
{
    const ucx_api &api  = host.api;
    uct_ep_h       ep   = objects.endpoint();
    size_t         slot = first_appended_slot;

    if (host.layout->has_get_sgl_zcopy) {
        check.expect("ep_get_sgl_zcopy", slot++, [&] {
            api.uct_ep_get_sgl_zcopy(ep, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                     nullptr, 0, nullptr);
        });
    }
    if (host.layout->has_outstanding_purge) {
        check.expect("ep_outstanding_purge", slot,
                     [&] { api.uct_ep_outstanding_purge(ep, objects.zeros<char>()); });
    }
}

void check_md_slots(slot_check &check, const ucx_api &api, marker_objects &objects)
{
    uct_md_h  md = objects.domain();
    uct_mem_h memh;

    check.expect("md query", NVL_SLOT(uct_md_ops, query),
                 [&] { api.uct_md_query_v2(md, objects.zeros<uct_md_attr_v2_t>()); });
    check.expect("mem_reg", NVL_SLOT(uct_md_ops, mem_reg), [&] {
        api.uct_md_mem_reg_v2(md, objects.params, 1, objects.zeros<uct_md_mem_reg_params_t>(),
                              &memh);
    });
    check.expect("mem_dereg", NVL_SLOT(uct_md_ops, mem_dereg),
                 [&] { api.uct_md_mem_dereg_v2(md, objects.zeros<uct_md_mem_dereg_params_t>()); });
    check.expect("mem_query", NVL_SLOT(uct_md_ops, mem_query), [&] {
        api.uct_md_mem_query_v2(md, objects.params, 1, objects.zeros<uct_md_mem_attr_v2_t>());
    });
    check.expect("mem_attach", NVL_SLOT(uct_md_ops, mem_attach), [&] {
        api.uct_md_mem_attach(md, objects.params, objects.zeros<uct_md_mem_attach_params_t>(),
                              &memh);
    });
    if (api.uct_md_mem_elem_release != nullptr) {
        check.expect("mem_elem_release", sizeof(uct_md_ops) / sizeof(void *),
                     [&] { api.uct_md_mem_elem_release(md, nullptr); });
    }
}

#undef NVL_SLOT

} // namespace

std::string check_age(const loaded_object &libuct)
{
    if (libuct.defines("uct_md_mem_query_v2") && libuct.defines("uct_ep_put_sgl_zcopy")) {
        return {};
    }
    return "UCX 1.22 or later is needed, and " + libuct.path() + " is older";
}

std::string check_layout(host_binding &host)
{
    bool   get_sgl        = host.api.uct_ep_get_sgl_zcopy != nullptr;
    bool   purge          = host.api.uct_ep_outstanding_purge != nullptr;
    size_t num_operations = host.libuct.symbol_size("uct_ep_operation_names") / sizeof(char *);

    for (const ucx_layout &layout : known_layouts) {
        // The array of names ends with a null pointer.
        if (layout.has_get_sgl_zcopy == get_sgl && layout.has_outstanding_purge == purge &&
            layout.num_ep_operations + 1 == num_operations) {
            host.layout = &layout;
            return {};
        }
    }
    return host.libuct.path() + " is a UCX that this version of the plugin does not know";
}

std::string check_version(const host_binding &host)
{
    const ucx_version &version = host.version;
    if (version.major == 0 || (version.major == 1 && version.minor >= first_known_minor &&
                               version.minor <= last_known_minor)) {
        return {};
    }
    return "UCX " + version_text(version) + " is not known to this version of the plugin";
}

std::string check_classes(const ucx_api &api)
{
    const ucs_class_t &iface = *api.uct_base_iface_t_class;
    const ucs_class_t &ep    = *api.uct_base_ep_t_class;
    if (iface.size == base_iface_size && ep.size == base_ep_size) {
        return {};
    }

    if (iface.size == base_iface_size + sizeof(void *) &&
        ep.size == base_ep_size + sizeof(void *)) {
        return "this UCX was built with --enable-stats, which changes its base classes";
    }
    return "its base classes have " + number(iface.size) + " and " + number(ep.size) +
           " bytes instead of " + number(base_iface_size) + " and " + number(base_ep_size);
}

std::string check_components(const ucx_api &api)
{
    constexpr unsigned     max_components = 256;
    const ucs_list_link_t *head           = api.uct_components_list;
    careful_reader         reader;
    ucs_list_link_t        link;
    bool                   found_self = false;

    if (!reader.read(head, link)) {
        return "its list of components cannot be read";
    }

    const ucs_list_link_t *next = link.next;
    for (unsigned count = 0; next != head; ++count) {
        uct_component component;
        if (count == max_components ||
            !reader.read(owner_of<uct_component>(next, offsetof(uct_component, list)), component) ||
            !is_component_name(component.name)) {
            return "its list of components is not laid out as expected";
        }
        if (std::strcmp(component.name, "self") == 0) {
            found_self = self_transport_reads_well(reader, component);
        }
        next = component.list.next;
    }

    return found_self ? std::string() : "its component \"self\" is not laid out as expected";
}

std::string check_slots(const host_binding &host)
{
    marker_objects objects;
    slot_check     check;
    check_iface_slots(check, host.api, objects);
    if (check.refusal_.empty()) {
        check_appended_slots(check, host, objects);
    }
    if (check.refusal_.empty()) {
        check_md_slots(check, host.api, objects);
    }
    return check.refusal_;
}

ucx_version find_version(const loaded_object &libucs)
{
    using get_version = void (*)(unsigned *, unsigned *, unsigned *);
    ucx_version version;

    for (const std::string &path : loaded_paths("libucp")) {
        loaded_object libucp = loaded_object::at_path(path.c_str());
        if (!libucp || !libucp.defines("ucp_get_version") ||
            object_base(libucp.symbol("ucs_global_opts")) != libucs.base()) {
            continue;
        }
        reinterpret_cast<get_version>(libucp.symbol("ucp_get_version"))(
            &version.major, &version.minor, &version.release);
        break;
    }
    return version;
}

} // namespace nvl
