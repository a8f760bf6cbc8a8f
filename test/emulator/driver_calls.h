// SPDX-License-Identifier: BSD-3-Clause
//
// What the sections of driver_calls share: how a call is looked up, made and reported.
#ifndef NVLINK_EMULATOR_DRIVER_CALLS_H
#define NVLINK_EMULATOR_DRIVER_CALLS_H

#include "cuda_internal.h"

namespace calls {

// The exported function of this exact name; ends the section when the driver has none.
void *symbol(const char *name);

// CU(cuMemAlloc_v2)(&pointer, size)
#define CU(name) reinterpret_cast<decltype(&::name)>(calls::symbol(#name))

// Prints "section label: code" / "section label = value".
void report(const char *label, CUresult code);
void report_value(const char *label, long long value);
// A call that the section cannot go on without: anything but success ends it.
void must(const char *label, CUresult code);

// Initialised, with the primary context of the device current.
CUcontext   start(CUdevice device);
bool        has_two_gpus(); // that can reach each other
CUdeviceptr allocate(size_t size);
CUstream    make_stream();

// A second process of this program that runs another section; lines go to and fro.
class helper {
public:
    explicit helper(const char *section);
    ~helper();
    helper(const helper &)            = delete;
    helper &operator=(const helper &) = delete;
    void    read_bytes(void *bytes, size_t size);
    void    write_bytes(const void *bytes, size_t size);
    void    finish(); // closes its input and waits

private:
    int pid_, from_, to_;
};
// In the helper: standard input and output of that connection.
void tell(const void *bytes, size_t size);
void hear(void *bytes, size_t size); // ends the helper at the end of input

struct section {
    const char *name;
    void (*run)();
    bool is_helper; // only run by another section
};
extern const section memory_sections[], work_sections[], sharing_sections[]; // ended by no name

} // namespace calls

#endif
