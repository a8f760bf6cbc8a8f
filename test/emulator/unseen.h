// SPDX-License-Identifier: BSD-3-Clause
//
// Copies to and from GPU memory, for the emulated driver and its kernels. What two operations do to one place of it is
// no race of the program: the thread sanitizer must not see it. It would also take its time over every byte. Of host
// memory it has to know.
#ifndef NVLINK_EMULATOR_UNSEEN_H
#define NVLINK_EMULATOR_UNSEEN_H

#include <cstddef>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(void *start, unsigned long size);
extern "C" void __tsan_write_range(void *start, unsigned long size);
#endif

namespace emu {

#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
inline void move_unseen(char *to, const char *from, size_t size)
{
    if (to <= from || to >= from + size) {
        asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
    } else {
        to += size - 1;
        from += size - 1;
        asm volatile("std; rep movsb; cld" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
    }
}
#else
inline void move_unseen(char *to, const char *from, size_t size)
{
    memmove(to, from, size);
}
#endif

inline void tell_read(const char *from, size_t size)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_read_range(const_cast<char *>(from), size);
#else
    (void)from, (void)size;
#endif
}

inline void tell_written(char *to, size_t size)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_write_range(to, size);
#else
    (void)to, (void)size;
#endif
}

} // namespace emu

#endif
