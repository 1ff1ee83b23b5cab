// See enough_limit.hpp.
#include "pool/observe/enough_limit.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"

namespace cupool::observe {

namespace {

constexpr std::uint64_t kPage_bytes = 2 * kMiB;
constexpr std::uint64_t kAllowedPages = 4;
constexpr std::uint64_t kAllowedShare = 128;             ///< of the device: pages that hold something grow in number with the memory there is
constexpr std::uint64_t kOtherwiseAllowed = 4;           ///< times that, where blocks will lie differently
constexpr std::uint64_t kDriverPiece_bytes = 32 * kMiB;  ///< the driver's own pool grows in such pieces

std::uint64_t request_in_pieces(const OomEvidence& e) {
  const std::uint64_t piece_bytes = e.is_outside_pool ? 1 : e.page_bytes.value_or(kPage_bytes);
  const std::uint64_t over_bytes = e.request_bytes % piece_bytes;
  return over_bytes == 0 ? e.request_bytes : saturating_add(e.request_bytes, piece_bytes - over_bytes);
}

/// All that the device could give to this process as things stand.
std::uint64_t room_bytes(const OomEvidence& e) {
  const std::uint64_t total_bytes = e.device_total_bytes == 0 ? UINT64_MAX : e.device_total_bytes;
  return e.driver_free_bytes ? std::min(saturating_add(e.held_bytes, *e.driver_free_bytes), total_bytes) : total_bytes;
}

/// For the driver's own pool: no more than the call itself, unless that pool's idle memory is in pieces, which cannot be foreseen.
std::optional<std::uint64_t> enough_for_driver_pool(const OomEvidence& e) {
  const bool is_in_pieces =
      e.pool_free_bytes != 0 && saturating_add(e.pool_free_bytes, saturating_sub(e.limit_bytes, e.held_bytes)) >= e.request_bytes;
  if (is_in_pieces) return std::nullopt;
  return std::min(saturating_add(least_limit_bytes(e), kDriverPiece_bytes), room_bytes(e));
}

/// For regions: everything in use stays in place, and one more region may be larger than what it is made for.
std::optional<std::uint64_t> enough_on_segments(const OomEvidence& e) {
  const std::uint64_t preallocated_bytes = e.preallocate_bytes.value_or(0);
  // A single region is as large as the limit lets it be, so a higher limit lengthens its free end.
  const std::uint64_t one_region_bytes =
      saturating_add(saturating_sub(e.held_bytes, e.region_edge_bytes.value_or(0)), request_in_pieces(e) + kPage_bytes);
  if (!e.is_outside_pool && one_region_bytes <= std::min(preallocated_bytes, room_bytes(e))) return one_region_bytes;
  const std::uint64_t taken_first_bytes =
      e.is_outside_pool ? saturating_sub(preallocated_bytes, saturating_sub(e.held_bytes, e.releasable_bytes)) : 0;
  const std::uint64_t enough_bytes = saturating_add(least_limit_bytes(e), *e.region_slack_bytes + taken_first_bytes);
  return enough_bytes <= room_bytes(e) ? std::optional(enough_bytes) : std::nullopt;
}

}  // namespace

std::uint64_t least_limit_bytes(const OomEvidence& e) {
  return saturating_add(saturating_sub(e.held_bytes, e.releasable_bytes), request_in_pieces(e));
}

std::uint64_t page_allowance_bytes(const OomEvidence& e) {
  const std::uint64_t page_bytes = std::max<std::uint64_t>(e.page_bytes.value_or(kPage_bytes), 1);
  const std::uint64_t share_bytes = e.device_total_bytes / kAllowedShare;
  return std::max(kAllowedPages * page_bytes, share_bytes - share_bytes % page_bytes);
}

std::optional<std::uint64_t> enough_limit_bytes(const OomEvidence& e) {
  if (e.limit_bytes == 0 || e.is_managed || e.request_bytes == 0) return std::nullopt;
  const std::uint64_t least_bytes = least_limit_bytes(e);
  std::optional<std::uint64_t> enough_bytes;
  if (!e.can_remap && e.holes_known && e.region_slack_bytes) enough_bytes = enough_on_segments(e);
  else if (least_bytes > room_bytes(e)) enough_bytes = std::nullopt;
  else if (e.can_remap) enough_bytes = std::min(saturating_add(least_bytes, page_allowance_bytes(e)), room_bytes(e));
  else if (!e.holes_known) enough_bytes = enough_for_driver_pool(e);
  else enough_bytes = least_bytes;  // the driver serves each block itself
  return enough_bytes && *enough_bytes > e.limit_bytes ? enough_bytes : std::nullopt;
}

std::optional<std::uint64_t> enough_limit_on_pages_bytes(const OomEvidence& e) {
  if (e.limit_bytes == 0 || e.is_managed || e.request_bytes == 0 || e.can_remap || e.is_outside_pool || !e.pages_available || !e.region_slack_bytes)
    return std::nullopt;
  const std::uint64_t kept_bytes = saturating_sub(e.held_bytes, std::max(e.whole_page_bytes.value_or(0), e.releasable_bytes));
  const std::uint64_t allowed_bytes = kOtherwiseAllowed * page_allowance_bytes(e);
  const std::uint64_t enough_bytes = std::max(saturating_add(kept_bytes, saturating_add(request_in_pieces(e), allowed_bytes)), e.limit_bytes);
  return enough_bytes <= room_bytes(e) ? std::optional(enough_bytes) : std::nullopt;
}

}  // namespace cupool::observe
