// SPDX-License-Identifier: BSD-3-Clause
//
// Compiled with debug information of unused types as well, so that the file holds everything that abi.h
// declares. Never run; abi_check reads it.

#include "host/abi.h"
#include "host/binding.h"

nvl::ucx_api api_of_this_file;

int main()
{
    return 0;
}
