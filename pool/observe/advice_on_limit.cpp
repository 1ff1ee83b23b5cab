// Suggestions where CUPOOL_LIMIT refuses: see rules.hpp.

#include "pool/core/bytes.hpp"
#include "pool/observe/enough_limit.hpp"
#include "pool/observe/rules.hpp"

namespace cupool::observe {

/// Would the request fit under the limit once the GPU is done with what was freed?
bool Rules::deferred_would_do() const {
  if (e_.deferred_bytes == 0 || e_.largest_free_bytes >= e_.request_bytes) return false;
  const std::uint64_t with_deferred_bytes = e_.releasable_with_deferred_bytes.value_or(e_.releasable_bytes);
  return e_.largest_free_with_deferred_bytes >= e_.request_bytes || joined_would_do(saturating_sub(with_deferred_bytes, e_.deferred_unheld_bytes));
}

void Rules::impossible() {
  if (e_.limit_bytes == 0 || exceeds_device()) {
    add("request_exceeds_device", "info",
        "the request alone is larger than the device: no setting can help; look for a wrong shape or size, or split it",
        {{"request_bytes", e_.request_bytes}, {"device_total_bytes", e_.device_total_bytes}});
    return;
  }
  if (!enough_limit_bytes(e_)) pages_under_limit();
  raise_limit();
}

/// What uses up the limit may be the pool's own free memory, which costs nothing to give back.
void Rules::limit() {
  if (deferred_would_do()) deferred();
  const std::uint64_t kept_free_bytes = saturating_sub(e_.pool_free_bytes, e_.releasable_bytes);
  if (verdict_.shortfall_bytes != 0 && e_.is_outside_pool && preallocates() && kept_free_bytes >= verdict_.shortfall_bytes) preallocate_less();
  if (verdict_.shortfall_bytes != 0 && e_.mempool_idle_bytes >= verdict_.shortfall_bytes) mempool_idle();
  if (!e_.can_remap && e_.holes_known && pages_surely_join()) pages_would_join();
  else if (!enough_limit_bytes(e_)) pages_under_limit();
  raise_limit();
  if (verdict_.shortfall_bytes != 0 && joined_would_do(e_.pool_free_bytes)) fragmented();
}

/// Names a limit where one is known to be enough. Where the pool takes memory in regions, and takes more with more room, there may be none.
void Rules::raise_limit() {
  if (const std::optional<std::uint64_t> enough_bytes = enough_limit_bytes(e_)) {
    add("raise_limit", "fix",
        verdict_.cause == OomCause::impossible_request
            ? "the request alone is larger than CUPOOL_LIMIT, and what is held counts as well: ask for less, or raise the limit to what it takes"
            : "the device has the memory but CUPOOL_LIMIT forbids it: raise it (with more room the pool takes memory earlier, too: the shortfall "
              "alone may not do)",
        {{"shortfall_bytes", verdict_.shortfall_bytes},
         {"request_bytes", e_.request_bytes},
         {"limit_bytes", e_.limit_bytes},
         {"held_bytes", e_.held_bytes},
         {"releasable_bytes", e_.releasable_bytes},
         {"enough_limit_bytes", *enough_bytes},
         {"raise_by_bytes", *enough_bytes - e_.limit_bytes}})
        .enough_limit_bytes = *enough_bytes;
    return;
  }
  const bool device_lacks = e_.driver_free_bytes && saturating_sub(e_.request_bytes, *e_.driver_free_bytes) > e_.releasable_bytes;
  const char* message =
      device_lacks ? "a higher CUPOOL_LIMIT alone does not do: the device has not so much left beside what is held; ask for less, or free first"
      : verdict_.shortfall_bytes == 0 && e_.holes_known
          ? "CUPOOL_LIMIT refused it, though there was room a moment later: another thread has freed meanwhile; raise the limit, or remove it"
          : "CUPOOL_LIMIT is in the way, but so are pieces: with a higher one, or none, the pool takes memory otherwise, and whether that would be "
            "enough nobody can tell";
  add("raise_limit", "info", message,
      {{"shortfall_bytes", verdict_.shortfall_bytes}, {"limit_bytes", e_.limit_bytes}, {"held_bytes", e_.held_bytes}});
}

/// On pages a sufficient limit is known where none is known for regions.
void Rules::pages_under_limit() {
  const std::optional<std::uint64_t> enough_bytes = enough_limit_on_pages_bytes(e_);
  if (!enough_bytes || value("backing") == "pages" || has("backing_pages")) return;
  add("backing_pages", "fix",
      "free memory lies in pieces and CUPOOL_LIMIT is short as well: CUPOOL_BACKING=pages joins it, together with a higher limit; not for programs "
      "that share memory by cudaIpcGetMemHandle, which refuses blocks on pages",
      {{"whole_page_bytes", e_.whole_page_bytes.value_or(0)},
       {"limit_bytes", e_.limit_bytes},
       {"held_bytes", e_.held_bytes},
       {"enough_limit_bytes", *enough_bytes}})
      .enough_limit_bytes = *enough_bytes;
}

}  // namespace cupool::observe
