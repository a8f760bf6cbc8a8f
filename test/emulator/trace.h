// SPDX-License-Identifier: BSD-3-Clause
//
// NVL_EMU_TRACE=file: one readable line a driver call, with its arguments, what it gave back
// and its code. Called by the frame in call.h, after the body has run.
#ifndef NVLINK_EMULATOR_TRACE_H
#define NVLINK_EMULATOR_TRACE_H

#include "cuda_internal.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

namespace emu {

bool trace_is_on() noexcept;
void trace_line(const char *function, const std::string &arguments, CUresult code) noexcept;

std::string text_of_address(const volatile void *address);
std::string text_of_string(const char *text);
std::string text_of_box(const CUDA_MEMCPY2D &copy);
std::string text_of_box(const CUDA_MEMCPY3D &copy);
std::string text_of_box(const CUDA_MEMCPY3D_PEER &copy);

// A value as it is printed in a trace line. What a non-const pointer points to is read only when
// the call succeeded: it is an output then.
template<class T> std::string text_of(const T &value, bool success)
{
    if constexpr (std::is_same_v<T, const char *>) {
        return text_of_string(value);
    } else if constexpr (std::is_function_v<std::remove_pointer_t<T>>) {
        return text_of_address(reinterpret_cast<const void *>(value));
    } else if constexpr (std::is_pointer_v<T>) {
        using pointee     = std::remove_pointer_t<T>;
        std::string shown = text_of_address(value);
        if constexpr (std::is_same_v<pointee, const CUDA_MEMCPY2D> ||
                      std::is_same_v<pointee, const CUDA_MEMCPY3D> ||
                      std::is_same_v<pointee, const CUDA_MEMCPY3D_PEER>) {
            if (value != nullptr)
                shown += "->" + text_of_box(*value);
        } else if constexpr (!std::is_const_v<pointee> && !std::is_same_v<pointee, char> &&
                             (std::is_arithmetic_v<pointee> || std::is_enum_v<pointee> ||
                              std::is_pointer_v<pointee>)) {
            if (success && value != nullptr)
                shown += "->" + text_of(*value, false);
        }
        return shown;
    } else if constexpr (std::is_enum_v<T>) {
        return std::to_string(static_cast<long long>(value));
    } else if constexpr (std::is_integral_v<T> && sizeof(T) == 8 && std::is_unsigned_v<T>) {
        // Addresses and sizes share a type; what lies above 4 GiB reads better in hexadecimal.
        return (value >> 32) != 0 ? text_of_address(reinterpret_cast<const void *>(value))
                                  : std::to_string(value);
    } else if constexpr (std::is_arithmetic_v<T>) {
        return std::to_string(value);
    } else {
        return "{...}";
    }
}

// Takes the next name out of "(dst, src, size)".
std::string next_name(const char **names);

// How long the lists are that a call is given: as it says in the arguments of these names.
struct list_lengths {
    size_t count = 0, attribute_count = 0;

    size_t of(const std::string &name) const
    {
        if (name == "dsts" || name == "srcs" || name == "sizes")
            return count;
        return name == "firsts" ? attribute_count : 0;
    }
    template<class T> void note(const std::string &name, const T &value)
    {
        if constexpr (std::is_integral_v<T>) {
            if (name == "count")
                count = static_cast<size_t>(value);
            if (name == "attribute_count")
                attribute_count = static_cast<size_t>(value);
        }
    }
};

// Its beginning, of a list.
template<class T>
std::string text_of_argument(const std::string &name, const T &value, const list_lengths &lengths,
                             bool success)
{
    if constexpr (std::is_pointer_v<T>) {
        if constexpr (std::is_arithmetic_v<std::remove_pointer_t<T>>) {
            constexpr size_t shown_most = 4;
            const size_t     length     = lengths.of(name);
            if (length > 0 && value != nullptr) {
                std::string shown = text_of_address(value) + "->[";
                for (size_t i = 0; i < length && i < shown_most; i++)
                    shown += (i == 0 ? "" : ", ") + text_of(value[i], false);
                return shown + (length > shown_most ? ", ...]" : "]");
            }
        }
    }
    return text_of(value, success);
}

template<class... Args>
void trace_call(const char *function, const char *names, CUresult code,
                const std::tuple<const Args &...> &args) noexcept
{
    try {
        std::string  line;
        list_lengths lengths;
        const char  *first_names = names;
        const auto   add         = [&](const std::string &name, const auto &arg) {
            line += (line.empty() ? "" : ", ") + name + "=" +
                    text_of_argument(name, arg, lengths, code == CUDA_SUCCESS);
        };
        std::apply([&](const auto &...arg) { (lengths.note(next_name(&first_names), arg), ...); },
                   args);
        std::apply([&](const auto &...arg) { (add(next_name(&names), arg), ...); }, args);
        trace_line(function, line, code);
    } catch (...) {
        trace_line(function, "?", code);
    }
}

} // namespace emu

#endif
