// Deferral: when memory is short, what the native driver would have free by now, whatever runs elsewhere.
//
// A freed block waits for the work of every context, since any may copy it. The native free waits for the work of its own context and of no other,
// unless devices are linked by peer access (seen on H100 and H200, driver 580; probe `waits`). So an endless kernel in another context, or a context
// that takes long to end, must not make memory run out. But not at once: a copy that another context has begun is over by then.
#include <algorithm>
#include <array>

#include "pool/device/deferral.hpp"

namespace cupool::device {

namespace {

/// The contexts that a batch's blocks belong to.
struct Homes {
  std::array<ContextPool*, 8> found{};
  std::size_t count = 0;
  bool is_complete = true;

  void add(ContextPool* home) {
    if (std::find(found.begin(), found.begin() + count, home) != found.begin() + count) return;
    is_complete = is_complete && count != found.size() && !home->is_orphan;
    if (is_complete) found[count++] = home;
  }
};

Homes homes_of(const Batch& batch) {
  Homes homes;
  for (const heap::Extent* extent = batch.first; extent != nullptr; extent = extent->bin_next) homes.add(info_of(*extent).home);
  for (const Parcel* parcel = batch.parcels; parcel != nullptr; parcel = parcel->next) homes.add(parcel->home);
  return homes;
}

}  // namespace

/// Closes the open batch with events in all contexts except those that are ending, unless its blocks are of one of these. True: it was closed.
bool Deferral::close_beside_ending(DeviceState& device, CUcontext asking, Error* error) {
  if (deferred_.batch_is_empty() || !device.services.contexts.has_ending()) return false;
  Epoch* epoch = deferred_.close();
  if (epoch == nullptr) return false;
  const Homes homes = homes_of(epoch->batch);
  FenceResult result;
  {
    const MutexUnlock unlocked(device.lock);
    result = epoch->fence.record(device, asking, nullptr, {}, ContextRegistry::Ending::left_out);
  }
  *error = result.error;
  epoch->busy = false;
  const auto is_covered = [epoch](const ContextPool* home) { return epoch->fence.covers(*home); };
  if (result.answer != FenceAnswer::done || !homes.is_complete || !std::all_of(homes.found.begin(), homes.found.begin() + homes.count, is_covered)) {
    epoch->fence.clear(device.services.contexts);
    deferred_.reopen(epoch);
    return false;
  }
  epoch->recorded = true;
  epoch->freed_by = pthread_self();
  epoch->recorded_ns = device.services.clock.now_ns();
  device.counters().epochs_closed.add();
  return true;
}

/// Is the work of its blocks' own contexts over? Precondition: no thread is busy with the epoch.
bool Deferral::is_free_natively(DeviceState& device, Epoch& epoch) {
  const Homes homes = homes_of(epoch.batch);
  if (!homes.is_complete) return false;
  bool is_over = true;
  epoch.busy = true;
  {
    const MutexUnlock unlocked(device.lock);
    for (std::size_t i = 0; i < homes.count && is_over; ++i) is_over = epoch.fence.is_over_in(device, *homes.found[i]);
  }
  epoch.busy = false;
  return is_over;
}

bool Deferral::retire_on_native_terms(DeviceState& device, CUcontext asking, std::uint64_t began_ns, Error* error) {
  PoolServices& services = device.services;
  const std::uint64_t now_ns = services.clock.now_ns();
  if (!services.may_call_driver()) return false;
  const auto may_tell = [&services] { return !services.devices_linked.load(std::memory_order_relaxed) && services.has_context_events(); };
  // A new epoch: it is asked about like any other.
  if (may_tell() && now_ns - began_ns >= kNativeTerms_ns && close_beside_ending(device, asking, error)) return true;
  for (Epoch* epoch = deferred_.oldest(); epoch != nullptr; epoch = epoch->next) {
    if (epoch->busy || now_ns - epoch->recorded_ns < kNativeTerms_ns) continue;
    // An epoch of a lane (stream != 0) is behind a stream alone: it covers all work on its blocks, and waits for no other context.
    const bool is_to_ask = epoch->recorded && epoch->stream == 0 && may_tell();
    if (!epoch->is_over_natively && !(is_to_ask && is_free_natively(device, *epoch) && may_tell())) continue;
    epoch->fence.clear(services.contexts);
    retire(device, deferred_.finish(epoch));
    orphans_.empty(device);
    return true;
  }
  return false;
}

}  // namespace cupool::device
