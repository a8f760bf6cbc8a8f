# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_UCX: where are UCX's public headers, and are they 1.22 or newer? Looked for in this order:
#   --with-ucx=DIR   an installed UCX (DIR/include/uct), or the folder that holds the PyPI package `libucx`
#   pkg-config ucx
#   the PyPI package libucx-cu12 or libucx-cu13 of python3, or of .local/venv in the source folder
# Only headers are used: the plugin takes every symbol from the UCX that loads it. Tests run the programs in
# UCX_DIR/bin. Sets UCX_DIR, UCX_VERSION, UCX_FOUND_BY, UCX_CPPFLAGS.
AC_DEFUN([NVL_UCX], [
AC_ARG_WITH([ucx],
    [AS_HELP_STRING([--with-ucx=DIR], [UCX 1.22 or newer: its prefix, or the folder of the PyPI package libucx])],
    [], [with_ucx=yes])
AC_LANG_PUSH([C++])
UCX_DIR=
UCX_FOUND_BY=
AC_MSG_CHECKING([for the headers of UCX])
AS_CASE([$with_ucx],
    [no], [AC_MSG_ERROR([this is a plugin of UCX: --without-ucx leaves nothing to build])],
    [yes], [NVL_UCX_SEARCH],
    [for nvl_dir in "$with_ucx" "$with_ucx/libucx"; do
         AS_IF([test -f "$nvl_dir/include/uct/api/uct.h"],
             [UCX_DIR=`cd "$nvl_dir" && pwd`; UCX_FOUND_BY=--with-ucx; break])
     done])
AS_IF([test -z "$UCX_DIR"], [
    AC_MSG_RESULT([no])
    AC_MSG_ERROR([no UCX found. Any of these helps:
    pip install 'libucx-cu13==1.22.*'    (into the python3 on the PATH, or into a virtual environment that is active)
    ./configure --with-ucx=DIR           (DIR has include/uct/api/uct.h)
    PKG_CONFIG_PATH=DIR/lib/pkgconfig ./configure])
])
AC_MSG_RESULT([$UCX_DIR ($UCX_FOUND_BY)])

# As a system folder: UCX's headers are not ours to warn about. Not /usr/include, whose place in the compiler's list
# libstdc++ counts on.
AS_IF([test "$UCX_DIR" = /usr], [UCX_CPPFLAGS=], [UCX_CPPFLAGS="-isystem $UCX_DIR/include"])
nvl_saved_CPPFLAGS=$CPPFLAGS
CPPFLAGS="$CPPFLAGS $UCX_CPPFLAGS"
AC_MSG_CHECKING([the version of UCX])
nvl_header=$UCX_DIR/include/uct/api/version.h
nvl_major=`$SED -n 's/^@%:@define *UCT_VERNO_MAJOR *//p' "$nvl_header"`
nvl_minor=`$SED -n 's/^@%:@define *UCT_VERNO_MINOR *//p' "$nvl_header"`
UCX_VERSION=$nvl_major.$nvl_minor
AC_MSG_RESULT([$UCX_VERSION])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
    extern "C" {
    #include <uct/api/version.h>
    }
    static_assert(UCT_API >= UCT_VERSION(1, 22), "UCX 1.22 is the first with UCX_PLUGIN_PATH");
]], [])], [],
    [AC_MSG_ERROR([UCX $UCX_VERSION in $UCX_DIR is too old: 1.22 is the first that loads plugins])])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
    extern "C" {
    #include <uct/api/uct.h>
    #include <uct/api/tl.h>
    #include <ucs/config/parser.h>
    #include <ucs/type/class.h>
    }
]], [])], [],
    [AC_MSG_ERROR([the headers of UCX in $UCX_DIR do not compile: see config.log])])
CPPFLAGS=$nvl_saved_CPPFLAGS
AC_SUBST([UCX_DIR])
AC_SUBST([UCX_VERSION])
AC_SUBST([UCX_CPPFLAGS])
AC_LANG_POP([C++])
])

AC_DEFUN([NVL_UCX_SEARCH], [
AS_IF([test -n "$PKG_CONFIG" && $PKG_CONFIG --exists ucx 2>&AS_MESSAGE_LOG_FD], [
    nvl_dir=`$PKG_CONFIG --variable=includedir ucx`
    AS_IF([test -f "$nvl_dir/uct/api/uct.h"],
        [UCX_DIR=`cd "$nvl_dir/.." && pwd`; UCX_FOUND_BY=pkg-config])
])
AS_IF([test -z "$UCX_DIR"], [
    for nvl_python in "$PYTHON3" "$srcdir/.local/venv/bin/python3"; do
        nvl_dir=`NVL_PYTHON_PACKAGE([libucx])`
        AS_IF([test -n "$nvl_dir" && test -f "$nvl_dir/include/uct/api/uct.h"],
            [UCX_DIR=$nvl_dir; UCX_FOUND_BY="PyPI package of $nvl_python"; break])
    done
])
])

# The shell command that prints the folder of a python package of $nvl_python, or nothing.
m4_define([NVL_PYTHON_PACKAGE],
[test -x "$nvl_python" && "$nvl_python" -c 'import importlib.util as u
s = u.find_spec("$1")
print(next(iter(s.submodule_search_locations)) if s else "")' 2>/dev/null])
