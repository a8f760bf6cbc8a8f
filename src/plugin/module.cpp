// SPDX-License-Identifier: BSD-3-Clause
//
// The shipped module is an empty shell: all code is in the convenience library libnvlink.la, which the
// tests link too. automake wants one source for each library, and this is it.
// Called by nobody.

namespace nvl {
// Keeps the translation unit from being empty, which ISO C++ allows and -Wpedantic does not like.
extern const char module_name[];
const char        module_name[] = "nvlink";
} // namespace nvl
