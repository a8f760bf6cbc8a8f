// SPDX-License-Identifier: BSD-3-Clause
//
// A table of every kind of row, filled by the parser of a real UCX: defaults, values of the environment, values
// that it refuses.

#include "host/config_types.h"

#include <array>
#include <cstdlib>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace {

enum class colour : unsigned { red, green, blue };

struct inner_config {
    unsigned depth;
};

struct test_config {
    uct_iface_config         super;
    inner_config             inner;
    size_t                   chunk;
    unsigned long            count;
    unsigned long            limit;
    unsigned                 number;
    int                      signed_number;
    int                      flag;
    double                   factor;
    double                   wait;
    double                   bandwidth;
    colour                   paint;
    ucs_ternary_auto_value_t ternary;
    ucs_on_off_auto_value_t  on_off;
    char                    *text;
    ucs_config_names_array_t names;
};

const char *const colour_names[] = {"red", "green", "blue", nullptr};

// The rows live as long as the UCX that has parsed them.
std::array<ucs_config_field_t, 2>  inner_rows;
std::array<ucs_config_field_t, 17> rows;

void make_rows(const nvl::ucx_api &api)
{
    nvl::field_builder row(api);
    inner_rows = {row.uint("DEPTH", "9", "help", NVL_CONFIG_MEMBER(inner_config, depth)),
                  row.end()};
    rows       = {
              row.iface_base("MAX_NUM_EPS=77"),
              row.table("INNER_", "", "help", NVL_CONFIG_MEMBER(test_config, inner), inner_rows.data()),
              row.memunits("CHUNK", "1m", "help", NVL_CONFIG_MEMBER(test_config, chunk)),
              row.ulong("COUNT", "12", "help", NVL_CONFIG_MEMBER(test_config, count)),
              row.ulunits("LIMIT", "inf", "help", NVL_CONFIG_MEMBER(test_config, limit)),
              row.uint("NUMBER", "3", "help", NVL_CONFIG_MEMBER(test_config, number)),
              row.integer("SIGNED", "-4", "help", NVL_CONFIG_MEMBER(test_config, signed_number)),
              row.boolean("FLAG", "y", "help", NVL_CONFIG_MEMBER(test_config, flag)),
              row.number("FACTOR", "0.5", "help", NVL_CONFIG_MEMBER(test_config, factor)),
              row.time("WAIT", "20us", "help", NVL_CONFIG_MEMBER(test_config, wait)),
              row.bandwidth("BANDWIDTH", "10GBs", "help", NVL_CONFIG_MEMBER(test_config, bandwidth)),
              row.enumeration("PAINT", "green", "help", NVL_CONFIG_MEMBER(test_config, paint),
                              colour_names),
              row.ternary_auto("TERNARY", "auto", "help", NVL_CONFIG_MEMBER(test_config, ternary)),
              row.on_off_auto("ON_OFF", "off", "help", NVL_CONFIG_MEMBER(test_config, on_off)),
              row.string("TEXT", "hello", "help", NVL_CONFIG_MEMBER(test_config, text)),
              row.strings("NAMES", "a,b", "help", NVL_CONFIG_MEMBER(test_config, names)),
              row.end(),
    };
}

class config_types : public testing::Test {
protected:
    void SetUp() override
    {
        const char *dir  = std::getenv("NVL_TEST_UCX_DIR");
        std::string path = std::string(dir == nullptr ? "" : dir) + "/lib/libuct.so.0";
        void       *uct  = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
        if (uct == nullptr) {
            GTEST_SKIP() << "no libuct.so.0 under NVL_TEST_UCX_DIR: " << dlerror();
        }

        nvl::host_bind_result result = nvl::host_find(dlsym(uct, "ucs_log_dispatch"));
        ASSERT_NE(result.host, nullptr) << result.refusal;
        api_ = &result.host->api;
        make_rows(*api_);
    }

    void TearDown() override
    {
        if (filled_) {
            api_->ucs_config_parser_release_opts(&config_, rows.data());
        }
        for (const std::string &name : set_) {
            unsetenv(name.c_str());
        }
    }

    void set(const std::string &name, const std::string &value)
    {
        set_.push_back("UCX_TEST_" + name);
        setenv(set_.back().c_str(), value.c_str(), 1);
    }

    ucs_status_t fill()
    {
        ucs_config_global_list_entry_t entry = {};
        entry.name                           = "test";
        entry.prefix                         = "TEST_";
        entry.table                          = rows.data();
        entry.size                           = sizeof(config_);

        ucs_status_t status = api_->ucs_config_parser_fill_opts(&config_, &entry, "UCX_", 0);
        filled_             = status == UCS_OK;
        return status;
    }

    const nvl::ucx_api      *api_    = nullptr;
    test_config              config_ = {};
    bool                     filled_ = false;
    std::vector<std::string> set_;
};

} // namespace

TEST_F(config_types, have_their_defaults)
{
    ASSERT_EQ(fill(), UCS_OK);
    EXPECT_EQ(config_.super.max_num_eps, 77u);
    EXPECT_EQ(config_.inner.depth, 9u);
    EXPECT_EQ(config_.chunk, 1048576u);
    EXPECT_EQ(config_.count, 12u);
    EXPECT_EQ(config_.limit, ~0ul);
    EXPECT_EQ(config_.number, 3u);
    EXPECT_EQ(config_.signed_number, -4);
    EXPECT_EQ(config_.flag, 1);
    EXPECT_DOUBLE_EQ(config_.factor, 0.5);
    EXPECT_DOUBLE_EQ(config_.wait, 20e-6);
    EXPECT_NEAR(config_.bandwidth, 10.0 * (1 << 30), 1.0);
    EXPECT_EQ(config_.paint, colour::green);
    EXPECT_EQ(config_.ternary, UCS_AUTO);
    EXPECT_EQ(config_.on_off, UCS_CONFIG_OFF);
    EXPECT_STREQ(config_.text, "hello");
    ASSERT_EQ(config_.names.count, 2u);
    EXPECT_STREQ(config_.names.names[1], "b");
}

TEST_F(config_types, take_values_from_the_environment)
{
    set("MAX_NUM_EPS", "5");
    set("DEPTH", "6");
    set("CHUNK", "64k");
    set("LIMIT", "8");
    set("FLAG", "n");
    set("WAIT", "3ms");
    set("PAINT", "blue");
    set("TEXT", "other");
    set("NAMES", "one,two,three");
    ASSERT_EQ(fill(), UCS_OK);
    EXPECT_EQ(config_.super.max_num_eps, 5u);
    EXPECT_EQ(config_.inner.depth, 6u);
    EXPECT_EQ(config_.chunk, 65536u);
    EXPECT_EQ(config_.limit, 8u);
    EXPECT_EQ(config_.flag, 0);
    EXPECT_DOUBLE_EQ(config_.wait, 3e-3);
    EXPECT_EQ(config_.paint, colour::blue);
    EXPECT_STREQ(config_.text, "other");
    EXPECT_EQ(config_.names.count, 3u);
}

TEST_F(config_types, of_an_inner_table_answer_to_its_name_too)
{
    set_.push_back("UCX_INNER_DEPTH");
    setenv("UCX_INNER_DEPTH", "4", 1);
    ASSERT_EQ(fill(), UCS_OK);
    EXPECT_EQ(config_.inner.depth, 4u);
}

TEST_F(config_types, refuse_a_value_that_does_not_fit)
{
    set("PAINT", "yellow");
    EXPECT_NE(fill(), UCS_OK);
}

TEST_F(config_types, say_what_they_expect)
{
    const ucs_config_field_t &paint = rows[11];
    char                      text[64];
    paint.parser.help(text, sizeof(text), paint.parser.arg);
    EXPECT_STREQ(text, "[red|green|blue]");
}
