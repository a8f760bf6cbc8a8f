// SPDX-License-Identifier: BSD-3-Clause
//
// abi_check [--header END] OURS STOCK...
// Compares what a header of ours declares with the debug information of a stock UCX: for every structure
// its size and each member's name, offset, size and prototype; every enum constant; every function of
// struct ucx_api. OURS is an ELF file compiled from the header, of which only declarations in a file whose
// path ends with END are taken, so that no list of types is kept by hand. STOCK are UCX's libraries.
// Prints every difference. Exit status: 0 all agree, 1 a difference, 77 STOCK has no debug information.

#include "dwarf_file.h"

#include <cstdio>
#include <fmt/core.h>
#include <string>
#include <vector>

namespace {

class comparison {
public:
    explicit comparison(const dwarf_index &stock) : stock_(stock)
    {
    }

    void structure(const std::string &name, const structure_layout &ours)
    {
        auto found = stock_.structures.find(name);
        if (found == stock_.structures.end()) {
            complain("struct {}: the stock library does not have it", name);
            return;
        }

        const structure_layout &stock = found->second;
        ++checked_;
        if (ours.size != stock.size) {
            complain("struct {}: {} bytes here, {} in the stock library", name, ours.size,
                     stock.size);
        }
        for (const auto &[member, layout] : stock.members) {
            if (ours.members.count(member) == 0) {
                complain("{}::{}: missing here, at {} in the stock library", name, member,
                         layout.offset);
            }
        }
        for (const auto &[member, layout] : ours.members) {
            compare_member(name, member, layout, stock);
        }
    }

    void constant(const std::string &name, long long ours)
    {
        auto found = stock_.constants.find(name);
        if (found == stock_.constants.end()) {
            complain("{}: the stock library does not have it", name);
        } else if (found->second != ours) {
            complain("{}: {:#x} here, {:#x} in the stock library", name, ours, found->second);
        }
        ++checked_;
    }

    // A function that the stock library does not have at all is one of a later version.
    void function(const std::string &name, const std::string &ours)
    {
        auto found = stock_.functions.find(name);
        if (found == stock_.functions.end()) {
            return;
        }
        ++checked_;
        if (found->second != ours) {
            complain("{}:\n    here  {}\n    stock {}", name, ours, found->second);
        }
    }

    unsigned checked() const
    {
        return checked_;
    }

    unsigned differences() const
    {
        return differences_;
    }

private:
    void compare_member(const std::string &type, const std::string &member,
                        const member_layout &ours, const structure_layout &stock_type)
    {
        auto found = stock_type.members.find(member);
        if (found == stock_type.members.end()) {
            complain("{}::{}: the stock library does not have it", type, member);
            return;
        }

        const member_layout &stock = found->second;
        ++checked_;
        if (ours.offset != stock.offset || ours.size != stock.size) {
            complain("{}::{}: {} bytes at {} here, {} bytes at {} in the stock library", type,
                     member, ours.size, ours.offset, stock.size, stock.offset);
        } else if (ours.type != stock.type) {
            complain("{}::{}:\n    here  {}\n    stock {}", type, member, ours.type, stock.type);
        }
    }

    template<typename... Args> void complain(fmt::format_string<Args...> format, Args &&...args)
    {
        fmt::print("{}\n", fmt::format(format, std::forward<Args>(args)...));
        ++differences_;
    }

    const dwarf_index &stock_;
    unsigned           checked_     = 0;
    unsigned           differences_ = 0;
};

int usage()
{
    fmt::print(stderr, "usage: abi_check [--header END] OURS STOCK...\n");
    return 2;
}

// The members of struct ucx_api are the functions that the plugin calls.
void compare_functions(comparison &check, const dwarf_index &ours)
{
    auto api = ours.structures.find("nvl::ucx_api");
    if (api == ours.structures.end()) {
        return;
    }
    for (const auto &[name, member] : api->second.members) {
        if (member.is_function) {
            check.function(name, member.type);
        }
    }
}

int compare(const dwarf_index &ours, const dwarf_index &stock, const std::string &header)
{
    comparison check(stock);
    for (const auto &[name, layout] : ours.structures) {
        if (ends_with(layout.declared_in, header) && name.find("::") == std::string::npos) {
            check.structure(name, layout);
        }
    }
    for (const auto &[name, declared_in] : ours.constant_files) {
        if (ends_with(declared_in, header)) {
            check.constant(name, ours.constants.at(name));
        }
    }
    compare_functions(check, ours);

    fmt::print("{} members, constants and functions compared, {} differ\n", check.checked(),
               check.differences());
    // A comparison of nothing must not pass.
    return check.differences() == 0 && check.checked() > 0 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
{
    std::string              header = "host/abi.h";
    std::vector<std::string> files;
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) == "--header" && i + 1 < argc) {
            header = argv[++i];
        } else {
            files.emplace_back(argv[i]);
        }
    }
    if (files.size() < 2) {
        return usage();
    }

    dwarf_index ours;
    dwarf_index stock;
    if (!ours.add(files.front())) {
        fmt::print(stderr, "abi_check: {} has no debug information\n", files.front());
        return 2;
    }
    for (size_t i = 1; i < files.size(); ++i) {
        if (!stock.add(files[i])) {
            fmt::print("SKIP: {} has no debug information to compare with\n", files[i]);
            return 77;
        }
    }

    return compare(ours, stock, header);
}
