// SPDX-License-Identifier: BSD-3-Clause
//
// A module with the right export; how it is linked is what is wrong with it.
#include <string>

extern "C" __attribute__((visibility("default"))) int ucs_module_global_init();

int ucs_module_global_init()
{
    return static_cast<int>(
        std::to_string(reinterpret_cast<unsigned long>(&ucs_module_global_init)).size());
}
