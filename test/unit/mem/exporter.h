// SPDX-License-Identifier: BSD-3-Clause
//
// Another process that allocates GPU memory and hands out what identifies it, since a process cannot open its own.
#ifndef NVLINK_TEST_UNIT_MEM_EXPORTER_H
#define NVLINK_TEST_UNIT_MEM_EXPORTER_H

#include <array>
#include <cstdio>
#include <sys/types.h>

#include "mem/map_cache.h"

namespace nvl::test {

// A packed key, zeros behind it.
using wire_key = std::array<uint8_t, key_packed_size_most>;

class exporter {
public:
    exporter();
    ~exporter();
    exporter(const exporter &)            = delete;
    exporter &operator=(const exporter &) = delete;

    // Allocates on GPU 1; the key is for the place `from`.
    import_key allocate(size_t size_bytes, unsigned from);
    wire_key   allocate_key(size_t size_bytes);
    void       free(uint64_t base);

    void free(const import_key &key)
    {
        free(key.base);
    }

private:
    pid_t pid_;
    int   socket_;
};

// Opens a legacy handle as somebody else in this process would, in the current context.
CUdeviceptr open_handle(const cuda_api &cuda, const import_key &key);

// What the other process runs.
int serve_exporter(int socket);

} // namespace nvl::test

#endif
