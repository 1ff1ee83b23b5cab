// Lists and queues only. Decisions are made by the Deferral, for lanes by the StreamFrees.
#include "pool/device/deferred_frees.hpp"

#include <algorithm>
#include <utility>

#include "pool/device/context_pool.hpp"
#include "pool/device/device_allocator.hpp"

namespace cupool::device {

using heap::Extent;

void Batch::push(Extent* extent) {
  extent->bin_previous = last;
  extent->bin_next = nullptr;
  (last != nullptr ? last->bin_next : first) = extent;
  last = extent;
  ++count;
  bytes += extent->bytes;
}

void Batch::push(Parcel* parcel) {
  parcel->next = parcels;
  parcels = parcel;
  count += parcel->count;
  bytes += parcel->bytes;
}

void Batch::remove(Extent* extent) {
  (extent->bin_previous != nullptr ? extent->bin_previous->bin_next : first) = extent->bin_next;
  (extent->bin_next != nullptr ? extent->bin_next->bin_previous : last) = extent->bin_previous;
  --count;
  bytes -= extent->bytes;
}

void Batch::prepend(Batch& other) {
  count += other.count;
  bytes += other.bytes;
  while (Parcel* parcel = other.parcels) {
    other.parcels = parcel->next;
    parcel->next = parcels;
    parcels = parcel;
  }
  if (other.first != nullptr) {
    other.last->bin_next = first;
    (first != nullptr ? first->bin_previous : last) = other.last;
    first = other.first;
  }
  other = Batch{};
}

void Batch::remove_of(const ContextPool* home, bool but_pool_blocks) {
  for (Extent* extent = first; extent != nullptr;) {
    Extent* next = extent->bin_next;
    if (info_of(*extent).home == home && !(but_pool_blocks && mempool_of(*extent) != 0)) remove(extent);
    extent = next;
  }
}

Batch Batch::take_others(std::span<const CUcontext> contexts) {
  const auto is_other = [contexts](const ContextPool& home) { return std::find(contexts.begin(), contexts.end(), home.context) == contexts.end(); };
  Batch others;
  for (Extent* extent = first; extent != nullptr;) {
    Extent* const next = extent->bin_next;
    if (is_other(*info_of(*extent).home)) {
      remove(extent);
      others.push(extent);
    }
    extent = next;
  }
  for (Parcel** link = &parcels; *link != nullptr;) {
    Parcel* const parcel = *link;
    if (!is_other(*parcel->home)) {
      link = &parcel->next;
      continue;
    }
    *link = parcel->next;
    count -= parcel->count;
    bytes -= parcel->bytes;
    others.push(parcel);
  }
  return others;
}

bool Batch::holds(const ContextPool* home) const {
  for (const Extent* extent = first; extent != nullptr; extent = extent->bin_next)
    if (info_of(*extent).home == home) return true;
  for (const Parcel* parcel = parcels; parcel != nullptr; parcel = parcel->next)
    if (parcel->home == home) return true;
  return false;
}

/// Makes sure that a spare epoch exists; false when host memory is out.
bool DeferredFrees::has_spare() noexcept {
  if (!spare_.empty()) return true;
  try {
    spare_.reserve(epochs_.size() + 1);
    epochs_.reserve(epochs_.size() + 1);
    epochs_.push_back(std::make_unique<Epoch>());
  } catch (const std::bad_alloc&) {
    return false;
  }
  spare_.push_back(epochs_.back().get());
  return true;
}

Epoch* DeferredFrees::close(Batch& batch) noexcept {
  if (!has_spare()) return nullptr;
  Epoch* epoch = spare_.back();
  spare_.pop_back();
  epoch->batch = std::exchange(batch, Batch{});
  epoch->waitable = nullptr;
  epoch->stream = 0;
  epoch->number = ++closed_;
  epoch->busy = true;
  epoch->recorded = false;
  epoch->is_over_natively = false;
  epoch->is_late = false;
  epoch->next = nullptr;
  (tail_ != nullptr ? tail_->next : head_) = epoch;
  tail_ = epoch;
  return epoch;
}

Epoch* DeferredFrees::close_taken(std::uint64_t taken) noexcept {
  if (!has_spare()) {
    unstamped_.put_back(taken);
    return nullptr;
  }
  Batch batch = finish_taken(taken);
  return batch.first != nullptr ? close(batch) : nullptr;
}

Batch DeferredFrees::finish_taken(std::uint64_t taken) {
  Batch batch;
  unstamped_.remove_if([taken](const UnstampedFrees::Free& free) { return free.taken == taken; }, [&batch](Extent* extent) { batch.push(extent); });
  return batch;
}

Batch DeferredFrees::finish_unstamped(std::uint64_t last_number) {
  Batch batch;
  unstamped_.remove_if([last_number](const UnstampedFrees::Free& free) { return free.taken == 0 && free.number <= last_number; },
                       [&batch](Extent* extent) { batch.push(extent); });
  return batch;
}

void DeferredFrees::unlink(Epoch* epoch) {
  Epoch* before = nullptr;
  if (head_ != epoch)
    for (before = head_; before->next != epoch;) before = before->next;
  (before != nullptr ? before->next : head_) = epoch->next;
  if (tail_ == epoch) tail_ = before;
  spare_.push_back(epoch);
}

void DeferredFrees::reopen(Epoch* epoch) {
  batch_.prepend(epoch->batch);
  unlink(epoch);
}

void DeferredFrees::keep_over_natively(Epoch* epoch, std::span<const CUcontext> contexts) {
  Batch others = epoch->batch.take_others(contexts);
  batch_.prepend(others);
  if (epoch->batch.count == 0) return unlink(epoch);
  epoch->is_over_natively = has_over_natively_ = true;
}

void DeferredFrees::reopen_over_natively() {
  if (!std::exchange(has_over_natively_, false)) return;
  for (Epoch* epoch = head_; epoch != nullptr;) {
    Epoch* const next = epoch->next;
    if (epoch->is_over_natively) reopen(epoch);
    epoch = next;
  }
}

void DeferredFrees::follow(const Epoch& over) {
  for (Epoch* epoch = head_; epoch != nullptr && epoch != &over; epoch = epoch->next)
    if (!epoch->busy && epoch->recorded) epoch->fence.follow(over.fence);
}

Epoch* DeferredFrees::first_over() const {
  Epoch* epoch = head_;
  while (epoch != nullptr && (epoch->busy || !epoch->recorded || !epoch->fence.is_over())) epoch = epoch->next;
  return epoch;
}

void DeferredFrees::forget_stream(std::uint64_t identity) {
  for (Epoch* epoch = head_; epoch != nullptr; epoch = epoch->next)
    if (epoch->stream == identity) epoch->stream = 0;
}

void DeferredFrees::forget_streams() {
  for (Epoch* epoch = head_; epoch != nullptr; epoch = epoch->next) epoch->stream = 0;
}

Batch DeferredFrees::finish(Epoch* epoch) {
  if (epoch == uncovered_) uncovered_ = nullptr;
  Batch batch = std::exchange(epoch->batch, Batch{});
  unlink(epoch);
  return batch;
}

void DeferredFrees::forget(const ContextPool* home, bool but_pool_blocks) {
  batch_.remove_of(home, but_pool_blocks);
  for (Epoch* epoch = head_; epoch != nullptr; epoch = epoch->next) epoch->batch.remove_of(home, but_pool_blocks);
  unstamped_.remove_if(
      [home, but_pool_blocks](const UnstampedFrees::Free& free) { return free.home == home && !(but_pool_blocks && mempool_of(*free.extent) != 0); },
      [](const Extent*) {});
}

bool DeferredFrees::holds(const ContextPool* home) const {
  bool found = batch_.holds(home) || unstamped_.holds(home);
  for (const Epoch* epoch = head_; epoch != nullptr && !found; epoch = epoch->next) found = epoch->batch.holds(home);
  return found;
}

std::string DeferredFrees::check(std::uint64_t bytes) const {
  std::uint64_t listed_bytes = 0;
  const auto walk = [&](const Batch& batch) {
    std::uint64_t count = 0;
    std::uint64_t batch_bytes = 0;
    for (const Extent* extent = batch.first; extent != nullptr; extent = extent->bin_next) {
      if (extent->state != heap::ExtentState::deferred) return false;
      ++count;
      batch_bytes += extent->bytes;
    }
    listed_bytes += batch_bytes;
    return batch.parcels == nullptr && count == batch.count && batch_bytes == batch.bytes;
  };
  if (!walk(batch_)) return "the open batch of deferred frees is not what it counts";
  for (const Epoch* epoch = head_; epoch != nullptr; epoch = epoch->next)
    if (!walk(epoch->batch)) return "an epoch of deferred frees is not what it counts";
  for (const UnstampedFrees::Free& free : unstamped_.all()) {
    if (free.extent->state != heap::ExtentState::deferred) return "a block that a stream freed without an event is not deferred";
    listed_bytes += free.extent->bytes;
  }
  return listed_bytes == bytes ? "" : "deferred_bytes is not the sum of the deferred blocks";
}

}  // namespace cupool::device
