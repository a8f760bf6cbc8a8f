# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_TESTS: what do tests, benches and tools need, and is it here? GoogleTest with gmock and fmt: without them,
# or with --disable-tests, no tests. Google Benchmark: no benches without it. libdw: the test that compares our
# declarations with UCX's debug information is skipped without it.
# Sets GTEST_CFLAGS, GTEST_LIBS (with gmock and its main), FMT_CPPFLAGS, BENCHMARK_*, DW_*, and the conditionals
# BUILD_TESTS, HAVE_FMT, HAVE_BENCHMARK, HAVE_DW.
AC_DEFUN([NVL_TESTS], [
AC_ARG_ENABLE([tests], [AS_HELP_STRING([--disable-tests], [do not build the tests])], [], [enable_tests=yes])
NVL_TEST_MODULE([GTEST], [gtest gmock gmock_main], [libgtest-dev and libgmock-dev])
NVL_TEST_MODULE([FMT], [fmt], [libfmt-dev])
NVL_TEST_MODULE([BENCHMARK], [benchmark], [libbenchmark-dev])
NVL_TEST_MODULE([DW], [libdw], [libdw-dev])
# Header-only: text is built in tools and tests, and nothing there should need one more shared library.
FMT_CPPFLAGS="$FMT_CFLAGS -DFMT_HEADER_ONLY"
AC_SUBST([FMT_CPPFLAGS])
TESTS_STATE=on
AS_IF([test "x$enable_tests" = xno], [TESTS_STATE='off (--disable-tests)'],
    [test $nvl_have_GTEST = no], [TESTS_STATE='off (no GoogleTest: install libgtest-dev and libgmock-dev)'],
    [test $nvl_have_FMT = no], [TESTS_STATE='off (no fmt: install libfmt-dev)'])
AM_CONDITIONAL([BUILD_TESTS], [test "$TESTS_STATE" = on])
AM_CONDITIONAL([HAVE_FMT], [test $nvl_have_FMT = yes])
AM_CONDITIONAL([HAVE_BENCHMARK], [test $nvl_have_BENCHMARK = yes])
AM_CONDITIONAL([HAVE_DW], [test $nvl_have_DW = yes])
])

# NVL_TEST_MODULE(PREFIX, MODULES, DEBIAN_PACKAGES)
AC_DEFUN([NVL_TEST_MODULE], [
nvl_have_$1=no
PKG_CHECK_MODULES([$1], [$2], [
    nvl_have_$1=yes
    $1_VERSION=`$PKG_CONFIG --modversion $2 | head -n 1`
], [AC_MSG_WARN([$2 not found: install $3])])
])
