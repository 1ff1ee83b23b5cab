// The timeline's memory: one anonymous mapping, so that the host program's malloc is not involved.
#include "pool/observe/timeline.hpp"

#include <algorithm>
#include <type_traits>

#include "pool/core/mapped.hpp"

namespace cupool::observe {

static_assert(sizeof(Event) == 40, "the ring's size counts on it");
static_assert(std::is_trivially_copyable_v<Event>);

Timeline::Timeline(std::size_t capacity_events, TraceSink* trace, int device)
    : capacity_(std::min(capacity_events, kMaxTimelineEvents)), trace_(trace, device) {}

Timeline::~Timeline() {
  if (ring_ != nullptr) ::munmap(ring_, capacity_ * sizeof(Event));
}

bool Timeline::map_ring() noexcept {
  if (capacity_ == 0) return false;
  if (mapping_failed_) {
    ++lost_;
    return false;
  }
  void* memory = map_zeroed(capacity_ * sizeof(Event));
  if (memory == nullptr) {
    mapping_failed_ = true;
    ++lost_;
    return false;
  }
  // Zeroes are a valid Event; nothing is read before it was written.
  ring_ = static_cast<Event*>(memory);
  return true;
}

std::vector<Event> Timeline::events(std::size_t limit) const {
  std::vector<Event> out;
  if (ring_ == nullptr) return out;
  const std::size_t held = recorded_ < capacity_ ? static_cast<std::size_t>(recorded_) : capacity_;
  const std::size_t wanted = std::min(held, limit);
  out.reserve(wanted);
  const std::size_t first = next_ >= wanted ? next_ - wanted : capacity_ - (wanted - next_);
  const std::size_t until_end = std::min(wanted, capacity_ - first);
  out.insert(out.end(), ring_ + first, ring_ + first + until_end);
  out.insert(out.end(), ring_, ring_ + (wanted - until_end));
  return out;
}

}  // namespace cupool::observe
