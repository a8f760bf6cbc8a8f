// SPDX-License-Identifier: BSD-3-Clause
//
// The values that environment variables of the emulated driver take. Shared by the emulated libcuda
// and libnvidia-ml; called where the machine is read. What reads a variable then knows it is good.
#ifndef NVLINK_EMULATOR_SETTINGS_H
#define NVLINK_EMULATOR_SETTINGS_H

namespace emu {

// A value that is not understood ends the process with status 99 and a line that names the variable
// and what it takes.
void check_settings();

} // namespace emu

#endif
