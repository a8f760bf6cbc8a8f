// SPDX-License-Identifier: BSD-3-Clause
//
// A libucp that reports the version FAKE_MAJOR.FAKE_MINOR.0.

#include "host/abi.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

extern "C" {

FAKE_EXPORT void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
FAKE_EXPORT void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major   = FAKE_MAJOR;
    *minor   = FAKE_MINOR;
    *release = 0;
}

// As a libucp refers to its libucs.
FAKE_EXPORT const void *fake_ucp_needs_ucs();
FAKE_EXPORT const void *fake_ucp_needs_ucs()
{
    return &ucs_global_opts;
}
}
