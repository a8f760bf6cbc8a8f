// SPDX-License-Identifier: BSD-3-Clause
//
// Includes only what lies below: check_layers must pass this.
#include <ucs/type/status.h>
