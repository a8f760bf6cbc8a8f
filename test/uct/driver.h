// SPDX-License-Identifier: BSD-3-Clause
//
// The CUDA driver under the tests, real or emulated, found as every client finds it: by dlopen. Also what a test may
// do to an emulated one.
#ifndef NVLINK_TEST_UCT_DRIVER_H
#define NVLINK_TEST_UCT_DRIVER_H

#include <cuda.h>

#include <string>
#include <vector>

namespace nvl::test {

struct driver_functions {
#define NVL_CU(_name, ...)            \
    using _name##_type = __VA_ARGS__; \
    _name##_type _name = nullptr;
#include "uct/driver.def"
#undef NVL_CU
};

// Initialises the driver at the first call; ends the process if there is none.
const driver_functions &cu();

// How many GPUs there are, all of them in reach of the first one; or 0 and the reason.
int         gpu_count();
std::string gpus_missing();

// True where the machine's first GPU stands for two (NVL_ONE_GPU).
bool is_one_gpu();

// What the driver calls a GPU of the tests.
CUdevice device_of(int gpu);

// The primary context of a GPU, which stays retained.
CUcontext primary_context(int gpu);

// Ends the test program with the call's name if the driver refuses.
void must(CUresult code, const char *call);

// Makes a context current for a scope.
class current_context {
public:
    explicit current_context(CUcontext context);
    ~current_context();
    current_context(const current_context &)            = delete;
    current_context &operator=(const current_context &) = delete;
};

// ---- the emulated driver ---------------------------------------------------------------------------------------

// See test/emulator/emu.h.
struct emulator_functions {
    long (*call_count)(const char *)          = nullptr;
    void (*reset_counts)()                    = nullptr;
    int (*add_faults)(const char *)           = nullptr;
    void (*clear_faults)()                    = nullptr;
    void (*hold)(int)                         = nullptr;
    void (*release)(unsigned long)            = nullptr;
    long (*live_count)(const char *)          = nullptr;
    long (*violation_count)()                 = nullptr;
    void (*reuse_contexts)(int)               = nullptr;
    void *(*peek)(unsigned long long, size_t) = nullptr;
    int (*context_depth)()                    = nullptr;
};

// Null on a real driver: GTEST_SKIP.
const emulator_functions *emulator();

// All calls of the driver since the last reset, by exported name.
std::vector<std::pair<std::string, long>> calls_made();

} // namespace nvl::test

#define NVL_NEEDS_EMULATOR()                                                                \
    do {                                                                                    \
        if (::nvl::test::emulator() == nullptr) {                                           \
            GTEST_SKIP() << "this driver is a real one, which takes no orders from a test"; \
        }                                                                                   \
    } while (0)

#define NVL_NEEDS_TWO_GPUS()                                        \
    do {                                                            \
        if (::nvl::test::is_one_gpu()) {                            \
            GTEST_SKIP() << "one GPU stands for two (NVL_ONE_GPU)"; \
        }                                                           \
    } while (0)

// A call of the driver that a test relies on: NVL_MUST(cuMemFree_v2, (address)).
#define NVL_MUST(_name, _arguments) ::nvl::test::must(::nvl::test::cu()._name _arguments, #_name)

#endif
