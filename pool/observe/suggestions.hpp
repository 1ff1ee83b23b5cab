// What to do about an OOM. Rules that look at the verdict, the evidence and the settings that are in force.
//
// Never advises a setting that is on (it then comes as `info`, already_enabled) nor one that cannot help. Pure.
#pragma once

#include <vector>

#include "pool/observe/report.hpp"

namespace cupool::observe {

/// `verdict` is complete but for its suggestions. Best first.
std::vector<Suggestion> suggest(const OomVerdict& verdict, const OomEvidence& evidence, const std::vector<OptionFact>& options);

/// Nobody knows whose memory is missing: what is neither this process's nor free would cover it, and no limit stands in the way of that.
bool others_may_hold(const OomEvidence& evidence, const OomVerdict& verdict);

/// What is outside the pool is not in use but idle in pools of the driver's, in pieces: nothing that could be freed would do without that.
bool only_idle_is_outside(const OomEvidence& evidence, const OomVerdict& verdict);

/// What the request could have if this process held nothing; nullopt: nobody knows what the driver has.
std::optional<std::uint64_t> reachable_bytes(const OomEvidence& evidence);
/// And it is more than that.
bool exceeds_reach(const OomEvidence& evidence);

/// The limit is exceeded even if all that is free were one piece, and the device is not.
bool only_limit_is_short(const OomEvidence& evidence);

}  // namespace cupool::observe
