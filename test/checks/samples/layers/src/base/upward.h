// SPDX-License-Identifier: BSD-3-Clause
//
// The lowest folder reaches up: check_layers must refuse this.
#pragma once
#include <vector>
#include "driver/cuda.h"
