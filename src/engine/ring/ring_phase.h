// SPDX-License-Identifier: BSD-3-Clause
//
// When the poller looks next after a lone operation. A look at the host's words
// takes a microsecond there and back, and the host posts the next operation a
// while after it has seen the last one done: a look that leaves at once comes
// just too early, as does one a round trip later, and each time most of a round
// trip is lost. So the poller remembers when, counted from the end of an
// operation, the look left that found the next one, and shifts its looks so that
// one arrives just behind the host's word: a little earlier each time, and later
// again once it has come too early. Where operations come at no regular time this
// neither gains nor loses. Pure arithmetic, for GPU and host; called by
// ring_protocol.
#ifndef NVLINK_ENGINE_RING_RING_PHASE_H
#define NVLINK_ENGINE_RING_RING_PHASE_H

#include "engine/ring/ring.h"

namespace nvl {

class ring_phase {
public:
    // The next operation was found by look number `looks` (from 1) after the last
    // one's end; the answer came `ticks` after that end.
    NVL_RING_MEMBER void found(uint32_t looks, uint32_t ticks)
    {
        if ((looks > looks_max) || (ticks < delay_)) {
            aim_ = delay_ = 0; // no rhythm
            return;
        }
        const int32_t trip = static_cast<int32_t>((ticks - delay_) / looks) + 1;
        const int32_t left = static_cast<int32_t>(delay_) + static_cast<int32_t>(looks - 1) * trip;
        if (left > aim_ + trip / 2) {
            // The look that was aimed came too early.
            const int32_t after = left - trip + later;
            aim_                = (after > aim_ + later) ? after : aim_ + later;
        } else if (left < aim_ - trip / 2) {
            aim_ = left;
        } else {
            aim_ -= earlier;
        }
        aim_   = (aim_ < 0) ? 0 : aim_;
        delay_ = static_cast<uint32_t>(aim_ % trip);
        delay_ = (delay_ > delay_max) ? 0 : delay_;
    }

    // Ticks from the end of an operation until the first look.
    NVL_RING_MEMBER uint32_t delay() const
    {
        return delay_;
    }

private:
    // In ticks of the SM's clock, 0.5 ns. By bench/raw_limits and a model of the host: the
    // wait for a look falls from 0.5 us on average, 1 us in the worst rhythm, to 0.1 us;
    // with smaller steps by less for rhythms that vary by 0.1 us, with larger ones by less
    // for those that do not.
    static constexpr int32_t  earlier   = 8;
    static constexpr int32_t  later     = 128;
    static constexpr uint32_t looks_max = 16;   // after more the host was doing something else
    static constexpr uint32_t delay_max = 8192; // longer than any round trip over PCIe

    int32_t  aim_   = 0; // when the look that finds the next one leaves
    uint32_t delay_ = 0;
};

} // namespace nvl

#endif
