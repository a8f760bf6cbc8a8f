// SPDX-License-Identifier: BSD-3-Clause
//
// The files that variables name for what a process has to report.
#ifndef NVLINK_EMULATOR_REPORT_FILE_H
#define NVLINK_EMULATOR_REPORT_FILE_H

#include <cstdio>

namespace emu {

// Opens the file that a variable names, to append: "-" is standard error, %p the process id. NULL:
// none is named, or it cannot be written, which standard error is told.
FILE *open_report(const char *variable);
void  close_report(FILE *file); // NULL is allowed

} // namespace emu

#endif
