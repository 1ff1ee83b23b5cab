// What goes back to the driver: wholly free memory, on a shortage, above a threshold or when it is asked for.
//
// While a thread is in the driver with memory that it gives back, that memory is on no list: who finds none meanwhile waits for the
// thread and looks again (moves.hpp).
#include <algorithm>
#include <new>
#include <limits>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/freeing_in_order.hpp"
#include "pool/device/patience.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kQuietBound_ns = 500'000;  ///< an event takes 0.6 us to record and to ask for on an idle H100
constexpr std::uint64_t kAllOfIt = std::numeric_limits<std::uint64_t>::max();

/// Threads keep nothing for themselves.
struct Short {
  Shortage& shortage;
  explicit Short(Shortage& of) : shortage(of) { shortage.begin(); }
  ~Short() { shortage.end(); }
};
}  // namespace

/// Would giving back everything that is wholly free make room for `bytes`? Asks the driver what it has.
bool DevicePool::release_would_do(std::uint64_t bytes) {
  std::uint64_t free_bytes = 0;
  for (const auto& home : homes_) {
    if (!home->is_in_use() || !may_give_back(*home)) continue;
    if (home->pooled != nullptr && !home->pooled->is_stalled(device_)) free_bytes += home->pooled->figures(device_).wholly_free_bytes;
    free_bytes += home->natives.waiting_bytes();  // freed during a capture
  }
  if (free_bytes == 0) return false;
  const std::uint64_t headroom_bytes = device_.limit.headroom_bytes();
  if (headroom_bytes < bytes && bytes - headroom_bytes > free_bytes) return false;
  const std::optional<std::uint64_t> driver_free_bytes = driver_free_.sample(device_);
  return !driver_free_bytes || *driver_free_bytes >= bytes || bytes - *driver_free_bytes <= free_bytes;
}

/// What must come back from memory pools that the driver serves so that limit and driver have `bytes` with what the pool can give; 0: nothing is missing, or more than they have idle.
std::uint64_t DevicePool::wanted_of_mempools(std::uint64_t bytes) {
  const std::uint64_t idle_bytes = idle_pools_.ask_others(device_).bytes;
  if (idle_bytes == 0) return 0;
  const std::uint64_t ours_bytes = figures_.sum(device_).wholly_free_bytes;
  const auto missing_of = [&](std::uint64_t room_bytes) {
    const std::uint64_t all_bytes = room_bytes > std::numeric_limits<std::uint64_t>::max() - ours_bytes ? room_bytes : room_bytes + ours_bytes;
    return bytes - std::min(all_bytes, bytes);
  };
  const std::uint64_t driver_free_bytes = driver_free_.sample(device_).value_or(device_.total_bytes);
  const std::uint64_t wanted_bytes = std::max(missing_of(device_.limit.headroom_bytes()), missing_of(driver_free_bytes));
  return wanted_bytes <= idle_bytes ? wanted_bytes : 0;
}

/// Could `bytes` be had if all came back that does not live? Precondition: the magazines are closed, so that it is known what does. Asks the driver what it has before it says no.
bool DevicePool::could_come(std::uint64_t bytes) {
  if (moves_.are_any()) return true;
  const observe::LiveOutside& outside = device_.live.outside;
  const std::uint64_t outside_bytes = outside.managed.load(std::memory_order_relaxed) + outside.graphs.load(std::memory_order_relaxed);
  // Managed memory makes way for what cannot.
  const std::uint64_t coming_bytes = device_.not_live_bytes() + device_.leaving_bytes + late_bytes() + std::min(outside_bytes, device_.limit.headroom_bytes());
  const auto is_enough = [&]() CUPOOL_REQUIRES(device_.lock) { return bytes <= coming_bytes || bytes - coming_bytes <= device_.room_bytes(); };
  return is_enough() || !driver_free_.sample(device_) || is_enough();
}

/// May the caller give up? Asks the driver, once it is late, whether what natively had been waited for is over: what this thread itself freed had been without
/// end. Whatever else was freed before the call is waited for once.
bool DevicePool::is_over(const Patience& patience) {
  if (!patience.is_late()) return false;
  bool is_hopeful = late_bytes() != 0 && !patience.is_over(false);
  for (Epoch* epoch = deferred_.oldest(); epoch != nullptr && epoch->number <= patience.newest() && may_call_driver(); epoch = epoch->next) {
    if (!epoch->busy && epoch->is_overdue()) {
      epoch->busy = true;
      {
        const MutexUnlock unlocked(device_.lock);
        epoch->fence.poll_where_asked(device_);
      }
      epoch->busy = false;
    }
    if (epoch->is_overdue() && pthread_equal(epoch->freed_by, pthread_self()) != 0) return false;
    is_hopeful = is_hopeful || (!deferred_.is_given_up(*epoch) && !patience.is_over(epoch->is_overdue()));
  }
  if (is_hopeful) return false;
  if (patience.is_spent()) deferred_.give_up(patience.newest());
  return true;
}

/// Of regions that went back in order of a private stream, what the device may not have got to.
std::uint64_t DevicePool::late_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& home : homes_) bytes += home->went_bytes - home->came_bytes;
  return bytes;
}

/// Waits for that, 2 ms at most for each context. True when any of it is the device's now.
bool DevicePool::await_late() {
  bool is_more = false;
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const CUcontext context = home.context;
    const CUstream stream = home.release_stream.load(std::memory_order_acquire);
    const std::uint64_t went_bytes = home.went_bytes;
    if (went_bytes == home.came_bytes || context == nullptr || stream == nullptr || !may_call_driver()) continue;
    if (device_.services.contexts.pin(&home, context) != Pin::held) continue;
    const Unpinner unpinner(device_.services.contexts, &home);
    bool is_back = false;
    {
      const MutexUnlock unlocked(device_.lock);
      const RelaxedCaptureMode relaxed(device_.driver);
      const ScopedContext current(device_.driver, context);
      is_back = current.status().ok() && in_order::await(device_, home, stream);
    }
    if (!is_back || home.context != context) continue;
    home.came_bytes = std::max(home.came_bytes, went_bytes);  // another thread may have waited for more
    is_more = true;
  }
  if (is_more) static_cast<void>(driver_free_.sample(device_));
  return is_more;
}

bool DevicePool::may_release() { return all_release_in_order() || quiet(); }

/// Nothing that the device's heaps give back waits for work that runs.
bool DevicePool::all_release_in_order() const {
  return !unpooled_ && std::all_of(homes_.begin(), homes_.end(), [this](const auto& home) { return home->context == nullptr || home->pooled == nullptr || home->pooled->releases_in_order(device_); });
}

/// True when nothing is running that could make the driver's free of a region block: an allocation does not wait natively,
/// and what runs may itself wait for the thread that allocates.
bool DevicePool::quiet() {
  if (!device_.driver.has_cuCtxRecordEvent() || device_.services.cannot_record.load(std::memory_order_relaxed)) return true;
  const MutexUnlock unlocked(device_.lock);
  Fence fence;
  FenceResult result = fence.record(device_, nullptr);
  // Also on an idle device an event is over only when the device has got to it.
  if (result.answer == FenceAnswer::done) result = fence.poll_for(device_, kQuietBound_ns);
  fence.clear(device_.services.contexts);
  return result.answer == FenceAnswer::done;
}

/// What nobody uses goes back to the driver. `until_ns`: so long it polls for deferred frees; `may_wait`: natively they had waited, so longer (Patience).
/// Nothing goes while that could block: whoever asks natively would not have waited. While something captures, nobody waits for its end.
/// Returns bytes; where it may wait, what another thread gave back meanwhile counts as one, and so does what was given back before and is there only now.
std::size_t DevicePool::give_back_idle(std::uint64_t until_ns, std::uint64_t keep_bytes, bool may_wait, std::uint64_t wanted_bytes) {
  const MutexLock lock(device_.lock);
  const std::uint64_t began_ns = device_.services.clock.now_ns();
  Patience patience(device_.services.clock, until_ns, may_wait ? deferred_.last_number() : 0, 0);
  const std::uint64_t before = device_.services.given_back.load(std::memory_order_relaxed);
  const Short is_short(shortage_);  // else what is retired here would go into the depots
  while (may_call_driver()) {
    magazines_.close_all(device_);  // what they keep for streams comes into the lanes
    drain_lanes();
    static_cast<void>(close_epoch(nullptr, Closing::late));
    retire_all(nullptr, may_wait);
    if (policy_ == config::Policy::async) release_free(nullptr, kAllOfIt);
    if (const std::uint64_t idle_bytes = idle_pools_.trim_ours(device_, keep_bytes, wanted_bytes); idle_bytes != 0) return idle_bytes;
    // What the driver's own pool still has after a trim lies between live blocks: time will not free it.
    const bool has_idle = !unpooled_ && figures_.sum(device_).wholly_free_bytes != 0;
    if (has_idle && may_release()) {
      const std::uint64_t reserved_bytes = device_.pooled_bytes();
      if (reserved_bytes <= keep_bytes) return 0;
      const bool is_all = wanted_bytes >= reserved_bytes - keep_bytes;
      const std::uint64_t released_bytes = release_free(nullptr, is_all ? reserved_bytes - keep_bytes : wanted_bytes, is_all);
      if (released_bytes != 0) return released_bytes;
    }
    if (const std::uint64_t mempool_bytes = may_wait ? idle_pools_.trim_others(device_, wanted_bytes) : 0; mempool_bytes != 0) return mempool_bytes;  // somebody is about to be refused
    if (may_wait && late_bytes() != 0 && await_late()) return 1;
    if (may_wait && device_.services.given_back.load(std::memory_order_relaxed) != before) return 1;
    if (Error ignored{}; may_wait && retire_on_native_terms(nullptr, began_ns, &ignored)) continue;
    // What a thread is preallocating is on no list yet.
    const bool hopeful = has_idle || deferred_.oldest() != nullptr || has_stamped() || may_record() || preallocating_ || (may_wait && (moves_.are_any() || late_bytes() != 0));
    if (!hopeful || is_over(patience)) return 0;
    const MutexUnlock unlocked(device_.lock);
    patience.pause();
  }
  return 0;
}

/// Also after the program has synchronised the device needs a moment to get to the event that says so.
std::size_t DevicePool::trim(std::uint64_t keep_bytes) { return give_back_idle(device_.services.clock.now_ns() + kQuietBound_ns, keep_bytes, false); }

std::size_t DevicePool::make_room(std::uint64_t until_ns) { return give_back_idle(until_ns, 0, true); }

std::size_t DevicePool::make_room_for(std::uint64_t until_ns, std::uint64_t bytes) {
  std::optional<std::uint64_t> driver_free_bytes;
  {
    const MutexLock lock(device_.lock);
    if (!used() || !may_call_driver()) return 0;
    driver_free_bytes = driver_free_.sample(device_);
  }
  if (!driver_free_bytes) return 0;
  // The driver rounds what it takes, and refuses the last bit of what it calls free.
  return give_back_idle(until_ns, 0, true, align_up(bytes, kRegionGranularity_bytes) - std::min(*driver_free_bytes, bytes) + kRegionGranularity_bytes);
}

void DevicePool::note_graph_memory() {
  const MutexLock lock(device_.lock);
  graph_memory_.renew(device_);
}

std::size_t DevicePool::give_back_graph_memory() {
  const MutexLock lock(device_.lock);
  return graph_memory_.trim(device_);
}

/// Wholly free memory back to the driver, `first`'s before that of the device's other contexts. Returns bytes given back, which are
/// at least (`at_most`: at most) what is wanted when there is so much.
std::uint64_t DevicePool::release_free(ContextPool* first, std::uint64_t wanted_bytes, bool at_most) {
  std::uint64_t released_bytes = orphans_.empty(device_, true);
  const auto from = [&](ContextPool& home) CUPOOL_REQUIRES(device_.lock) {
    const CUcontext context = home.context;
    if (context == nullptr || released_bytes >= wanted_bytes || !may_give_back(home)) return;
    if (device_.services.contexts.pin(&home, context) != Pin::held) return;
    const Unpinner unpinner(device_.services.contexts, &home);
    Mover mover(moves_);
    const std::uint64_t before_bytes = released_bytes;
    // By cuMemFree, which waits for all work; where regions go back without that, nobody has seen to it that there is none.
    const bool is_seen_to = unpooled_ || !(capturing() || all_release_in_order());
    if (home.natives.has_waiting() && (is_seen_to || quiet())) released_bytes += home.natives.release(device_, home, wanted_bytes - released_bytes, at_most);
    if (home.pooled != nullptr && released_bytes < wanted_bytes)
      released_bytes += home.pooled->release(device_, home, wanted_bytes - released_bytes, at_most);
    mover.note_given_back(device_, released_bytes - before_bytes);
  };
  if (first != nullptr) from(*first);
  for (std::size_t i = 0; i < homes_.size(); ++i) from(*homes_[i]);  // by index: the list may grow while the lock is let go of
  if (released_bytes != 0) figures_.publish(device_);
  return released_bytes;
}

/// After a free: what CUPOOL_RELEASE_THRESHOLD says is too much, and native blocks whose free waited for a capture.
/// A native free would have synchronised here, so the driver's free of a region may; one in stream order (`may_block` false) never does.
void DevicePool::give_back_surplus(bool may_block) {
  if (capturing() || !may_call_driver()) return;
  const std::optional<std::uint64_t>& threshold_bytes = device_.services.options.release_threshold_bytes;
  bool natives_wait = false;
  std::uint64_t empty_bytes = 0;
  for (const auto& home : homes_) {
    if (home->context == nullptr) continue;
    natives_wait = natives_wait || home->natives.has_waiting();
    if (threshold_bytes && home->pooled != nullptr) empty_bytes += home->pooled->figures(device_).wholly_free_bytes;
  }
  const std::uint64_t surplus_bytes = threshold_bytes && empty_bytes > *threshold_bytes ? empty_bytes - *threshold_bytes : 0;
  if (surplus_bytes == 0 && !natives_wait) return;
  if (!may_block && (device_.services.cannot_record.load(std::memory_order_relaxed) || !quiet())) return;
  try {
    release_free(nullptr, surplus_bytes != 0 ? surplus_bytes : 1);
  } catch (const std::bad_alloc&) {  // with a later free, then: this one is done
  }
}

}  // namespace cupool::device
