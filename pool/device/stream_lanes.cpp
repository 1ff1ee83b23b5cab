// Lists only; decisions are made in context_lanes.cpp, stream_frees.cpp and stamped_frees.cpp.
#include "pool/device/stream_lanes.hpp"

#include <algorithm>
#include <utility>

#include "pool/core/bytes.hpp"

namespace cupool::device {

const StreamLanes::Entry& StreamLanes::oldest() const {
  return *std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
}

void StreamLanes::forget() {
  entries_.clear();
  last_seen_ = 0;
  frees_ = 0;
  several_ = false;
  has_allocated_ = false;
  in_lanes_.clear();
  for (StampedFree& stamped : stamped_) {
    stamped.extent = nullptr;
    stamped.bytes = 0;
  }
  stamped_.remove_if([](const StampedFree& stamped) { return !stamped.busy; });
}

void StreamLanes::follow_into_lane(Stamped::iterator stamped, std::uint32_t lane) {
  in_lanes_.emplace(stamped->extent->address, stamped);
  stamped->address = stamped->extent->address;
  stamped->bytes = stamped->extent->bytes;
  stamped->lane = lane;
  stamped->extent = nullptr;
}

void StreamLanes::leave_lane(Stamped::iterator stamped) {
  in_lanes_.erase(stamped->address);
  stamped->bytes = 0;
}

bool StreamLanes::forget_stamp(std::uint64_t most_bytes, ContextRegistry& contexts) {
  const auto stamped = std::find_if(stamped_.begin(), stamped_.end(),
                                    [most_bytes](const StampedFree& one) { return one.is_in_lane() && !one.busy && one.bytes <= most_bytes; });
  if (stamped == stamped_.end()) return false;
  drop(stamped, contexts);
  return true;
}

void StreamLanes::use_again(std::uint64_t address, std::uint64_t bytes, ContextRegistry& contexts) {
  const std::uint64_t end = address + bytes;
  auto next = in_lanes_.upper_bound(address);
  if (next != in_lanes_.begin()) --next;  // the one before may reach into the range
  while (next != in_lanes_.end() && next->first < end) {
    const Stamped::iterator stamped = next->second;
    ++next;
    const std::uint64_t stamped_end = stamped->address + stamped->bytes;
    if (stamped_end <= address) continue;
    const std::uint64_t before_bytes = saturating_sub(address, stamped->address);
    const std::uint64_t behind_bytes = saturating_sub(stamped_end, end);
    if (before_bytes == 0 && behind_bytes == 0) drop(stamped, contexts);
    else narrow(stamped, before_bytes >= behind_bytes ? stamped->address : end, std::max(before_bytes, behind_bytes));
  }
}

void StreamLanes::drop(Stamped::iterator stamped, ContextRegistry& contexts) {
  leave_lane(stamped);
  if (stamped->busy) return;  // the thread that is in the driver with it ends it
  stamped->fence.clear(contexts);
  stamped_.erase(stamped);
}

void StreamLanes::narrow(Stamped::iterator stamped, std::uint64_t address, std::uint64_t bytes) {
  auto node = in_lanes_.extract(stamped->address);
  node.key() = address;
  in_lanes_.insert(std::move(node));
  stamped->address = address;
  stamped->bytes = bytes;
}

std::uint64_t StreamLanes::deferred_bytes() const {
  std::uint64_t bytes = 0;
  for (const StampedFree& stamped : stamped_)
    if (stamped.extent != nullptr) bytes += stamped.extent->bytes;
  return bytes;
}

std::uint64_t StreamLanes::bytes_for(std::uint64_t identity) const {
  std::uint64_t bytes = 0;
  for (const StampedFree& stamped : stamped_)
    if (stamped.extent != nullptr || stamped.identity != identity) bytes += stamped.free_bytes();
  return bytes;
}

std::string StreamLanes::check() const {
  const auto in_lanes =
      static_cast<std::size_t>(std::count_if(stamped_.begin(), stamped_.end(), [](const StampedFree& one) { return one.is_in_lane(); }));
  if (in_lanes != in_lanes_.size()) return "the list of the stamps in lanes has other stamps too, or not all";
  std::uint64_t end = 0;
  for (const auto& [address, place] : in_lanes_) {
    const StampedFree& stamped = *place;
    if (!stamped.is_in_lane() || stamped.address != address || address < end) return "two stamps speak for the same bytes";
    const auto is_its = [&stamped](const Entry& entry) { return entry.identity == stamped.identity && entry.lane == stamped.lane; };
    if (std::none_of(entries_.begin(), entries_.end(), is_its)) return "a stamp lies in a lane that is not its stream's";
    end = stamped.address + stamped.bytes;
  }
  return "";
}

}  // namespace cupool::device
