// SPDX-License-Identifier: BSD-3-Clause
//
// Which known UCX a set of symbols belongs to, and whether its inside is really laid out that way. Called
// by binding.cpp alone. A new version of UCX is a new row of the table in versions.cpp.

#ifndef NVLINK_HOST_VERSIONS_H
#define NVLINK_HOST_VERSIONS_H

#include "host/binding.h"

#include <string>

namespace nvl {

// Each check returns an empty string, or the reason for refusing this UCX.

// Older than we know: seen by what is missing or still there, before a missing symbol is reported.
std::string check_age(const loaded_object &libuct);

// Sets host.layout from the symbols and their sizes.
std::string check_layout(host_binding &host);

// The version that libucp reports must be one for which that layout is known.
std::string check_version(const host_binding &host);

// Sizes of the base classes; they grow when UCX is built with statistics.
std::string check_classes(const ucx_api &api);

// Walks UCX's list of components and reads the names, prefixes and sizes of what is built in.
std::string check_components(const ucx_api &api);

// Calls the thin wrappers of UCX on objects whose op tables hold markers, and notes which slot was read.
std::string check_slots(const host_binding &host);

// What the libucp that belongs to `libucs` says; all zero without a libucp.
ucx_version find_version(const loaded_object &libucs);

} // namespace nvl

#endif
