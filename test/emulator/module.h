// SPDX-License-Identifier: BSD-3-Clause
//
// Modules, libraries and the functions in them, as module.cpp makes and launch.cpp runs them.
#ifndef NVLINK_EMULATOR_MODULE_H
#define NVLINK_EMULATOR_MODULE_H

#include "driver.h"
#include "emu_kernel.h"

namespace emu {

struct loaded_module {
    CUmodule                                      handle = nullptr;
    std::weak_ptr<context>                        owner;
    unsigned long long                            context_id = 0;
    CUlibrary                                     library    = nullptr; // it was made for
    std::mutex                                    mutex;
    std::map<std::string, CUfunction>             functions;
    std::map<std::string, std::shared_ptr<range>> globals;
};

// A CUfunction; of no context when it stands for a CUkernel.
struct module_function {
    CUfunction                   handle = nullptr;
    const emu_kernel            *kernel = nullptr;
    std::weak_ptr<loaded_module> module;
    CUlibrary                    library    = nullptr;
    unsigned long long           context_id = 0;
    std::mutex                   mutex;
    std::map<int, int>           attributes; // those that were set
};

std::shared_ptr<module_function> function_of(CUfunction handle);
// A context dies: its modules and their variables go with it.
void   forget_modules(const context &ctx);
size_t live_modules();

} // namespace emu

#endif
