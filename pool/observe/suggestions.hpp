// What to do about an OOM: rules over the verdict, the evidence and the settings in force.
//
// Never advises a setting that is on (it then appears as `info`, already_enabled) nor one that cannot help. Pure.
#pragma once

#include <vector>

#include "pool/observe/report.hpp"

namespace cupool::observe {

/// The suggestions, best first. `verdict` is complete except for them.
std::vector<Suggestion> suggest(const OomVerdict& verdict, const OomEvidence& evidence, const std::vector<OptionFact>& options);

/// Is it unknown whose memory is missing? True where what is neither this process's nor free would cover it, and no limit stands in the way.
bool others_may_hold(const OomEvidence& evidence, const OomVerdict& verdict);

/// Is what lies outside the pool not in use but idle, in pieces, in the driver's pools? Then nothing that could be freed would suffice without it.
bool only_idle_is_outside(const OomEvidence& evidence, const OomVerdict& verdict);

/// What the request could have if this process held nothing; nullopt: the driver's free memory is not known.
std::optional<std::uint64_t> reachable_bytes(const OomEvidence& evidence);
/// Does the request exceed that?
bool exceeds_reach(const OomEvidence& evidence);

/// Would the limit be exceeded even if all that is free were one piece, while the device would not?
bool only_limit_is_short(const OomEvidence& evidence);

}  // namespace cupool::observe
