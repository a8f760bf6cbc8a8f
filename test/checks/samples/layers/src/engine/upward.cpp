// SPDX-License-Identifier: BSD-3-Clause
//
// An engine that knows who calls it: check_layers must refuse this.
#include "base/status.h"
#include "uct/md.h"
