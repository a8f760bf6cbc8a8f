// SPDX-License-Identifier: BSD-3-Clause
//
// See symbol_table.h. Also the functions that nobody has written yet: they are exported, so that
// every client links and every look-up answers as the driver's, and say their name when called.
// Includes no cuda.h: the prototypes do not matter here.
#include "symbol_table.h"

#include "entry.h"

namespace emu {
[[noreturn]] void not_implemented(const char *symbol) noexcept;
}

extern "C" {
#define EMU_FN(base, symbol, since, variant) void symbol(void);
#define EMU_NO(base, symbol, since, variant)
#include "symbols.def"
#undef EMU_FN
#undef EMU_NO
}

#define EMU_FN(base, symbol, since, variant)
#define EMU_NO(base, symbol, since, variant) \
    EMU_FUNCTION(void, symbol, (void))       \
    {                                        \
        emu::not_implemented(#symbol);       \
    }
#include "symbols.def"
#undef EMU_FN
#undef EMU_NO

namespace emu {

const symbol symbols[] = {
#define EMU_FN(base, symbol, since, variant) \
    {#base, #symbol, since, symbol_variant::variant, true, reinterpret_cast<void *>(&::symbol)},
#define EMU_NO(base, symbol, since, variant) \
    {#base, #symbol, since, symbol_variant::variant, false, reinterpret_cast<void *>(&::symbol)},
#include "symbols.def"
#undef EMU_FN
#undef EMU_NO
};

} // namespace emu
