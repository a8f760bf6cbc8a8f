// SPDX-License-Identifier: BSD-3-Clause
//
// Machines for the tests of topo: by name from test/machines, or from a text of the test's own.
#ifndef NVLINK_TEST_UNIT_TOPO_MACHINE_FILE_H
#define NVLINK_TEST_UNIT_TOPO_MACHINE_FILE_H

#include "topo/facts.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#ifndef NVL_TEST_MACHINES
#error "NVL_TEST_MACHINES: the folder test/machines"
#endif

namespace nvl {

inline machine_facts machine_named(const std::string &name)
{
    machine_facts     facts;
    std::string       error;
    const std::string path = std::string(NVL_TEST_MACHINES) + "/" + name + ".machine";
    EXPECT_EQ(facts_read(path.c_str(), &facts, &error), facts_result::ok) << error;
    return facts;
}

inline machine_facts machine_of(const std::string &text)
{
    machine_facts facts;
    std::string   error;
    EXPECT_EQ(facts_parse(text, &facts, &error), facts_result::ok) << error;
    return facts;
}

// Of all files in test/machines, sorted.
inline std::vector<std::string> all_machine_names()
{
    std::vector<std::string> names;

    for (const auto &entry : std::filesystem::directory_iterator(NVL_TEST_MACHINES)) {
        if (entry.path().extension() == ".machine") {
            names.push_back(entry.path().stem().string());
        }
    }
    std::sort(names.begin(), names.end());
    return names;
}

// As GoogleTest wants it.
inline std::string test_name(std::string name)
{
    for (char &c : name) {
        c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    }
    return name;
}

} // namespace nvl

#endif
