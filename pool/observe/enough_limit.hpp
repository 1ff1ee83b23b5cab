// How high CUPOOL_LIMIT would have to be: from what is held, and from the pieces in which memory would be taken under another limit.
//
// A limit that is named must be enough, for a job that repeats itself. With more room the pool takes memory in other pieces, so the exact sum would
// not be. Figures behind the allowances: DECISIONS.md, "A number that is named is enough". Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

/// Enough for the request, all else being equal. nullopt: there is no limit, or none is known that the device has room for.
std::optional<std::uint64_t> enough_limit_bytes(const OomEvidence& evidence);

/// Enough once CUPOOL_BACKING=pages serves instead of segments: at least the present limit. nullopt: as above, or pages are not available, or the
/// request goes past the pool (of pages only whole handles would go back, whose sizes are not known).
std::optional<std::uint64_t> enough_limit_on_pages_bytes(const OomEvidence& evidence);

/// What is held and cannot go back, plus the request: the least that could be enough. UINT64_MAX: not representable.
std::uint64_t least_limit_bytes(const OomEvidence& evidence);

/// What the pool may hold on pages beyond what it needs.
std::uint64_t page_allowance_bytes(const OomEvidence& evidence);

}  // namespace cupool::observe
