// SPDX-License-Identifier: BSD-3-Clause
//
// Finds the process's GPUs and keeps the table of places.
#include "mem/place.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/log.h"
#include "topo/topology.h"

namespace nvl {

namespace {

// What is known of a pair of places: nothing, or one of these.
constexpr uint8_t peer_enabled    = 1;
constexpr uint8_t peer_impossible = 2;
constexpr uint8_t peer_refused    = 3; // and told; it is tried again

std::mutex            open_mutex_g;
std::atomic<places *> places_g{nullptr};

} // namespace

ucs_status_t tell_context_over() noexcept
{
    NVL_ERROR("the CUDA context of a buffer was destroyed before an operation on it");
    return UCS_ERR_IO_ERROR;
}

const char *peer_refusal_hint(CUresult code) noexcept
{
    switch (code) {
    case CUDA_ERROR_TOO_MANY_PEERS:
        return " (this GPU's limit of peers, which all processes share, is reached: have each "
               "process use fewer GPUs)";
    case CUDA_ERROR_INVALID_DEVICE:
        return " (the peer's GPU is hidden from this process: GPU binding, container)";
    default:
        return "";
    }
}

places::places(const cuda_api &cuda) noexcept : cuda_(cuda)
{
}

places *places::get(std::string *why)
{
    places *self = places_g.load(std::memory_order_acquire);
    if (self != nullptr) {
        return self;
    }

    const cuda_api *cuda = cuda_api::load(why);
    if (cuda == nullptr) {
        return nullptr;
    }

    std::lock_guard<std::mutex> guard(open_mutex_g);
    self = places_g.load(std::memory_order_acquire);
    if (self != nullptr) {
        return self;
    }

    std::unique_ptr<places> fresh(new places(*cuda));
    if (fresh->open(why) != UCS_OK) {
        return nullptr;
    }
    places_g.store(fresh.get(), std::memory_order_release);
    return fresh.release();
}

ucs_status_t places::open(std::string *why)
{
    int      count = 0;
    CUresult code  = cuda_.cuDeviceGetCount(&count);
    if ((code != CUDA_SUCCESS) || (count == 0)) {
        *why = "no GPU is visible to this process";
        return UCS_ERR_NO_DEVICE;
    }

    for (int i = 0; (i < count) && (gpus_.size() < max_gpus); ++i) {
        gpu    g;
        CUuuid uuid;
        g.ordinal = i;
        if ((cuda_.cuDeviceGet(&g.device, i) != CUDA_SUCCESS) ||
            (cuda_.cuDeviceGetUuid(&uuid, g.device) != CUDA_SUCCESS)) {
            NVL_DIAG("GPU %d does not answer and is left out", i);
            continue;
        }
        std::memcpy(g.uuid.data(), uuid.bytes, g.uuid.size());
        (void)cuda_.cuDeviceGetPCIBusId(g.bus_id, sizeof(g.bus_id), g.device);
        (void)cuda_.cuDeviceGetName(g.name, sizeof(g.name), g.device);
        gpus_.push_back(g);
    }
    primaries_.resize(gpus_.size());
    if (gpus_.empty()) {
        *why = "no GPU answers";
        return UCS_ERR_NO_DEVICE;
    }
    return UCS_OK;
}

bool places::shares_between_hosts() const noexcept
{
    static const bool shares = [this]() noexcept {
        // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, of CUDA 12.4.
        constexpr auto fabric_handles = static_cast<CUdevice_attribute>(128);
        for (const gpu &each : gpus_) {
            int has = 0;
            if ((cuda_.cuDeviceGetAttribute(&has, fabric_handles, each.device) == CUDA_SUCCESS) &&
                (has != 0)) {
                return topology::get(cuda_).pairs().reach().fabric;
            }
        }
        return false;
    }();
    return shares;
}

int places::find_gpu(const gpu_uuid &uuid) const noexcept
{
    for (size_t i = 0; i < gpus_.size(); ++i) {
        if (gpus_[i].uuid == uuid) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

int places::find_gpu(CUdevice device) const noexcept
{
    for (size_t i = 0; i < gpus_.size(); ++i) {
        if (gpus_[i].device == device) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

unsigned long long places::context_unique(CUcontext context) const noexcept
{
    unsigned long long unique = 0;
    if ((cuda_.cuCtxGetId == nullptr) || (cuda_.cuCtxGetId(context, &unique) != CUDA_SUCCESS)) {
        return 0;
    }
    return unique;
}

// Null if there is none, or one whose context is over. Without `home`: of a primary
// context. The caller holds the mutex.
const place *places::known(CUcontext context, unsigned long long unique, const place *home) noexcept
{
    for (unsigned i = 0, n = count(); i < n; ++i) {
        const place *at = numbered(i);
        bool is_it      = (at != nullptr) && (at->context == context) && (at->unique == unique) &&
                     (at->home == ((home != nullptr) ? home->id() : i)) &&
                     (at->next.load() == nullptr) && !(lives_[i] && lives_[i]->is_over());
        if (is_it) {
            return at;
        }
    }
    return nullptr;
}

bool places::is_over(const place &at) const noexcept
{
    if (at.is_primary()) {
        return was_reset(at);
    }
    std::lock_guard<std::mutex> guard(mutex_);
    const life_ref             &life = lives_[at.id()];
    return !life || life->is_over();
}

bool places::is_current(const place &at) const noexcept
{
    const place *home = known_primary(at.gpu);
    return (home != nullptr) && (at.home == home->id()) && !is_reset(*home);
}

bool places::was_reset(const place &primary) const noexcept
{
    // Each unpack of a key comes this way.
    return !sound_[primary.id()].is_good() && is_reset(primary);
}

// A retained handle may be asked for its number: after a reset it has another one, or none.
// What is kept in a context says less: after a reset there may be a new one at the same
// handle, with a life of its own. (But a driver before CUDA 12 has no numbers.)
bool places::is_reset(const place &primary) const noexcept
{
    const uint64_t now = clock_ticks();
    bool           is  = false;
    if (cuda_.cuCtxGetId != nullptr) {
        is = context_unique(primary.context) != primary.unique;
    } else if (life_ref life = context_life::known(cuda_, primary.context)) {
        is = life->is_over();
    }
    if (!is) {
        sound_[primary.id()].keep(now);
    }
    return is;
}

void places::let_go() noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    lives_.fill(nullptr);
}

result<const place *> places::find(CUdevice device, CUcontext context) noexcept
{
    result<const place *> home = primary(device);
    if (!home.ok()) {
        return home;
    }
    const place       &first  = *home.value();
    unsigned long long unique = context_unique(context);
    if (first.context == context) {
        return (first.unique == unique) ? home : begin_primary(first.gpu, &first);
    }

    for (bool is_last = false;; is_last = true) {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            const place                *at = known(context, unique, &first);
            if ((at != nullptr) && lives_[at->id()]) {
                return at;
            }
            result<life_ref> life = context_life::of(cuda_, context);
            if (!life.ok()) {
                return life.status();
            }
            if (at != nullptr) {
                forget_peers(at->id()); // a driver that numbers no contexts may mean another one
            } else if (is_last || !is_full()) {
                at = add(first.gpu, context, unique, &first);
            }
            if (at != nullptr) {
                lives_[at->id()] = std::move(life.value());
                return at;
            }
        }
        if (is_last) {
            return UCS_ERR_NO_DEVICE;
        }
        reclaim(first.context);
    }
}

// Numbers that are nobody's. The caller holds the mutex, as for add().
unsigned places::spare() const noexcept
{
    return max_places - count() + static_cast<unsigned>(free_.size());
}

bool places::is_full() const noexcept
{
    return spare() == 0;
}

// Without `home`: of a primary context. Null, with a word in the log, if no number is free or
// there is no memory.
place *places::add(unsigned gpu, CUcontext context, unsigned long long unique,
                   const place *home) noexcept
try {
    if (is_full()) {
        NVL_ERROR("more than 64 CUDA contexts of this process (and resets of primary ones) at a "
                  "time: use the primary ones");
        return nullptr;
    }

    all_.push_back(std::make_unique<place>());
    place         &made = *all_.back();
    const unsigned id   = free_.empty() ? count() : free_.back();
    made.gpu            = gpu;
    made.context        = context;
    made.unique         = unique;
    made.home           = (home != nullptr) ? home->id() : id;
    made.number.store(id, std::memory_order_relaxed);
    // Partner: the acquire in numbered().
    numbered_[id].store(&made, std::memory_order_release);
    if (free_.empty()) {
        // Partner: the acquire in count().
        count_.store(id + 1, std::memory_order_release);
    } else {
        free_.pop_back();
    }
    return &made;
} catch (const std::bad_alloc &) {
    return nullptr;
}

// Takes back the numbers of the application's contexts that are over, and of those that
// nobody has asked for since let_go(). The caller may hold the locks of a key, a registration
// and the pair check: nobody asks for a place under the locks that watchers take. `current`
// lives: in a context that does not, the driver says of everything that it is gone.
void places::reclaim(CUcontext current) noexcept
try {
    // Held to the end: who needs a number, too, finds them when it is his turn.
    std::lock_guard<std::mutex> one_at_a_time(watchers_mutex_);
    std::vector<unsigned>       taken;
    context_guard               in(cuda_, current);
    if (!in.ok()) {
        return;
    }
    {
        std::lock_guard<std::mutex> guard(mutex_);
        taken.reserve(max_places);
        free_.reserve(max_places);
        for (unsigned i = 0, n = count(); i < n; ++i) {
            place *at = numbered_[i].load(std::memory_order_relaxed);
            if ((at == nullptr) || at->is_primary() || (lives_[i] && !lives_[i]->is_over())) {
                continue;
            }
            at->number.store(no_place, std::memory_order_relaxed);
            numbered_[i].store(nullptr, std::memory_order_relaxed);
            lives_[i] = nullptr;
            forget_peers(i);
            taken.push_back(i);
        }
    }
    for (place_watcher *who : watchers_) {
        for (unsigned id : taken) {
            who->forget_place(id);
        }
    }
    std::lock_guard<std::mutex> guard(mutex_);
    free_.insert(free_.end(), taken.begin(), taken.end());
} catch (const std::bad_alloc &) {
    NVL_DEBUG("no memory to take back the numbers of contexts that are over");
}

// The caller holds the mutex.
void places::forget_peers(unsigned id) noexcept
{
    for (unsigned other = 0; other < max_places; ++other) {
        peer_[id][other].store(0, std::memory_order_relaxed);
        peer_[other][id].store(0, std::memory_order_relaxed);
    }
}

void places::add_watcher(place_watcher *who)
{
    std::lock_guard<std::mutex> guard(watchers_mutex_);
    watchers_.push_back(who);
}

void places::remove_watcher(place_watcher *who) noexcept
{
    std::lock_guard<std::mutex> guard(watchers_mutex_);
    watchers_.erase(std::remove(watchers_.begin(), watchers_.end(), who), watchers_.end());
}

result<const place *> places::primary(CUdevice device) noexcept
{
    int index = find_gpu(device);
    if (index < 0) {
        NVL_ERROR("memory of a GPU that is unknown to this process");
        return UCS_ERR_NO_DEVICE;
    }

    // Retained for good, so its place changes only where the application resets it.
    const place *known = known_primary(static_cast<unsigned>(index));
    if ((known != nullptr) && !was_reset(*known)) {
        return known;
    }
    return begin_primary(static_cast<unsigned>(index), known);
}

// How many move_on() gives at most, and one. The caller holds the mutex.
unsigned places::numbers_for(unsigned gpu) const noexcept
{
    unsigned wanted = 1;
    for (unsigned i = 0, n = count(); i < n; ++i) {
        const place *at = numbered_[i].load(std::memory_order_relaxed);
        wanted += (at != nullptr) && (at->gpu == gpu) && !at->is_primary();
    }
    return wanted;
}

// In place of `gone`, which was reset, or the first one.
result<const place *> places::begin_primary(unsigned gpu, const place *gone) noexcept
{
    for (bool is_last = false;; is_last = true) {
        CUcontext context;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            const place                *now = known_primary(gpu);
            if (now != gone) {
                return now; // another thread was quicker
            }
            if ((primaries_[gpu].get() == nullptr) || ((gone != nullptr) && !is_last)) {
                result<primary_context> retained =
                    primary_context::retain(cuda_, gpus_[gpu].device);
                if (!retained.ok()) {
                    return retained.status();
                }
                primaries_[gpu] = std::move(retained.value());
            }
            context = primaries_[gpu].get();
            if (is_last || (spare() >= numbers_for(gpu))) {
                unsigned long long unique = context_unique(context);
                now                       = known(context, unique, nullptr);
                if (now == nullptr) {
                    now = add(gpu, context, unique, nullptr);
                }
                if (now == nullptr) {
                    return UCS_ERR_NO_DEVICE;
                }
                primary_places_[gpu].store(now, std::memory_order_release);
                if (now != gone) {
                    move_on(*now);
                }
                return now;
            }
        }
        reclaim(context);
    }
}

// The application's own contexts on the GPU of a primary one that has just begun. The caller
// holds the mutex.
void places::move_on(const place &primary) noexcept
{
    for (unsigned i = 0, n = count(); i < n; ++i) {
        place *own = numbered_[i].load(std::memory_order_relaxed);
        if ((own == nullptr) || (own->gpu != primary.gpu) || own->is_primary() ||
            (own->next.load() != nullptr) || !lives_[i] || lives_[i]->is_over()) {
            continue;
        }
        place *next = add(own->gpu, own->context, own->unique, &primary);
        if (next == nullptr) {
            return;
        }
        lives_[next->id()] = lives_[i];
        // Partner: the acquire in place_now().
        own->next.store(next, std::memory_order_release);
    }
}

result<const place *> places::preferred(int wanted) noexcept
{
    // The device of the current context, not the context itself: that may be one
    // that was destroyed, which the driver still answers for.
    CUdevice device = 0;
    if ((wanted < 0) && (cuda_.cuCtxGetDevice(&device) == CUDA_SUCCESS)) {
        wanted = find_gpu(device);
    }
    if (wanted >= 0) {
        return primary(gpus_[wanted].device);
    }

    for (const gpu &g : gpus_) {
        unsigned flags  = 0;
        int      active = 0;
        if ((cuda_.cuDevicePrimaryCtxGetState(g.device, &flags, &active) == CUDA_SUCCESS) &&
            active) {
            return primary(g.device);
        }
    }
    return primary(gpus_.front().device);
}

ucs_status_t places::enable_peer(const place &from, const place &to) noexcept
{
    if (from.gpu == to.gpu) {
        // One GPU: every context of the process reaches all of its memory.
        return UCS_OK;
    }

    const unsigned        from_id = from.id(), to_id = to.id();
    std::atomic<uint8_t> &known = peer_[from_id][to_id];
    uint8_t               seen  = known.load(std::memory_order_acquire);
    if ((seen == peer_enabled) || (seen == peer_impossible)) {
        return (seen == peer_enabled) ? UCS_OK : UCS_ERR_UNREACHABLE;
    }

    int can = 0;
    (void)cuda_.cuDeviceCanAccessPeer(&can, gpus_[from.gpu].device, gpus_[to.gpu].device);
    CUresult code = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (can) {
        context_guard guard =
            is_over(to) ? context_guard(cuda_, CUDA_ERROR_CONTEXT_IS_DESTROYED) : enter(from);
        relaxed_capture relaxed(cuda_);
        code = guard.ok() ? cuda_.cuCtxEnablePeerAccess(to.context, 0) : guard.code();
    }

    auto keep = [&](uint8_t found) {
        (void)while_numbered({{&from, from_id}, {&to, to_id}},
                             [&] { known.store(found, std::memory_order_release); });
    };
    if ((code == CUDA_SUCCESS) || (code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) {
        keep(peer_enabled);
        return UCS_OK;
    }

    // Only what cannot change is remembered as impossible; a context that is gone or
    // a limit that another process holds may be different next time.
    bool unsupported = code == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    keep(unsupported ? peer_impossible : peer_refused);
    log_level level = unsupported ? log_level::diag : log_level::warn;
    NVL_LOG((seen == peer_refused) ? log_level::debug : level,
            "GPU %d cannot reach GPU %d, so the bytes take another path: %s%s",
            gpus_[from.gpu].ordinal, gpus_[to.gpu].ordinal, cuda_.error_text(code),
            peer_refusal_hint(code));
    return UCS_ERR_UNREACHABLE;
}

} // namespace nvl
