// SPDX-License-Identifier: BSD-3-Clause
//
// A suite that cannot fail shows nothing. Here each kind of fault is planted in the emulated driver, single tests of
// the suites run on it, and these tests pass only where those fail and say what was wrong. The same tests without the
// fault must pass, and the fault must have had its way.
#include "ucp/job.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nvl::test {

namespace {

std::string required(const char *variable)
{
    const char *value = std::getenv(variable);
    return value == nullptr ? "" : value;
}

enum class suite { copy_engine, kernel, ucp, check };

struct planted {
    const char *name;
    const char *rules;
    suite       where;
    const char *what;  // the filter of GoogleTest, or the program's arguments
    const char *words; // in what the suite says
    const char *variables = "";
    int         signal    = 0; // that ends it; 0: none does
};

const char *const small_check =
    "--max-size 100000 --arena 1000000 --rounds 4 --kinds put,get --patience 3";
const char *const many_puts = "pairs/copy.keeps_many_operations_apart/other_process_gpu_0_to_1";
const char *const every_put =
    "pairs/copy.puts_every_size_at_every_alignment/other_process_gpu_0_to_1";
const char *const lone_put   = "pairs/copy.works_without_a_completion/other_worker_gpu_0_to_1";
const char *const by_engines = "UCX_NVLINK_KERNEL=n";
const char *const hurried    = "NVL_TEST_PATIENCE_S=3";

const planted faults[] = {
    // A completion that never comes.
    {"event_that_is_lost", "cuEventRecord:3+=lost", suite::copy_engine, many_puts,
     "Value of: c.drain()\n  Actual: false", hurried},
    {"event_that_is_lost_under_ucp", "cuEventRecord:20+=lost", suite::check, small_check,
     "waited too long for", by_engines},
    {"kernel_that_is_too_late", "kernel:1=sleep6000000", suite::kernel, every_put,
     "Value of: c->wait(done)\n  Actual: false", hurried},
    {"word_that_is_never_written", "cuStreamWriteValue32_v2=skip", suite::copy_engine, many_puts,
     "Value of: c.drain()\n  Actual: false", "UCX_NVLINK_COMPLETION=word NVL_TEST_PATIENCE_S=3"},
    {"copy_that_hangs", "copy:20=hang", suite::check, small_check, "waited too long for",
     by_engines},
    // A completion that comes too early.
    {"completion_before_the_bytes", "copy:/7=late3000000", suite::copy_engine, many_puts,
     "bytes are wrong"},
    {"event_that_was_never_recorded", "cuEventRecord=skip,copy=sleep3000", suite::copy_engine,
     many_puts, "bytes are wrong"},
    // Bytes.
    {"byte_dropped_every_seventh_copy", "copy:/7=drop", suite::copy_engine, many_puts,
     "28 of 1000200 bytes are wrong"},
    {"byte_dropped_under_ucp", "copy:/7=drop", suite::check, small_check, "1 bytes wrong",
     by_engines},
    {"byte_dropped_under_the_suite_of_ucp", "copy:/50=drop", suite::ucp,
     "transports/contents.are_right/all", "1 bytes wrong", by_engines},
    {"wrong_byte", "copy:100=garble", suite::copy_engine, many_puts,
     "1 of 1000200 bytes are wrong"},
    {"wrong_byte_of_the_kernel", "kernel=garble", suite::kernel, every_put, "bytes are wrong"},
    {"copy_that_does_nothing", "copy:1=nothing", suite::copy_engine, lone_put, "bytes are wrong"},
    // Things that are not given back.
    {"stream_that_is_left", "cuStreamDestroy_v2=skip", suite::copy_engine, lone_put,
     "something was not given back"},
    {"event_that_is_left", "cuEventDestroy_v2:1=skip", suite::copy_engine, lone_put,
     "event          1 not given back"},
    {"import_that_stays_open", "cuIpcCloseMemHandle=skip", suite::copy_engine,
     "imports.are_closed_beyond_their_limit", "live_count(\"import\")"},
    {"host_memory_that_is_left", "cuMemHostUnregister=skip", suite::kernel, lone_put,
     "registration   "},
    {"module_that_stays_loaded", "cuModuleUnload=skip", suite::kernel, lone_put, "module         "},
    // Wrong contexts.
    {"context_of_another_gpu", "cuCtxPushCurrent_v2:6+=astray", suite::copy_engine,
     "contexts.of_several_owners_are_kept_apart",
     "uct_ep_put_zcopy(ep.get(), &iov, 1, remote, rkey.rkey(), nullptr)\n    Which is: -6"},
    {"context_that_is_not_made_current", "cuCtxPushCurrent_v2=skip", suite::check, small_check,
     "CUDA_ERROR_INVALID_CONTEXT"},
    // Errors, and an end.
    {"copy_that_is_refused", "cuMemcpyAsync:5=719", suite::check, small_check,
     "FAILED: ", by_engines},
    {"copy_that_ends_the_context", "copy:20=700", suite::check, small_check,
     "CUDA_ERROR_ILLEGAL_ADDRESS", by_engines},
    {"process_that_dies", "copy:5=kill", suite::check, small_check, "", by_engines, SIGKILL},
};

struct outcome {
    int         status;
    std::string output, faults_log;
};

std::string text_of(const std::string &path)
{
    std::ifstream     file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

outcome run(const planted &one, const std::string &rules)
{
    std::string log       = fmt::format("/tmp/nvl-faults-{}", getpid());
    std::string variables = one.variables;
    if (!rules.empty()) {
        variables += fmt::format(" 'NVL_EMU_FAULTS={}' NVL_EMU_FAULTS_LOG={}", rules, log);
    }
    std::string filter = fmt::format("'--gtest_filter={}'", one.what), command;
    run_as      how    = run_as::alone;
    switch (one.where) {
    case suite::copy_engine:
        command = required("NVL_UCT_SUITES") + "/copy_engine.test " + filter;
        break;
    case suite::kernel:
        command = required("NVL_UCT_SUITES") + "/kernel.test " + filter;
        break;
    case suite::ucp:
        command = required("NVL_UCP_SUITE") + "/emulated.test " + filter;
        break;
    case suite::check:
        command = required("NVL_UCP_CHECK") + " " + one.what;
        how     = run_as::with_plugin;
        break;
    }
    unlink(log.c_str());
    job     it(how, command, variables);
    outcome got;
    got.status     = it.wait(240);
    got.output     = it.output();
    got.faults_log = text_of(log);
    unlink(log.c_str());
    return got;
}

} // namespace

class fault : public testing::TestWithParam<planted> {
protected:
    // Faults of the same test share the run without a fault.
    static const outcome &without(const planted &one)
    {
        static std::map<std::string, outcome> known;
        std::string                           key =
            fmt::format("{} {} {}", static_cast<int>(one.where), one.what, one.variables);
        auto found = known.find(key);
        return found != known.end() ? found->second : known[key] = run(one, "");
    }
};

TEST_P(fault, is_caught)
{
    const planted &one  = GetParam();
    const outcome &well = without(one);
    ASSERT_EQ(well.status, 0) << "it fails without a fault too:\n" << well.output;

    outcome ill = run(one, one.rules);
    // A busy machine does not start the kernel in time, and the copy engines do its work.
    for (int again = 0; one.where == suite::kernel && ill.faults_log.empty() && again < 4;
         ++again) {
        ill = run(one, one.rules);
    }
    ASSERT_NE(ill.faults_log, "") << "the fault was never reached:\n" << ill.output;
    ASSERT_NE(ill.status, -1) << "nobody noticed that it hangs:\n" << ill.output;
    EXPECT_NE(ill.status, 0) << "nobody noticed:\n" << ill.output << ill.faults_log;
    // As the shell says it, or as it is.
    EXPECT_EQ(ill.status == 128 + one.signal || ill.status == 1000 + one.signal, one.signal != 0)
        << "it ended with " << ill.status << ":\n"
        << ill.output;
    EXPECT_NE(ill.output.find(one.words), std::string::npos) << "it does not say what is wrong:\n"
                                                             << ill.output;
}

INSTANTIATE_TEST_SUITE_P(kinds, fault, testing::ValuesIn(faults),
                         [](const testing::TestParamInfo<planted> &one) { return one.param.name; });

} // namespace nvl::test
