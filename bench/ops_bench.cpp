// SPDX-License-Identifier: BSD-3-Clause
//
// What an operation costs the processor, by Google Benchmark: to post it and to see it finished, by
// the ring and by a lane, in batches. The driver's own time is not in it (prompt_gpu.h);
// the counter `calls` says how many driver calls an operation makes. bench/compare_ops compares two
// results.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/clock.h"
#include "batch_clock.h"
#include "prompt_gpu.h"
#include "route/gpu_engine.h"

namespace nvl {

namespace {

constexpr size_t ring_size = 4096;     // goes by the ring, alone and in a stream
constexpr size_t lane_size = 64 << 20; // goes by the copy engine

class target {
public:
    explicit target(lane_completion completion, bool use_ring)
    {
        gpu_engine_config config;
        config.lane.completion = completion;
        config.use_ring        = use_ring;
        // One kernel for the whole run.
        config.ring.growth_descriptors = UINT32_MAX;
        // Any will do: the table makes nothing of it.
        CUcontext context = reinterpret_cast<CUcontext>(0x1000);
        auto      created = gpu_engine::create(gpu_.cuda(), 0, context, config);
        if (!created.ok()) {
            fprintf(stderr, "ops_bench: no engine\n");
            exit(1);
        }
        engine_ = std::move(created.value());
        if (use_ring && !engine_->has_ring()) {
            fprintf(stderr, "ops_bench: no ring\n");
            exit(1);
        }
        done_.func = [](uct_completion_t *self) { self->count = 1 << 30; };
    }

    void post(size_t size_bytes)
    {
        done_.count = 1 << 30;
        copy_piece piece{0x20000000, 0x10000000, size_bytes};
        if (engine_->copy(direction::push, 1, &piece, 1, op_end{&done_, nullptr}, true) !=
            UCS_INPROGRESS) {
            fprintf(stderr, "ops_bench: not posted\n");
            exit(1);
        }
    }

    unsigned poll()
    {
        return engine_->poll(64);
    }

    prompt_gpu &gpu()
    {
        return gpu_;
    }

private:
    prompt_gpu                  gpu_;
    std::unique_ptr<gpu_engine> engine_;
    uct_completion_t            done_ = {};
};

// The first operations find no kernel; each summons a little more.
void warm_up(target &at, size_t size_bytes)
{
    for (unsigned i = 0; i < 100; ++i) {
        at.post(size_bytes);
        at.gpu().finish_ring();
        while (at.poll() != 0) {
        }
    }
    (void)at.gpu().take_calls();
}

enum class part { post, progress };

// `batch` operations at once; only one half of the work is timed.
void measure(benchmark::State &state, target &at, size_t size_bytes, part which)
{
    const unsigned batch = static_cast<unsigned>(state.range(0));
    warm_up(at, size_bytes);
    batch_clock clock(state, batch);
    for (auto _ : state) {
        uint64_t start = clock_ticks();
        for (unsigned i = 0; i < batch; ++i) {
            at.post(size_bytes);
        }
        uint64_t posted = clock_ticks();
        at.gpu().finish_ring();
        uint64_t finished = clock_ticks();
        for (unsigned seen = 0; seen < batch;) {
            seen += at.poll();
        }
        uint64_t end = clock_ticks();
        clock.add((which == part::post) ? posted - start : end - finished);
    }
    clock.report(at.gpu().take_calls());
}

void ring_post(benchmark::State &state)
{
    target at(lane_completion::by_event, true);
    measure(state, at, ring_size, part::post);
}

void ring_progress(benchmark::State &state)
{
    target at(lane_completion::by_event, true);
    measure(state, at, ring_size, part::progress);
}

void lane_post(benchmark::State &state)
{
    target at(lane_completion::by_event, false);
    measure(state, at, lane_size, part::post);
}

void lane_progress(benchmark::State &state)
{
    target at(lane_completion::by_event, false);
    measure(state, at, lane_size, part::progress);
}

void word_lane_post(benchmark::State &state)
{
    target at(lane_completion::by_word, false);
    measure(state, at, lane_size, part::post);
}

void word_lane_progress(benchmark::State &state)
{
    target at(lane_completion::by_word, false);
    measure(state, at, lane_size, part::progress);
}

// What a call of progress costs when there is nothing to do.
void idle_progress(benchmark::State &state)
{
    const unsigned batch = static_cast<unsigned>(state.range(0));
    target         at(lane_completion::by_event, true);
    warm_up(at, ring_size);
    batch_clock clock(state, batch);
    for (auto _ : state) {
        uint64_t start = clock_ticks();
        for (unsigned i = 0; i < batch; ++i) {
            benchmark::DoNotOptimize(at.poll());
        }
        clock.add(clock_ticks() - start);
    }
    clock.report(at.gpu().take_calls());
}

BENCHMARK(ring_post)->Arg(64)->UseManualTime();
BENCHMARK(ring_progress)->Arg(64)->UseManualTime();
BENCHMARK(lane_post)->Arg(64)->UseManualTime();
BENCHMARK(lane_progress)->Arg(64)->UseManualTime();
BENCHMARK(word_lane_post)->Arg(64)->UseManualTime();
BENCHMARK(word_lane_progress)->Arg(64)->UseManualTime();
BENCHMARK(idle_progress)->Arg(64)->UseManualTime();

} // namespace

} // namespace nvl

BENCHMARK_MAIN();
