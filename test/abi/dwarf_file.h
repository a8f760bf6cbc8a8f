// SPDX-License-Identifier: BSD-3-Clause
//
// Structures, enum constants and prototypes of ELF files, by name, out of their debug information. Types are
// rendered so that C and C++, gcc and clang, and a typedef here or there give the same text. Used by
// abi_check; uses libdw.

#ifndef NVLINK_TEST_ABI_DWARF_FILE_H
#define NVLINK_TEST_ABI_DWARF_FILE_H

#include <map>
#include <string>

struct member_layout {
    unsigned long long offset      = 0;
    unsigned long long size        = 0;
    bool               is_function = false; // a pointer to one
    std::string        type;
};

struct structure_layout {
    unsigned long long                   size = 0;
    std::map<std::string, member_layout> members; // of unnamed structures as "cap.flags"
    std::string                          declared_in;
};

struct dwarf_index {
    // Reads one file; names that are there already stay. False when it has no debug information.
    bool add(const std::string &path);

    std::map<std::string, structure_layout> structures; // "namespace::name" where there is one
    std::map<std::string, long long>        constants;
    std::map<std::string, std::string>      constant_files;
    std::map<std::string, std::string>      functions;
};

inline bool ends_with(const std::string &text, const std::string &end)
{
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

#endif
