// What CUPOOL_LIMIT refuses: see rules.hpp.
#include <algorithm>

#include "pool/observe/rules.hpp"

namespace cupool::observe {

/// Under the limit, once the GPU is done with what was freed.
bool Rules::deferred_would_do() const {
  if (e_.deferred_bytes == 0 || e_.largest_free_bytes >= e_.request_bytes) return false;
  return e_.largest_free_with_deferred_bytes >= e_.request_bytes || joined_would_do(e_.releasable_with_deferred_bytes.value_or(e_.releasable_bytes));
}

void Rules::impossible() {
  if (e_.limit_bytes > 0 && !exceeds_device()) {
    const bool driver_has_it = !e_.driver_free_bytes || e_.request_bytes - std::min(e_.request_bytes, *e_.driver_free_bytes) <= e_.releasable_bytes;
    const std::uint64_t enough_bytes = limit_that_would_do(e_);
    add("raise_limit", driver_has_it ? "fix" : "consider",
        "the request alone is larger than CUPOOL_LIMIT, and what is held counts as well: raise the limit (enough_limit_bytes in the report is what "
        "it takes now), or ask for less",
        {{"request_bytes", e_.request_bytes},
         {"limit_bytes", e_.limit_bytes},
         {"held_bytes", e_.held_bytes},
         {"releasable_bytes", e_.releasable_bytes},
         {"enough_limit_bytes", enough_bytes},
         {"raise_by_bytes", enough_bytes - e_.limit_bytes}});
    return;
  }
  add("request_exceeds_device", "info",
      "the request alone is larger than the device: no setting can help; look for a wrong shape or size, or split it",
      {{"request_bytes", e_.request_bytes}, {"device_total_bytes", e_.device_total_bytes}});
}

/// What lies in the limit's way may be the pool's own: that costs nothing to clear.
void Rules::limit() {
  if (deferred_would_do()) deferred();
  if (verdict_.shortfall_bytes == 0) {
    add("raise_limit", "info",
        "CUPOOL_LIMIT refused it, though there was room a moment later: another thread has freed meanwhile, or the driver takes more for a block "
        "than its bytes; raise the limit, or remove it",
        {{"limit_bytes", e_.limit_bytes}, {"held_bytes", e_.held_bytes}});
    return;
  }
  // With a higher limit the preallocation takes as much more.
  const bool is_preallocated =
      e_.is_outside_pool && preallocates() && e_.pool_free_bytes - std::min(e_.releasable_bytes, e_.pool_free_bytes) >= verdict_.shortfall_bytes;
  if (is_preallocated) preallocate_less();
  if (e_.mempool_idle_bytes >= verdict_.shortfall_bytes) mempool_idle();
  add("raise_limit", is_preallocated ? "consider" : "fix",
      "the device has the memory but CUPOOL_LIMIT forbids it: raise the limit by the shortfall or more (with more room the pool takes memory "
      "earlier, too), or remove it",
      {{"shortfall_bytes", verdict_.shortfall_bytes}, {"limit_bytes", e_.limit_bytes}, {"held_bytes", e_.held_bytes}});
  if (joined_would_do(e_.pool_free_bytes)) fragmented();
}

}  // namespace cupool::observe
