# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_SANITIZERS: --enable-asan, --enable-ubsan, --enable-tsan. Sets SANITIZER_FLAGS (compile and link),
# SANITIZER_PRELOAD and the conditionals ASAN, UBSAN, TSAN. A sanitized plugin keeps the shared C++ runtime, since the sanitizer intercepts
# __cxa_throw there, and is linked without -z defs, since its runtime may come from the program.
AC_DEFUN([NVL_SANITIZERS], [
AC_REQUIRE([NVL_STATIC_RUNTIME])
AC_ARG_ENABLE([asan], [AS_HELP_STRING([--enable-asan], [build with address sanitizer])], [], [enable_asan=no])
AC_ARG_ENABLE([ubsan], [AS_HELP_STRING([--enable-ubsan], [build with undefined behaviour sanitizer])], [],
    [enable_ubsan=no])
AC_ARG_ENABLE([tsan], [AS_HELP_STRING([--enable-tsan], [build with thread sanitizer])], [], [enable_tsan=no])
AS_IF([test "x$enable_asan" != xno && test "x$enable_tsan" != xno],
    [AC_MSG_ERROR([--enable-asan and --enable-tsan exclude each other: build twice, in two folders])])
SANITIZER_FLAGS=
SANITIZERS=
AS_IF([test "x$enable_asan" != xno], [NVL_SANITIZER([address], [-fsanitize=address])])
AS_IF([test "x$enable_ubsan" != xno],
    [NVL_SANITIZER([undefined], [-fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow])])
AS_IF([test "x$enable_tsan" != xno], [NVL_SANITIZER([thread], [-fsanitize=thread])])
AS_IF([test -n "$SANITIZER_FLAGS"], [
    SANITIZER_FLAGS="$SANITIZER_FLAGS -fno-omit-frame-pointer -g"
    STATIC_RUNTIME_LDFLAGS=
    NO_UNDEFINED_LDFLAGS=
])
# A program that was not built with the sanitizer and loads the plugin needs the sanitizer's runtime first (LD_PRELOAD).
SANITIZER_PRELOAD=
AS_IF([test "x$enable_asan" != xno], [NVL_SANITIZER_RUNTIME([libasan.so])])
AS_IF([test "x$enable_tsan" != xno], [NVL_SANITIZER_RUNTIME([libtsan.so])])
AC_SUBST([SANITIZER_FLAGS])
AC_SUBST([SANITIZER_PRELOAD])
AC_SUBST([SANITIZERS])
AM_CONDITIONAL([ASAN], [test "x$enable_asan" != xno])
AM_CONDITIONAL([UBSAN], [test "x$enable_ubsan" != xno])
AM_CONDITIONAL([TSAN], [test "x$enable_tsan" != xno])
])

# NVL_SANITIZER_RUNTIME(FILE): the compiler's own copy, if it has one.
AC_DEFUN([NVL_SANITIZER_RUNTIME], [
nvl_file=`$CXX -print-file-name=$1`
AS_IF([test -f "$nvl_file"], [SANITIZER_PRELOAD=`readlink -f "$nvl_file"`],
    [AC_MSG_WARN([$CXX has no shared $1: tests that load the sanitized plugin into stock UCX will not run])])
])

# NVL_SANITIZER(NAME, FLAGS): adds it, or stops with what to install.
AC_DEFUN([NVL_SANITIZER], [
AC_LANG_PUSH([C++])
nvl_saved_CXXFLAGS=$CXXFLAGS
CXXFLAGS="$CXXFLAGS $2"
AC_MSG_CHECKING([whether $CXX links with $2])
AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([the $1 sanitizer's runtime is missing: install libgcc-<N>-dev or libclang-rt-<N>-dev])])
CXXFLAGS=$nvl_saved_CXXFLAGS
SANITIZER_FLAGS="$SANITIZER_FLAGS $2"
SANITIZERS="$SANITIZERS $1"
AC_LANG_POP([C++])
])
