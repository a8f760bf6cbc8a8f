# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_SUMMARY: what configure found, with paths.
AC_DEFUN([NVL_SUMMARY], [
AS_IF([test -n "$NVCC"], [nvl_kernel="$NVCC for$GPU_ARCHS"], [nvl_kernel='off (no nvcc)'])
AC_MSG_NOTICE([

$PACKAGE_STRING
    compiler       $CXX $CXX17_FLAG (warnings are errors: $enable_werror)
    UCX            $UCX_VERSION in $UCX_DIR ($UCX_FOUND_BY)
    CUDA           $CUDA_VERSION in $CUDA_INCLUDE ($CUDA_FOUND_BY)
    copy kernel    $nvl_kernel
    hwloc          ${HWLOC_VERSION:-none}
    GoogleTest     ${GTEST_VERSION:-none}
    fmt            ${FMT_VERSION:-none}
    benchmark      ${BENCHMARK_VERSION:-none}
    libdw          ${DW_VERSION:-none}
    sanitizers     ${SANITIZERS:-none}
    tests          $TESTS_STATE
    installed to   $libdir (prefix $prefix)
])
])
