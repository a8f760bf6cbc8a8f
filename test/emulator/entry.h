// SPDX-License-Identifier: BSD-3-Clause
//
// What every exported function of the emulated driver begins with: a few instructions that can be
// moved elsewhere, then a jump to its body. UCX's memory hooks overwrite the beginning of a function
// and keep what stood there; they give up on one that begins as a compiler may make it, and UCX then
// works without its caches of memory types and registrations, unlike on a real driver.
#ifndef NVLINK_EMULATOR_ENTRY_H
#define NVLINK_EMULATOR_ENTRY_H

// EMU_FUNCTION(CUresult, cuCtxGetDevice, (CUdevice *device)) { ...body... }
// Where a header declares the function, another signature does not compile.
#define EMU_FUNCTION(type, name, params)                                                \
    extern "C" type name params;                                                        \
    EMU_STUB(EMU_TEXT(name), EMU_TEXT(EMU_ENTRY(name)))                                 \
    extern "C" __attribute__((visibility("hidden"), used)) type EMU_ENTRY(name) params; \
    extern "C" type                                             EMU_ENTRY(name) params

#define EMU_ENTRY(name)  EMU_ENTRY_(name)
#define EMU_ENTRY_(name) emu_entry_##name
#define EMU_TEXT(text)   EMU_TEXT_(text)
#define EMU_TEXT_(text)  #text
#if defined(__x86_64__)
// eax is free at the start of a function without variable arguments. 15 bytes: the longest that a
// hook writes is 14.
#define EMU_STUB_CODE(entry) "movl $0, %eax\n\tmovl $0, %eax\n\tmovl $0, %eax\n\tjmp " entry "\n"
#elif defined(__aarch64__)
#define EMU_STUB_CODE(entry) "nop\n\tnop\n\tnop\n\tnop\n\tb " entry "\n"
#else
#error "no stub for this processor"
#endif
#define EMU_STUB(symbol, entry)                                                               \
    asm(".pushsection .text\n\t.balign 16\n\t.globl " symbol "\n\t.type " symbol              \
        ", %function\n" symbol ":\n\t" EMU_STUB_CODE(entry) "\t.size " symbol ", . - " symbol \
                                                            "\n\t.popsection");

#endif
