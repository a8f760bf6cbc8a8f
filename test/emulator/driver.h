// SPDX-License-Identifier: BSD-3-Clause
//
// The state of the emulated driver in this process: devices, contexts, streams, events, and the
// tables that turn handles into them. Each API file works on this. A handle is a number that is
// never used twice, so a stale one is always found out.
#ifndef NVLINK_EMULATOR_DRIVER_H
#define NVLINK_EMULATOR_DRIVER_H

#include "call.h"
#include "machine.h"
#include "space.h"
#include "stream.h"

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

namespace emu {

struct device {
    int                   ordinal  = 0;
    size_t                position = 0; // in machine().gpus
    const nvl::gpu_facts *facts    = nullptr;
    CUuuid                uuid{};
    std::atomic<uint64_t> used_bytes{0};
    // The primary context. The handle stays the same when it is made anew.
    CUcontext                primary_handle = nullptr;
    std::shared_ptr<context> primary;
    unsigned                 primary_refs  = 0;
    unsigned                 primary_flags = 0;
    std::shared_ptr<pool>    default_pool;
    std::shared_ptr<pool>    current_pool;
};

struct context {
    CUcontext             handle = nullptr;
    unsigned long long    id     = 0;
    device               *dev    = nullptr;
    std::atomic<unsigned> flags{0};
    bool                  is_primary = false;
    std::atomic<bool>     destroyed{false};
    // The error of work that went wrong; every later call of the context gives it.
    std::atomic<int> fault{CUDA_SUCCESS};

    std::mutex                                         submit_mutex; // order between streams
    std::shared_ptr<stream>                            legacy;
    std::map<std::thread::id, std::shared_ptr<stream>> per_thread;
    std::map<CUstream, std::shared_ptr<stream>>        streams;
    std::vector<std::shared_ptr<stream>>               leaving; // destroyed, maybe with work left
    std::mutex                                         peers_mutex;
    std::map<unsigned long long, int> peers; // contexts with access enabled, by id: their devices
    std::set<int>                     ipc_peers; // enabled by opening a handle lazily
    std::map<int, size_t>             limits;
};

struct event {
    CUevent                                handle = nullptr;
    std::weak_ptr<context>                 owner;
    unsigned long long                     context_id = 0;
    unsigned                               flags      = 0;
    std::mutex                             mutex;
    marker                                 recorded;
    bool                                   was_recorded = false;
    std::shared_ptr<std::atomic<uint64_t>> time_ns; // of the last record, 0 until it ran
    std::shared_ptr<backing>               shared;  // of an interprocess event: see event.cpp
};

struct loaded_module;
struct module_function;
struct physical; // a CUmemGenericAllocationHandle

template<class Handle, class Object> class handle_table {
public:
    void add(Handle handle, std::shared_ptr<Object> object)
    {
        std::lock_guard lock(mutex_);
        objects_[handle] = std::move(object);
    }
    std::shared_ptr<Object> find(Handle handle) const
    {
        std::lock_guard lock(mutex_);
        auto            found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second;
    }
    std::shared_ptr<Object> remove(Handle handle)
    {
        std::lock_guard lock(mutex_);
        auto            found = objects_.find(handle);
        if (found == objects_.end())
            return nullptr;
        std::shared_ptr<Object> taken = found->second;
        objects_.erase(found);
        return taken;
    }
    std::vector<std::shared_ptr<Object>> all() const
    {
        std::vector<std::shared_ptr<Object>> found;
        std::lock_guard                      lock(mutex_);
        for (auto &entry : objects_)
            found.push_back(entry.second);
        return found;
    }
    size_t size() const
    {
        std::lock_guard lock(mutex_);
        return objects_.size();
    }

private:
    mutable std::mutex                                  mutex_;
    std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
};

struct driver {
    std::mutex                           mutex; // devices' primary contexts, capture states
    std::atomic<bool>                    initialised{false};
    std::vector<std::unique_ptr<device>> devices; // those visible, by ordinal
    space                                memory;
    handle_table<CUcontext, context>     contexts;
    handle_table<CUstream, stream>       streams;
    handle_table<CUevent, event>         events;
    std::atomic<long>                    violations{0};
    std::atomic<long>                    stale_calls{0};
    std::atomic<long>                    second_frees{0};
};

// The one driver of the process; never destroyed.
driver &drv();

// A new handle; kind only makes it recognisable in a trace.
enum class handle_kind : uint64_t {
    context = 1,
    stream,
    event,
    module,
    function,
    pool,
    physical,
    library,
    kernel,
    graph
};
uint64_t                      new_handle(handle_kind kind);
template<class Handle> Handle make_handle(handle_kind kind)
{
    return reinterpret_cast<Handle>(new_handle(kind));
}

// --- devices
device *device_at(CUdevice ordinal); // nullptr: no such device
device *device_of_uuid(const unsigned char uuid[16]);
device *hidden_device_of_uuid(const unsigned char uuid[16]); // by CUDA_VISIBLE_DEVICES
bool    can_reach(const device &from, const device &to);     // peer access is possible
size_t  peer_room(); // how many peers a device may have, all processes together
// Of a context, under its peers_mutex: is access to one of that device's enabled? To how many devices?
bool                   has_peer_device(const context &ctx, int ordinal);
size_t                 peer_devices(const context &ctx);
const nvl::pair_facts &pair_of(const device &from, const device &to);
CUresult               load_devices();

// --- contexts
constexpr int max_context_depth = 256;
struct context_stack { // plain data: calls may come after thread-local objects were destroyed
    CUcontext items[max_context_depth];
    int       depth;
};
context_stack &contexts_of_thread();
// The calling thread's context, usable: CUDA_ERROR_INVALID_CONTEXT when there is none,
// CUDA_ERROR_CONTEXT_IS_DESTROYED, or the code of work that failed in it.
CUresult current_context(std::shared_ptr<context> *ctx);
// The same without looking at failed work.
CUresult current_context_even_faulty(std::shared_ptr<context> *ctx);
CUresult retain_primary(device *dev, std::shared_ptr<context> *ctx);
void     wait_for_context(context &ctx);
// Waits for the work of every context whose device may touch the memory of this device (a free
// does so); -1: any device.
void wait_for_users(int memory_device);
void set_fault(const std::weak_ptr<context> &ctx, CUresult code);

// --- streams
// handle 0, 1 and 2 are the default streams of the current context.
CUresult stream_of(CUstream handle, std::shared_ptr<stream> *s, std::shared_ptr<context> *ctx);
// Orders the work as CUDA orders it between the legacy default stream and blocking streams.
marker submit_ordered(context &ctx, stream &s, std::function<void()> work,
                      std::vector<marker> after = {});
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when a capture forbids an unsafe call now; the captures
// that forbid it are then invalid.
CUresult refuse_while_capturing();
// The same for a query or a wait on a stream that is being captured.
CUresult refuse_on_capturing(stream &s);
// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: the legacy stream would have to wait for a captured one.
CUresult refuse_legacy_while_capturing(const context &ctx);
void     forget_capture(stream &s);

// --- memory
std::shared_ptr<range> gpu_range(uint64_t address);
// May this device's engines touch the range?
bool     may_touch(const device &dev, const context *ctx, const range &r, bool write);
CUresult make_backing(device *dev, size_t size, memory_source source,
                      std::shared_ptr<backing> *made); // dev may be nullptr: host
CUresult allocate_device_memory(device &dev, const context *ctx, size_t size, range_kind kind,
                                std::shared_ptr<range> *made);
CUresult free_range(const std::shared_ptr<range> &r);
void     forget_context_memory(const context &ctx);

// --- planned faults of copies and of kernels' stores, in faults.cpp
struct copy_fault {
    CUresult      code     = CUDA_SUCCESS; // not success: the copy fails with it
    bool          garble   = false;        // other bytes are written
    bool          drop     = false;        // one byte is not written
    bool          nothing  = false;        // no byte is written
    bool          hang     = false;        // for ever
    unsigned long delay_us = 0;
    unsigned long late_us  = 0; // the bytes come so long after the copy counts as done

    bool is_any() const noexcept
    {
        return code != CUDA_SUCCESS || garble || drop || nothing || hang || delay_us != 0 ||
               late_us != 0;
    }
};
[[noreturn]] void hang_for_ever() noexcept;
copy_fault        next_copy_fault(bool between_gpus) noexcept;
copy_fault        next_kernel_fault() noexcept; // of a piece that a kernel has written

} // namespace emu

#endif
