// SPDX-License-Identifier: BSD-3-Clause
//
// See report.h, and emu.h for what a test may ask.
#include "report.h"
#include "counters.h"
#include "driver.h"
#include "emu.h"
#include "faults.h"
#include "module.h"
#include "stale.h"
#include "vmm.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace emu {

namespace {

size_t count_ranges(range_kind a, range_kind b)
{
    size_t count = 0;
    for (auto &r : drv().memory.all())
        count += r->kind == a || r->kind == b;
    return count;
}

struct leak_kind {
    const char *name;
    size_t (*count)();
};

const leak_kind leak_kinds[] = {
    {"context", [] { return drv().contexts.size(); }},
    {"stream", [] { return drv().streams.size(); }},
    {"event", [] { return drv().events.size(); }},
    {"allocation",
     [] {
         return count_ranges(range_kind::alloc, range_kind::managed) +
                count_ranges(range_kind::pool, range_kind::host_alloc);
     }},
    {"registration",
     [] { return count_ranges(range_kind::host_registered, range_kind::host_registered); }},
    {"import", [] { return count_ranges(range_kind::imported, range_kind::imported); }},
    {"mapping", [] { return count_ranges(range_kind::vmm, range_kind::vmm); }},
    {"physical", [] { return live_physical(); }},
    {"reservation", [] { return live_reservations(); }},
    {"pool", [] { return live_pools(); }},
    {"module", [] { return live_modules(); }},
};

void write_counters()
{
    FILE *file = open_report("NVL_EMU_COUNTERS");
    if (file == nullptr)
        return;
    fprintf(file, "process %d\n", getpid());
    for (unsigned i = 0; i < fn_count; i++) {
        fn id = static_cast<fn>(i);
        if (unsigned long calls = calls_of(id))
            fprintf(file, "%-40s %lu\n", name_of(id), calls);
    }
    close_report(file);
}

// The primary contexts that are still retained are the runtime's way of living; counted, and not
// held against the program by NVL_EMU_LEAKS_FATAL.
bool is_harmless(const leak_kind &kind)
{
    return strcmp(kind.name, "context") == 0;
}

struct balance {
    bool leaked   = false; // something of this process's own
    bool violated = false; // memory was freed that others had open
    bool misused  = false; // handles of contexts that are gone were used, memory was freed twice
};

balance write_leaks()
{
    bool  leaked = false;
    FILE *file   = open_report("NVL_EMU_LEAKS");
    if (file != nullptr)
        fprintf(file, "process %d\n", getpid());
    for (auto &kind : leak_kinds) {
        size_t count = kind.count();
        leaked       = leaked || (count > 0 && !is_harmless(kind));
        if (file != nullptr && count > 0)
            fprintf(file, "%-14s %zu not given back\n", kind.name, count);
    }
    long violations = drv().violations.load();
    if (file != nullptr && violations > 0)
        fprintf(file, "%-14s %ld frees while another process had the memory open\n", "violation",
                violations);
    long second = drv().second_frees.load();
    if (file != nullptr && second > 0)
        fprintf(file, "%-14s %ld frees of memory that was free already\n", "violation", second);
    long stale = drv().stale_calls.load();
    if (file != nullptr && stale > 0)
        fprintf(file, "%-14s %ld calls with handles of contexts that are gone\n", "violation",
                stale);
    close_report(file);
    return {leaked, violations > 0, stale > 0 || second > 0};
}

void at_end()
{
    write_counters();
    balance     left  = write_leaks();
    const char *fatal = getenv("NVL_EMU_LEAKS_FATAL");
    if (fatal == nullptr)
        return;
    bool all = strcmp(fatal, "1") == 0, own = all || strcmp(fatal, "own") == 0;
    if ((own && (left.leaked || left.misused)) || (all && left.violated)) {
        fprintf(stderr, "emulated driver: something was not given back, given back twice, or used "
                        "after its context was gone (NVL_EMU_LEAKS_FATAL)\n");
        fflush(nullptr);
        _exit(98);
    }
}

} // namespace

void report_at_exit()
{
    // The destructor of the library runs after the program's own exit handlers: see below.
}

void report_violation(uint64_t address, unsigned importers)
{
    drv().violations++;
    if (FILE *file = open_report("NVL_EMU_LEAKS")) {
        fprintf(file, "process %d: memory at 0x%llx freed while %u others have it open\n", getpid(),
                static_cast<unsigned long long>(address), importers);
        close_report(file);
    }
}

void report_second_free(uint64_t address)
{
    drv().second_frees++;
    if (FILE *file = open_report("NVL_EMU_LEAKS")) {
        fprintf(file, "process %d: memory at 0x%llx freed again, when it was free already\n",
                getpid(), static_cast<unsigned long long>(address));
        close_report(file);
    }
}

void report_stale(const char *call, uint64_t handle)
{
    drv().stale_calls++;
    if (FILE *file = open_report("NVL_EMU_LEAKS")) {
        fprintf(file, "process %d: %s was given 0x%llx, which went with its context\n", getpid(),
                call, static_cast<unsigned long long>(handle));
        close_report(file);
    }
}

// After the destructors of everything that needs this library.
__attribute__((destructor)) static void library_ends()
{
    if (drv().initialised)
        at_end();
}

} // namespace emu

using namespace emu;

EMU_EXPORT long emu_call_count(const char *symbol)
{
    for (unsigned i = 0; i < fn_count; i++) {
        if (strcmp(name_of(static_cast<fn>(i)), symbol) == 0)
            return static_cast<long>(calls_of(static_cast<fn>(i)));
    }
    return -1;
}

EMU_EXPORT void emu_reset_counts(void)
{
    reset_counts();
}

EMU_EXPORT int emu_add_faults(const char *rules)
{
    faults_are_planned(); // the environment's come first
    return rules != nullptr && add_faults(rules) ? 0 : -1;
}

EMU_EXPORT void emu_clear_faults(void)
{
    clear_faults();
}

EMU_EXPORT void emu_hold(int on)
{
    hold_streams(on != 0);
}

EMU_EXPORT void emu_release(unsigned long pieces)
{
    release_streams(pieces);
}

EMU_EXPORT long emu_live_count(const char *kind)
{
    for (auto &known : leak_kinds) {
        if (strcmp(known.name, kind) == 0)
            return static_cast<long>(known.count());
    }
    return -1;
}

EMU_EXPORT long emu_violation_count(void)
{
    return drv().violations + drv().second_frees + drv().stale_calls;
}

EMU_EXPORT void emu_reuse_contexts(int on)
{
    reuse_contexts(on != 0);
}

EMU_EXPORT long long emu_device_bytes(int device)
{
    auto *dev = device_at(device);
    return dev == nullptr ? -1 : static_cast<long long>(dev->used_bytes.load());
}

EMU_EXPORT void *emu_peek(unsigned long long device_pointer, size_t length)
{
    std::vector<piece> pieces;
    if (!drv().memory.locate(device_pointer, length, &pieces) || pieces.size() != 1)
        return nullptr;
    return pieces[0].bytes;
}

EMU_EXPORT int emu_context_depth(void)
{
    return contexts_of_thread().depth;
}
