// SPDX-License-Identifier: BSD-3-Clause
//
// Mappings of a peer's memory when somebody else has closed what they are of, on the emulated driver.
#include "exporter.h"

#include "uct/emulated.h"

#include <gtest/gtest.h>
#include <mutex>
#include <string>

namespace nvl::test {

namespace {

constexpr size_t size = 1u << 20;

} // namespace

// As after a reset of the context: the first is gone, and something newer is where it was.
TEST(legacy_mapping, is_not_forsaken_for_another_allocation_at_its_address)
{
    exporter        peer;
    std::string     why;
    places         *where   = places::get(&why);
    const cuda_api &cuda    = where->cuda();
    const place    *at      = where->primary(where->gpus()[0].device).value();
    long            imports = emulator()->live_count("import");
    context_guard   guard(cuda, at->context);

    CUdeviceptr        mapped = open_handle(cuda, peer.allocate(size, at->id()));
    unsigned long long number = mapping_number(cuda, mapped);
    ASSERT_NE(number, 0u);
    auto before = std::make_unique<legacy_mapping>(cuda, at->context, mapped);
    ASSERT_EQ(cuda.cuIpcCloseMemHandle(mapped), CUDA_SUCCESS);

    CUdeviceptr again = open_handle(cuda, peer.allocate(size, at->id()));
    auto        after = std::make_unique<legacy_mapping>(cuda, at->context, again);
    ASSERT_EQ(again, mapped) << "the address was not used again";
    ASSERT_NE(mapping_number(cuda, again), number);
    {
        std::lock_guard<std::shared_mutex> alone(legacy_mapping::opens());
        EXPECT_EQ(legacy_mapping::forsake(at->context, mapped, number), 1u);
        EXPECT_EQ(legacy_mapping::forsake(at->context, mapped, number), 0u) << "the second time";
    }
    before.reset();
    EXPECT_EQ(emulator()->live_count("import"), imports + 1) << "the newer one was closed, too";
    after.reset();
    EXPECT_EQ(emulator()->live_count("import"), imports) << "the newer one was forgotten";
}

} // namespace nvl::test
