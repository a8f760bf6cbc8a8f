// SPDX-License-Identifier: BSD-3-Clause
//
// abi_types.cpp for the wrong header.

#include "bad_abi.h"

int main()
{
    return 0;
}
