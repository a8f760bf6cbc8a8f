// SPDX-License-Identifier: BSD-3-Clause
//
// Which functions are older forms of others: they have no frame (call.h) of their own.
#ifndef NVLINK_EMULATOR_OLDER_H
#define NVLINK_EMULATOR_OLDER_H

namespace emu {

// What that one does in its place; nullptr: it is no older form.
const char *newer_form_of(const char *name) noexcept;

} // namespace emu

#endif
