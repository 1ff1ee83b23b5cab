// Timeline: the newest events of a device in a ring, for the report; every event goes on to the trace, where there is one.
//
// The ring is mapped at the first event (a process that allocates nothing pays nothing) and never grows; after that
// an event is one 40-byte store. Never: reads the clock (ticks come in the event), locks, allocates in record().
// Thread rule: one writer at a time, and readers exclude it: both hold the device pool's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool/observe/event.hpp"
#include "pool/observe/trace_writer.hpp"

namespace cupool::observe {

/// A larger ring is taken for a mistake: this is 10 GiB of host memory per device.
inline constexpr std::size_t kMaxTimelineEvents = std::size_t{1} << 28;

class Timeline {
 public:
  /// Keeps the newest `capacity_events`, at most kMaxTimelineEvents; 0 keeps none and counts none as dropped. `trace`: where
  /// every event goes too, as one of `device`; it outlives the timeline.
  explicit Timeline(std::size_t capacity_events, TraceSink* trace = nullptr, int device = 0);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Keeps `event`, over the oldest when the ring is full. No allocation after the first call. `stream`: the one that a
  /// stream-ordered call named, for the trace; 0: none.
  void record(const Event& event, std::uint64_t stream = 0) noexcept {
    if (trace_.is_on()) [[unlikely]] {
      const Event copy = event;  // a copy, so that only here the event has an address: elsewhere it goes from registers into the ring
      trace_.record(copy, stream);
    }
    if (ring_ == nullptr && !map_ring()) return;
    ring_[next_] = event;
    if (++next_ == capacity_) next_ = 0;
    ++recorded_;
  }

  /// The newest `limit` events, oldest first, ticks as recorded. Allocates; throws only std::bad_alloc.
  std::vector<Event> events(std::size_t limit = SIZE_MAX) const;
  /// Events that events() can no longer give: overwritten, or lost because the ring could not be mapped.
  std::uint64_t dropped() const { return lost_ + (recorded_ > capacity_ ? recorded_ - capacity_ : 0); }
  std::size_t capacity_events() const { return capacity_; }

 private:
  bool map_ring() noexcept;

  Event* ring_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t next_ = 0;        ///< where the next event goes
  std::uint64_t recorded_ = 0;  ///< events stored since the start
  std::uint64_t lost_ = 0;      ///< events that came while there was no ring though one was asked for
  bool mapping_failed_ = false;
  TraceWriter trace_;
};

}  // namespace cupool::observe
