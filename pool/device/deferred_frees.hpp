// DeferredFrees: blocks of one device that the program has freed and the GPU may still touch.
//
// A free joins the open batch; the batch becomes an epoch when it is due (64 frees, or so many bytes) or memory is wanted, with a
// fence recorded at that moment; the epoch's blocks are free when the fence is done. Epochs stand in the order in which they were
// closed. A look is at the oldest; a wait may be for a younger one, and what it has shown to be over ends wherever it
// stands (first_over()). Bookkeeping only: no driver call. Blocks are linked through Extent::bin_*.
// Thread rule: the device's lock, except an epoch's fence, which belongs to the thread that set `busy`.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/device/fence.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

struct Magazine;

/// Small blocks that one thread freed one after the other. They go back to it together, and nobody looks at them on the way.
struct Parcel {
  heap::Extent* first = nullptr;  ///< in state cached, through bin_next
  std::uint32_t count = 0;
  std::uint64_t bytes = 0;
  Magazine* owner = nullptr;
  ContextPool* home = nullptr;
  std::uint64_t completed_ticks = 0;
  Parcel* next = nullptr;
};

/// A list of extents through their bin links, and of parcels.
struct Batch {
  heap::Extent* first = nullptr;
  heap::Extent* last = nullptr;
  Parcel* parcels = nullptr;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;

  void push(heap::Extent* extent);
  void push(Parcel* parcel);
  /// The blocks of every parcel become deferred and part of the list; `on_empty(Parcel*)` for each.
  template <class F> void unpack(F&& on_empty);
  void remove(heap::Extent* extent);
  /// Takes everything of `other`, in front of what is here.
  void prepend(Batch& other);
  void remove_of(const ContextPool* home);
  bool holds(const ContextPool* home) const;
};

struct Epoch {
  Batch batch;
  Fence fence;
  /// Not null: the fence was recorded inside the program's own free of a block of this context. Natively that free would
  /// have waited for all of it, so waiting for it without end is as safe as the native program; otherwise poll only.
  CUcontext waitable = nullptr;
  pthread_t freed_by{};  ///< the thread that natively would have waited; of an epoch that is waitable
  /// Not 0: all of it was free for this stream of `home` before, and the fence is on that stream alone.
  std::uint64_t stream = 0;
  const ContextPool* home = nullptr;
  std::uint64_t number = 0;       ///< how many had been closed, with it
  std::uint64_t recorded_ns = 0;  ///< when its fence was, by the pool's clock
  bool busy = false;              ///< a thread is in the driver with this fence
  bool waiting = false;           ///< … and waits there without end, as the program's free natively would have
  bool recorded = false;
  Epoch* next = nullptr;  ///< the next younger one

  /// What lay in the lane of a stream: its fence was recorded on that stream.
  void set_lane(const ContextPool& of, std::uint64_t identity) {
    recorded = true;
    stream = identity;
    home = &of;
  }
  /// By a thread that takes it: its fence is recorded, waitable, and nobody's at the moment.
  bool may_be_awaited() const { return !busy && recorded && waitable != nullptr; }
  /// Natively the program's frees had waited, for the work in their context, and that is not known to be over; or somebody looks at it just now.
  bool is_overdue() const { return recorded && waitable != nullptr && (busy || (!fence.is_over_where_asked() && !fence.is_refused_where_asked())); }
};

class DeferredFrees {
 public:
  static constexpr std::uint64_t kBatchFrees = 64;
  static constexpr std::uint64_t kBatch_bytes = 64 * kMiB;  ///< unless set_due_bytes() says otherwise

  void push(heap::Extent* extent) { batch_.push(extent); }
  Batch& batch() { return batch_; }  ///< the open one, to push many
  /// Of the newest epoch, or what the open batch will have.
  std::uint64_t last_number() const { return closed_ + (batch_is_empty() ? 0 : 1); }
  /// A call has waited as long as it may for the epochs up to that number.
  void give_up(std::uint64_t number) { given_up_ = std::max(given_up_, number); }
  bool is_given_up(const Epoch& epoch) const { return epoch.number <= given_up_; }
  /// A thread waits for one of them.
  bool is_awaited() const;
  bool batch_is_due() const { return batch_.count >= kBatchFrees || batch_.bytes >= due_bytes_ || (uncovered_ != nullptr && batch_.count != 0); }
  /// The epoch was closed before it was due, and may only be polled. The next free's own event will cover it: what cannot be waited for is never
  /// more than the open batch would be.
  void note_early(const Epoch* epoch) { uncovered_ = epoch; }
  /// An epoch that may be waited for was closed: it covers all before it.
  void cover_early() { uncovered_ = nullptr; }
  void set_due_bytes(std::uint64_t bytes) { due_bytes_ = bytes; }
  std::uint64_t due_bytes() const { return due_bytes_; }
  std::uint64_t batch_bytes() const { return batch_.bytes; }
  bool batch_is_empty() const { return batch_.count == 0; }
  /// Of each block in the open batch; 0 where they differ, or there is none.
  std::uint64_t batch_size_bytes() const {
    const heap::Extent* const one = batch_.parcels != nullptr ? batch_.parcels->first : batch_.first;
    return one != nullptr && one->bytes * batch_.count == batch_.bytes ? one->bytes : 0;
  }

  /// Closes the batch into a busy, unrecorded epoch at the queue's end. Null, with nothing changed, when host memory is out.
  Epoch* close() noexcept { return close(batch_); }
  /// As close(), of the blocks in `batch`, which it empties.
  Epoch* close(Batch& batch) noexcept;
  /// It could not be recorded: its blocks go back into the batch. Precondition: its fence is cleared.
  void reopen(Epoch* epoch);
  /// The oldest epoch, or nullptr.
  Epoch* oldest() { return head_; }
  /// The oldest that may be asked about: recorded, and no thread is in the driver with its fence, where it may be stopped for long; or nullptr.
  Epoch* oldest_to_ask() {
    Epoch* epoch = head_;
    while (epoch != nullptr && (epoch->busy || !epoch->recorded)) epoch = epoch->next;
    return epoch;
  }
  std::size_t epoch_count() const { return epochs_.size() - spare_.size(); }
  /// What the events of `over` have shown to be over is so for every older epoch: their blocks were freed before these events were recorded.
  /// Precondition: they are events of whole contexts.
  void follow(const Epoch& over);
  /// The oldest that is known to be over and that nobody is busy with, wherever it stands; or nullptr.
  Epoch* first_over() const;
  /// The stream has ended: what comes with its handle is another.
  void forget_stream(std::uint64_t identity);
  void forget_streams();  ///< any of them has
  /// Takes the epoch's blocks out; the epoch is gone. Precondition: its fence is cleared.
  Batch finish(Epoch* epoch);

  /// Batch::unpack for all of them.
  template <class F> void unpack(F&& on_empty);

  /// visit(const Extent&) for each block that waits, but for those in parcels.
  template <class F> void for_each(F&& visit) const;

  /// Does any block of `home` wait?
  bool holds(const ContextPool* home) const;
  /// The context of `home` died: its blocks leave every list.
  void forget(const ContextPool* home);
  /// The first broken invariant as a sentence, or an empty string. `bytes`: what should be in here.
  std::string check(std::uint64_t bytes) const;

 private:
  bool has_spare() noexcept;
  void unlink(Epoch* epoch);

  Batch batch_;
  const Epoch* uncovered_ = nullptr;  ///< the newest that was closed early and is not covered; those before it are over when it is
  std::uint64_t due_bytes_ = kBatch_bytes;
  Epoch* head_ = nullptr;  ///< oldest
  Epoch* tail_ = nullptr;
  std::uint64_t closed_ = 0;
  std::uint64_t given_up_ = 0;                  ///< the number of the last one, or 0
  std::vector<std::unique_ptr<Epoch>> epochs_;  ///< all there are, in use or spare
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
