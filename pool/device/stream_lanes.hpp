// StreamLanes: what each stream of one context has of its heap, and the frees that carry an event of their own.
//
// A block that a stream-ordered call freed may be used again at once by the same stream, without any event: it goes into the stream's lane
// (heap/extent_heap.hpp). Others get it when the lane is drained into the deferred frees. While memory is short each such free is also stamped with
// an event that is recorded at the free itself: behind that event, and only behind such a one, another stream may be made to wait on the device (CUDA
// Driver API 13.0, Stream Ordered Memory Allocator).
// A stamp holds for those of its bytes that still lie free in the lane, in one piece. The stream itself goes on using them as if there were no stamp;
// otherwise what it allocates while memory is short would be pushed into holes elsewhere and scattered over all regions.
// Bookkeeping only: no driver call.
// Thread rule: the device's lock; a stamped free's fence belongs to the thread that set `busy`.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "pool/core/clock.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/stream_name.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

/// What was freed on a stream, with the event of that free. It stands for a deferred block, or for bytes in the stream's lane; for neither once they
/// are used again, or gone with their context, while a thread is in the driver with the fence.
struct StampedFree {
  heap::Extent* extent = nullptr;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< bytes in the lane; 0: not there
  std::uint32_t lane = 0;
  std::uint64_t identity = 0;  ///< of the stream
  Fence fence;
  bool busy = false;

  std::uint64_t free_bytes() const { return extent != nullptr ? extent->bytes : bytes; }
  bool is_in_lane() const { return extent == nullptr && bytes != 0; }
};

class StreamLanes {
 public:
  /// With more streams than this, the stream that was not used for longest gives its lane up.
  static constexpr std::size_t kMostLanes = 64;
  static constexpr std::size_t kMostStamped = 1024;
  /// A lane is stale after this many calls on other streams: its thread may be gone, which nobody tells us.
  static constexpr std::uint64_t kStaleUses = 1024;
  static constexpr std::uint32_t kLoneFrees = 256;
  /// After this many frees with an event of their own, recorded for fear that others miss them, without a miss, no more are recorded.
  static constexpr std::uint32_t kVainStamps = 1024;
  /// A stream that fills its lane this often without allocating frees for others.
  static constexpr std::uint32_t kOnlyFrees = 32;

  struct Entry {
    std::uint64_t identity = 0;
    CUstream handle = nullptr;  ///< null: a thread's own default stream, which no other thread can name
    std::uint32_t lane = 0;
    std::uint64_t last_use = 0;
    std::uint64_t last_fill = 0;       ///< the value of fills() when anything last came into the lane
    std::uint64_t waited_fill = 0;     ///< that value when the program last waited for all of it
    std::uint32_t fills = 0;           ///< how often the lane was filled since the stream last allocated
    std::uint64_t unmarked_bytes = 0;  ///< bytes that came into the lane without events since it was last emptied behind one
    bool feeds = false;                ///< others miss what lies here: it is handed over as it comes
    std::int64_t held_bytes = 0;       ///< bytes allocated less bytes freed by the stream since it has the lane
    std::int64_t most_held_bytes = 0;
    bool was_missed = false;           ///< others have missed what lay here
    std::int64_t watched_bytes = 0;    ///< held_bytes when they first did, or when the stream last stopped feeding them
    std::int64_t low_bytes = 0;        ///< the least held_bytes since then
    std::int64_t most_rise_bytes = 0;  ///< the most that held_bytes has risen above low_bytes since others first missed what lay here
    bool busy = false;                 ///< a thread is in the driver with the handle

    void watch() {
      was_missed = true;
      watched_bytes = low_bytes = held_bytes;
    }
    /// What the stream has freed since then and will not want again, as far as can be seen: what it has itself allocated it frees in each step of a
    /// job.
    std::int64_t lost_bytes() const { return watched_bytes - held_bytes - most_rise_bytes; }
    void take(std::uint64_t bytes) {
      held_bytes += static_cast<std::int64_t>(bytes);
      most_held_bytes = std::max(most_held_bytes, held_bytes);
      if (was_missed) most_rise_bytes = std::max(most_rise_bytes, held_bytes - low_bytes);
      if (!feeds || lost_bytes() > 0) return;
      feeds = false;
      watch();
    }
    void put(std::uint64_t bytes) {
      held_bytes -= static_cast<std::int64_t>(bytes);
      low_bytes = std::min(low_bytes, held_bytes);
    }
  };
  using Stamped = std::list<StampedFree>;

  /// The lane of a stream; 0 when it has none.
  std::uint32_t find(std::uint64_t identity) {
    for (Entry& entry : entries_) {
      if (entry.identity != identity) continue;
      entry.last_use = ++uses_;
      return entry.lane;
    }
    return 0;
  }
  /// Precondition: !is_full(). Throws std::bad_alloc with nothing changed.
  void add(StreamName stream, std::uint32_t lane) {
    entries_.push_back({stream.identity, stream.handle == CU_STREAM_PER_THREAD ? nullptr : stream.handle, lane, ++uses_, fill()});
  }
  /// Bytes have come into the lane: freed on its stream, or on another for which its stream waits. `is_marked`: with an event of that free.
  void note_fill(std::uint32_t lane, std::uint64_t bytes, bool is_marked = false) {
    for (Entry& entry : entries_) {
      if (entry.lane != lane) continue;
      entry.last_fill = fill();
      ++entry.fills;
      entry.unmarked_bytes += is_marked ? 0 : bytes;
      entry.put(bytes);
    }
  }
  /// Others miss the `bytes` in the lane. Does the stream feed them from now on, until it wants for itself what it has freed?
  static bool feeds_others(Entry& entry, std::uint64_t bytes) {
    if (!entry.was_missed) entry.watch();
    entry.feeds = entry.feeds || entry.lost_bytes() >= static_cast<std::int64_t>(bytes / 2);
    return entry.feeds;
  }
  /// The program has waited for a stream (0: for all) by a call that began at `fills`.
  void note_waited(std::uint64_t identity, std::uint64_t fills) {
    for (Entry& entry : entries_)
      if ((identity == 0 || entry.identity == identity) && entry.last_fill <= fills) entry.waited_fill = entry.last_fill;
  }
  /// How often any lane was filled. Lock-free; asked before a wait of the program, so that what comes into a lane later is told from what the wait
  /// covers.
  std::uint64_t fills() const { return fills_.load(std::memory_order_acquire); }
  /// A free that a wait for its stream covers if it begins at the returned value of fills(), or later.
  std::uint64_t count_fill() { return fill(); }
  /// The entry of a stream, or nullptr; valid until the next add() or remove(). Does not count as a use.
  Entry* entry(std::uint64_t identity) {
    for (Entry& entry : entries_)
      if (entry.identity == identity) return &entry;
    return nullptr;
  }
  void remove(std::uint64_t identity) {
    std::erase_if(entries_, [identity](const Entry& entry) { return entry.identity == identity; });
  }
  bool is_full() const { return entries_.size() >= kMostLanes; }
  /// The entry that was not used for longest. Precondition: there is one.
  const Entry& oldest() const;
  const std::vector<Entry>& entries() const { return entries_; }
  bool is_stale(const Entry& entry) const { return uses_ - entry.last_use > kStaleUses; }
  /// Does the lane have what the stream would need to come to the most that it ever had, and half of what it takes back at a time?
  static bool has_surplus(const Entry& entry, std::uint64_t lane_bytes) {
    const std::int64_t wanted_bytes = entry.most_held_bytes - entry.held_bytes;
    return static_cast<std::int64_t>(lane_bytes) > wanted_bytes + entry.most_rise_bytes / 2;
  }
  /// The program has waited for everything that is in the lane.
  static bool is_waited_for(const Entry& entry) { return entry.waited_fill == entry.last_fill; }
  /// Is what comes into the lane for others?
  bool is_for_others(const Entry& entry) const { return entry.feeds || (several_ && entry.fills >= kOnlyFrees); }
  Stamped& stamped() { return stamped_; }
  /// The stamped block goes into `lane`, and its stamp with it. Throws std::bad_alloc with nothing changed.
  void follow_into_lane(Stamped::iterator stamped, std::uint32_t lane);
  /// The bytes of a stamp leave its lane.
  void leave_lane(Stamped::iterator stamped);
  /// Removes the oldest stamp in a lane that stands for at most `most_bytes`: its bytes are free there as if they had never had one. False when there
  /// is none.
  bool forget_stamp(std::uint64_t most_bytes, ContextRegistry& contexts);
  bool has_stamps_in_lanes() const { return !in_lanes_.empty(); }
  /// [address, address + bytes) is a block again: stamps do not stand for these bytes any more, but still for what is left beside them.
  void use_again(std::uint64_t address, std::uint64_t bytes, ContextRegistry& contexts);
  /// A stream-ordered call named this stream.
  void see(std::uint64_t identity) {
    if (identity == last_seen_) return;
    several_ = several_ || last_seen_ != 0;
    last_seen_ = identity;
  }
  /// As see(), for an allocation. Returns the stream's lane, or 0.
  std::uint32_t see_allocation(std::uint64_t identity) {
    see(identity);
    has_allocated_ = true;
    const std::uint32_t lane = find(identity);
    if (lane != 0) entry(identity)->fills = 0;
    return lane;
  }
  /// The stream has got a block of the heap.
  void note_allocated(std::uint64_t identity, std::uint64_t bytes) {
    if (Entry* const own = entry(identity)) own->take(bytes);
  }
  /// A request missed what might lie in a lane.
  void note_miss() { vain_stamps_ = 0; }
  /// One more free that others could miss: should it have an event of its own? Not after kVainStamps of them without a miss.
  bool fears_miss() {
    if (vain_stamps_ == kVainStamps) return false;
    ++vain_stamps_;
    return true;
  }
  bool has_allocated() const { return has_allocated_; }
  void count_frees(std::uint32_t frees) { frees_ = frees < kLoneFrees - frees_ ? frees_ + frees : kLoneFrees; }
  /// `pairs` allocations and frees on a stream were served by a magazine, without coming here.
  void count_pairs(std::uint64_t identity, std::uint32_t pairs) {
    count_frees(pairs);
    uses_ += 2 * std::uint64_t{pairs};
    if (Entry* used = entry(identity)) {
      used->last_use = uses_;
      used->fills = 0;
    }
  }
  /// All calls so far named one stream, and there were enough frees: no other stream is expected to want what it frees.
  bool is_alone() const { return !several_ && frees_ >= kLoneFrees; }
  bool are_several() const { return several_; }

  /// The context has ended: forgets everything except what a thread is busy with.
  void forget();
  /// Σ bytes of the stamped blocks that are deferred.
  std::uint64_t deferred_bytes() const;
  /// Σ bytes that `identity` could have behind stamps of other streams.
  std::uint64_t bytes_for(std::uint64_t identity) const;
  /// The first broken invariant as a sentence, or an empty string.
  std::string check() const;

 private:
  /// One writer at a time: the device's lock is held.
  std::uint64_t fill() {
    const std::uint64_t fills = fills_.load(std::memory_order_relaxed) + 1;
    fills_.store(fills, std::memory_order_release);
    return fills;
  }
  void drop(Stamped::iterator stamped, ContextRegistry& contexts);
  void narrow(Stamped::iterator stamped, std::uint64_t address, std::uint64_t bytes);

  std::vector<Entry> entries_;
  Stamped stamped_;
  std::map<std::uint64_t, Stamped::iterator> in_lanes_;  ///< by address; disjoint
  std::uint64_t uses_ = 0;
  /// Starts at the time, so that it exceeds the values of earlier books, whose context may have had the same handle.
  std::atomic<std::uint64_t> fills_{ticks()};
  std::uint64_t last_seen_ = 0;    ///< identity
  std::uint32_t frees_ = 0;        ///< up to kLoneFrees
  std::uint32_t vain_stamps_ = 0;  ///< up to kVainStamps
  bool several_ = false;
  bool has_allocated_ = false;
};

}  // namespace cupool::device
