# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_STATIC_RUNTIME: how does a shared library carry its own C++ runtime? The plugin is loaded into processes
# of every age, so it must not ask for a libstdc++ of its own build's version.
# libtool links C++ with -nostdlib and its own list of libraries, which turns -static-libstdc++ into a no-op:
# that list is emptied here and the compiler driver chooses. Call after LT_INIT.
# Sets STATIC_RUNTIME_LDFLAGS and NO_UNDEFINED_LDFLAGS (both empty under a sanitizer, see NVL_SANITIZERS).
AC_DEFUN([NVL_STATIC_RUNTIME], [
AC_REQUIRE([LT_INIT])
archive_cmds_CXX=`AS_ECHO(["$archive_cmds_CXX"]) | $SED 's/ -nostdlib//g'`
archive_expsym_cmds_CXX=`AS_ECHO(["$archive_expsym_cmds_CXX"]) | $SED 's/ -nostdlib//g'`
predep_objects_CXX=
postdep_objects_CXX=
predeps_CXX=
postdeps_CXX=
AC_LANG_PUSH([C++])
AC_CACHE_CHECK([whether $CXX links its runtime statically], [nvl_cv_static_runtime], [
    nvl_saved_LDFLAGS=$LDFLAGS
    LDFLAGS="$LDFLAGS -shared -fPIC -static-libstdc++ -static-libgcc"
    AC_LINK_IFELSE([AC_LANG_SOURCE([[
        #include <string>
        std::string nvl_probe(int x) { return std::to_string(x); }
    ]])], [nvl_cv_static_runtime=yes], [nvl_cv_static_runtime=no])
    LDFLAGS=$nvl_saved_LDFLAGS
])
AS_IF([test $nvl_cv_static_runtime = yes],
    [STATIC_RUNTIME_LDFLAGS='-static-libstdc++ -static-libgcc'],
    [AC_MSG_WARN([no static libstdc++: the plugin will need the shared one of this machine])])
NO_UNDEFINED_LDFLAGS='-Wl,-z,defs'
AC_SUBST([STATIC_RUNTIME_LDFLAGS])
AC_SUBST([NO_UNDEFINED_LDFLAGS])
AC_LANG_POP([C++])
])
