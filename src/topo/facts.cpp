// SPDX-License-Identifier: BSD-3-Clause
//
// What the facts' structs need besides parsing and printing: words, identifiers, files.
// Called by everything that reads facts. Calls the C library only.

#include "topo/facts.h"

#include "topo/facts_words.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

namespace nvl {

namespace {

template<typename T, size_t N> const char *find_text(const word<T> (&words)[N], T value) noexcept
{
    for (const auto &entry : words) {
        if (entry.value == value) {
            return entry.text;
        }
    }
    return "unknown";
}

struct file_closer {
    void operator()(FILE *file) const noexcept
    {
        std::fclose(file);
    }
};

bool is_hex(char c) noexcept
{
    return std::strchr("0123456789abcdefABCDEF", c) != nullptr && c != '\0';
}

} // namespace

const char *to_text(nvml_state value) noexcept
{
    return find_text(nvml_state_words, value);
}
const char *to_text(link_remote value) noexcept
{
    return find_text(link_remote_words, value);
}
const char *to_text(p2p_status value) noexcept
{
    return find_text(p2p_status_words, value);
}
const char *to_text(pcie_level value) noexcept
{
    return find_text(pcie_level_words, value);
}
const char *to_text(fabric_state value) noexcept
{
    return find_text(fabric_state_words, value);
}
const char *to_text(mig_mode value) noexcept
{
    return find_text(mig_mode_words, value);
}
const char *to_text(virtualization value) noexcept
{
    return find_text(virtualization_words, value);
}

std::string pci_normal(std::string_view text)
{
    const std::string copy(text);
    unsigned          domain, bus, device, function;
    int               used = 0;

    for (char c : copy) {
        if (!is_hex(c) && c != ':' && c != '.') {
            return {};
        }
    }
    if (std::sscanf(copy.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &used) !=
        4) {
        domain = 0;
        if (std::sscanf(copy.c_str(), "%2x:%2x.%1x%n", &bus, &device, &function, &used) != 3) {
            return {};
        }
    }
    if (static_cast<size_t>(used) != copy.size()) {
        return {};
    }

    char normal[32];
    std::snprintf(normal, sizeof(normal), "%08x:%02x:%02x.%x", domain, bus, device, function);
    return normal;
}

bool uuid_is_zero(std::string_view uuid) noexcept
{
    const size_t start = (uuid.substr(0, 4) == "GPU-" || uuid.substr(0, 4) == "MIG-") ? 4 : 0;
    return uuid.find_first_not_of("0-", start) == std::string_view::npos;
}

facts_result facts_read(const char *path, machine_facts *out, std::string *error) noexcept
try {
    std::unique_ptr<FILE, file_closer> file(std::fopen(path, "re"));
    std::string                        text;
    char                               chunk[4096];
    size_t                             length;

    if (file == nullptr) {
        *error = std::string(path) + ": " + std::strerror(errno);
        return facts_result::unreadable;
    }
    while ((length = std::fread(chunk, 1, sizeof(chunk), file.get())) > 0) {
        text.append(chunk, length);
    }
    if (std::ferror(file.get()) != 0) {
        *error = std::string(path) + ": cannot be read";
        return facts_result::unreadable;
    }

    const facts_result result = facts_parse(text, out, error);
    if (result != facts_result::ok) {
        *error = std::string(path) + ": " + *error;
    }
    return result;
} catch (const std::bad_alloc &) {
    return facts_result::no_memory;
}

} // namespace nvl
