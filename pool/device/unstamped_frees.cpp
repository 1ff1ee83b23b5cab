// What streams freed without an event, on drivers without events that cover a context: see unstamped_frees.hpp.
#include "pool/device/unstamped_frees.hpp"

#include <limits>
#include <new>
#include <utility>

#include "pool/device/context_lanes.hpp"
#include "pool/device/stream_frees.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

bool UnstampedFrees::may_be_stamped() const {
  return std::any_of(frees_.begin(), frees_.end(), [](const Free& free) { return is_handle(free.stream.identity); });
}

bool UnstampedFrees::holds(const ContextPool* home) const {
  return std::any_of(frees_.begin(), frees_.end(), [home](const Free& free) { return free.home == home; });
}

bool UnstampedFrees::is_taken(std::uint64_t identity) const {
  return std::any_of(frees_.begin(), frees_.end(),
                     [identity](const Free& free) { return free.taken != 0 && (identity == 0 || free.stream.identity == identity); });
}

bool UnstampedFrees::add(Free free) noexcept {
  free.number = last_number_ + 1;
  try {
    frees_.push_back(free);
  } catch (const std::bad_alloc&) {
    return false;
  }
  ++last_number_;
  return true;
}

std::optional<UnstampedFrees::Free> UnstampedFrees::take(std::uint64_t round) {
  const auto is_left = [round](const Free& free) { return free.taken == 0 && free.round != round; };
  const auto first = std::find_if(frees_.begin(), frees_.end(), is_left);
  if (first == frees_.end()) return std::nullopt;
  ++takes_;
  for (auto free = first; free != frees_.end(); ++free) {
    if (!is_left(*free) || !free->is_of_same(*first)) continue;
    free->taken = takes_;
    free->round = round;
  }
  return *first;
}

void UnstampedFrees::put_back(std::uint64_t taken) {
  for (Free& free : frees_)
    if (free.taken == taken) free.taken = 0;
}

void UnstampedFrees::forget_stream(std::uint64_t identity) {
  for (Free& free : frees_)
    if (identity != 0 ? free.stream.identity == identity : is_handle(free.stream.identity)) free.stream = {};
}

void StreamFrees::leave_unstamped(DeviceState& device, Extent* extent, CUcontext context, StreamName stream) {
  ContextPool* const of_stream = device.services.has_context_events() ? nullptr : device.services.contexts.find(context);
  UnstampedFrees::Free free;
  free.extent = extent;
  free.home = info_of(*extent).home;
  free.of_stream = of_stream;
  free.is_own = free.home == of_stream && info_of(*extent).allocator == free.home->pooled.get();
  free.life = of_stream != nullptr ? device.services.contexts.life_of(*of_stream, context) : 0;
  free.stream = stream;
  free.fill = of_stream != nullptr && &of_stream->device == &device ? of_stream->streams.count_fill() : std::numeric_limits<std::uint64_t>::max();
  if (free.life == 0 || !deferred_.unstamped().add(free)) return deferred_.push(extent);
  device.services.has_lanes.store(true, std::memory_order_relaxed);
}

/// Records an event behind what the stream holds now. `gone`: its context has ended, and all its work with it. Of default streams only the calling one
/// (`is_calling`) gets an event: no other thread can name a thread's own, and work of ours on the legacy stream, when the program gives it none, would
/// make blocking streams wait for each other.
FenceAnswer StreamFrees::record_late(DeviceState& device, const UnstampedFrees::Free& freed, bool is_calling, Fence& fence, bool* gone) {
  ContextRegistry& contexts = device.services.contexts;
  const Pin pin = contexts.pin(freed.of_stream, freed.life);
  *gone = pin == Pin::gone;
  if (pin != Pin::held) return FenceAnswer::impossible;
  const Unpinner unpinner(contexts, freed.of_stream);
  if (!is_handle(freed.stream.identity) && !is_calling) return FenceAnswer::impossible;
  const CUcontext context = freed.of_stream->registered.context;  // pinned: it does not change
  const ScopedContext current(device.driver, context);
  // It may be in a capture that nobody will end: the thread that began it is gone.
  if (!current.status().ok() || !is_known_not_to_capture(device.driver, freed.stream.handle)) return FenceAnswer::impossible;
  return fence.record_on(device, *freed.of_stream, context, freed.stream.handle).answer;
}

void StreamFrees::stamp_late(DeviceState& device, CUcontext context, StreamName calling) {
  UnstampedFrees& unstamped = deferred_.unstamped();
  if (unstamped.empty()) [[likely]]
    return;
  const ContextPool* const home = calling.identity != 0 ? device.services.contexts.find(context) : nullptr;
  const std::uint64_t round = unstamped.begin_round();
  while (!device.services.gate.capturing() && device.services.may_call_driver() && !device.disabled) {
    const std::optional<UnstampedFrees::Free> freed = unstamped.take(round);
    if (!freed) return;
    Fence fence;
    const bool is_calling = home != nullptr && freed->of_stream == home && freed->stream.identity == calling.identity;
    bool gone = false;
    FenceAnswer answer{};
    {
      const MutexUnlock unlocked(device.lock);
      answer = record_late(device, *freed, is_calling, fence, &gone);
    }
    if (gone) deferral_.retire(device, deferred_.finish_taken(freed->taken));
    else if (answer != FenceAnswer::done) unstamped.put_back(freed->taken);
    else close_late(device, *freed, std::move(fence));
  }
}

bool StreamFrees::may_stamp_late(const DeviceState& device) const {
  return deferred_.unstamped().may_be_stamped() && !device.services.gate.capturing() && device.services.may_call_driver() && !device.disabled;
}

/// What the stream has freed becomes an epoch behind its event. That covers later work, too: it is only polled.
void StreamFrees::close_late(DeviceState& device, const UnstampedFrees::Free& freed, Fence fence) {
  Epoch* const epoch = deferred_.close_taken(freed.taken);
  if (epoch == nullptr) {  // host memory is out, or the blocks have gone with their context
    fence.clear(device.services.contexts);
    return;
  }
  epoch->fence = std::move(fence);
  epoch->recorded = true;
  epoch->is_late = true;
  epoch->busy = false;
  if (freed.is_own) epoch->set_lane(*freed.home, freed.stream.identity);
}

bool StreamFrees::retire_late(DeviceState& device, CUcontext asking, Error* error) {
  for (Epoch* epoch = deferred_.oldest(); epoch != nullptr && device.services.may_call_driver(); epoch = epoch->next) {
    if (!epoch->is_late || epoch->busy) continue;
    epoch->busy = true;
    FenceResult result;
    {
      const MutexUnlock unlocked(device.lock);
      result = epoch->fence.poll(device, asking);
    }
    epoch->busy = false;
    if (result.error.code != CUDA_SUCCESS) *error = result.error;
    if (!result.is_done()) continue;
    epoch->fence.clear(device.services.contexts);
    deferral_.retire(device, deferred_.finish(epoch));
    return true;
  }
  return false;
}

bool StreamFrees::take_own_unstamped(DeviceState& device, ContextPool& home, StreamName stream) {
  const auto is_own = [&](const UnstampedFrees::Free& free) {
    return free.taken == 0 && free.is_own && free.home == &home && free.stream.identity == stream.identity;
  };
  UnstampedFrees& unstamped = deferred_.unstamped();
  if (std::none_of(unstamped.all().begin(), unstamped.all().end(), is_own)) return false;
  const std::uint32_t lane = lanes::lane_for(device, home, stream, deferred_.batch());
  if (lane == 0) return false;
  Batch own;
  unstamped.remove_if(is_own, [&own](Extent* extent) { own.push(extent); });
  for (Extent* extent = own.first; extent != nullptr;) {
    Extent* const next = extent->bin_next;
    lanes::complete(device, home, extent, lane, stream.identity);
    extent = next;
  }
  return true;
}

void StreamFrees::retire_waited(DeviceState& device, const ContextPool& home, std::uint64_t identity, std::uint64_t fills) {
  Batch over;
  deferred_.unstamped().remove_if(
      [&](const UnstampedFrees::Free& free) {
        return free.taken == 0 && free.of_stream == &home && free.fill <= fills && (identity == 0 || free.stream.identity == identity);
      },
      [&over](Extent* extent) { over.push(extent); });
  deferral_.retire(device, over);
}

}  // namespace cupool::device
