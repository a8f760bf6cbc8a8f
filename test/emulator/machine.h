// SPDX-License-Identifier: BSD-3-Clause
//
// The machine that is emulated: NVL_EMU_MACHINE=file, in the text form of topo/facts.h, or a
// built-in one with two H200. Shared by the emulated libcuda and libnvidia-ml.
#ifndef NVLINK_EMULATOR_MACHINE_H
#define NVLINK_EMULATOR_MACHINE_H

#include "topo/facts.h"

namespace emu {

// Read once; a file that cannot be read or understood ends the process with a line that says so, and
// so does a value of an environment variable (settings.h).
const nvl::machine_facts &machine();

// "GPU-a71cf434-9a49-..." or "MIG-..." to 16 bytes; false when it is no UUID.
bool parse_uuid(const std::string &text, unsigned char bytes[16]);

// Names the fabric domain of a GPU, as far as memory can be shared in it: cluster and clique. Empty
// when the GPU is in none.
std::string fabric_name(const nvl::gpu_facts &gpu);

} // namespace emu

#endif
