// SPDX-License-Identifier: BSD-3-Clause
//
// symbols.def as a table: names, versions and addresses of everything that libcuda.so.1 exports.
#ifndef NVLINK_EMULATOR_SYMBOL_TABLE_H
#define NVLINK_EMULATOR_SYMBOL_TABLE_H

namespace emu {

enum class symbol_variant {
    legacy, // stream 0 is the context's
    ptsz,   // stream 0 is the thread's, takes a stream
    ptds,   // the same, takes none
};

struct symbol {
    const char    *base; // what cuGetProcAddress is asked for
    const char    *name; // what is exported
    int            since;
    symbol_variant variant;
    bool           implemented;
    void          *address;
};

extern const symbol symbols[]; // indexed by emu::fn

} // namespace emu

#endif
