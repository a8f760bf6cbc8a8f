// SPDX-License-Identifier: BSD-3-Clause
//
// Random traffic through a ring on the fake GPU, with every byte checked: sizes,
// lists, inline data, markers, pauses around the idle time; what the ring does
// not take goes to the lane, as in the product.
#ifndef NVLINK_TEST_UNIT_ENGINE_RING_RING_TRAFFIC_H
#define NVLINK_TEST_UNIT_ENGINE_RING_RING_TRAFFIC_H

#include <functional>
#include <memory>
#include <vector>

#include "engine/ring/fake_gpu.h"
#include "engine/ring/ring_engine.h"

namespace nvl {

// Small everything, so that each path is entered often.
ring_config small_ring();

// The same, with kernels that stay, and nothing given up because time has passed: not on the
// busiest machine either.
ring_config patient_ring();

// Kernels come and go all the time, and every rest waits for the next one
// about as long as it takes to start.
ring_config restless_ring();

// A machine that many share may stop a test for seconds: what has not happened after so long is
// taken to hang.
constexpr double hang_s = 60;

// Waits for what other threads do, not for time; false after hang_s.
bool comes_true(const std::function<bool()> &what);

struct traffic_result {
    uint64_t finished   = 0;
    uint64_t by_ring    = 0;
    uint64_t wrong      = 0; // target differs from source when told that it is done
    uint64_t late       = 0; // target was written after that
    uint64_t failed     = 0; // finished with an error
    bool     is_hanging = false;
};

class ring_traffic {
public:
    ring_traffic(lane &fallback, ring_engine &ring, uint64_t seed);

    // Posts `count` operations and waits for them; stops when nothing happens
    // for `patience_s`.
    traffic_result run(uint64_t count, double patience_s, double gap_ns);

private:
    static constexpr size_t   max_bytes = 4096;
    static constexpr unsigned places    = 64;

    struct place {
        uct_completion_t comp                = {};
        ring_traffic    *self                = nullptr;
        uint64_t         id                  = 0;
        size_t           size_bytes          = 0;
        bool             is_busy             = false;
        uint8_t          src[max_bytes + 64] = {};
        uint8_t          dst[max_bytes + 64];
        size_t           src_offset = 0;
        size_t           dst_offset = 0;
    };

    uint64_t     random();
    void         prepare(place &at);
    ucs_status_t submit(place &at);
    bool         post(place &at);
    void         check(place &at);
    static void  finished(uct_completion_t *comp);

    lane                               &fallback_;
    ring_engine                        &ring_;
    uint64_t                            random_;
    std::vector<std::unique_ptr<place>> places_;
    traffic_result                      result_;
    uint64_t                            posted_ = 0;
};

} // namespace nvl

#endif
