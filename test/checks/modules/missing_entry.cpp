// SPDX-License-Identifier: BSD-3-Clause
//
// A module that UCX's loader finds no entry in, and that asks the loader for a function of UCX.

extern "C" {
void                                       ucs_log_dispatch();
__attribute__((visibility("default"))) int nvl_entry();
}

int nvl_entry()
{
    ucs_log_dispatch();
    return 0;
}
