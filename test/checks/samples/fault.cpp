// SPDX-License-Identifier: BSD-3-Clause
//
// check_tidy must refuse this: a value is used after it was moved from.

#include <string>
#include <utility>

std::size_t use_after_move(std::string text)
{
    const std::string taken = std::move(text);
    return taken.size() + text.size();
}
