/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a test may ask of, and do to, the emulated driver it runs on. C functions exported by the
 * emulated libcuda.so.1; look them up with dlsym, so that the test also starts on a real driver.
 * Every function may be called from any thread, before cuInit too. */
#ifndef NVLINK_EMULATOR_EMU_H
#define NVLINK_EMULATOR_EMU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls of one exported function ("cuMemcpyAsync", "cuMemAlloc_v2") in this process since the
 * start or the last reset; those that a fault refused count too. -1: no such function. */
long emu_call_count(const char *symbol);
void emu_reset_counts(void);

/* Adds fault rules, in the form of NVL_EMU_FAULTS (see README.md). 0: done; -1: not understood,
 * nothing changed. emu_clear_faults drops all rules, those of the environment too. */
int  emu_add_faults(const char *rules);
void emu_clear_faults(void);

/* While held, no work that a stream was given starts. emu_release lets that many pieces of work
 * start and keeps holding; emu_hold(0) lets everything go. */
void emu_hold(int on);
void emu_release(unsigned long pieces);

/* Things that this process has not given back. kind: "stream", "event", "allocation", "mapping",
 * "import", "context", "module", "pool", "reservation", "registration". -1: no such kind. */
long emu_live_count(const char *kind);

/* Memory that was freed while another process had it open, cuMemFreeAsync of memory that had been
 * freed when its turn came, and calls with a handle that its
 * context has taken along: a real driver follows it into freed memory. */
long emu_violation_count(void);

/* While on, a context that is made gets the handle of the one that was destroyed last. */
void emu_reuse_contexts(int on);

/* The bytes of GPU memory that this process holds on a device. */
long long emu_device_bytes(int device);

/* A pointer through which the processor may look at device memory, or NULL. It stays good until
 * the memory is freed. For tests only: a real GPU has nothing like it. */
void *emu_peek(unsigned long long device_pointer, size_t length);

/* The depth of the calling thread's context stack. */
int emu_context_depth(void);

#ifdef __cplusplus
}
#endif

#endif
