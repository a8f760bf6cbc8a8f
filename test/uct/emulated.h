// SPDX-License-Identifier: BSD-3-Clause
//
// What a test does to an emulated driver, undone at the end of the scope.
#ifndef NVLINK_TEST_UCT_EMULATED_H
#define NVLINK_TEST_UCT_EMULATED_H

#include "uct/driver.h"

#include <cstdio>
#include <cstdlib>

namespace nvl::test {

// While it lives no work of a stream starts, but for what is let through.
class held_streams {
public:
    held_streams()
    {
        emulator()->hold(1);
    }

    ~held_streams()
    {
        let_go();
    }

    held_streams(const held_streams &)            = delete;
    held_streams &operator=(const held_streams &) = delete;

    void let_go()
    {
        emulator()->hold(0);
    }

    void let_through(unsigned long pieces)
    {
        emulator()->release(pieces);
    }
};

// Planned faults, "cuMemcpyAsync:3=719".
class planned_faults {
public:
    explicit planned_faults(const std::string &rules)
    {
        // The numbers in the rules count from here.
        emulator()->reset_counts();
        if (emulator()->add_faults(rules.c_str()) != 0) {
            std::fprintf(stderr, "the emulated driver does not understand %s\n", rules.c_str());
            std::abort();
        }
    }

    ~planned_faults()
    {
        emulator()->clear_faults();
    }

    planned_faults(const planned_faults &)            = delete;
    planned_faults &operator=(const planned_faults &) = delete;
};

} // namespace nvl::test

#endif
