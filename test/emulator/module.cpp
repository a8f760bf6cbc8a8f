// SPDX-License-Identifier: BSD-3-Clause
//
// Modules and libraries. Their images are not looked at: names are found in the library of host
// builds that NVL_EMU_KERNELS names (emu_kernel.h). A module belongs to a context; a library to
// none, and makes a module for each context that uses it.
#include "module.h"
#include "stale.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

namespace emu {
namespace {

struct kernel_library {
    const emu_kernel *kernels = nullptr; // ended by a null name
    const emu_global *globals = nullptr;
};

kernel_library load_kernels()
{
    kernel_library found;
    const char    *path = getenv("NVL_EMU_KERNELS");
    if (path == nullptr || path[0] == '\0')
        return found;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fprintf(stderr, "emulated driver: NVL_EMU_KERNELS: %s\n", dlerror());
        _exit(99);
    }
    found.kernels = static_cast<const emu_kernel *>(dlsym(library, "emu_kernels"));
    found.globals = static_cast<const emu_global *>(dlsym(library, "emu_globals"));
    return found;
}

const kernel_library &kernels()
{
    static const kernel_library *only = new kernel_library(load_kernels());
    return *only;
}

const emu_kernel *find_kernel(const char *name)
{
    const emu_kernel *k = kernels().kernels;
    while (k != nullptr && k->name != nullptr && strcmp(k->name, name) != 0)
        k++;
    return k == nullptr || k->name == nullptr ? nullptr : k;
}

const emu_global *find_global(const char *name)
{
    const emu_global *g = kernels().globals;
    while (g != nullptr && g->name != nullptr && strcmp(g->name, name) != 0)
        g++;
    return g == nullptr || g->name == nullptr ? nullptr : g;
}

unsigned count_kernels()
{
    unsigned count = 0;
    for (const emu_kernel *k = kernels().kernels; k != nullptr && k->name != nullptr; k++)
        count++;
    return count;
}

struct loaded_library {
    CUlibrary                                                    handle = nullptr;
    std::mutex                                                   mutex;
    std::map<unsigned long long, std::shared_ptr<loaded_module>> modules; // by context
    std::map<std::string, CUkernel>                              kernels;
};

struct module_tables {
    handle_table<CUmodule, loaded_module>     modules;
    handle_table<CUlibrary, loaded_library>   libraries;
    handle_table<CUfunction, module_function> functions;
};

module_tables &tables()
{
    static module_tables *only = new module_tables;
    return *only;
}

std::shared_ptr<loaded_module> make_module(const std::shared_ptr<context> &ctx, CUlibrary library)
{
    auto made        = std::make_shared<loaded_module>();
    made->handle     = make_handle<CUmodule>(handle_kind::module);
    made->owner      = ctx;
    made->context_id = ctx->id;
    made->library    = library;
    tables().modules.add(made->handle, made);
    return made;
}

CUresult load(CUmodule *handle, const void *image)
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    EMU_REQUIRE(handle != nullptr && image != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_TRY(refuse_while_capturing());
    *handle = make_module(ctx, nullptr)->handle;
    return CUDA_SUCCESS;
}

std::shared_ptr<loaded_module> module_of(CUmodule handle)
{
    refuse_stale(handle);
    return tables().modules.find(handle);
}

void unload(loaded_module &m, bool with_context = false)
{
    std::lock_guard lock(m.mutex);
    for (auto &entry : m.functions) {
        tables().functions.remove(entry.second);
        if (with_context)
            note_stale(entry.second);
    }
    if (with_context)
        note_stale(m.handle);
    for (auto &entry : m.globals)
        free_range(entry.second);
    m.functions.clear();
    m.globals.clear();
    tables().modules.remove(m.handle);
}

CUresult get_function(CUfunction *out, const std::shared_ptr<loaded_module> &m, const char *name)
{
    std::lock_guard lock(m->mutex);
    auto            known = m->functions.find(name);
    if (known != m->functions.end()) {
        *out = known->second;
        return CUDA_SUCCESS;
    }
    const emu_kernel *kernel = find_kernel(name);
    EMU_REQUIRE(kernel != nullptr, CUDA_ERROR_NOT_FOUND);
    auto made        = std::make_shared<module_function>();
    made->handle     = make_handle<CUfunction>(handle_kind::function);
    made->kernel     = kernel;
    made->module     = m;
    made->context_id = m->context_id;
    tables().functions.add(made->handle, made);
    m->functions[name] = made->handle;
    *out               = made->handle;
    return CUDA_SUCCESS;
}

CUresult get_global(CUdeviceptr *pointer, size_t *size, const std::shared_ptr<loaded_module> &m,
                    const char *name)
{
    const emu_global *global = find_global(name);
    EMU_REQUIRE(global != nullptr, CUDA_ERROR_NOT_FOUND);
    auto ctx = m->owner.lock();
    EMU_REQUIRE(ctx != nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::lock_guard         lock(m->mutex);
    std::shared_ptr<range> &r = m->globals[name];
    if (r == nullptr)
        EMU_TRY(allocate_device_memory(*ctx->dev, ctx.get(), global->size, range_kind::global, &r));
    if (pointer != nullptr)
        *pointer = r->base;
    if (size != nullptr)
        *size = r->size;
    return CUDA_SUCCESS;
}

// The module that stands for a library in the current context.
CUresult module_in_context(CUlibrary handle, std::shared_ptr<loaded_module> *m)
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    auto library = tables().libraries.find(handle);
    EMU_REQUIRE(library != nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::lock_guard lock(library->mutex);
    auto           &slot = library->modules[ctx->id];
    if (slot == nullptr)
        slot = make_module(ctx, handle);
    *m = slot;
    return CUDA_SUCCESS;
}

} // namespace

std::shared_ptr<module_function> function_of(CUfunction handle)
{
    refuse_stale(handle);
    return tables().functions.find(handle);
}

void forget_modules(const context &ctx)
{
    for (auto &m : tables().modules.all()) {
        if (m->context_id == ctx.id)
            unload(*m, true);
    }
}

size_t live_modules()
{
    return tables().modules.size() + tables().libraries.size();
}

} // namespace emu

using namespace emu;

EMU_API(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
{
    return load(module, image);
}

EMU_API(cuModuleLoadDataEx,
        (CUmodule * module, const void *image, unsigned int count, CUjit_option *options,
         void **values),
        (module, image, count, options, values))
{
    EMU_REQUIRE(count == 0 || (options != nullptr && values != nullptr), CUDA_ERROR_INVALID_VALUE);
    return load(module, image);
}

EMU_API(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image))
{
    return load(module, image);
}

EMU_API(cuModuleLoad, (CUmodule * module, const char *path), (module, path))
{
    EMU_REQUIRE(path != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(access(path, R_OK) == 0, CUDA_ERROR_FILE_NOT_FOUND);
    return load(module, path);
}

EMU_API(cuModuleUnload, (CUmodule handle), (handle))
{
    std::shared_ptr<context> ctx;
    EMU_TRY(current_context(&ctx));
    auto m = module_of(handle);
    EMU_REQUIRE(m != nullptr && m->library == nullptr, CUDA_ERROR_INVALID_HANDLE);
    wait_for_context(*ctx);
    unload(*m);
    return CUDA_SUCCESS;
}

EMU_API(cuModuleGetLoadingMode, (CUmoduleLoadingMode * mode), (mode))
{
    EMU_REQUIRE(mode != nullptr, CUDA_ERROR_INVALID_VALUE);
    const char *text = getenv("CUDA_MODULE_LOADING");
    *mode            = text != nullptr && strcmp(text, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING
                                                                     : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

EMU_API(cuModuleGetFunction, (CUfunction * function, CUmodule handle, const char *name),
        (function, handle, name))
{
    auto m = module_of(handle);
    EMU_REQUIRE(m != nullptr, CUDA_ERROR_INVALID_HANDLE);
    EMU_REQUIRE(function != nullptr && name != nullptr, CUDA_ERROR_INVALID_VALUE);
    return get_function(function, m, name);
}

EMU_API(cuModuleGetFunctionCount, (unsigned int *count, CUmodule handle), (count, handle))
{
    EMU_REQUIRE(count != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(module_of(handle) != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *count = count_kernels();
    return CUDA_SUCCESS;
}

EMU_API(cuModuleGetGlobal_v2,
        (CUdeviceptr * pointer, size_t *size, CUmodule handle, const char *name),
        (pointer, size, handle, name))
{
    EMU_REQUIRE(name != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto m = module_of(handle);
    EMU_REQUIRE(m != nullptr, CUDA_ERROR_INVALID_HANDLE);
    return get_global(pointer, size, m, name);
}

static void make_library(CUlibrary *handle)
{
    auto made    = std::make_shared<loaded_library>();
    made->handle = make_handle<CUlibrary>(handle_kind::library);
    tables().libraries.add(made->handle, made);
    *handle = made->handle;
}

EMU_API(cuLibraryLoadData,
        (CUlibrary * handle, const void *code, CUjit_option *jit_options, void **jit_values,
         unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count),
        (handle, code, jit_options, jit_values, jit_count, options, values, count))
{
    EMU_UNUSED(jit_options, jit_values, jit_count, options, values, count);
    EMU_REQUIRE(handle != nullptr && code != nullptr, CUDA_ERROR_INVALID_VALUE);
    make_library(handle);
    return CUDA_SUCCESS;
}

EMU_API(cuLibraryLoadFromFile,
        (CUlibrary * handle, const char *path, CUjit_option *jit_options, void **jit_values,
         unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count),
        (handle, path, jit_options, jit_values, jit_count, options, values, count))
{
    EMU_UNUSED(jit_options, jit_values, jit_count, values);
    EMU_REQUIRE(handle != nullptr && path != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(count == 0 || options != nullptr, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++)
        EMU_REQUIRE(options[i] != CU_LIBRARY_BINARY_IS_PRESERVED, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(access(path, R_OK) == 0, CUDA_ERROR_FILE_NOT_FOUND);
    make_library(handle);
    return CUDA_SUCCESS;
}

EMU_API(cuLibraryUnload, (CUlibrary handle), (handle))
{
    auto library = tables().libraries.remove(handle);
    EMU_REQUIRE(library != nullptr, CUDA_ERROR_INVALID_HANDLE);
    for (auto &entry : library->modules)
        unload(*entry.second);
    for (auto &entry : library->kernels)
        tables().functions.remove(reinterpret_cast<CUfunction>(entry.second));
    return CUDA_SUCCESS;
}

EMU_API(cuLibraryGetModule, (CUmodule * module, CUlibrary handle), (module, handle))
{
    EMU_REQUIRE(module != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<loaded_module> m;
    EMU_TRY(module_in_context(handle, &m));
    *module = m->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary handle, const char *name),
        (kernel, handle, name))
{
    EMU_REQUIRE(kernel != nullptr && name != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto library = tables().libraries.find(handle);
    EMU_REQUIRE(library != nullptr, CUDA_ERROR_INVALID_HANDLE);
    const emu_kernel *found = find_kernel(name);
    EMU_REQUIRE(found != nullptr, CUDA_ERROR_NOT_FOUND);
    std::lock_guard lock(library->mutex);
    CUkernel       &slot = library->kernels[name];
    if (slot == nullptr) {
        auto made     = std::make_shared<module_function>();
        made->handle  = make_handle<CUfunction>(handle_kind::kernel);
        made->kernel  = found;
        made->library = handle;
        tables().functions.add(made->handle, made);
        slot = reinterpret_cast<CUkernel>(made->handle);
    }
    *kernel = slot;
    return CUDA_SUCCESS;
}

EMU_API(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel))
{
    EMU_REQUIRE(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto k = function_of(reinterpret_cast<CUfunction>(kernel));
    EMU_REQUIRE(k != nullptr && k->library != nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::shared_ptr<loaded_module> m;
    EMU_TRY(module_in_context(k->library, &m));
    return get_function(function, m, k->kernel->name);
}

EMU_API(cuLibraryGetGlobal,
        (CUdeviceptr * pointer, size_t *size, CUlibrary handle, const char *name),
        (pointer, size, handle, name))
{
    EMU_REQUIRE(name != nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<loaded_module> m;
    EMU_TRY(module_in_context(handle, &m));
    return get_global(pointer, size, m, name);
}

// What a function may answer; no host build has registers, so these are ordinary figures.
static CUresult function_attribute(const module_function &f, int attribute, int *value)
{
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 90;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = 49152;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = CU_SHAREDMEM_CARVEOUT_DEFAULT;
        break;
    default:
        EMU_REQUIRE(attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
        *value = 0;
    }
    auto set = f.attributes.find(attribute);
    if (set != f.attributes.end())
        *value = set->second;
    return CUDA_SUCCESS;
}

EMU_API(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction handle),
        (value, attribute, handle))
{
    EMU_REQUIRE(value != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto f = function_of(handle);
    EMU_REQUIRE(f != nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::lock_guard lock(f->mutex);
    return function_attribute(*f, attribute, value);
}

EMU_API(cuFuncSetAttribute, (CUfunction handle, CUfunction_attribute attribute, int value),
        (handle, attribute, value))
{
    auto f = function_of(handle);
    EMU_REQUIRE(f != nullptr, CUDA_ERROR_INVALID_HANDLE);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        EMU_REQUIRE(value >= 0 && value <= 232448, CUDA_ERROR_INVALID_VALUE);
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        EMU_REQUIRE(value >= -1 && value <= 100, CUDA_ERROR_INVALID_VALUE);
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::lock_guard lock(f->mutex);
    f->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

EMU_API(cuFuncSetCacheConfig, (CUfunction handle, CUfunc_cache config), (handle, config))
{
    EMU_REQUIRE(function_of(handle) != nullptr, CUDA_ERROR_INVALID_HANDLE);
    EMU_REQUIRE(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL,
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

EMU_API(cuFuncGetModule, (CUmodule * module, CUfunction handle), (module, handle))
{
    EMU_REQUIRE(module != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto f = function_of(handle);
    EMU_REQUIRE(f != nullptr, CUDA_ERROR_INVALID_HANDLE);
    auto m = f->module.lock();
    EMU_REQUIRE(m != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *module = m->handle;
    return CUDA_SUCCESS;
}

EMU_API(cuFuncGetName, (const char **name, CUfunction handle), (name, handle))
{
    EMU_REQUIRE(name != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto f = function_of(handle);
    EMU_REQUIRE(f != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *name = f->kernel->name;
    return CUDA_SUCCESS;
}

EMU_API(cuFuncLoad, (CUfunction handle), (handle))
{
    return function_of(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

EMU_API(cuFuncIsLoaded, (CUfunctionLoadingState * state, CUfunction handle), (state, handle))
{
    EMU_REQUIRE(state != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(function_of(handle) != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

static CUresult occupancy(int *blocks, CUfunction handle, int threads, size_t shared)
{
    EMU_REQUIRE(blocks != nullptr, CUDA_ERROR_INVALID_VALUE);
    EMU_REQUIRE(function_of(handle) != nullptr, CUDA_ERROR_INVALID_HANDLE);
    EMU_REQUIRE(threads > 0, CUDA_ERROR_INVALID_VALUE);
    if (threads > 1024 || shared > 232448) {
        *blocks = 0;
        return CUDA_SUCCESS;
    }
    int by_threads = std::min(32, 2048 / threads);
    int by_shared  = shared == 0 ? 32 : static_cast<int>(233472 / (shared + 1024));
    *blocks        = std::min(by_threads, by_shared);
    return CUDA_SUCCESS;
}

EMU_API(cuOccupancyMaxActiveBlocksPerMultiprocessor,
        (int *blocks, CUfunction function, int threads, size_t shared),
        (blocks, function, threads, shared))
{
    return occupancy(blocks, function, threads, shared);
}

EMU_API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
        (int *blocks, CUfunction function, int threads, size_t shared, unsigned int flags),
        (blocks, function, threads, shared, flags))
{
    EMU_REQUIRE(flags <= CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE, CUDA_ERROR_INVALID_VALUE);
    return occupancy(blocks, function, threads, shared);
}
