// SPDX-License-Identifier: BSD-3-Clause
//
// Another process that allocates GPU memory and hands out what identifies it, since a process cannot open its own.
#ifndef NVLINK_TEST_UNIT_MEM_EXPORTER_H
#define NVLINK_TEST_UNIT_MEM_EXPORTER_H

#include <cstdio>
#include <sys/types.h>

#include "mem/map_cache.h"

namespace nvl::test {

class exporter {
public:
    exporter();
    ~exporter();
    exporter(const exporter &)            = delete;
    exporter &operator=(const exporter &) = delete;

    // Allocates on GPU 1; the key is for the place `from`.
    import_key allocate(size_t size_bytes, unsigned from);
    void       free(const import_key &key);

private:
    pid_t pid_;
    int   socket_;
};

// What the other process runs.
int serve_exporter(int socket);

} // namespace nvl::test

#endif
