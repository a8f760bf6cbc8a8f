// SPDX-License-Identifier: BSD-3-Clause
//
// check_format must refuse this.

int  bad_layout( int value ){ if (value) { return 1; }
  return 0; }
