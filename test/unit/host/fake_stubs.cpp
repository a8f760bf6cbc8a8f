// SPDX-License-Identifier: BSD-3-Clause
//
// Everything that symbols.def lists, as empty functions and zeroed data, so that a fake UCX has all the names.
// Weak: what fake_ucs.cpp and fake_uct.cpp define replaces it. Compiled with FAKE_UCS or FAKE_UCT, and with
// -Dsymbol=other to leave a symbol out. Includes no header of UCX, whose prototypes these are not.

extern "C" {

#define FAKE_FUNCTION(name)            \
    __attribute__((weak)) long name(); \
    __attribute__((weak)) long name()  \
    {                                  \
        return 0;                      \
    }
#define FAKE_DATA(name)                          \
    extern __attribute__((weak)) char name[512]; \
    __attribute__((weak)) char        name[512];
#define FAKE_NOTHING(name)

#ifdef FAKE_UCS
#define FAKE_FUNCTION_ucs FAKE_FUNCTION
#define FAKE_DATA_ucs     FAKE_DATA
#define FAKE_FUNCTION_uct FAKE_NOTHING
#define FAKE_DATA_uct     FAKE_NOTHING
#else
#define FAKE_FUNCTION_ucs FAKE_NOTHING
#define FAKE_DATA_ucs     FAKE_NOTHING
#define FAKE_FUNCTION_uct FAKE_FUNCTION
#define FAKE_DATA_uct     FAKE_DATA
#endif

// A fake is a 1.22 unless fake_uct.cpp makes it a later one.
#define FAKE_REQUIRED(library, kind, name) FAKE_##kind##_##library(name)
#define FAKE_OPTIONAL(library, kind, name)
#define FAKE_required FAKE_REQUIRED
#define FAKE_optional FAKE_OPTIONAL

#define NVL_HOST_FUNCTION(library, need, name)   FAKE_##need(library, FUNCTION, name)
#define NVL_HOST_DATA(library, need, type, name) FAKE_##need(library, DATA, name)
#include "host/symbols.def"
}
