// SPDX-License-Identifier: BSD-3-Clause
//
// What the emulated driver tells about a run: counts of calls, what was not given back, frees
// under an open import, calls with stale handles. At exit into the files that the environment names, and on request (emu.h).
#ifndef NVLINK_EMULATOR_REPORT_H
#define NVLINK_EMULATOR_REPORT_H

#include <cstdint>
#include <cstdio>

namespace emu {

// Writes NVL_EMU_COUNTERS and NVL_EMU_LEAKS when the process ends; called by cuInit.
void report_at_exit();

// Opens the file that a variable names, to append: "-" is standard error, %p the process id. NULL:
// none is named.
FILE *open_report(const char *variable);
void  close_report(FILE *file); // NULL is allowed

// Memory was freed that others have open.
void report_violation(uint64_t address, unsigned importers);

// A call named a handle that its context has taken along (stale.h).
void report_stale(const char *call, uint64_t handle);

} // namespace emu

#endif
