# SPDX-License-Identifier: BSD-3-Clause
#
# NVL_CXX17: which option gives strict C++17? Sets CXX17_FLAG (empty where C++17 is given already in CXXFLAGS).
AC_DEFUN([NVL_CXX17], [
AC_LANG_PUSH([C++])
AC_CACHE_CHECK([for the C++17 option of $CXX], [nvl_cv_cxx17], [
    nvl_saved_CXXFLAGS=$CXXFLAGS
    nvl_cv_cxx17=no
    for nvl_flag in -std=c++17 -std=c++1z; do
        CXXFLAGS="$nvl_saved_CXXFLAGS $nvl_flag"
        AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
            #include <optional>
            #include <string_view>
            static_assert(__cplusplus >= 201703L, "C++17");
        ]], [[
            if (std::optional<int> v{1}; v) { return *v - 1; }
        ]])], [nvl_cv_cxx17=$nvl_flag; break])
    done
    CXXFLAGS=$nvl_saved_CXXFLAGS
])
AS_IF([test "x$nvl_cv_cxx17" = xno],
    [AC_MSG_ERROR([$CXX does not compile C++17: install g++ 9 or clang 10 or newer, or set CXX])])
CXX17_FLAG=$nvl_cv_cxx17
AC_SUBST([CXX17_FLAG])
AC_LANG_POP([C++])
])
