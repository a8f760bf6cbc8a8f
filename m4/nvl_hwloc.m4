# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_HWLOC: is hwloc.h here? The plugin opens the library at run time and is never linked with it; tools and tests
# may link. Sets HWLOC_CFLAGS, HWLOC_LIBS and the conditional HAVE_HWLOC.
AC_DEFUN([NVL_HWLOC], [
nvl_have_hwloc=no
PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.0], [nvl_have_hwloc=yes],
    [AC_MSG_WARN([no hwloc: install libhwloc-dev for the NUMA and PCI parts of the topology])])
AS_IF([test $nvl_have_hwloc = yes], [
    AC_DEFINE([HAVE_HWLOC], [1], [hwloc.h is there])
    HWLOC_VERSION=`$PKG_CONFIG --modversion hwloc`
])
AM_CONDITIONAL([HAVE_HWLOC], [test $nvl_have_hwloc = yes])
])
