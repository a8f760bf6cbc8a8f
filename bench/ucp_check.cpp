// SPDX-License-Identifier: BSD-3-Clause
//
// Moves random data between two GPUs by put, get, tag, active message, stream and lists of puts
// through UCP's public API, and compares every byte, also those around each target. Two processes; first a sweep
// over awkward sizes and offsets, then (--soak SECONDS) any mix. Which transport is used is up to
// UCX's environment. See --help; ends with one line and exit code 0 only if nothing was wrong.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <getopt.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check_plan.h"
#include "gpu.h"
#include "peer.h"

namespace nvl {

namespace {

constexpr size_t   mib          = 1 << 20;
constexpr unsigned am_id        = 7;
constexpr unsigned max_reports  = 20;
constexpr unsigned max_failures = 200;
constexpr size_t   pool_slack   = 1 << 16;
constexpr double   report_every = 10;

struct settings {
    double      soak_s     = 0;
    bool        sweep      = true;
    int         gpus[2]    = {0, 1};
    uint64_t    seed       = 1;
    size_t      max_size   = 64 * mib;
    size_t      arena      = 160 * mib;
    double      patience_s = 60;
    uint64_t    rounds     = UINT64_MAX;
    std::string kinds      = "put,get,tag,am,stream,list";
    uint64_t    fresh      = 0; // rounds between two allocations; 0: one for all
    bool        spoil      = false;
    allocate_as memory     = allocate_as::alloc;
};

struct totals {
    uint64_t operations = 0;
    uint64_t bytes      = 0;
    uint64_t wrong      = 0;
    uint64_t failed     = 0; // UCX said so
};

// What UCX is given of a list, kept until it is done.
struct list_arrays {
    std::vector<void *>     buffers;
    std::vector<size_t>     lengths;
    std::vector<uint64_t>   remote_addresses;
    std::vector<ucp_rkey_h> remote_keys;
};

class checker {
public:
    checker(const settings &wanted, const channel &line, int rank);
    ~checker();

    void   run();
    totals add_up() const;
    // Does any transport take lists? UCX cancels them otherwise. Both sides get the same answer.
    bool takes_lists();

private:
    // An operation of this round, as far as this side has it.
    struct state {
        ucs_status_ptr_t             request = nullptr;
        bool                         pending = false; // there is, or will be, a request to wait for
        bool                         arrived = false; // active message: the handler has run
        size_t                       length  = 0;
        std::unique_ptr<list_arrays> list;
    };

    static ucs_status_t on_message(void *self, const void *header, size_t header_size, void *data,
                                   size_t size, const ucp_am_recv_param_t *param);

    void                 allocate();
    void                 release();
    void                 next_round(const round &r);
    void                 do_round(const round &r);
    void                 do_at_once(const round &r);
    void                 do_serially(const round &r);
    void                 write_source(const operation &op) const;
    void                 post(size_t index);
    void                 post_origin(const operation &op, state *s);
    void                 post_target(const operation &op, state *s);
    std::vector<op_kind> wanted_kinds();
    void                 post_list(const operation &op, state *s) const;
    void                 finish(size_t index);
    void                 verify(const round &r);
    bool                 is_right(const operation &op, const uint8_t *got) const;
    void                 report(const operation &op, const uint8_t *got) const;
    void                 check_background(const round &r, size_t first, size_t last);
    void                 idle(uint32_t microseconds, bool makes_progress) const;
    ucp_request_param_t  parameters(const operation &op, const shared_region &region) const;
    uint8_t              expected(const operation &op, size_t i) const;
    uint64_t             tag_of(size_t index) const;

    const settings             &wanted_;
    const ucp_functions        &ucp_;
    gpu                         gpu_;
    std::unique_ptr<gpu_memory> sources_;
    std::unique_ptr<gpu_memory> targets_;
    gpu_memory                  pool_;
    pinned_memory               copy_;
    std::vector<uint8_t>        pattern_;
    peer                        peer_;
    shared_region               sources_region_;
    shared_region               targets_region_;
    totals                      totals_;
    uint64_t                    round_number_ = 0;
    uint64_t                    renewals_     = 0;
    const round                *round_        = nullptr;
    std::vector<state>          states_;
    std::vector<uint32_t>       headers_; // what active messages carry, while they are under way
};

std::vector<uint8_t> make_pattern(size_t size, uint64_t seed)
{
    std::vector<uint8_t> pattern(size + sizeof(uint64_t));
    std::mt19937_64      random(seed);
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = random();
        memcpy(&pattern[i], &word, sizeof(word));
    }
    return pattern;
}

checker::checker(const settings &wanted, const channel &line, int rank)
    : wanted_(wanted),
      ucp_(ucp_functions::get()),
      gpu_(wanted.gpus[rank]),
      pool_(wanted.max_size + pool_slack),
      copy_(wanted.arena),
      pattern_(make_pattern(wanted.max_size + pool_slack, wanted.seed)),
      peer_(line, rank, wanted.patience_s)
{
    pool_.copy_in(0, pattern_.data(), pool_.size());
    allocate();

    ucp_am_handler_param_t handler = {};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id    = am_id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
    handler.cb    = on_message;
    handler.arg   = this;
    (void)ucp_.ucp_worker_set_am_recv_handler(peer_.worker(), &handler);
    peer_.barrier();
}

checker::~checker()
{
    release();
}

// In turn the one first and the other: each finds the other's freed address, for which keys and
// open handles may be about still.
void checker::allocate()
{
    const bool sources_first = renewals_ % 2 == 0;
    for (auto *arena :
         {sources_first ? &sources_ : &targets_, sources_first ? &targets_ : &sources_}) {
        *arena = std::make_unique<gpu_memory>(wanted_.arena, wanted_.memory);
    }
    targets_->fill(0, 0, targets_->size());
    gpu_.synchronize();
    sources_region_ = peer_.share(sources_->pointer(), sources_->size(), UCS_MEMORY_TYPE_CUDA);
    targets_region_ = peer_.share(targets_->pointer(), targets_->size(), UCS_MEMORY_TYPE_CUDA);
}

void checker::release()
{
    peer_.unshare(targets_region_);
    peer_.unshare(sources_region_);
    targets_.reset();
    sources_.reset();
}

void checker::next_round(const round &r)
{
    do_round(r);
    if (wanted_.fresh != 0 && round_number_ % wanted_.fresh == 0) {
        release();
        ++renewals_;
        allocate();
    }
}

ucs_status_t checker::on_message(void *self, const void *header, size_t header_size, void *data,
                                 size_t, const ucp_am_recv_param_t *param)
{
    checker *me    = static_cast<checker *>(self);
    uint32_t index = UINT32_MAX;
    if (header_size == sizeof(index)) {
        memcpy(&index, header, sizeof(index));
    }
    if (me->round_ == nullptr || index >= me->states_.size()) {
        fprintf(stderr, "[%d] a message that nobody sent, index %u\n", me->peer_.rank(), index);
        _Exit(1);
    }
    const operation    &op     = me->round_->operations[index];
    state              &s      = me->states_[index];
    ucp_request_param_t params = me->parameters(op, me->targets_region_);
    s.arrived                  = true;
    s.request                  = me->ucp_.ucp_am_recv_data_nbx(me->peer_.worker(), data,
                                                               me->targets_->pointer(op.to), op.size, &params);
    return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 ? UCS_INPROGRESS : UCS_OK;
}

ucp_request_param_t checker::parameters(const operation &op, const shared_region &region) const
{
    ucp_request_param_t params = {};
    if (op.memory_hint == hint::memory_type) {
        params.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        params.memory_type  = UCS_MEMORY_TYPE_CUDA;
    } else if (op.memory_hint == hint::handle) {
        params.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        params.memh         = region.memory;
    }
    return params;
}

uint64_t checker::tag_of(size_t index) const
{
    return (round_number_ << 20) | index;
}

void checker::idle(uint32_t microseconds, bool makes_progress) const
{
    for (double start = seconds_now(); seconds_now() - start < microseconds * 1e-6;) {
        if (makes_progress) {
            peer_.progress();
        }
    }
}

void checker::write_source(const operation &op) const
{
    switch (op.written_by) {
    case writer::copy_in:
        sources_->copy_in(op.from, &pattern_[op.pool_offset], op.size);
        break;
    case writer::copy_within:
        sources_->copy_within(op.from, pool_, op.pool_offset, op.size);
        break;
    case writer::fill:
        sources_->fill(op.from, op.fill_value, op.size);
        break;
    }
}

uint8_t checker::expected(const operation &op, size_t i) const
{
    return op.written_by == writer::fill ? op.fill_value : pattern_[op.pool_offset + i];
}

void checker::post_origin(const operation &op, state *s)
{
    const ucp_ep_h endpoint = peer_.endpoint();
    const size_t   index    = static_cast<size_t>(s - states_.data());
    if (op.kind == op_kind::get) {
        ucp_request_param_t params = parameters(op, targets_region_);
        s->request                 = ucp_.ucp_get_nbx(endpoint, targets_->pointer(op.to), op.size,
                                                      sources_region_.remote_address + op.from,
                                                      sources_region_.remote_key, &params);
        return;
    }
    ucp_request_param_t params = parameters(op, sources_region_);
    void               *from   = sources_->pointer(op.from);
    switch (op.kind) {
    case op_kind::put:
        s->request =
            ucp_.ucp_put_nbx(endpoint, from, op.size, targets_region_.remote_address + op.to,
                             targets_region_.remote_key, &params);
        break;
    case op_kind::tag:
        s->request = ucp_.ucp_tag_send_nbx(endpoint, from, op.size, tag_of(index), &params);
        break;
    case op_kind::am:
        headers_[index] = static_cast<uint32_t>(index);
        s->request      = ucp_.ucp_am_send_nbx(endpoint, am_id, &headers_[index],
                                               sizeof(headers_[index]), from, op.size, &params);
        break;
    case op_kind::list:
        post_list(op, s);
        break;
    default:
        s->request = ucp_.ucp_stream_send_nbx(endpoint, from, op.size, &params);
        break;
    }
}

// Cuts the operation into pieces of uneven length, the last ones first.
void checker::post_list(const operation &op, state *s) const
{
    s->list           = std::make_unique<list_arrays>();
    list_arrays &list = *s->list;
    size_t       end  = op.size;
    for (uint32_t left = op.pieces; left > 0 && end > 0; --left) {
        size_t length = left == 1 ? end : std::min<size_t>(end, 1 + end / left + left % 7);
        end -= length;
        list.buffers.push_back(sources_->pointer(op.from + end));
        list.lengths.push_back(length);
        list.remote_addresses.push_back(targets_region_.remote_address + op.to + end);
        list.remote_keys.push_back(targets_region_.remote_key);
    }
    ucp_dt_local_sgl_t local   = {};
    local.field_mask           = UCP_DT_LOCAL_SGL_FIELD_BUFFERS | UCP_DT_LOCAL_SGL_FIELD_LENGTHS;
    local.buffers              = list.buffers.data();
    local.lengths              = list.lengths.data();
    ucp_dt_remote_sgl_t remote = {};
    remote.field_mask = UCP_DT_REMOTE_SGL_FIELD_REMOTE_ADDRS | UCP_DT_REMOTE_SGL_FIELD_LENGTHS |
                        UCP_DT_REMOTE_SGL_FIELD_RKEYS;
    remote.remote_addrs        = list.remote_addresses.data();
    remote.lengths             = list.lengths.data();
    remote.rkeys               = list.remote_keys.data();
    ucp_request_param_t params = {};
    params.op_attr_mask        = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REMOTE_DATATYPE |
                          UCP_OP_ATTR_FIELD_REMOTE | UCP_OP_ATTR_FIELD_REMOTE_COUNT;
    params.datatype        = ucp_dt_make_sgl();
    params.remote_datatype = ucp_dt_make_sgl();
    params.remote          = &remote;
    params.remote_count    = list.buffers.size();
    s->request             = ucp_.ucp_put_nbx(peer_.endpoint(), &local, list.buffers.size(),
                                              UCP_REMOTE_ADDR_INVALID, UCP_RKEY_INVALID, &params);
}

void checker::post_target(const operation &op, state *s)
{
    const size_t        index  = static_cast<size_t>(s - states_.data());
    ucp_request_param_t params = parameters(op, targets_region_);
    void               *to     = targets_->pointer(op.to);
    if (op.kind == op_kind::tag) {
        s->request =
            ucp_.ucp_tag_recv_nbx(peer_.worker(), to, op.size, tag_of(index), UINT64_MAX, &params);
    } else if (op.kind == op_kind::stream) {
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = UCP_STREAM_RECV_FLAG_WAITALL;
        s->request   = ucp_.ucp_stream_recv_nbx(peer_.endpoint(), to, op.size, &s->length, &params);
    }
}

void checker::post(size_t index)
{
    const operation &op = round_->operations[index];
    state           &s  = states_[index];
    if (op.origin == peer_.rank()) {
        idle(op.gap_us, op.gap_makes_progress);
        s.pending = true;
        post_origin(op, &s);
    } else if (op.kind == op_kind::tag || op.kind == op_kind::am || op.kind == op_kind::stream) {
        idle(op.late_us, op.gap_makes_progress);
        s.pending = true;
        post_target(op, &s);
    }
}

void checker::finish(size_t index)
{
    const operation &op = round_->operations[index];
    state           &s  = states_[index];
    if (!s.pending) {
        return;
    }
    double start = seconds_now();
    while (op.kind == op_kind::am && op.origin != peer_.rank() && !s.arrived) {
        peer_.progress();
        peer_.lose_patience(start, operation_text(op));
    }
    ucs_status_t status = peer_.wait(s.request, kind_name(op.kind));
    if (status == UCS_OK) {
        return;
    }
    if (++totals_.failed <= max_reports) {
        printf("[%d] FAILED: %s: %s\n", peer_.rank(), operation_text(op).c_str(),
               ucp_.status_text(status));
    } else if (totals_.failed > max_failures) {
        printf("[%d] so many operations failed that there is nothing to check\n", peer_.rank());
        fflush(stdout);
        _Exit(1);
    }
}

void checker::do_at_once(const round &r)
{
    for (const operation &op : r.operations) {
        if (op.source_rank() == peer_.rank()) {
            write_source(op);
        }
    }
    gpu_.synchronize();
    peer_.barrier();
    for (size_t i = 0; i < r.operations.size(); ++i) {
        post(i);
    }
    for (size_t i = 0; i < r.operations.size(); ++i) {
        finish(i);
    }
}

// The source is written again right before each operation and spoilt right after it: whatever an
// engine remembers of it, or reads too late, becomes visible.
void checker::do_serially(const round &r)
{
    peer_.barrier();
    for (size_t i = 0; i < r.operations.size(); ++i) {
        const operation &op         = r.operations[i];
        const bool       has_source = op.source_rank() == peer_.rank();
        if (has_source) {
            write_source(op);
            gpu_.synchronize();
        }
        if (op.kind == op_kind::get) {
            peer_.barrier();
        }
        post(i);
        finish(i);
        if (op.kind == op_kind::get) {
            peer_.barrier();
        }
        if (has_source) {
            sources_->fill(op.from, static_cast<uint8_t>(~expected(op, 0)), op.size);
            gpu_.synchronize();
        }
    }
}

void checker::do_round(const round &r)
{
    targets_->fill(0, r.background, r.used);
    gpu_.synchronize();
    states_.clear();
    states_.resize(r.operations.size());
    headers_.assign(r.operations.size(), 0);
    round_ = &r;
    r.serial ? do_serially(r) : do_at_once(r);
    peer_.flush();
    peer_.barrier();
    round_ = nullptr;
    if (wanted_.spoil && round_number_ == 0 && r.used > 0) {
        const operation &op  = r.operations[0];
        uint8_t          bad = static_cast<uint8_t>(~expected(op, 0));
        targets_->copy_in(op.to, &bad, 1);
    }
    verify(r);
    ++round_number_;
    // Nobody writes targets again before the other has looked at its own.
    peer_.barrier();
}

void checker::verify(const round &r)
{
    targets_->copy_out(0, copy_.data(), r.used);
    size_t seen = 0;
    for (const operation &op : r.operations) {
        // Each origin counts its operation, each target its bytes.
        totals_.operations += op.origin == peer_.rank() ? 1 : 0;
        if (op.target_rank() != peer_.rank()) {
            continue;
        }
        check_background(r, seen, op.to);
        seen = op.to + op.size;
        totals_.bytes += op.size;
        if (!is_right(op, copy_.data() + op.to)) {
            if (totals_.wrong++ < max_reports) {
                report(op, copy_.data() + op.to);
            }
        }
    }
    check_background(r, seen, r.used);
}

void checker::check_background(const round &r, size_t first, size_t last)
{
    const uint8_t *bytes = copy_.data() + first;
    const size_t   count = last - first;
    totals_.bytes += count;
    if (count == 0 || (bytes[0] == r.background && memcmp(bytes, bytes + 1, count - 1) == 0)) {
        return;
    }
    size_t i = 0;
    while (bytes[i] == r.background) {
        ++i;
    }
    if (totals_.wrong++ < max_reports) {
        printf("[%d] WRONG: round %" PRIu64 ", byte %zu outside of every target is %02x, was "
               "%02x\n",
               peer_.rank(), round_number_, first + i, bytes[i], r.background);
    }
}

bool checker::is_right(const operation &op, const uint8_t *got) const
{
    if (op.written_by != writer::fill) {
        return memcmp(got, &pattern_[op.pool_offset], op.size) == 0;
    }
    return got[0] == op.fill_value && memcmp(got, got + 1, op.size - 1) == 0;
}

void checker::report(const operation &op, const uint8_t *got) const
{
    size_t first = SIZE_MAX, last = 0, count = 0, untouched = 0;
    for (size_t i = 0; i < op.size; ++i) {
        if (got[i] != expected(op, i)) {
            first = first == SIZE_MAX ? i : first;
            last  = i;
            ++count;
        }
    }
    // round_ is gone by now; the background shows in the last bytes before the target.
    for (size_t i = first; i <= last; ++i) {
        untouched += got[i] == copy_.data()[op.to - 1] ? 1 : 0;
    }
    printf("[%d] WRONG: round %" PRIu64 ": %s: %zu bytes wrong, from %zu to %zu, %zu of them as "
           "before; at %zu %02x instead of %02x\n",
           peer_.rank(), round_number_, operation_text(op).c_str(), count, first, last, untouched,
           first, got[first], expected(op, first));
}

bool checker::takes_lists()
{
    operation op = {};
    op.kind      = op_kind::list;
    op.size      = 64;
    op.pieces    = 2;
    states_.clear();
    states_.resize(1);
    post_list(op, &states_[0]);
    uint8_t mine   = peer_.wait(states_[0].request, "a list") == UCS_OK ? 1 : 0;
    uint8_t theirs = 0;
    peer_.flush();
    peer_.barrier();
    peer_.line().send(&mine, 1);
    peer_.line().receive(&theirs, 1);
    return mine == 1 && theirs == 1;
}

std::vector<op_kind> checker::wanted_kinds()
{
    std::vector<op_kind> kinds;
    for (size_t i = 0; i < op_kind_count; ++i) {
        op_kind kind = static_cast<op_kind>(i);
        if (("," + wanted_.kinds + ",").find(std::string(",") + kind_name(kind) + ",") ==
            std::string::npos) {
            continue;
        }
        if (kind == op_kind::list && !takes_lists()) {
            if (peer_.rank() == 0) {
                printf("no transport takes lists: left out\n");
            }
            continue;
        }
        kinds.push_back(kind);
    }
    return kinds;
}

void checker::run()
{
    limits bounds = {wanted_.arena, wanted_.max_size, pool_slack, wanted_kinds()};
    if (bounds.kinds.empty()) {
        return;
    }
    planner plan(bounds, wanted_.seed);
    if (wanted_.sweep) {
        for (round r = plan.sweep(); !r.operations.empty() && round_number_ < wanted_.rounds;
             r       = plan.sweep()) {
            next_round(r);
        }
    }
    double  start = seconds_now(), said = start;
    uint8_t goes_on = 1;
    while (round_number_ < wanted_.rounds) {
        // One clock decides for both.
        if (peer_.rank() == 0) {
            goes_on = seconds_now() - start < wanted_.soak_s ? 1 : 0;
            peer_.line().send(&goes_on, 1);
        } else {
            peer_.line().receive(&goes_on, 1);
        }
        if (goes_on == 0) {
            break;
        }
        next_round(plan.draw());
        if (peer_.rank() == 0 && seconds_now() - said > report_every) {
            said = seconds_now();
            printf("%.0f s: %" PRIu64 " rounds, %" PRIu64 " wrong\n", said - start, round_number_,
                   totals_.wrong);
            fflush(stdout);
        }
    }
}

totals checker::add_up() const
{
    totals other = {};
    peer_.line().send(&totals_, sizeof(totals_));
    peer_.line().receive(&other, sizeof(other));
    totals sum = totals_;
    sum.operations += other.operations;
    sum.bytes += other.bytes;
    sum.wrong += other.wrong;
    sum.failed += other.failed;
    return sum;
}

[[noreturn]] void usage(const char *name, int code)
{
    printf(
        "usage: %s [options]\n"
        "  --soak SECONDS    after the sweep, any mix for so long (0)\n"
        "  --no-sweep        without the sweep over sizes and offsets\n"
        "  --kinds LIST      of put,get,tag,am,stream,list; a list needs a transport that takes "
        "it\n"
        "  --gpus A,B        the GPUs of the two processes (0,1; may be equal)\n"
        "  --max-size BYTES  largest operation (64 MiB)\n"
        "  --arena BYTES     memory for sources, and for targets (160 MiB)\n"
        "  --rounds N        stop after N rounds\n"
        "  --fresh N         free and allocate sources and targets anew every N rounds\n"
        "  --memory KIND     of sources and targets: alloc (cuMemAlloc), vmm, vmm_chunks (of 2 "
        "MiB),\n"
        "                    vmm_none (without handles), vmm_fabric, pool, pool_none, pool_fabric\n"
        "  --seed N          of the plan (1)\n"
        "  --patience S      an operation that takes longer has failed (60)\n"
        "  --spoil           change one byte before the first comparison: must fail\n",
        name);
    exit(code);
}

// Returns false for an option that is none.
bool take_option(int key, settings *wanted)
{
    switch (key) {
    case 's':
        wanted->soak_s = atof(optarg);
        return true;
    case 'n':
        wanted->sweep = false;
        return true;
    case 'k':
        wanted->kinds = optarg;
        return true;
    case 'g':
        return sscanf(optarg, "%d,%d", &wanted->gpus[0], &wanted->gpus[1]) == 2;
    case 'm':
        wanted->max_size = strtoull(optarg, nullptr, 0);
        return true;
    case 'a':
        wanted->arena = strtoull(optarg, nullptr, 0);
        return true;
    case 'r':
        wanted->rounds = strtoull(optarg, nullptr, 0);
        return true;
    case 'f':
        wanted->fresh = strtoull(optarg, nullptr, 0);
        return true;
    case 'e':
        wanted->seed = strtoull(optarg, nullptr, 0);
        return true;
    case 'p':
        wanted->patience_s = atof(optarg);
        return true;
    case 'y':
        return parse_allocate_as(optarg, &wanted->memory);
    case 'x':
        wanted->spoil = true;
        return true;
    default:
        return false;
    }
}

settings parse(int argc, char **argv)
{
    static const option names[] = {
        {"soak", required_argument, nullptr, 's'},     {"no-sweep", no_argument, nullptr, 'n'},
        {"kinds", required_argument, nullptr, 'k'},    {"gpus", required_argument, nullptr, 'g'},
        {"max-size", required_argument, nullptr, 'm'}, {"arena", required_argument, nullptr, 'a'},
        {"rounds", required_argument, nullptr, 'r'},   {"seed", required_argument, nullptr, 'e'},
        {"fresh", required_argument, nullptr, 'f'},    {"memory", required_argument, nullptr, 'y'},
        {"patience", required_argument, nullptr, 'p'}, {"spoil", no_argument, nullptr, 'x'},
        {"help", no_argument, nullptr, 'h'},           {nullptr, 0, nullptr, 0}};
    settings wanted;
    for (int key; (key = getopt_long(argc, argv, "h", names, nullptr)) != -1;) {
        if (!take_option(key, &wanted)) {
            usage(argv[0], key == 'h' ? 0 : 2);
        }
    }
    if (wanted.max_size == 0 || wanted.arena < wanted.max_size + 4096) {
        fprintf(stderr, "--arena must hold --max-size and 4 KiB more\n");
        usage(argv[0], 2);
    }
    return wanted;
}

int main_of(int argc, char **argv)
{
    settings wanted = parse(argc, argv);
    int      rank = 0, child = 0;
    // Before CUDA: a process that has used it cannot be copied.
    channel line = channel::open(&rank, &child);
    totals  sum;
    {
        checker check(wanted, line, rank);
        if (rank == 0) {
            const char *tls = getenv("UCX_TLS");
            printf("ucp_check: UCX %s, UCX_TLS=%s, GPUs %d and %d, seed %" PRIu64 "\n",
                   ucp_functions::get().ucp_get_version_string(), tls != nullptr ? tls : "",
                   wanted.gpus[0], wanted.gpus[1], wanted.seed);
            fflush(stdout);
        }
        check.run();
        sum = check.add_up();
    }
    int code = sum.wrong == 0 && sum.failed == 0 && sum.operations > 0 ? 0 : 1;
    if (rank == 1) {
        return code;
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != code << 8) {
        printf("the other process ended with status 0x%x\n", status);
        code = 1;
    }
    printf("%" PRIu64 " operations, %" PRIu64 " bytes compared, %" PRIu64 " wrong%s\n",
           sum.operations, sum.bytes, sum.wrong,
           sum.failed != 0 ? (", " + std::to_string(sum.failed) + " failed").c_str() : "");
    return code;
}

} // namespace

} // namespace nvl

int main(int argc, char **argv)
{
    return nvl::main_of(argc, argv);
}
