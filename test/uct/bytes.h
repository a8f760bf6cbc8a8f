// SPDX-License-Identifier: BSD-3-Clause
//
// Random bytes, the same for the same seed, and how two rows of bytes differ in words.
#ifndef NVLINK_TEST_UCT_BYTES_H
#define NVLINK_TEST_UCT_BYTES_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace nvl::test {

using bytes = std::vector<uint8_t>;

inline bytes random_bytes(size_t size, uint64_t seed)
{
    bytes    made(size);
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
    for (size_t at = 0; at < size; at += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        std::memcpy(made.data() + at, &x, std::min(sizeof(x), size - at));
    }
    return made;
}

// "" if they agree.
inline std::string difference(const bytes &expected, const bytes &found)
{
    if (expected.size() != found.size()) {
        return std::to_string(expected.size()) + " bytes expected, " +
               std::to_string(found.size()) + " found";
    }
    if (expected == found) {
        return "";
    }
    size_t wrong = 0, first = 0;
    for (size_t i = expected.size(); i-- > 0;) {
        if (expected[i] != found[i]) {
            ++wrong;
            first = i;
        }
    }
    return std::to_string(wrong) + " of " + std::to_string(expected.size()) +
           " bytes are wrong, the first at " + std::to_string(first);
}

} // namespace nvl::test

#endif
