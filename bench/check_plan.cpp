// SPDX-License-Identifier: BSD-3-Clause
//
// Draws rounds. Only whole-number arithmetic on one generator, so that both processes draw the same.
#include "check_plan.h"

#include <algorithm>
#include <cstdio>

namespace nvl {

namespace {

constexpr size_t   kib        = 1024;
constexpr size_t   mib        = 1024 * kib;
constexpr size_t   guard      = 64; // untouched bytes between targets
constexpr size_t   alignment  = 64;
constexpr uint32_t max_gap_us = 250; // beyond the longest idle time that is of interest

// One below, at and above what engines cut at: vectors, chunks, pages, protocol thresholds.
// clang-format off
const size_t sweep_sizes[] = {
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 255, 257, 511, 513,
    1000, kib, kib + 1, 2 * kib + 3, 4 * kib - 1, 4 * kib, 4 * kib + 1, 8 * kib, 8 * kib + 5, 12345, 16 * kib - 1, 16 * kib, 32 * kib + 7, 64 * kib - 1,
    64 * kib, 64 * kib + 1, 100001, 256 * kib - 3, 256 * kib, 512 * kib + 11, mib - 1, mib, mib + 3, 4 * mib + 13, 16 * mib - 1, 64 * mib - 5};
// clang-format on

struct offsets {
    size_t from;
    size_t to;
};

const offsets sweep_offsets[] = {{0, 0}, {1, 0}, {0, 1}, {3, 5}, {8, 8}, {7, 15}, {4, 12}};

template<typename T, size_t N> constexpr size_t count_of(const T (&)[N])
{
    return N;
}

size_t round_up(size_t value)
{
    return (value + alignment - 1) / alignment * alignment;
}

} // namespace

const char *kind_name(op_kind kind)
{
    switch (kind) {
    case op_kind::put:
        return "put";
    case op_kind::get:
        return "get";
    case op_kind::tag:
        return "tag";
    case op_kind::am:
        return "am";
    case op_kind::stream:
        return "stream";
    case op_kind::list:
        return "list";
    }
    return "?";
}

std::string operation_text(const operation &op)
{
    static const char *const writers[] = {"a copy from the host", "a copy within the GPU",
                                          "a kernel that fills"};
    char                     text[256];
    snprintf(text, sizeof(text),
             "%s of %zu bytes by rank %d, from offset %zu (mod 16: %zu) to %zu (mod 16: %zu), "
             "source written by %s, gap %u us",
             kind_name(op.kind), op.size, op.origin, op.from, op.from % 16, op.to, op.to % 16,
             writers[static_cast<size_t>(op.written_by)], op.gap_us);
    return text;
}

uint64_t planner::below(uint64_t bound)
{
    return random_() % bound;
}

bool planner::chance(unsigned percent)
{
    return below(100) < percent;
}

// Even over the powers of two, often exactly one of them or beside it.
size_t planner::draw_size(size_t max_size)
{
    unsigned powers = 0;
    while ((size_t(2) << powers) <= max_size) {
        ++powers;
    }
    size_t base = size_t(1) << below(powers + 1);
    size_t size = base;
    switch (below(4)) {
    case 0:
        break;
    case 1:
        size = base + below(3) - 1;
        break;
    default:
        size = base + below(base);
        break;
    }
    return std::min(std::max<size_t>(size, 1), max_size);
}

void planner::gaps(operation *op)
{
    op->gap_us             = chance(30) ? static_cast<uint32_t>(below(max_gap_us)) : 0;
    op->gap_makes_progress = chance(50);
    op->late_us            = chance(20) ? static_cast<uint32_t>(below(100)) : 0;
}

operation planner::draw_operation(size_t max_size)
{
    operation op   = {};
    op.kind        = bounds_.kinds[below(bounds_.kinds.size())];
    op.origin      = static_cast<uint8_t>(below(2));
    op.written_by  = static_cast<writer>(below(3));
    op.memory_hint = static_cast<hint>(below(3));
    op.fill_value  = static_cast<uint8_t>(below(256));
    op.pool_offset = static_cast<uint32_t>(below(bounds_.pool_slack));
    op.size        = draw_size(max_size);
    op.pieces      = 1 + static_cast<uint32_t>(below(chance(80) ? 16 : 512));
    return op;
}

// Behind what is there already, with guard bytes around the target; false when the arena is full.
bool planner::place(round *r, operation op, size_t from_shift, size_t to_shift)
{
    size_t start = round_up(r->used + guard);
    // A serial round takes one source for all.
    op.from = (r->serial ? guard : start) + from_shift;
    op.to   = start + to_shift;
    if (std::max(op.from, op.to) + op.size + 2 * guard > bounds_.arena_bytes) {
        return false;
    }
    r->used = op.to + op.size + guard;
    r->operations.push_back(op);
    return true;
}

void planner::fill(round *r, size_t count, size_t max_size)
{
    for (size_t i = 0; i < count; ++i) {
        operation op = draw_operation(std::min(max_size, bounds_.max_size));
        gaps(&op);
        size_t from_shift = chance(50) ? 0 : below(alignment);
        size_t to_shift   = chance(50) ? from_shift % 16 : below(alignment);
        if (!place(r, op, from_shift, to_shift)) {
            return;
        }
    }
}

round planner::draw()
{
    round    r;
    uint64_t sort = below(100);
    r.background  = static_cast<uint8_t>(below(256));
    if (sort < 45) {
        fill(&r, 1 + below(40), mib);
    } else if (sort < 75) {
        r.serial = true;
        fill(&r, 1 + below(24), 256 * kib);
    } else if (sort < 90) {
        // Many small ones at once, without gaps: more than a ring has room for.
        fill(&r, 200 + below(1000), 8 * kib);
        for (operation &op : r.operations) {
            op.gap_us  = 0;
            op.late_us = 0;
        }
    } else {
        fill(&r, 1 + below(4), bounds_.max_size);
    }
    return r;
}

round planner::sweep()
{
    const size_t offset_count = count_of(sweep_offsets);
    const size_t kinds        = bounds_.kinds.size();
    const size_t total        = count_of(sweep_sizes) * offset_count * kinds * 2;
    round        r;
    r.background = static_cast<uint8_t>(below(256));
    for (; next_sweep_ < total && r.operations.size() < 64; ++next_sweep_) {
        size_t    left = next_sweep_;
        operation op   = draw_operation(1);
        op.origin      = static_cast<uint8_t>(left % 2);
        left /= 2;
        op.kind = bounds_.kinds[left % kinds];
        left /= kinds;
        const offsets &shift = sweep_offsets[left % offset_count];
        op.size              = std::min(sweep_sizes[left / offset_count], bounds_.max_size);
        if (!place(&r, op, shift.from, shift.to)) {
            break;
        }
    }
    return r;
}

} // namespace nvl
