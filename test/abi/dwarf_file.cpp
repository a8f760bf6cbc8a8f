// SPDX-License-Identifier: BSD-3-Clause
//
// Walks the top level of every compilation unit, and namespaces in it. Nothing here knows UCX.

#include "dwarf_file.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

namespace {

using die = Dwarf_Die;

std::string name_of(die *entry)
{
    const char *name = dwarf_diename(entry);
    return name == nullptr ? "" : name;
}

bool type_of(die *entry, die *type)
{
    Dwarf_Attribute attribute;
    return dwarf_formref_die(dwarf_attr_integrate(entry, DW_AT_type, &attribute), type) != nullptr;
}

bool has(die *entry, unsigned name)
{
    return dwarf_hasattr(entry, name) != 0;
}

unsigned long long number_of(die *entry, unsigned name)
{
    Dwarf_Attribute attribute;
    Dwarf_Word      value = 0;
    if (dwarf_attr_integrate(entry, name, &attribute) != nullptr) {
        dwarf_formudata(&attribute, &value);
    }
    return value;
}

std::string file_of(die *entry)
{
    const char *file = dwarf_decl_file(entry);
    return file == nullptr ? "" : file;
}

// Calls visit(child) for every direct child.
template<typename Visit> void for_each_child(die *entry, Visit visit)
{
    die child;
    if (dwarf_child(entry, &child) != 0) {
        return;
    }
    do {
        visit(&child);
    } while (dwarf_siblingof(&child, &child) == 0);
}

bool is_structure(int tag)
{
    return tag == DW_TAG_structure_type || tag == DW_TAG_union_type;
}

// ---- types as text -----------------------------------------------------------------------------

std::string type_text(die *entry);

void drop_own_const(std::string &text)
{
    // A const array is an array of const elements, and gcc says both.
    bool is_pointer = text.find('*') != std::string::npos;
    while (!is_pointer && text.rfind("const ", 0) == 0) {
        text.erase(0, 6);
    }
    if (is_pointer && ends_with(text, " const")) {
        text.erase(text.size() - 6);
    }
}

std::string parameters_text(die *function)
{
    std::string text;
    for_each_child(function, [&](die *child) {
        std::string parameter;
        if (dwarf_tag(child) == DW_TAG_unspecified_parameters) {
            parameter = "...";
        } else if (dwarf_tag(child) == DW_TAG_formal_parameter) {
            parameter = type_text(child);
            // const of the parameter itself is no part of a prototype.
            drop_own_const(parameter);
        } else {
            return;
        }
        text += (text.empty() ? "" : ", ") + parameter;
    });
    return text;
}

std::string function_text(die *function)
{
    return type_text(function) + "(" + parameters_text(function) + ")";
}

// Compilers do not agree on the names of integers.
std::string base_text(die *type)
{
    unsigned long long bits = 8 * number_of(type, DW_AT_byte_size);
    switch (number_of(type, DW_AT_encoding)) {
    case DW_ATE_float:
        return fmt::format("float{}", bits);
    case DW_ATE_unsigned:
    case DW_ATE_unsigned_char:
        return fmt::format("uint{}", bits);
    case DW_ATE_signed:
    case DW_ATE_signed_char:
        return fmt::format("int{}", bits);
    default:
        return name_of(type);
    }
}

std::string qualified_text(die *type, const char *qualifier)
{
    std::string text = type_text(type);
    return text.back() == '*' ? text + " " + qualifier : std::string(qualifier) + " " + text;
}

std::string array_text(die *array)
{
    std::string text = type_text(array);
    for_each_child(array, [&](die *range) {
        unsigned long long count = has(range, DW_AT_count) ? number_of(range, DW_AT_count)
                                   : has(range, DW_AT_upper_bound)
                                       ? number_of(range, DW_AT_upper_bound) + 1
                                       : 0;
        text += fmt::format("[{}]", count);
    });
    return text;
}

std::string typedef_text(die *type)
{
    die target;
    if (!type_of(type, &target)) {
        return "void";
    }
    // The typedef is the only name that an unnamed structure or enum has.
    bool unnamed =
        (is_structure(dwarf_tag(&target)) || dwarf_tag(&target) == DW_TAG_enumeration_type) &&
        name_of(&target).empty();
    return unnamed ? name_of(type) : type_text(type);
}

// The text of the type that `entry` (a member, parameter, function, pointer, ...) refers to.
std::string type_text(die *entry)
{
    die type;
    if (!type_of(entry, &type)) {
        return "void";
    }

    switch (dwarf_tag(&type)) {
    case DW_TAG_base_type:
        return base_text(&type);
    case DW_TAG_typedef:
        return typedef_text(&type);
    case DW_TAG_pointer_type:
        return type_text(&type) + "*";
    case DW_TAG_const_type:
        return qualified_text(&type, "const");
    case DW_TAG_volatile_type:
        return qualified_text(&type, "volatile");
    case DW_TAG_array_type:
        return array_text(&type);
    case DW_TAG_subroutine_type:
        return function_text(&type);
    default:
        return name_of(&type).empty() ? "{}" : name_of(&type);
    }
}

// ---- structures --------------------------------------------------------------------------------

bool peel(die *entry, die *type)
{
    if (!type_of(entry, type)) {
        return false;
    }
    while (dwarf_tag(type) == DW_TAG_typedef || dwarf_tag(type) == DW_TAG_const_type ||
           dwarf_tag(type) == DW_TAG_volatile_type) {
        die next;
        if (!type_of(type, &next)) {
            return false;
        }
        *type = next;
    }
    return true;
}

bool points_to_function(die *type)
{
    die target;
    return dwarf_tag(type) == DW_TAG_pointer_type && peel(type, &target) &&
           dwarf_tag(&target) == DW_TAG_subroutine_type;
}

void add_members(structure_layout &layout, die *structure, const std::string &prefix,
                 unsigned long long base)
{
    for_each_child(structure, [&](die *member) {
        die        type;
        Dwarf_Word size = 0;
        if (dwarf_tag(member) != DW_TAG_member || !peel(member, &type)) {
            return;
        }
        dwarf_aggregate_size(&type, &size);

        std::string        name   = prefix + name_of(member);
        unsigned long long offset = base + number_of(member, DW_AT_data_member_location);
        layout.members[name]      = {offset, size, points_to_function(&type), type_text(member)};

        // const of a member does not change its place.
        drop_own_const(layout.members[name].type);
        if (is_structure(dwarf_tag(&type)) && name_of(&type).empty()) {
            add_members(layout, &type, name + ".", offset);
        }
    });
}

// ---- one file ----------------------------------------------------------------------------------

class indexer {
public:
    explicit indexer(dwarf_index &index) : index_(index)
    {
    }

    void visit(die *entry, const std::string &scope)
    {
        int tag = dwarf_tag(entry);
        if (tag == DW_TAG_namespace && !name_of(entry).empty()) {
            for_each_child(entry, [&](die *child) { visit(child, scope + name_of(entry) + "::"); });
        } else if (is_structure(tag)) {
            add_structure(name_of(entry), entry, entry, scope);
        } else if (tag == DW_TAG_typedef) {
            add_named_by_typedef(entry, scope);
        } else if (tag == DW_TAG_enumeration_type) {
            add_constants(entry);
        } else if (tag == DW_TAG_subprogram && has(entry, DW_AT_external)) {
            index_.functions.emplace(name_of(entry), function_text(entry) + "*");
        }
    }

private:
    void add_structure(const std::string &name, die *structure, die *declared,
                       const std::string &scope)
    {
        if (name.empty() || has(structure, DW_AT_declaration)) {
            return;
        }
        structure_layout layout;
        layout.size        = number_of(structure, DW_AT_byte_size);
        layout.declared_in = file_of(declared);
        add_members(layout, structure, "", 0);
        index_.structures.emplace(scope + name, layout);
    }

    void add_named_by_typedef(die *entry, const std::string &scope)
    {
        die target;
        if (type_of(entry, &target) && is_structure(dwarf_tag(&target)) &&
            name_of(&target).empty()) {
            add_structure(name_of(entry), &target, entry, scope);
        }
    }

    void add_constants(die *enumeration)
    {
        std::string file      = file_of(enumeration);
        bool        is_signed = has_signed_values(enumeration);
        for_each_child(enumeration, [&](die *entry) {
            if (dwarf_tag(entry) == DW_TAG_enumerator) {
                index_.constants.emplace(name_of(entry), constant_value(entry, is_signed));
                index_.constant_files.emplace(name_of(entry), file);
            }
        });
    }

    static bool has_signed_values(die *enumeration)
    {
        die base;
        return peel(enumeration, &base) ? number_of(&base, DW_AT_encoding) == DW_ATE_signed ||
                                              number_of(&base, DW_AT_encoding) == DW_ATE_signed_char
                                        : true;
    }

    // A value in one byte is to be extended as its type says, not as its form does.
    static long long constant_value(die *entry, bool is_signed)
    {
        Dwarf_Attribute attribute;
        Dwarf_Sword     value          = 0;
        Dwarf_Word      unsigned_value = 0;
        dwarf_attr(entry, DW_AT_const_value, &attribute);
        if (is_signed || dwarf_formudata(&attribute, &unsigned_value) != 0) {
            dwarf_formsdata(&attribute, &value);
            return value;
        }
        return static_cast<long long>(unsigned_value);
    }

    dwarf_index &index_;
};

bool add_units(dwarf_index &index, Dwarf *dwarf)
{
    indexer   visitor(index);
    bool      any  = false;
    Dwarf_CU *unit = nullptr;
    die       root;
    while (dwarf_get_units(dwarf, unit, &unit, nullptr, nullptr, &root, nullptr) == 0) {
        any = true;
        for_each_child(&root, [&](die *entry) { visitor.visit(entry, ""); });
    }
    return any;
}

} // namespace

bool dwarf_index::add(const std::string &path)
{
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }

    Dwarf *dwarf = dwarf_begin(fd, DWARF_C_READ);
    bool   found = dwarf != nullptr && add_units(*this, dwarf);
    dwarf_end(dwarf);
    close(fd);
    return found;
}
