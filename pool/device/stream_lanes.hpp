// StreamLanes: what one context's streams have of its heap, and frees that carry an event of their own.
//
// A block that a stream-ordered call freed may be used again at once by the same stream, without any event: it goes into the
// stream's lane (heap/extent_heap.hpp). Others get it when the lane is drained into the deferred frees. While memory is
// short each such free is stamped instead with an event recorded at the free itself: behind that event, and only behind such a
// one, another stream may be made to wait on the device. CUDA Driver API 13.0, Stream Ordered Memory Allocator.
// Bookkeeping only: no driver call. Thread rule: the device's lock; a stamped free's fence belongs to the thread that set `busy`.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "pool/device/fence.hpp"
#include "pool/device/stream_name.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

/// A block freed on a stream, with the event of that free.
struct StampedFree {
  heap::Extent* extent = nullptr;  ///< null: its context died while a thread was in the driver with the fence
  std::uint64_t identity = 0;      ///< of the stream
  Fence fence;
  bool busy = false;
};

class StreamLanes {
 public:
  /// More streams than this share: the one that has not been used for longest gives its lane up.
  static constexpr std::size_t kMostLanes = 64;
  static constexpr std::size_t kMostStamped = 1024;
  /// A lane that so many calls on streams have passed by is stale: its thread may be gone, for nobody tells us of that.
  static constexpr std::uint64_t kStaleUses = 1024;
  static constexpr std::uint32_t kLoneFrees = 256;

  struct Entry {
    std::uint64_t identity = 0;
    CUstream handle = nullptr;  ///< null: a thread's own default stream, which no other thread can name
    std::uint32_t lane = 0;
    std::uint64_t last_use = 0;
    bool busy = false;          ///< a thread is in the driver with the handle
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
    entries_.push_back({stream.identity, stream.handle == CU_STREAM_PER_THREAD ? nullptr : stream.handle, lane, ++uses_});
  }
  /// The entry of a stream, or nullptr; until the next add() or remove(). Not a use.
  Entry* entry(std::uint64_t identity) {
    for (Entry& entry : entries_)
      if (entry.identity == identity) return &entry;
    return nullptr;
  }
  void remove(std::uint64_t identity) {
    std::erase_if(entries_, [identity](const Entry& entry) { return entry.identity == identity; });
  }
  bool is_full() const { return entries_.size() >= kMostLanes; }
  /// The entry that has not been used for longest. Precondition: there is one.
  const Entry& oldest() const;
  const std::vector<Entry>& entries() const { return entries_; }
  bool is_stale(const Entry& entry) const { return uses_ - entry.last_use > kStaleUses; }
  Stamped& stamped() { return stamped_; }
  /// A stream-ordered call named this stream.
  void see(std::uint64_t identity) {
    if (identity == last_seen_) return;
    several_ = several_ || last_seen_ != 0;
    last_seen_ = identity;
  }
  void count_frees(std::uint32_t frees) { frees_ = frees < kLoneFrees - frees_ ? frees_ + frees : kLoneFrees; }
  /// So many allocations and frees on a stream met nobody here.
  void count_pairs(std::uint64_t identity, std::uint32_t pairs) {
    count_frees(pairs);
    uses_ += 2 * std::uint64_t{pairs};
    if (Entry* used = entry(identity)) used->last_use = uses_;
  }
  /// So many frees, and all calls named one stream: nobody else is expected to want what it frees.
  bool is_alone() const { return !several_ && frees_ >= kLoneFrees; }

  /// The context died: nothing of this is left but what a thread is busy with.
  void forget();
  /// Σ bytes of the stamped blocks.
  std::uint64_t stamped_bytes() const;

 private:
  std::vector<Entry> entries_;
  Stamped stamped_;
  std::uint64_t uses_ = 0;
  std::uint64_t last_seen_ = 0;  ///< identity
  std::uint32_t frees_ = 0;      ///< up to kLoneFrees
  bool several_ = false;
};

}  // namespace cupool::device
