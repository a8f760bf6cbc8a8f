// SPDX-License-Identifier: BSD-3-Clause
//
// A root and three other processes, as rooted collectives have them: the root's buffer is of one kind of memory and
// everybody else's of another. What is scattered and gathered by messages, and what the root puts and gets itself, is
// compared byte by byte, at sizes around those where UCP changes its protocol. Exit code 0 if nothing was wrong.
#include "gpu.h"
#include "peer.h"
#include "uct/bytes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>

namespace nvl {

namespace {

constexpr int others = 3;

enum class kind { gpu, ordinary, pinned, managed, last };

const char *const kind_names[] = {"gpu", "ordinary host", "pinned host", "managed"};

kind kind_of(int round, int rank)
{
    return static_cast<kind>((round + rank) % static_cast<int>(kind::last));
}

class memory {
public:
    memory(kind what, size_t size) : what_(what), size_(size)
    {
        const gpu_driver &driver = gpu_driver::get();
        CUdeviceptr       address;
        switch (what) {
        case kind::gpu:
            driver.need(driver.alloc(&address, size), "cuMemAlloc");
            pointer_ = reinterpret_cast<void *>(address);
            break;
        case kind::managed:
            driver.need(driver.alloc_managed(&address, size, CU_MEM_ATTACH_GLOBAL),
                        "cuMemAllocManaged");
            pointer_ = reinterpret_cast<void *>(address);
            break;
        case kind::pinned:
            driver.need(driver.alloc_host(&pointer_, size), "cuMemAllocHost");
            break;
        default:
            pointer_ = std::malloc(size);
            break;
        }
    }

    ~memory()
    {
        const gpu_driver &driver = gpu_driver::get();
        switch (what_) {
        case kind::gpu:
        case kind::managed:
            (void)driver.free(reinterpret_cast<CUdeviceptr>(pointer_));
            break;
        case kind::pinned:
            (void)driver.free_host(pointer_);
            break;
        default:
            std::free(pointer_);
            break;
        }
    }

    memory(const memory &)            = delete;
    memory &operator=(const memory &) = delete;

    uint8_t *at(size_t offset) const
    {
        return static_cast<uint8_t *>(pointer_) + offset;
    }

    ucs_memory_type_t type() const
    {
        return what_ == kind::gpu       ? UCS_MEMORY_TYPE_CUDA
               : what_ == kind::managed ? UCS_MEMORY_TYPE_CUDA_MANAGED
                                        : UCS_MEMORY_TYPE_HOST;
    }

    void write(const std::vector<uint8_t> &from, size_t offset) const
    {
        if (what_ == kind::gpu || what_ == kind::managed) {
            const gpu_driver &driver = gpu_driver::get();
            driver.need(
                driver.copy_in(reinterpret_cast<CUdeviceptr>(at(offset)), from.data(), from.size()),
                "cuMemcpyHtoD");
        } else {
            std::memcpy(at(offset), from.data(), from.size());
        }
    }

    std::vector<uint8_t> read(size_t offset, size_t size) const
    {
        std::vector<uint8_t> found(size);
        if (what_ == kind::gpu || what_ == kind::managed) {
            const gpu_driver &driver = gpu_driver::get();
            driver.need(
                driver.copy_out(found.data(), reinterpret_cast<CUdeviceptr>(at(offset)), size),
                "cuMemcpyDtoH");
        } else {
            std::memcpy(found.data(), at(offset), size);
        }
        return found;
    }

    size_t size() const
    {
        return size_;
    }

private:
    kind   what_;
    size_t size_;
    void  *pointer_ = nullptr;
};

std::vector<uint8_t> pattern(size_t size, uint64_t seed)
{
    return test::random_bytes(size, seed);
}

// Around the sizes where stock UCP changes from eager messages to rendezvous, to a fragment, to a pipeline.
const size_t sizes[] = {1,      92,     93,      1000,           5028,           5029,
                        8249,   23151,  33137,   65537,          262143,         262145,
                        524287, 524289, 1048579, (4u << 20) - 1, (4u << 20) + 1, (9u << 20) + 5};

constexpr size_t margin   = 32;
constexpr size_t size_max = (9u << 20) + 5 + others * 3;
constexpr size_t pitch    = size_max + 2 * margin;

// As in the v forms: everybody has another size.
size_t size_of(size_t size, int rank)
{
    return size + static_cast<size_t>(rank) * 3;
}

bool is_right(const char *what, int round, int rank, size_t size, const memory &where,
              size_t offset, const std::vector<uint8_t> &expected)
{
    std::vector<uint8_t> found = where.read(offset, expected.size());
    if (found == expected) {
        return true;
    }
    auto first = std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin();
    std::printf("WRONG: %s of %zu bytes, root %s, rank %d %s: byte %zd of %zu\n", what, size,
                kind_names[static_cast<int>(kind_of(round, 0))], rank,
                kind_names[static_cast<int>(kind_of(round, rank))], static_cast<ssize_t>(first),
                expected.size());
    return false;
}

ucs_status_ptr_t send(const peer &to, const memory &from, size_t offset, size_t size, uint64_t tag)
{
    ucp_request_param_t none{};
    return ucp_functions::get().ucp_tag_send_nbx(to.endpoint(), from.at(offset), size, tag, &none);
}

ucs_status_ptr_t receive(const peer &from, const memory &to, size_t offset, size_t size,
                         uint64_t tag)
{
    ucp_request_param_t none{};
    return ucp_functions::get().ucp_tag_recv_nbx(from.worker(), to.at(offset), size, tag,
                                                 UINT64_MAX, &none);
}

bool ended_well(const peer &with, ucs_status_ptr_t request, const char *what)
{
    ucs_status_t status = with.wait(request, what);
    if (status != UCS_OK) {
        std::printf("FAILED: %s: %s\n", what, ucp_functions::get().status_text(status));
    }
    return status == UCS_OK;
}

int run_root(const std::vector<std::unique_ptr<peer>> &ranks)
{
    int wrong = 0;
    for (int round = 0; round < static_cast<int>(kind::last); ++round) {
        memory                     mine(kind_of(round, 0), pitch * (others + 1));
        std::vector<shared_region> theirs;
        for (const auto &rank : ranks) {
            theirs.push_back(rank->share(mine.at(0), mine.size(), mine.type()));
        }
        for (size_t size : sizes) {
            ucs_status_ptr_t requests[others];
            auto             all_end = [&](const char *what) {
                for (int i = 0; i < others; ++i) {
                    wrong += ended_well(*ranks[i], requests[i], what) ? 0 : 1;
                }
            };
            // Scatter.
            for (int i = 0; i < others; ++i) {
                mine.write(pattern(size_of(size, i + 1), size + i), pitch * i + margin);
            }
            for (int i = 0; i < others; ++i) {
                requests[i] = send(*ranks[i], mine, pitch * i + margin, size_of(size, i + 1), size);
            }
            all_end("scatter");
            // Gather, of other bytes.
            for (int i = 0; i < others; ++i) {
                mine.write(pattern(size_of(size, i + 1) + 2 * margin, 7), pitch * i);
                requests[i] =
                    receive(*ranks[i], mine, pitch * i + margin, size_of(size, i + 1), size + 1);
            }
            all_end("gather");
            for (int i = 0; i < others; ++i) {
                std::vector<uint8_t> expected = pattern(size_of(size, i + 1) + 2 * margin, 7);
                std::vector<uint8_t> sent     = pattern(size_of(size, i + 1), size + 100 + i);
                std::copy(sent.begin(), sent.end(), expected.begin() + margin);
                wrong += !is_right("gather", round, i + 1, size, mine, pitch * i, expected);
            }
            // The same by the root alone: put to everybody, get it back from the next place.
            for (int i = 0; i < others; ++i) {
                ucp_request_param_t none{};
                mine.write(pattern(size_of(size, i + 1), size + 200 + i), pitch * i + margin);
                requests[i] = ucp_functions::get().ucp_put_nbx(
                    ranks[i]->endpoint(), mine.at(pitch * i + margin), size_of(size, i + 1),
                    theirs[i].remote_address + pitch + margin, theirs[i].remote_key, &none);
            }
            all_end("put");
            for (const auto &rank : ranks) {
                rank->flush();
            }
            for (int i = 0; i < others; ++i) {
                ucp_request_param_t none{};
                mine.write(pattern(size_of(size, i + 1) + 2 * margin, 8), pitch * i);
                requests[i] = ucp_functions::get().ucp_get_nbx(
                    ranks[i]->endpoint(), mine.at(pitch * i + margin), size_of(size, i + 1),
                    theirs[i].remote_address + pitch + margin, theirs[i].remote_key, &none);
            }
            all_end("get");
            for (int i = 0; i < others; ++i) {
                std::vector<uint8_t> expected = pattern(size_of(size, i + 1) + 2 * margin, 8);
                std::vector<uint8_t> sent     = pattern(size_of(size, i + 1), size + 200 + i);
                std::copy(sent.begin(), sent.end(), expected.begin() + margin);
                wrong += !is_right("put and get", round, i + 1, size, mine, pitch * i, expected);
                ranks[i]->barrier();
            }
        }
        for (int i = 0; i < others; ++i) {
            ranks[i]->unshare(theirs[i]);
        }
    }
    return wrong;
}

int run_rank(const peer &root, int rank)
{
    int wrong = 0;
    for (int round = 0; round < static_cast<int>(kind::last); ++round) {
        memory        mine(kind_of(round, rank), 2 * pitch);
        shared_region region = root.share(mine.at(0), mine.size(), mine.type());
        for (size_t size : sizes) {
            std::vector<uint8_t> expected = pattern(size_of(size, rank) + 2 * margin, 9);
            std::vector<uint8_t> sent     = pattern(size_of(size, rank), size + rank - 1);
            mine.write(expected, 0);
            std::copy(sent.begin(), sent.end(), expected.begin() + margin);
            wrong += !ended_well(root, receive(root, mine, margin, size_of(size, rank), size),
                                 "scatter");
            wrong += !is_right("scatter", round, rank, size, mine, 0, expected);

            mine.write(pattern(size_of(size, rank), size + 100 + rank - 1), margin);
            wrong += !ended_well(root, send(root, mine, margin, size_of(size, rank), size + 1),
                                 "gather");
            root.barrier();
        }
        root.unshare(region);
    }
    return wrong;
}

int run()
{
    std::vector<std::unique_ptr<channel>> lines;
    for (int i = 0; i < others; ++i) {
        int rank = 0, child = 0;
        lines.push_back(std::make_unique<channel>(channel::open(&rank, &child)));
        if (rank == 1) {
            gpu  mine((i + 1) % 2);
            peer root(*lines.back(), 1, 60);
            return run_rank(root, i + 1) == 0 ? 0 : 1;
        }
    }
    gpu                                mine(0);
    std::vector<std::unique_ptr<peer>> ranks;
    for (const auto &line : lines) {
        ranks.push_back(std::make_unique<peer>(*line, 0, 60));
    }
    int wrong = run_root(ranks);
    ranks.clear();
    for (int i = 0; i < others; ++i) {
        int status = 0;
        (void)wait(&status);
        wrong += status == 0 ? 0 : 1;
    }
    std::printf("%d wrong\n", wrong);
    return wrong == 0 ? 0 : 1;
}

} // namespace

} // namespace nvl

int main()
{
    return nvl::run();
}
