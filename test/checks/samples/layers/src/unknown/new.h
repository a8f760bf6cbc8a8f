// SPDX-License-Identifier: BSD-3-Clause
//
// A folder that the table does not name: check_layers must refuse this.
