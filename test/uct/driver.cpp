// SPDX-License-Identifier: BSD-3-Clause
//
// See driver.h.
#include "uct/driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>

namespace nvl::test {

namespace {

struct loaded {
    driver_functions   table;
    emulator_functions emulated;
    bool               is_emulated = false;
    int                gpus        = 0;
    std::string        missing;
};

template<typename F> void take(void *library, const char *name, F *function)
{
    *function = reinterpret_cast<F>(dlsym(library, name));
}

void take_emulator(void *library, loaded *self)
{
    emulator_functions *emu = &self->emulated;
    take(library, "emu_call_count", &emu->call_count);
    take(library, "emu_reset_counts", &emu->reset_counts);
    take(library, "emu_add_faults", &emu->add_faults);
    take(library, "emu_clear_faults", &emu->clear_faults);
    take(library, "emu_hold", &emu->hold);
    take(library, "emu_release", &emu->release);
    take(library, "emu_live_count", &emu->live_count);
    take(library, "emu_violation_count", &emu->violation_count);
    take(library, "emu_reuse_contexts", &emu->reuse_contexts);
    take(library, "emu_peek", &emu->peek);
    take(library, "emu_context_depth", &emu->context_depth);
    self->is_emulated = emu->call_count != nullptr;
}

// With NVL_ONE_GPU=1 the machine's first GPU stands for two: most of what the suites ask about
// processes and kinds of memory does not depend on where the other side's memory is.
CUresult (*real_device_get)(CUdevice *, int) = nullptr;

CUresult first_device(CUdevice *device, int gpu)
{
    return (gpu < 2) ? real_device_get(device, 0) : CUDA_ERROR_INVALID_DEVICE;
}

void count_gpus(loaded *self)
{
    driver_functions &t     = self->table;
    int               count = 0;
    CUresult          code  = t.cuInit(0);
    if (code != CUDA_SUCCESS || t.cuDeviceGetCount(&count) != CUDA_SUCCESS) {
        self->missing = "the CUDA driver does not start: cuInit says " + std::to_string(code);
        return;
    }
    const char *one = std::getenv("NVL_ONE_GPU");
    if (count > 0 && one != nullptr && std::strcmp(one, "1") == 0) {
        real_device_get = t.cuDeviceGet;
        t.cuDeviceGet   = first_device;
        self->gpus      = 2;
        return;
    }
    // The tests name GPUs by small numbers: all of them have to reach each other.
    for (int gpu = 1; gpu < count; ++gpu) {
        int forth = 0, back = 0;
        t.cuDeviceCanAccessPeer(&forth, 0, gpu);
        t.cuDeviceCanAccessPeer(&back, gpu, 0);
        if (forth == 0 || back == 0) {
            count = gpu;
        }
    }
    if (count < 2) {
        self->missing = "two GPUs that reach each other's memory are needed";
        return;
    }
    self->gpus = count;
}

loaded load()
{
    loaded self;
    void  *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        self.missing = std::string("no CUDA driver: ") + dlerror();
        return self;
    }
#define NVL_CU(_name, ...)                               \
    take(library, #_name, &self.table._name);            \
    if (self.table._name == nullptr) {                   \
        self.missing = "the CUDA driver has no " #_name; \
        return self;                                     \
    }
#include "uct/driver.def"
#undef NVL_CU
    take_emulator(library, &self);
    count_gpus(&self);
    return self;
}

const loaded &the_driver()
{
    static const loaded self = load();
    return self;
}

} // namespace

const driver_functions &cu()
{
    if (!the_driver().missing.empty()) {
        std::fprintf(stderr, "%s\n", the_driver().missing.c_str());
        std::abort();
    }
    return the_driver().table;
}

int gpu_count()
{
    return the_driver().gpus;
}

std::string gpus_missing()
{
    return the_driver().missing;
}

void must(CUresult code, const char *call)
{
    if (code != CUDA_SUCCESS) {
        std::fprintf(stderr, "%s, called by a test, answers %d\n", call, code);
        std::abort();
    }
}

bool is_one_gpu()
{
    return (cu().cuDeviceGet != nullptr) && (real_device_get != nullptr);
}

CUdevice device_of(int gpu)
{
    CUdevice device = 0;
    NVL_MUST(cuDeviceGet, (&device, gpu));
    return device;
}

CUcontext primary_context(int gpu)
{
    static std::mutex               mutex;
    static std::map<int, CUcontext> known;
    std::lock_guard<std::mutex>     guard(mutex);
    CUcontext                      &context = known[gpu];
    if (context == nullptr) {
        NVL_MUST(cuDevicePrimaryCtxRetain, (&context, device_of(gpu)));
    }
    return context;
}

current_context::current_context(CUcontext context)
{
    NVL_MUST(cuCtxPushCurrent_v2, (context));
}

current_context::~current_context()
{
    CUcontext popped = nullptr;
    NVL_MUST(cuCtxPopCurrent_v2, (&popped));
}

const emulator_functions *emulator()
{
    return the_driver().is_emulated ? &the_driver().emulated : nullptr;
}

std::vector<std::pair<std::string, long>> calls_made()
{
    // A row of the emulator's own list is one function.
    static const char *const names[] = {
#define EMU_FN(_base, _exported, _version, _stream) #_exported,
#define EMU_NO(_base, _exported, _version, _stream) #_exported,
#include "emulator/symbols.def"
#undef EMU_FN
#undef EMU_NO
    };
    std::vector<std::pair<std::string, long>> made;
    for (const char *name : names) {
        long count = emulator()->call_count(name);
        if (count > 0) {
            made.emplace_back(name, count);
        }
    }
    return made;
}

} // namespace nvl::test
