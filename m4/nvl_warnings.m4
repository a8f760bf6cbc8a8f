# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_WARNINGS: which warnings does this compiler know? Each is probed alone. They are errors in a git checkout
# or with --enable-werror; a release built by a compiler that did not exist yet must not fail on a new warning.
# Sets WARNING_CXXFLAGS.
AC_DEFUN([NVL_WARNINGS], [
AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [warnings are errors (default: in a git checkout)])], [],
    [AS_IF([test -e "$srcdir/.git"], [enable_werror=yes], [enable_werror=no])])
WARNING_CXXFLAGS=
AC_LANG_PUSH([C++])
for nvl_flag in \
    -Wall -Wextra -Wpedantic \
    -Wshadow \
    -Wcast-align -Wcast-qual \
    -Wnon-virtual-dtor -Woverloaded-virtual \
    -Wmissing-declarations \
    -Wformat=2 \
    -Wundef \
    -Wvla \
    -Wextra-semi \
    -Wimplicit-fallthrough \
    -Wduplicated-cond -Wlogical-op \
    -Wunused
do
    NVL_WARNING_FLAG([$nvl_flag])
done
AS_IF([test "x$enable_werror" != xno], [WARNING_CXXFLAGS="$WARNING_CXXFLAGS -Werror"])
AC_SUBST([WARNING_CXXFLAGS])
AC_LANG_POP([C++])
])

# clang only warns about an option that it does not know, so the probe makes that an error.
AC_DEFUN([NVL_WARNING_FLAG], [
AS_VAR_PUSHDEF([nvl_cache], [nvl_cv_flag_$1])
AC_CACHE_CHECK([whether $CXX knows $1], [nvl_cache], [
    nvl_saved_CXXFLAGS=$CXXFLAGS
    CXXFLAGS="$CXXFLAGS -Werror $1"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
        [AS_VAR_SET([nvl_cache], [yes])], [AS_VAR_SET([nvl_cache], [no])])
    CXXFLAGS=$nvl_saved_CXXFLAGS
])
AS_VAR_IF([nvl_cache], [yes], [WARNING_CXXFLAGS="$WARNING_CXXFLAGS $1"])
AS_VAR_POPDEF([nvl_cache])
])
