// SPDX-License-Identifier: BSD-3-Clause
//
// Whether the bytes arrive. Over PCIe an active IOMMU, a switch or a driver can
// let every copy between two GPUs succeed and write something else, or nothing.
// So before the first use of such a pair a pattern is read from memory of the
// peer that is there for this, another is written, and both are compared. NVLink
// pairs are not looked at. Called by export (the owner's side) and remote_key
// (the copying side); calls exports, map_cache and the driver.
#ifndef NVLINK_MEM_PAIR_CHECK_H
#define NVLINK_MEM_PAIR_CHECK_H

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mem/exports.h"
#include "mem/map_cache.h"

namespace nvl {

class pair_check {
public:
    // The process's, never destroyed.
    static pair_check &get(places &where);

    // Lets peers check the pairs of this GPU, if it has pairs over PCIe: memory with
    // the pattern is made and its key put into the life page. Once for a GPU; what
    // fails is left out, and peers go unchecked. Any thread.
    void offer(const place &at, const process_identity &self) noexcept;

    // False: a check found wrong bytes between the place and the GPU of `opened`,
    // which is memory of another process. Checked once for a pair of GPUs and
    // remembered; *settled is false as long as the check could not be made and is
    // tried again at the next question. Any thread; calls the driver.
    bool is_sound(const place &from, const gpu_uuid &peer, map_cache &cache, const mapping &opened,
                  bool *settled) noexcept;

    // The same for memory of this process that is in `to`.
    bool is_sound(const place &from, const place &to, const process_identity &self) noexcept;

    // Frees what is offered, and forgets nothing of what was found.
    void close() noexcept;

private:
    struct sample {
        device_block              memory;
        std::shared_ptr<exported> share; // null: for this process alone
        bool                      was_offered = false;
    };

    struct give_back {
        map_cache *cache;

        void operator()(mapping *used) const noexcept
        {
            cache->release(used);
        }
    };

    using used_mapping = std::unique_ptr<mapping, give_back>;

    // The peer's memory, and what keeps it open if it is another process's.
    struct far_memory {
        CUdeviceptr  at   = 0;
        used_mapping used = {nullptr, {nullptr}};
    };

    // All that a copy which did not end may still touch.
    struct unfinished {
        stream               in;
        device_block         near;
        std::vector<uint8_t> wanted, got;
        used_mapping         used;
    };

    enum class verdict { sound, wrong, open };

    explicit pair_check(places &where) noexcept : where_(where)
    {
    }

    bool    has_pcie_pairs(unsigned gpu) const noexcept;
    bool    needs_check(const place &from, const gpu_uuid &peer) const;
    sample *sample_of(const place &at, const process_identity &self);
    void    drop_if_gone(unsigned gpu, const process_identity &self) noexcept;
    verdict copies(const place &from, far_memory far, std::string *what);
    template<typename F>
    bool judge(const place &from, const gpu_uuid &peer, bool *settled, F &&find) noexcept;

    places                                      &where_;
    std::mutex                                   mutex_;   // of all that follows, and of the checks
    std::map<unsigned, sample>                   samples_; // by GPU
    std::map<std::pair<int, gpu_uuid>, unsigned> open_trials_;
    std::map<std::pair<int, gpu_uuid>, verdict>  known_; // by CUDA ordinal and the peer's GPU
    std::map<unsigned, device_block>             near_;  // where this side's bytes are, by place
    std::vector<unfinished>                      unfinished_;
    unsigned                                     turn_ = 0;
};

} // namespace nvl

#endif
