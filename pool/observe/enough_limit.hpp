// What CUPOOL_LIMIT would have to be: by what is held, and by the pieces in which memory is taken under another limit.
//
// A number that is named must do, for a job that repeats itself: with more room the pool takes memory otherwise, so the exact sum does not. Figures
// behind the allowances: DECISIONS, "A number that is named is enough". Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

/// Enough for the request, all else being as it is. nullopt: there is no limit, or nobody knows one that the device has room for.
std::optional<std::uint64_t> enough_limit_bytes(const OomEvidence& evidence);

/// Enough once CUPOOL_BACKING=pages serves, where segments do: at least the limit as it is. nullopt: likewise, or there are no pages to be had, or
/// the request goes past the pool (of pages no more than whole handles would go back, and how large they were nobody knows).
std::optional<std::uint64_t> enough_limit_on_pages_bytes(const OomEvidence& evidence);

/// What is held and cannot go back, with the request: the least that could do. UINT64_MAX: beyond all numbers.
std::uint64_t least_limit_bytes(const OomEvidence& evidence);

/// What the pool may hold on pages beside what it needs.
std::uint64_t page_allowance_bytes(const OomEvidence& evidence);

}  // namespace cupool::observe
