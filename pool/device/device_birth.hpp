// What a device is, asked of the driver once: identity for the report, total, limit, and which policy really serves it.
#pragma once

#include <cstdint>

#include "config/options.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/observe/live_page.hpp"

namespace cupool::device {

/// The policy that really serves a device: `platform` where every block must be its own allocation, `grow` where `async` is asked for
/// and the device or driver has no memory pools.
config::Policy policy_in_force(const Driver& driver, int ordinal, const config::Options& options);

/// Fills the identity of `live` and its limit, policy and backing; `in_use` is stored last. Calls the driver, which does
/// not block. A driver that does not say gives what can be said without it: an ordinal instead of a UUID.
CUresult describe_device(const Driver& driver, int ordinal, const config::Options& options, observe::LiveDevice& live);
/// What the blocks of the device's newest context really lie in.
void set_backing(observe::LiveDevice& live, const char* backing);

}  // namespace cupool::device
