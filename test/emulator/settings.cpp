// SPDX-License-Identifier: BSD-3-Clause
//
// See settings.h. An empty value is none. Files, folders, machines and planned faults are looked at
// where they are read.
#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace emu {
namespace {

struct setting {
    const char *name;
    const char *words[3]; // the rest are null
    bool        takes_number;
    const char *takes;
};

constexpr setting settings[] = {
    {"NVL_EMU_NVML", {"stub", "missing", "present"}, true, "stub, missing, present or a code"},
    {"NVL_EMU_PEERS_TAKEN", {}, true, "a number of peers"},
    {"NVL_EMU_COPY_DELAY_US", {}, true, "microseconds"},
    {"NVL_EMU_TIMING", {"0", "1"}, false, "0 or 1"},
    {"NVL_EMU_LEAKS_FATAL", {"0", "1", "own"}, false, "0, 1 or own"},
};

// So many digits are a number for all who read one.
bool is_number(const char *text)
{
    const size_t length = strlen(text);
    return length > 0 && length <= 9 && strspn(text, "0123456789") == length;
}

bool is_good(const setting &s, const char *value)
{
    if (value[0] == '\0' || (s.takes_number && is_number(value)))
        return true;
    for (const char *word : s.words) {
        if (word != nullptr && strcmp(word, value) == 0)
            return true;
    }
    return false;
}

} // namespace

void check_settings()
{
    for (const setting &s : settings) {
        const char *value = getenv(s.name);
        if (value == nullptr || is_good(s, value))
            continue;
        fprintf(stderr, "emulated driver: %s=%s is not understood: it takes %s\n", s.name, value,
                s.takes);
        _exit(99);
    }
}

} // namespace emu
