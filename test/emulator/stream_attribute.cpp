// SPDX-License-Identifier: BSD-3-Clause
//
// Attributes of streams: checked and kept. But for the priority nothing here depends on them, as on
// a real driver nothing but speed does.
#include "driver.h"

#include <algorithm>

using namespace emu;

namespace {

// CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING, which older toolkits do not have: a word.
constexpr auto nvlink_scheduling = static_cast<CUstreamAttrID>(16);
constexpr int  domain_count      = 4; // CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT

CUstreamAttrValue default_value(CUstreamAttrID attribute)
{
    CUstreamAttrValue value{};
    if (attribute == CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY)
        value.syncPolicy = CU_SYNC_POLICY_AUTO;
    if (attribute == CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)
        value.memSyncDomainMap.remote = 1;
    return value;
}

bool is_good(const CUaccessPolicyWindow &window)
{
    return window.hitRatio >= 0 && window.hitRatio <= 1 &&
           window.hitProp >= CU_ACCESS_PROPERTY_NORMAL &&
           window.hitProp <= CU_ACCESS_PROPERTY_PERSISTING &&
           (window.missProp == CU_ACCESS_PROPERTY_NORMAL ||
            window.missProp == CU_ACCESS_PROPERTY_STREAMING);
}

// False, too, for an attribute that streams do not have.
bool is_good(CUstreamAttrID attribute, const CUstreamAttrValue &value)
{
    switch (attribute) {
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        return is_good(value.accessPolicyWindow);
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        return value.syncPolicy >= CU_SYNC_POLICY_AUTO &&
               value.syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
        return true;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        return value.memSyncDomainMap.default_ < domain_count &&
               value.memSyncDomainMap.remote < domain_count;
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
        return value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT ||
               value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    default:
        return attribute == nvlink_scheduling && (value.priority == 0 || value.priority == 1);
    }
}

} // namespace

EMU_API(cuStreamGetAttribute, (CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value),
        (handle, attribute, value))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    CUstreamAttrValue found = default_value(attribute);
    EMU_REQUIRE(value != nullptr && is_good(attribute, found), CUDA_ERROR_INVALID_VALUE);
    std::lock_guard lock(s->attributes_mutex);
    auto            set = s->attributes.find(attribute);
    if (set != s->attributes.end())
        found = set->second;
    if (attribute == CU_STREAM_ATTRIBUTE_PRIORITY)
        found.priority = s->priority;
    *value = found;
    return CUDA_SUCCESS;
}

EMU_API(cuStreamSetAttribute,
        (CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue *value),
        (handle, attribute, value))
{
    std::shared_ptr<context> ctx;
    std::shared_ptr<stream>  s;
    EMU_TRY(stream_of(handle, &s, &ctx));
    EMU_REQUIRE(value != nullptr && is_good(attribute, *value), CUDA_ERROR_INVALID_VALUE);
    std::lock_guard lock(s->attributes_mutex);
    s->attributes[attribute] = *value;
    if (attribute == CU_STREAM_ATTRIBUTE_PRIORITY)
        s->priority = std::max(-5, std::min(0, value->priority)); // as where a stream is made
    return CUDA_SUCCESS;
}
