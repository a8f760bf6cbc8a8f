// SPDX-License-Identifier: BSD-3-Clause
//
// A place: one GPU seen through one CUDA context of this process. Everything
// that copies or maps does so in a place; its small number indexes tables on
// the data path. Places are found or made at registration and at key unpack,
// never removed; a context that follows a destroyed one at its address is another
// place. What peers share is opened in the primary context of a GPU, for all of its
// contexts, and goes when that is reset: so a context of the application's own that
// is still there then is another place from then on, too, where nothing is open yet.
// Also here: the GPUs of this process. Called by mem, engine and uct; calls the driver.
#ifndef NVLINK_MEM_PLACE_H
#define NVLINK_MEM_PLACE_H

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "driver/handles.h"

namespace nvl {

using gpu_uuid = std::array<uint8_t, 16>;

struct gpu {
    int      ordinal = -1; // CUDA's
    CUdevice device  = 0;
    gpu_uuid uuid{};
    char     bus_id[16] = {}; // as cuDeviceGetPCIBusId: 0000:xx:yy.z
    char     name[64]   = {};
};

// Far above what one process has at a time (8 GPUs x a few contexts); the tables on the
// data path are arrays of this many pointers, and one more for no_place, where nothing is.
constexpr unsigned max_places = 64;
constexpr unsigned max_gpus   = 64;
constexpr unsigned no_place   = max_places;

template<typename T> using by_place = std::array<T, max_places + 1>;

struct place {
    unsigned           gpu     = 0; // index into places::gpus()
    CUcontext          context = nullptr;
    unsigned long long unique = 0; // cuCtxGetId, to tell a reused pointer; 0 if the driver has none
    unsigned           home   = 0; // the place of the primary context; its own number: it is that

    // What the same context is after a reset of the primary one; null: no such thing was seen.
    std::atomic<const place *> next{nullptr};

    std::atomic<unsigned> number{no_place};

    // no_place: its context is over, and the number may be another place's.
    unsigned id() const noexcept
    {
        return number.load(std::memory_order_relaxed);
    }

    bool is_primary() const noexcept
    {
        return home == id();
    }
};

// Whoever remembers things by numbers of places, without the place beside them to tell.
class place_watcher {
public:
    // The number is about to be another place's. Any thread; may not ask places for one.
    virtual void forget_place(unsigned id) noexcept = 0;

protected:
    ~place_watcher() = default;
};

// What a place that somebody remembers is now. One load in the common case.
inline const place *place_now(const place *at) noexcept
{
    const place *next = at->next.load(std::memory_order_acquire);
    return __builtin_expect(next == nullptr, 1) ? at : place_now(next);
}

class places {
public:
    // The process's GPUs and places; null, with the reason in *why, without a
    // usable driver. Any thread.
    static places *get(std::string *why);

    const std::vector<gpu> &gpus() const noexcept
    {
        return gpus_;
    }

    const cuda_api &cuda() const noexcept
    {
        return cuda_;
    }

    // Of a primary context.
    const place &at(unsigned id) const noexcept
    {
        return *numbered(id);
    }

    // Null: nobody's at present. Numbers are below count().
    const place *numbered(unsigned id) const noexcept
    {
        // Partner: the release in add().
        return numbered_[id].load(std::memory_order_acquire);
    }

    unsigned count() const noexcept
    {
        return count_.load(std::memory_order_acquire);
    }

    // Runs `keep`, which keeps something under these numbers, unless one of them is not its
    // place's any more; false then. `keep` may not call places.
    template<typename F>
    bool while_numbered(std::initializer_list<std::pair<const place *, unsigned>> all,
                        F &&keep) const noexcept
    {
        std::lock_guard<std::mutex> guard(mutex_); // reclaim() takes numbers under it
        for (auto [at, id] : all) {
            if ((at->id() != id) || (id == no_place)) {
                return false;
            }
        }
        keep();
        return true;
    }

    // Until it is removed.
    void add_watcher(place_watcher *who);
    void remove_watcher(place_watcher *who) noexcept;

    // The index of the GPU with this UUID, or -1.
    int find_gpu(const gpu_uuid &uuid) const noexcept;
    int find_gpu(CUdevice device) const noexcept;

    // The place of a context that belongs to `device` and lives: of memory that the
    // driver has just said to be in it. Retains the primary one. Any thread, whatever is
    // current.
    result<const place *> find(CUdevice device, CUcontext context) noexcept;

    // True if the context of a place has been destroyed or reset by the application, or
    // may have been: nothing is to be done in it. Asks the driver, of a primary context
    // now and then.
    bool is_over(const place &at) const noexcept;

    // True if the primary context of a place has been reset since: what was in it is
    // gone. Asks the driver now and then.
    bool was_reset(const place &primary) const noexcept;

    // True if what is opened now, by primary(), is open at that place, too: what the GPU
    // has opened before is not gone. Asks the driver.
    bool is_current(const place &at) const noexcept;

    // Makes the context of a place current for a scope, unless it is over.
    context_guard enter(const place &at) const noexcept
    {
        return is_over(at) ? context_guard(cuda_, CUDA_ERROR_CONTEXT_IS_DESTROYED)
                           : context_guard(cuda_, at.context);
    }

    // Nobody uses a place any more: gives back what tells whether its context lives.
    void let_go() noexcept;

    // The place of the device's primary context, which stays retained; a new one if
    // it was reset.
    result<const place *> primary(CUdevice device) noexcept;

    // The place that a call should use when nothing says which: the primary
    // context of `gpu`. `gpu` < 0: of the calling thread's current GPU, else of
    // the first with an active primary context, else of the first.
    result<const place *> preferred(int gpu) noexcept;

    // The place of the GPU's primary context, if somebody has asked for it; it may
    // have been reset since.
    const place *known_primary(unsigned gpu) const noexcept
    {
        return primary_places_[gpu].load(std::memory_order_acquire);
    }

    // True if a GPU of this process can share memory with other hosts of its
    // fabric. Asks once, and not at all of GPUs that know no fabric handles.
    bool shares_between_hosts() const noexcept;

    // Lets copies that run in `from` touch the memory of `to` (same process).
    // Enabling again is cheap. UCS_ERR_UNREACHABLE if the pair cannot.
    ucs_status_t enable_peer(const place &from, const place &to) noexcept;

private:
    explicit places(const cuda_api &cuda) noexcept;
    ucs_status_t       open(std::string *why);
    unsigned long long context_unique(CUcontext context) const noexcept;
    bool               is_reset(const place &primary) const noexcept;
    const place *known(CUcontext context, unsigned long long unique, const place *home) noexcept;
    place       *add(unsigned gpu, CUcontext context, unsigned long long unique,
                     const place *home) noexcept;
    bool         is_full() const noexcept;
    void         reclaim(CUcontext current) noexcept;
    unsigned     spare() const noexcept;
    unsigned     numbers_for(unsigned gpu) const noexcept;
    void         forget_peers(unsigned id) noexcept;
    result<const place *> begin_primary(unsigned gpu, const place *gone) noexcept;
    void                  move_on(const place &primary) noexcept;

    const cuda_api                                  &cuda_;
    std::vector<gpu>                                 gpus_;
    std::vector<primary_context>                     primaries_;
    mutable std::mutex                               mutex_;
    by_place<life_ref>                               lives_; // of own contexts
    std::array<std::atomic<const place *>, max_gpus> primary_places_{};
    mutable by_place<recent_answer>                  sound_; // was_reset()
    std::vector<std::unique_ptr<place>>              all_;
    std::array<std::atomic<place *>, max_places>     numbered_{};
    std::vector<unsigned>                            free_; // of numbered_, below count_
    std::atomic<unsigned>                            count_{0};
    by_place<by_place<std::atomic<uint8_t>>>         peer_{};
    std::mutex                                       watchers_mutex_;
    std::vector<place_watcher *>                     watchers_;
};

// UCS_ERR_IO_ERROR, with a line in the log: the context of a buffer is over.
ucs_status_t tell_context_over() noexcept;

// What a person can make of a code by which the driver refuses to open a peer's
// memory: " (...)", or nothing.
const char *peer_refusal_hint(CUresult code) noexcept;

} // namespace nvl

#endif
