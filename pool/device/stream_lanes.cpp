// Lists only; decisions are in stream_ordered.cpp.
#include "pool/device/stream_lanes.hpp"

#include <algorithm>

namespace cupool::device {

const StreamLanes::Entry& StreamLanes::oldest() const {
  return *std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
}

void StreamLanes::forget() {
  entries_.clear();
  last_seen_ = 0;
  frees_ = 0;
  several_ = false;
  for (StampedFree& stamped : stamped_) stamped.extent = nullptr;
  stamped_.remove_if([](const StampedFree& stamped) { return !stamped.busy; });
}

std::uint64_t StreamLanes::stamped_bytes() const {
  std::uint64_t bytes = 0;
  for (const StampedFree& stamped : stamped_)
    if (stamped.extent != nullptr) bytes += stamped.extent->bytes;
  return bytes;
}

}  // namespace cupool::device
