# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_CUDA: where are cuda.h (needed) and nvcc (for the copy kernel)? Looked for in this order:
#   --with-cuda=DIR   a toolkit, or the folder `nvidia` of the PyPI packages
#   nvcc on the PATH, CUDA_HOME, /usr/local/cuda, /usr
#   the PyPI packages nvidia-cuda-nvcc and nvidia-cuda-runtime of python3, or of .local/venv in the source folder
# Without nvcc the library is built with no copy kernel: the copy engine does all the work.
# Nothing of CUDA is linked. Sets CUDA_CPPFLAGS, CUDA_VERSION, CUDA_FOUND_BY, NVCC, NVCC_GENCODE, HAVE_NVCC.
AC_DEFUN([NVL_CUDA], [
AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=DIR], [CUDA toolkit 12 or 13, or the folder `nvidia' of its PyPI packages])],
    [], [with_cuda=yes])
AC_ARG_WITH([gpu-archs],
    [AS_HELP_STRING([--with-gpu-archs=LIST], [compile the copy kernel for these only, e.g. "90 100" (default: all that
        nvcc offers from 60 on, and PTX of the newest)])], [], [with_gpu_archs=all])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [flags for the CUDA compiler])
AC_LANG_PUSH([C++])
CUDA_INCLUDE=
CUDA_FOUND_BY=
nvl_nvcc=
AC_MSG_CHECKING([for cuda.h])
AS_CASE([$with_cuda],
    [no], [AC_MSG_RESULT([no])
           AC_MSG_ERROR([cuda.h is needed: --without-cuda leaves nothing to build])],
    [yes], [
        AS_IF([test -z "$NVCC"], [nvl_on_path=`command -v nvcc`], [nvl_on_path=$NVCC])
        AS_IF([test -n "$nvl_on_path"],
            [nvl_real=`readlink -f "$nvl_on_path"`
             nvl_dir=`dirname "$nvl_real"`/..
             NVL_CUDA_TRY([$nvl_dir], [nvcc on the PATH])])
        NVL_CUDA_TRY([$CUDA_HOME], [CUDA_HOME])
        NVL_CUDA_TRY([/usr/local/cuda], [the usual place])
        NVL_CUDA_TRY([/usr], [packages of the distribution])
        for nvl_python in "$PYTHON3" "$srcdir/.local/venv/bin/python3"; do
            nvl_dir=`NVL_PYTHON_PACKAGE([nvidia])`
            NVL_CUDA_TRY_WHEEL([$nvl_dir], [PyPI packages of $nvl_python])
        done],
    [NVL_CUDA_TRY([$with_cuda], [--with-cuda])
     NVL_CUDA_TRY_WHEEL([$with_cuda], [--with-cuda])])
AS_IF([test -z "$CUDA_INCLUDE"], [
    AC_MSG_RESULT([no])
    AC_MSG_ERROR([no cuda.h found. Any of these helps:
    pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm
    ./configure --with-cuda=DIR          (DIR has include/cuda.h and bin/nvcc)])
])
AC_MSG_RESULT([$CUDA_INCLUDE/cuda.h ($CUDA_FOUND_BY)])
# The compiler's own folder must not be moved within its list: libstdc++ counts on the order.
AS_IF([test "$CUDA_INCLUDE" = /usr/include], [CUDA_CPPFLAGS=], [CUDA_CPPFLAGS="-isystem $CUDA_INCLUDE"])
nvl_number=`$SED -n 's/^@%:@define  *CUDA_VERSION  *\([[0-9]][[0-9]]*\).*/\1/p' "$CUDA_INCLUDE/cuda.h" | head -n 1`
CUDA_VERSION=$((nvl_number / 1000)).$((nvl_number % 1000 / 10))
nvl_saved_CPPFLAGS=$CPPFLAGS
CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
    #include <cuda.h>
    static_assert(CUDA_VERSION >= 12000, "CUDA 12");
]], [])], [],
    [AC_MSG_ERROR([CUDA $CUDA_VERSION in $CUDA_INCLUDE is too old or does not compile: 12.0 is the first that works])])
CPPFLAGS=$nvl_saved_CPPFLAGS

AS_IF([test -z "$NVCC"], [NVCC=$nvl_nvcc])
NVL_CUDA_KERNELS
AM_CONDITIONAL([HAVE_NVCC], [test -n "$NVCC"])
AC_SUBST([CUDA_CPPFLAGS])
AC_SUBST([CUDA_VERSION])
AC_SUBST([NVCC_GENCODE])
AC_LANG_POP([C++])
])

# NVL_CUDA_TRY(DIR, FOUND_BY): a toolkit laid out as NVIDIA's installer or a distribution does.
AC_DEFUN([NVL_CUDA_TRY], [
AS_IF([test -z "$CUDA_INCLUDE" && test -n "$1"], [
    for nvl_try in "$1/include" "$1/targets/$host_cpu-linux/include" "$1/targets/sbsa-linux/include"; do
        AS_IF([test -f "$nvl_try/cuda.h"], [
            CUDA_INCLUDE=`cd "$nvl_try" && pwd`
            CUDA_FOUND_BY="$2"
            AS_IF([test -x "$1/bin/nvcc"], [nvl_nvcc=`cd "$1/bin" && pwd`/nvcc])
            break
        ])
    done
])
])

# NVL_CUDA_TRY_WHEEL(DIR, FOUND_BY): DIR is the folder `nvidia` of site-packages. CUDA 13 has one folder for all
# packages (cu13), CUDA 12 one for each.
AC_DEFUN([NVL_CUDA_TRY_WHEEL], [
AS_IF([test -z "$CUDA_INCLUDE" && test -n "$1"], [
    for nvl_wheel in "$1"/cu[[0-9]]*; do
        NVL_CUDA_TRY([$nvl_wheel], [$2])
    done
    AS_IF([test -z "$CUDA_INCLUDE" && test -f "$1/cuda_runtime/include/cuda.h"], [
        CUDA_INCLUDE=`cd "$1/cuda_runtime/include" && pwd`
        CUDA_FOUND_BY="$2"
        AS_IF([test -x "$1/cuda_nvcc/bin/nvcc"],
            [nvl_nvcc=`cd "$1/cuda_nvcc/bin" && pwd`/nvcc
             NVCCFLAGS="$NVCCFLAGS -I$CUDA_INCLUDE"])
    ])
])
])

# Which GPUs nvcc offers, and does it work at all? A machine code file for each of 60 and newer, and PTX of the
# newest for the GPUs that come after it.
AC_DEFUN([NVL_CUDA_KERNELS], [
NVCC_GENCODE=
GPU_ARCHS=
AS_IF([test -n "$NVCC"], [
    AC_MSG_CHECKING([which GPUs $NVCC compiles for])
    AS_IF([test "x$with_gpu_archs" = xall],
        [nvl_archs=`"$NVCC" --list-gpu-code 2>&AS_MESSAGE_LOG_FD | $SED -n 's/^sm_\([[0-9]]*\)$/\1/p' | sort -n -u`],
        [nvl_archs=`AS_ECHO(["$with_gpu_archs"]) | tr ', ' '\n\n' | $SED 's/^sm_//' | sort -n -u`])
    for nvl_arch in $nvl_archs; do
        AS_IF([test "$nvl_arch" -ge 60], [
            NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$nvl_arch,code=sm_$nvl_arch"
            GPU_ARCHS="$GPU_ARCHS $nvl_arch"
            nvl_newest=$nvl_arch
        ])
    done
    AS_IF([test -n "$GPU_ARCHS"],
        [NVCC_GENCODE="-Wno-deprecated-gpu-targets$NVCC_GENCODE -gencode arch=compute_$nvl_newest,code=compute_$nvl_newest"
         AC_MSG_RESULT([$GPU_ARCHS and newer])],
        [AC_MSG_RESULT([none])])
    AC_MSG_CHECKING([whether $NVCC works])
    cat > conftest.cu <<'_NVL_END'
extern "C" __global__ void probe(int *p) { *p = 1; }
_NVL_END
    AS_IF([test -n "$GPU_ARCHS" && \
           "$NVCC" $NVCCFLAGS -Wno-deprecated-gpu-targets -std=c++17 -arch=sm_$nvl_newest -fatbin -o conftest.fatbin \
               conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         AC_MSG_WARN([$NVCC does not work (see config.log): built without the copy kernel])
         NVCC=])
    rm -f conftest.cu conftest.fatbin
])
nvl_archs=`AS_ECHO(["$GPU_ARCHS"]) | $SED 's/^ *//; s/  */, /g'`
AS_IF([test -z "$NVCC"], [nvl_archs=])
AC_DEFINE_UNQUOTED([RING_KERNEL_ARCHS], [{${nvl_archs:-0}}],
    [Compute capabilities, times ten, that the copy kernel has machine code for; of the last also PTX])
AS_IF([test -z "$NVCC"],
    [AC_MSG_WARN([no nvcc: built without the copy kernel, the copy engine does all the work])])
])
