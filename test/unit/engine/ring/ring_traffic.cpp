// SPDX-License-Identifier: BSD-3-Clause
//
// Random traffic of ring_traffic.h.
#include "engine/ring/ring_traffic.h"

#include <sched.h>

#include <chrono>
#include <cstring>

namespace nvl {

namespace {

constexpr uint8_t nobody = 0xa5;

double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Differs between neighbours and between operations.
uint8_t byte_of(uint64_t id, size_t i)
{
    return static_cast<uint8_t>(id * 31 + i * 7 + (i >> 8));
}

} // namespace

ring_config small_ring()
{
    ring_config config;
    config.small_blocks       = 1;
    config.large_blocks       = 2;
    config.small_warps        = 3;
    config.large_warps        = 3;
    config.alone_bytes        = 64;
    config.chunk_small_bytes  = 128;
    config.chunk_large_bytes  = 256;
    config.chunk_stream_bytes = 512;
    config.chunk_limit_bytes  = 1024;
    config.stream_descriptors = 32;
    config.idle_ns            = 100e3;
    config.narrow_ns          = 20e3;
    config.stay_ns            = 5e6;
    config.hello_timeout_ns   = 300e3;
    config.patience_ns        = 3e6;
    config.burst_gap_ns       = 1e9;
    config.backoff_min_ns     = 20e3;
    config.backoff_max_ns     = 1e6;
    return config;
}

ring_config patient_ring()
{
    constexpr double never_ns = 20 * hang_s * 1e9;
    ring_config      config   = small_ring();
    config.idle_ns            = never_ns;
    config.stay_ns            = never_ns;
    config.hello_timeout_ns   = never_ns;
    config.patience_ns        = never_ns;
    config.burst_gap_ns       = never_ns;
    return config;
}

ring_config restless_ring()
{
    ring_config config      = small_ring();
    config.idle_ns          = 20e3;
    config.stay_ns          = 200e3;
    config.hello_timeout_ns = 60e3;
    config.take_back_max    = 0;
    config.patience_ns      = 500e3;
    config.backoff_min_ns   = 1e3;
    config.backoff_max_ns   = 10e3;
    return config;
}

bool comes_true(const std::function<bool()> &what)
{
    const double start_s = now_s();
    while (!what()) {
        if (now_s() - start_s > hang_s) {
            return false;
        }
        sched_yield();
    }
    return true;
}

ring_traffic::ring_traffic(lane &fallback, ring_engine &ring, uint64_t seed)
    : fallback_(fallback), ring_(ring), random_(seed)
{
    for (unsigned i = 0; i < places; ++i) {
        places_.push_back(std::make_unique<place>());
        places_.back()->self = this;
        memset(places_.back()->dst, nobody, sizeof(place::dst));
    }
}

uint64_t ring_traffic::random()
{
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_ >> 8;
}

void ring_traffic::prepare(place &at)
{
    uint64_t r    = random();
    at.id         = ++posted_;
    at.size_bytes = 1 + ((r % 16 != 0) ? random() % 64 : random() % max_bytes);
    at.src_offset = random() % 32;
    at.dst_offset = random() % 32;
    at.comp       = {};
    at.comp.func  = finished;
    at.comp.count = 1;
    at.is_busy    = true;
    for (size_t i = 0; i < at.size_bytes; ++i) {
        at.src[at.src_offset + i] = byte_of(at.id, i);
    }
}

ucs_status_t ring_traffic::submit(place &at)
{
    op_end   end{&at.comp, nullptr};
    uint64_t dst = reinterpret_cast<uint64_t>(at.dst + at.dst_offset);
    uint64_t src = reinterpret_cast<uint64_t>(at.src + at.src_offset);
    uint64_t r   = random() % 16;

    if ((r < 2) && (at.size_bytes <= ring_inline_bytes)) {
        return ring_.submit_inline(dst, at.src + at.src_offset,
                                   static_cast<uint32_t>(at.size_bytes), end);
    }
    if ((r == 2) && (at.size_bytes >= 3)) {
        size_t     third     = at.size_bytes / 3;
        copy_piece pieces[3] = {{dst, src, third},
                                {dst + third, src + third, third},
                                {dst + 2 * third, src + 2 * third, at.size_bytes - 2 * third}};
        return ring_.submit(pieces, 3, end);
    }
    copy_piece piece{dst, src, at.size_bytes};
    return ring_.submit(&piece, 1, end);
}

bool ring_traffic::post(place &at)
{
    // What the last operation wrote was wiped out when it was told as done.
    for (size_t i = 0; i < at.size_bytes; ++i) {
        result_.late += (at.dst[at.dst_offset + i] != nobody);
    }
    prepare(at);
    ring_.summon(at.size_bytes);
    ucs_status_t status = submit(at);
    if (status == UCS_INPROGRESS) {
        ++result_.by_ring;
        return true;
    }
    // Mostly waits for the ring: it is what is tested.
    if (random() % 16 != 0) {
        at.is_busy = false;
        --posted_;
        return false;
    }
    copy_piece piece{reinterpret_cast<uint64_t>(at.dst + at.dst_offset),
                     reinterpret_cast<uint64_t>(at.src + at.src_offset), at.size_bytes};
    status = fallback_.submit(&piece, 1, op_end{&at.comp, nullptr});
    if (status != UCS_INPROGRESS) {
        at.is_busy = false;
        --posted_;
    }
    return at.is_busy;
}

void ring_traffic::check(place &at)
{
    ++result_.finished;
    result_.failed += (at.comp.status != UCS_OK);
    for (size_t i = 0; i < at.size_bytes; ++i) {
        if (at.dst[at.dst_offset + i] != byte_of(at.id, i)) {
            ++result_.wrong;
            break;
        }
    }
    memset(at.dst + at.dst_offset, nobody, at.size_bytes);
    memset(at.src + at.src_offset, nobody ^ 0xff, at.size_bytes);
    at.is_busy = false;
}

void ring_traffic::finished(uct_completion_t *comp)
{
    place *at = reinterpret_cast<place *>(comp);
    at->self->check(*at);
}

traffic_result ring_traffic::run(uint64_t count, double patience_s, double gap_ns)
{
    double alive_s = now_s();
    while (result_.finished < count) {
        uint64_t r = random();
        if ((r % 32 == 0) && (gap_ns > 0)) {
            double until = now_s() + static_cast<double>(random() % 1000) * 1e-12 * gap_ns;
            while (now_s() < until) {
                sched_yield();
            }
        }
        for (unsigned i = 0; i < 1 + r % 12; ++i) {
            place &at = *places_[random() % places];
            if ((posted_ < count) && !at.is_busy && !post(at)) {
                break;
            }
        }
        unsigned ended = ring_.poll(1 + r % 64);
        ended += fallback_.poll(64);
        if (ended != 0) {
            alive_s = now_s();
        } else if (now_s() - alive_s > patience_s) {
            result_.is_hanging = true;
            break;
        } else if (ring_.is_broken()) {
            break; // it takes no more; what it had has failed
        } else {
            sched_yield();
        }
    }
    return result_;
}

} // namespace nvl
