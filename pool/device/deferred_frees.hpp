// DeferredFrees: the blocks of one device that the program has freed and that the GPU may still touch.
//
// A free joins the open batch. When the batch is due (64 frees, or so many bytes), or memory is wanted, it becomes an epoch: a fence is recorded at
// that moment, and the blocks are free when the fence is done. Epochs are queued in the order in which they were closed. A query is about the oldest
// one; a wait may be for a younger one, and whatever it has shown to be over is retired wherever it stands (first_over()).
// Bookkeeping only: no driver call. Blocks are linked through Extent::bin_*.
// Thread rule: the device's lock, except for an epoch's fence, which belongs to the thread that set `busy`.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/unstamped_frees.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

struct Magazine;

/// Small blocks that one thread freed in a row. They go back to it together, and nobody looks at them on the way.
struct Parcel {
  heap::Extent* first = nullptr;  ///< in state cached, through bin_next
  std::uint32_t count = 0;
  std::uint64_t bytes = 0;
  Magazine* owner = nullptr;
  ContextPool* home = nullptr;
  std::uint64_t completed_ticks = 0;
  Parcel* next = nullptr;
};

/// A list of extents, linked through their bin links, and a list of parcels.
struct Batch {
  heap::Extent* first = nullptr;
  heap::Extent* last = nullptr;
  Parcel* parcels = nullptr;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;

  void push(heap::Extent* extent);
  void push(Parcel* parcel);
  /// The blocks of every parcel become deferred and join the list; `on_empty(Parcel*)` is called for each parcel.
  template <class F> void unpack(F&& on_empty);
  void remove(heap::Extent* extent);
  /// Moves everything from `other` to the front of this batch.
  void prepend(Batch& other);
  void remove_of(const ContextPool* home, bool but_pool_blocks);
  /// Removes and returns the blocks of all contexts but these.
  Batch take_others(std::span<const CUcontext> contexts);
  bool holds(const ContextPool* home) const;
};

struct Epoch {
  Batch batch;
  Fence fence;
  /// Not null: the fence was recorded inside the program's own free of a block of this context. Natively that free would have waited for all of it,
  /// so waiting for it without end is as safe as in the native program. Null: poll only.
  CUcontext waitable = nullptr;
  pthread_t freed_by{};  ///< the thread that natively would have waited; valid while `waitable` is set
  /// Not 0: all its blocks were free for this stream of `home` already, and the fence is recorded on that stream alone.
  std::uint64_t stream = 0;
  const ContextPool* home = nullptr;
  std::uint64_t number = 0;       ///< counts closed epochs, from 1
  std::uint64_t recorded_ns = 0;  ///< when its fence was recorded, or its free had waited, by the pool's clock
  bool busy = false;              ///< a thread is in the driver with this fence
  bool recorded = false;
  /// The driver has waited as the native free would have, but something captures, and contexts that this leaves alone could not get their events.
  bool is_over_natively = false;
  bool is_late = false;   ///< its blocks were unstamped frees, and its fence is behind one stream alone: no older epoch is over with it
  Epoch* next = nullptr;  ///< the next younger one

  /// Its blocks lay in the lane of a stream, and its fence is recorded on that stream.
  void set_lane(const ContextPool& of, std::uint64_t identity) {
    recorded = true;
    stream = identity;
    home = &of;
  }
  /// A thread may take it and wait: it is recorded, waitable, and no other thread is busy with it.
  bool may_be_awaited() const { return !busy && recorded && waitable != nullptr; }
  /// Natively the program's frees would have waited for this work, and it is not known to be over, or another thread is asking just now.
  bool is_overdue() const { return recorded && waitable != nullptr && (busy || (!fence.is_over_where_asked() && !fence.is_refused_where_asked())); }
};

class DeferredFrees {
 public:
  static constexpr std::uint64_t kBatchFrees = 64;
  static constexpr std::uint64_t kBatch_bytes = 64 * kMiB;  ///< unless set_due_bytes() says otherwise

  void push(heap::Extent* extent) { batch_.push(extent); }
  Batch& batch() { return batch_; }  ///< the open one, for pushing many blocks
  /// The number of the newest epoch, or the one that the open batch will have.
  std::uint64_t last_number() const { return closed_ + (batch_is_empty() ? 0 : 1); }
  /// A call has waited as long as it may for the epochs up to this number.
  void give_up(std::uint64_t number) { given_up_ = std::max(given_up_, number); }
  bool is_given_up(const Epoch& epoch) const { return epoch.number <= given_up_; }
  bool batch_is_due() const { return batch_.count >= kBatchFrees || batch_.bytes >= due_bytes_ || (uncovered_ != nullptr && batch_.count != 0); }
  /// The epoch was closed before it was due, so it may only be polled. The event of the next plain free will cover it: what cannot be waited for is
  /// never more than the open batch would be.
  void note_early(const Epoch* epoch) { uncovered_ = epoch; }
  /// An epoch that may be waited for was closed: it covers all earlier ones.
  void cover_early() { uncovered_ = nullptr; }
  void set_due_bytes(std::uint64_t bytes) { due_bytes_ = bytes; }
  std::uint64_t due_bytes() const { return due_bytes_; }
  std::uint64_t batch_bytes() const { return batch_.bytes; }
  bool batch_is_empty() const { return batch_.count == 0; }
  /// The size of the blocks in the open batch where all are equal; else, and where it is empty, 0.
  std::uint64_t batch_size_bytes() const {
    const heap::Extent* const one = batch_.parcels != nullptr ? batch_.parcels->first : batch_.first;
    return one != nullptr && one->bytes * batch_.count == batch_.bytes ? one->bytes : 0;
  }

  /// Closes the open batch into a busy, unrecorded epoch at the queue's end. Null, with nothing changed, when host memory is out.
  Epoch* close() noexcept { return close(batch_); }
  /// As close(), for the blocks in `batch`, which it empties.
  Epoch* close(Batch& batch) noexcept;
  /// As close(), for those unstamped frees. Null also when nothing is left of them.
  Epoch* close_taken(std::uint64_t taken) noexcept;
  /// The epoch could not be recorded: its blocks go back to the open batch. Precondition: its fence is cleared.
  void reopen(Epoch* epoch);
  /// The epoch is over natively as far as its blocks are of these contexts; what else it has goes back to the open batch.
  void keep_over_natively(Epoch* epoch, std::span<const CUcontext> contexts);
  bool has_over_natively() const { return has_over_natively_; }
  /// Nothing captures any more: such epochs become part of the open batch, whose events cover every context.
  void reopen_over_natively();
  /// The oldest epoch, or nullptr.
  Epoch* oldest() { return head_; }
  /// The oldest epoch that may be asked about, or nullptr: recorded, and no other thread is in the driver with its fence (where it may be stopped for
  /// long).
  Epoch* oldest_to_ask() {
    Epoch* epoch = head_;
    while (epoch != nullptr && (epoch->busy || !epoch->recorded)) epoch = epoch->next;
    return epoch;
  }
  std::size_t epoch_count() const { return epochs_.size() - spare_.size(); }
  /// What the events of `over` have shown to be over is over for every older epoch too: their blocks were freed before these events were recorded.
  /// Precondition: the events cover whole contexts.
  void follow(const Epoch& over);
  /// The oldest epoch that is known to be over and that no thread is busy with, wherever it stands; or nullptr.
  Epoch* first_over() const;
  /// The stream has ended: one that comes with the same handle later is another.
  void forget_stream(std::uint64_t identity);
  void forget_streams();  ///< any stream may have ended
  /// Removes the epoch and returns its blocks. Precondition: its fence is cleared.
  Batch finish(Epoch* epoch);
  /// What streams freed without an event, now or as soon as it can be recorded (StreamFrees).
  UnstampedFrees& unstamped() { return unstamped_; }
  const UnstampedFrees& unstamped() const { return unstamped_; }
  /// Removes the unstamped frees that were taken so, and returns their blocks.
  Batch finish_taken(std::uint64_t taken);
  /// The same for those up to this number, but for what a thread has taken.
  Batch finish_unstamped(std::uint64_t last_number);

  /// Batch::unpack for the open batch and every epoch.
  template <class F> void unpack(F&& on_empty);

  /// Calls `visit(const Extent&)` for each deferred block that is in no parcel.
  template <class F> void for_each(F&& visit) const;

  /// Is any block of `home` deferred?
  bool holds(const ContextPool* home) const;
  /// The context of `home` has died: its blocks leave every list; with `but_pool_blocks` those of memory pools stay.
  void forget(const ContextPool* home, bool but_pool_blocks);
  /// The first broken invariant as a sentence, or an empty string. `bytes`: what all blocks in here should add up to.
  std::string check(std::uint64_t bytes) const;

 private:
  bool has_spare() noexcept;
  void unlink(Epoch* epoch);

  Batch batch_;
  UnstampedFrees unstamped_;
  const Epoch* uncovered_ = nullptr;  ///< the newest epoch that was closed early and is not covered; older ones are over when it is
  std::uint64_t due_bytes_ = kBatch_bytes;
  bool has_over_natively_ = false;
  Epoch* head_ = nullptr;  ///< oldest
  Epoch* tail_ = nullptr;
  std::uint64_t closed_ = 0;
  std::uint64_t given_up_ = 0;                  ///< number of the newest such epoch, or 0
  std::vector<std::unique_ptr<Epoch>> epochs_;  ///< all of them, in use and spare
  std::vector<Epoch*> spare_;
};

template <class F> void Batch::unpack(F&& on_empty) {
  while (Parcel* parcel = parcels) {
    parcels = parcel->next;
    count -= parcel->count;
    bytes -= parcel->bytes;
    for (heap::Extent* extent = parcel->first; extent != nullptr;) {
      heap::Extent* next = extent->bin_next;
      extent->state = heap::ExtentState::deferred;
      push(extent);
      extent = next;
    }
    on_empty(parcel);
  }
}

template <class F> void DeferredFrees::unpack(F&& on_empty) {
  batch_.unpack(on_empty);
  for (Epoch* epoch = head_; epoch != nullptr; epoch = epoch->next) epoch->batch.unpack(on_empty);
}

template <class F> void DeferredFrees::for_each(F&& visit) const {
  for (const heap::Extent* extent = batch_.first; extent != nullptr; extent = extent->bin_next) visit(*extent);
  for (const Epoch* epoch = head_; epoch != nullptr; epoch = epoch->next)
    for (const heap::Extent* extent = epoch->batch.first; extent != nullptr; extent = extent->bin_next) visit(*extent);
}

}  // namespace cupool::device
