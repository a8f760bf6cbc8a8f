// SPDX-License-Identifier: BSD-3-Clause
//
// The pattern, the copies and what is made of them.
#include "mem/pair_check.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <thread>

#include "base/log.h"
#include "mem/life_page.h"
#include "topo/topology.h"

namespace nvl {

namespace {

// The first part of a sample is read only; peers write in one of the others,
// chosen by chance, since several may check at once.
constexpr size_t   part_bytes = 4096;
constexpr unsigned part_count = 64;

// So often a pair's check may fail to be made.
constexpr unsigned trials_most = 8;

// A copy that does not end is not this check's business.
constexpr std::chrono::seconds patience{1};

// Nothing that memory has of itself: not all equal, no two words alike.
void fill(uint8_t *bytes, uint64_t seed) noexcept
{
    for (size_t at = 0; at < part_bytes; at += sizeof(uint64_t)) {
        uint64_t word = (seed + at + 1) * 0x9e3779b97f4a7c15ull;
        word ^= word >> 29;
        std::memcpy(bytes + at, &word, sizeof(word));
    }
}

stream make_stream(const cuda_api &cuda, const life_ref &life) noexcept
{
    CUstream made = nullptr;
    if (cuda.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) {
        made = nullptr;
    }
    return {cuda, life, made};
}

// CUDA_ERROR_NOT_READY: it did not end in time, and may do so at any time.
CUresult copy(const cuda_api &cuda, CUstream in, CUdeviceptr to, CUdeviceptr from) noexcept
{
    CUresult code = cuda.cuMemcpyAsync(to, from, part_bytes, in);
    if (code != CUDA_SUCCESS) {
        return code;
    }
    auto end = std::chrono::steady_clock::now() + patience;
    code     = cuda.cuStreamQuery(in);
    while ((code == CUDA_ERROR_NOT_READY) && (std::chrono::steady_clock::now() < end)) {
        std::this_thread::yield();
        code = cuda.cuStreamQuery(in);
    }
    if (code == CUDA_ERROR_NOT_READY) {
        // If this process was stopped meanwhile, the copy was not late.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        code = cuda.cuStreamQuery(in);
    }
    return code;
}

} // namespace

pair_check &pair_check::get(places &where)
{
    static pair_check *const only = new pair_check(where);
    return *only;
}

bool pair_check::has_pcie_pairs(unsigned gpu) const noexcept
{
    const graph &pairs = topology::get(where_.cuda()).pairs();
    int          self  = pairs.find_cuda(where_.gpus()[gpu].ordinal);
    for (size_t i = 0; (self >= 0) && (i < pairs.size()); ++i) {
        if (pairs.path(i, static_cast<size_t>(self)).kind == path_kind::pcie) {
            return true;
        }
    }
    return false;
}

bool pair_check::needs_check(const place &from, const gpu_uuid &peer) const
{
    gpu_identity named;
    named.uuid = peer;
    return topology::get(where_.cuda()).judge(where_.gpus()[from.gpu].ordinal, true, named).kind ==
           path_kind::pcie;
}

// The caller holds the mutex. What was in a context that has ended since, as by a
// reset of the GPU, is offered to nobody any more.
void pair_check::drop_if_gone(unsigned gpu, const process_identity &self) noexcept
{
    auto known = samples_.find(gpu);
    if ((known == samples_.end()) || !known->second.memory.is_gone()) {
        return;
    }
    if (known->second.was_offered) {
        life_page::own(self.token).set_sample(gpu, nullptr);
    }
    samples_.erase(known);
}

// The caller holds the mutex. Null if there is no memory for it.
pair_check::sample *pair_check::sample_of(const place &at, const process_identity &self)
{
    drop_if_gone(at.gpu, self);
    auto known = samples_.find(at.gpu);
    if (known != samples_.end()) {
        return &known->second;
    }
    const cuda_api      &cuda    = where_.cuda();
    CUdeviceptr          address = 0;
    std::vector<uint8_t> pattern(part_bytes);
    fill(pattern.data(), 0);

    context_guard    guard = where_.enter(at);
    relaxed_capture  relaxed(cuda);
    result<life_ref> life =
        guard.ok() ? context_life::of(cuda, at.context) : result<life_ref>(UCS_ERR_IO_ERROR);
    if (!life.ok() || (cuda.cuMemAlloc(&address, part_count * part_bytes) != CUDA_SUCCESS)) {
        return nullptr;
    }
    sample made;
    made.memory    = device_block(cuda, life.value(), address);
    stream writing = make_stream(cuda, life.value());
    if (!writing || (copy(cuda, writing.get(), address,
                          reinterpret_cast<CUdeviceptr>(pattern.data())) != CUDA_SUCCESS)) {
        return nullptr;
    }
    result<std::shared_ptr<exported>> share =
        exports::get(where_).share(region_query(where_, reinterpret_cast<const void *>(address)),
                                   at, address, part_count * part_bytes, self);
    if (share.ok()) {
        made.share = std::move(share.value());
    }
    return &samples_.emplace(at.gpu, std::move(made)).first->second;
}

void pair_check::offer(const place &at, const process_identity &self) noexcept
try {
    std::lock_guard<std::mutex> guard(mutex_);
    drop_if_gone(at.gpu, self);
    auto known = samples_.find(at.gpu);
    if (((known != samples_.end()) && known->second.was_offered) || !has_pcie_pairs(at.gpu)) {
        return;
    }
    result<const place *> primary = where_.primary(where_.gpus()[at.gpu].device);
    sample               *made    = primary.ok() ? sample_of(*primary.value(), self) : nullptr;
    if (made == nullptr) {
        return;
    }
    made->was_offered = true;
    if (made->share) {
        uint8_t packed[key_packed_size_most] = {};
        key_pack(made->share->key(), packed);
        life_page::own(self.token).set_sample(at.gpu, packed);
    }
} catch (const std::exception &) {
    NVL_DEBUG("no memory for peers to check their pairs with");
}

// The caller holds the mutex. Reads the pattern, writes another one, reads it back.
pair_check::verdict pair_check::copies(const place &from, far_memory far, std::string *what)
{
    const cuda_api      &cuda = where_.cuda();
    std::vector<uint8_t> wanted(part_bytes), got(part_bytes);
    auto                 here  = [](uint8_t *at) { return reinterpret_cast<CUdeviceptr>(at); };
    context_guard        guard = where_.enter(from);
    relaxed_capture      relaxed(cuda);
    result<life_ref>     life =
        guard.ok() ? context_life::of(cuda, from.context) : result<life_ref>(UCS_ERR_IO_ERROR);
    stream        in   = life.ok() ? make_stream(cuda, life.value()) : stream();
    device_block &near = near_[from.id()];
    CUdeviceptr   made = 0;
    if (near.is_gone()) {
        near = device_block();
    }
    if (in && !near && (cuda.cuMemAlloc(&made, part_bytes) == CUDA_SUCCESS)) {
        near = device_block(cuda, life.value(), made);
    }
    if (!in || !near) {
        return verdict::open;
    }

    // False if not all of them succeed.
    unfinished_.reserve(unfinished_.size() + 1);
    auto run = [&](std::initializer_list<std::pair<CUdeviceptr, CUdeviceptr>> all) {
        CUresult code = CUDA_SUCCESS;
        for (auto [to, of] : all) {
            code = (code == CUDA_SUCCESS) ? copy(cuda, in.get(), to, of) : code;
        }
        if (code == CUDA_ERROR_NOT_READY) {
            unfinished_.push_back({std::move(in), std::move(near), std::move(wanted),
                                   std::move(got), std::move(far.used)});
        }
        return code == CUDA_SUCCESS;
    };

    fill(wanted.data(), 0);
    std::memset(got.data(), 0, got.size());
    if (!run({{near.get(), here(got.data())},
              {near.get(), far.at},
              {here(got.data()), near.get()}})) {
        return verdict::open;
    }
    if (got != wanted) {
        *what = "reads";
        return verdict::wrong;
    }

    // Somebody else may have written there meanwhile; not twice in two places.
    for (int trial = 0; trial < 3; ++trial) {
        uint64_t seed =
            reinterpret_cast<uintptr_t>(this) ^
            static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
        CUdeviceptr at = far.at + (1 + (seed / 64 + turn_++) % (part_count - 1)) * part_bytes;
        fill(wanted.data(), seed | 1);
        std::memset(got.data(), 0, got.size());
        if (!run({{near.get(), here(wanted.data())},
                  {at, near.get()},
                  {near.get(), here(got.data())},
                  {near.get(), at},
                  {here(got.data()), near.get()}})) {
            return verdict::open;
        }
        if (got == wanted) {
            return verdict::sound;
        }
    }
    *what = "writes";
    return verdict::wrong;
}

template<typename F>
bool pair_check::judge(const place &from, const gpu_uuid &peer, bool *settled, F &&find) noexcept
try {
    *settled                         = false;
    const gpu                  &mine = where_.gpus()[from.gpu];
    std::lock_guard<std::mutex> guard(mutex_);
    auto                        known = known_.find({mine.ordinal, peer});
    if (known == known_.end()) {
        verdict     found = verdict::sound;
        std::string what;
        if ((peer != mine.uuid) && needs_check(from, peer)) {
            far_memory far = find();
            found          = (far.at != 0) ? copies(from, std::move(far), &what) : verdict::open;
            NVL_DEBUG("GPU %d and GPU-%02x%02x%02x%02x over PCIe: %s", mine.ordinal, peer[0],
                      peer[1], peer[2], peer[3],
                      (found == verdict::open) ? "not checked" : "checked");
        }
        if (found == verdict::wrong) {
            NVL_WARN("GPU %d %s wrong bytes at GPU-%02x%02x%02x%02x over PCIe although the driver "
                     "reports success, so the pair's bytes take another path: look for an IOMMU "
                     "that is on (intel_iommu, amd_iommu) and ACS on PCIe switches",
                     mine.ordinal, what.c_str(), peer[0], peer[1], peer[2], peer[3]);
        }
        // Another owner's sample may open; not for ever, since a trial takes time.
        if ((found == verdict::open) && (++open_trials_[{mine.ordinal, peer}] < trials_most)) {
            return true;
        }
        known = known_.emplace(std::make_pair(mine.ordinal, peer), found).first;
    }
    *settled = true;
    return known->second != verdict::wrong;
} catch (const std::exception &) {
    return true; // no memory: the next one asks again
}

bool pair_check::is_sound(const place &from, const gpu_uuid &peer, map_cache &cache,
                          const mapping &opened, bool *settled) noexcept
{
    return judge(from, peer, settled, [&] {
        far_memory far;
        uint8_t    packed[key_packed_size_most];
        for (unsigned gpu = 0; cache.link_of(opened)->sample(gpu, packed); ++gpu) {
            key_fields fields;
            if ((packed[0] == 0) || (key_parse(packed, &fields) != UCS_OK) ||
                (fields.uuid != peer) || (fields.size_bytes < part_count * part_bytes)) {
                continue;
            }
            result<const place *> opener = where_.primary(where_.gpus()[from.gpu].device);
            result<mapping *>     taken  = opener.ok()
                                               ? cache.acquire(import_key(fields, opener.value()->id()))
                                               : result<mapping *>(opener.status());
            if (taken.ok()) {
                far.used = used_mapping(taken.value(), {&cache});
                far.at   = taken.value()->mapped();
            }
            break;
        }
        return far;
    });
}

bool pair_check::is_sound(const place &from, const place &to, const process_identity &self) noexcept
{
    bool settled = false; // asked each time anyway
    return judge(from, where_.gpus()[to.gpu].uuid, &settled, [&] {
        far_memory far;
        sample    *there = (where_.enable_peer(from, to) == UCS_OK) ? sample_of(to, self) : nullptr;
        far.at           = (there != nullptr) ? there->memory.get() : 0;
        return far;
    });
}

void pair_check::close() noexcept
{
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto &[gpu, one] : samples_) {
        if (one.share) {
            life_page::own(one.share->key().owner.token).set_sample(gpu, nullptr);
            one.share.reset(); // peers close before the memory goes
        }
    }
    samples_.clear();
    near_.clear();
    // What still runs keeps what it has.
    const cuda_api &cuda = where_.cuda();
    relaxed_capture relaxed(cuda);
    unfinished_.erase(std::remove_if(unfinished_.begin(), unfinished_.end(),
                                     [&](const unfinished &one) {
                                         return one.in.is_gone() ||
                                                (cuda.cuStreamQuery(one.in.get()) == CUDA_SUCCESS);
                                     }),
                      unfinished_.end());
}

} // namespace nvl
