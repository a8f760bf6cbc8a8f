// SPDX-License-Identifier: BSD-3-Clause
//
// Rows of UCX configuration tables, built at load time: the parser functions have addresses only once the
// host is known. src/uct/config.cpp makes its tables with this. A row states the C++ member that it fills,
// so a row of the wrong type does not compile.
//
//     field_builder row(host.api);
//     fields[1] = row.memunits("CHUNK", "1m", "Size of ...", NVL_CONFIG_MEMBER(iface_config, chunk));

#ifndef NVLINK_HOST_CONFIG_TYPES_H
#define NVLINK_HOST_CONFIG_TYPES_H

#include "host/abi.h"
#include "host/binding.h"

#include <cstddef>
#include <type_traits>

namespace nvl {

// A member of a configuration structure: its offset, and its type for the compiler.
template<typename T> struct config_member {
    size_t offset;
};

#define NVL_CONFIG_MEMBER(_struct, _member) \
    (::nvl::config_member<decltype(_struct::_member)>{offsetof(_struct, _member)})

class field_builder {
public:
    using field = ucs_config_field_t;

    explicit field_builder(const ucx_api &api) noexcept : api_(api)
    {
    }

    // First row of every table of a transport or a memory domain: the fields that UCT itself has. The
    // default is empty, or "NAME=VALUE;..." to set other defaults for them.
    field iface_base(const char *defaults = "") const noexcept
    {
        return make_table("", defaults, nullptr, 0, api_.uct_iface_config_table);
    }

    field md_base() const noexcept
    {
        return make_table("", "", nullptr, 0, api_.uct_md_config_table);
    }

    // The rows of `child` for a structure inside this one. They answer to this table's prefix, and to
    // `name` in its place.
    template<typename T>
    field table(const char *name, const char *defaults, const char *help, config_member<T> member,
                field *child) const noexcept
    {
        return make_table(name, defaults, help, member.offset, child);
    }

    field string(const char *name, const char *value, const char *help,
                 config_member<char *> member) const noexcept
    {
        return {name,
                value,
                help,
                member.offset,
                {api_.ucs_config_sscanf_string, api_.ucs_config_sprintf_string,
                 api_.ucs_config_clone_string, api_.ucs_config_release_string,
                 api_.ucs_config_help_generic, api_.ucs_config_doc_nop, "string"}};
    }

    field integer(const char *name, const char *value, const char *help,
                  config_member<int> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_int,
                     api_.ucs_config_sprintf_int, api_.ucs_config_clone_int, "integer");
    }

    field uint(const char *name, const char *value, const char *help,
               config_member<unsigned> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_uint,
                     api_.ucs_config_sprintf_uint, api_.ucs_config_clone_uint, "unsigned integer");
    }

    field ulong(const char *name, const char *value, const char *help,
                config_member<unsigned long> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_ulong,
                     api_.ucs_config_sprintf_ulong, api_.ucs_config_clone_ulong, "unsigned long");
    }

    // A number, "inf" (UCS_ULUNITS_INF) or "auto" (UCS_ULUNITS_AUTO).
    field ulunits(const char *name, const char *value, const char *help,
                  config_member<unsigned long> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_ulunits,
                     api_.ucs_config_sprintf_ulunits, api_.ucs_config_clone_ulong,
                     "a number, \"inf\" or \"auto\"");
    }

    // Bytes: "64k", "1m", "inf" (UCS_MEMUNITS_INF) or "auto" (UCS_MEMUNITS_AUTO).
    field memunits(const char *name, const char *value, const char *help,
                   config_member<size_t> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_memunits,
                     api_.ucs_config_sprintf_memunits, api_.ucs_config_clone_ulong,
                     "bytes, as in 4096, 64k, 1m or 2g, \"inf\" or \"auto\"");
    }

    field number(const char *name, const char *value, const char *help,
                 config_member<double> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_double,
                     api_.ucs_config_sprintf_double, api_.ucs_config_clone_double,
                     "floating point number");
    }

    // "y" or "n" into an int, as UCX does it.
    field boolean(const char *name, const char *value, const char *help,
                  config_member<int> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_bool,
                     api_.ucs_config_sprintf_bool, api_.ucs_config_clone_int, "y or n");
    }

    // ucs_ternary_auto_value_t, without and with "auto".
    field ternary(const char *name, const char *value, const char *help,
                  config_member<ucs_ternary_auto_value_t> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_ternary,
                     api_.ucs_config_sprintf_ternary_auto, api_.ucs_config_clone_int,
                     "yes, no or try");
    }

    field ternary_auto(const char *name, const char *value, const char *help,
                       config_member<ucs_ternary_auto_value_t> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_ternary_auto,
                     api_.ucs_config_sprintf_ternary_auto, api_.ucs_config_clone_int,
                     "yes, no, try or auto");
    }

    // ucs_on_off_auto_value_t
    field on_off_auto(const char *name, const char *value, const char *help,
                      config_member<ucs_on_off_auto_value_t> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_on_off_auto,
                     api_.ucs_config_sprintf_on_off_auto, api_.ucs_config_clone_int,
                     "on, off or auto");
    }

    // Seconds as a double: "10us", "1.5ms", "2s".
    field time(const char *name, const char *value, const char *help,
               config_member<double> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_time,
                     api_.ucs_config_sprintf_time, api_.ucs_config_clone_double,
                     "a time, as in 10us, 1.5ms or 2s");
    }

    // Ticks of the clock of UCX; "inf" and "auto" are the two highest values.
    field time_units(const char *name, const char *value, const char *help,
                     config_member<ucs_time_t> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_time_units,
                     api_.ucs_config_sprintf_time_units, api_.ucs_config_clone_ulong,
                     "a time, as in 10us, 1.5ms or 2s, \"inf\" or \"auto\"");
    }

    // Bytes per second as a double: "10GBs", or "auto" (UCS_CONFIG_DBL_AUTO).
    field bandwidth(const char *name, const char *value, const char *help,
                    config_member<double> member) const noexcept
    {
        return plain(name, value, help, member.offset, api_.ucs_config_sscanf_bw,
                     api_.ucs_config_sprintf_bw, api_.ucs_config_clone_double,
                     "a bandwidth, as in 10GBs or 200Gbs, or \"auto\"");
    }

    // `names` ends with null, lives as long as the table, and the value is the index into it.
    template<typename T>
    field enumeration(const char *name, const char *value, const char *help,
                      config_member<T> member, const char *const *names) const noexcept
    {
        static_assert(sizeof(T) == sizeof(unsigned) &&
                          (std::is_enum<T>::value || std::is_unsigned<T>::value),
                      "UCX writes the index as an unsigned int");
        return {name,
                value,
                help,
                member.offset,
                {api_.ucs_config_sscanf_enum, api_.ucs_config_sprintf_enum,
                 api_.ucs_config_clone_uint, api_.ucs_config_release_nop, api_.ucs_config_help_enum,
                 api_.ucs_config_doc_nop, names}};
    }

    // Comma-separated strings.
    field strings(const char *name, const char *value, const char *help,
                  config_member<ucs_config_names_array_t> member) const noexcept
    {
        return {name,
                value,
                help,
                member.offset,
                {api_.ucs_config_sscanf_array, api_.ucs_config_sprintf_array,
                 api_.ucs_config_clone_array, api_.ucs_config_release_array,
                 api_.ucs_config_help_array, api_.ucs_config_doc_nop,
                 api_.ucs_config_array_string}};
    }

    // The last row.
    static field end() noexcept
    {
        return {};
    }

private:
    field plain(const char *name, const char *value, const char *help, size_t offset,
                decltype(ucs_config_parser_t::read)  read,
                decltype(ucs_config_parser_t::write) write,
                decltype(ucs_config_parser_t::clone) clone, const char *syntax) const noexcept
    {
        return {name,
                value,
                help,
                offset,
                {read, write, clone, api_.ucs_config_release_nop, api_.ucs_config_help_generic,
                 api_.ucs_config_doc_nop, syntax}};
    }

    field make_table(const char *name, const char *defaults, const char *help, size_t offset,
                     field *child) const noexcept
    {
        return {name,
                defaults,
                help,
                offset,
                {api_.ucs_config_sscanf_table, nullptr, api_.ucs_config_clone_table,
                 api_.ucs_config_release_table, api_.ucs_config_help_table, api_.ucs_config_doc_nop,
                 child}};
    }

    const ucx_api &api_;
};

} // namespace nvl

#endif
