// SPDX-License-Identifier: BSD-3-Clause
//
// The route is pure and knows no CUDA and no UCX: check_layers must refuse this.
#include <cuda.h>
#include <uct/api/uct.h>
