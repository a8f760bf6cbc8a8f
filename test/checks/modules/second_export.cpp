// SPDX-License-Identifier: BSD-3-Clause
//
// A module that shows a second function.

extern "C" {
__attribute__((visibility("default"))) int ucs_module_global_init();
__attribute__((visibility("default"))) int nvl_second_export();
}

int ucs_module_global_init()
{
    return 0;
}

int nvl_second_export()
{
    return 0;
}
