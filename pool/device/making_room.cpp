// What is given back so that the program, its calls or a limit have room: waits for deferred frees included. What goes back, and how: giving_back.hpp.
#include <algorithm>
#include <new>
#include <limits>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/patience.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kAllOfIt = std::numeric_limits<std::uint64_t>::max();

/// Threads keep nothing for themselves.
struct Short {
  Shortage& shortage;
  explicit Short(Shortage& of) : shortage(of) { shortage.begin(); }
  ~Short() { shortage.end(); }
};
}  // namespace

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
  const std::uint64_t coming_bytes = device_.not_live_bytes() + device_.leaving_bytes + giving_back_.late_bytes() + std::min(outside_bytes, device_.limit.headroom_bytes());
  const auto is_enough = [&]() CUPOOL_REQUIRES(device_.lock) { return bytes <= coming_bytes || bytes - coming_bytes <= device_.room_bytes(); };
  return is_enough() || !driver_free_.sample(device_) || is_enough();
}

/// May the caller give up? Asks the driver, once it is late, whether what natively had been waited for is over: what this thread itself freed had been without
/// end. Whatever else was freed before the call is waited for once.
bool DevicePool::is_over(const Patience& patience) {
  if (!patience.is_late()) return false;
  bool is_hopeful = giving_back_.late_bytes() != 0 && !patience.is_over(false);
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
    stream_frees_.drain_lanes(device_);
    static_cast<void>(deferral_.close_epoch(device_, nullptr, Deferral::Closing::late));
    stream_frees_.retire_all(device_, nullptr, may_wait);
    if (policy_ == config::Policy::async) giving_back_.release(device_, nullptr, kAllOfIt);
    if (const std::uint64_t idle_bytes = idle_pools_.trim_ours(device_, keep_bytes, wanted_bytes); idle_bytes != 0) return idle_bytes;
    // What the driver's own pool still has after a trim lies between live blocks: time will not free it.
    const bool has_idle = !unpooled_ && figures_.sum(device_).wholly_free_bytes != 0;
    if (has_idle && giving_back_.may_release(device_)) {
      const std::uint64_t reserved_bytes = device_.pooled_bytes();
      if (reserved_bytes <= keep_bytes) return 0;
      const bool is_all = wanted_bytes >= reserved_bytes - keep_bytes;
      const std::uint64_t released_bytes = giving_back_.release(device_, nullptr, is_all ? reserved_bytes - keep_bytes : wanted_bytes, is_all);
      if (released_bytes != 0) return released_bytes;
    }
    if (const std::uint64_t mempool_bytes = may_wait ? idle_pools_.trim_others(device_, wanted_bytes) : 0; mempool_bytes != 0) return mempool_bytes;  // somebody is about to be refused
    if (may_wait && giving_back_.late_bytes() != 0 && giving_back_.await_late(device_)) return 1;
    if (may_wait && device_.services.given_back.load(std::memory_order_relaxed) != before) return 1;
    if (Error ignored{}; may_wait && deferral_.retire_on_native_terms(device_, nullptr, began_ns, &ignored)) continue;
    // What a thread is preallocating is on no list yet.
    const bool hopeful = has_idle || deferred_.oldest() != nullptr || stream_frees_.has_stamped() || deferral_.may_record(device_) || preallocation_.is_under_way() || (may_wait && (moves_.are_any() || giving_back_.late_bytes() != 0));
    if (!hopeful || is_over(patience)) return 0;
    const MutexUnlock unlocked(device_.lock);
    patience.pause();
  }
  return 0;
}

/// Also after the program has synchronised the device needs a moment to get to the event that says so.
std::size_t DevicePool::trim(std::uint64_t keep_bytes) { return give_back_idle(device_.services.clock.now_ns() + GivingBack::kQuietBound_ns, keep_bytes, false); }

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

}  // namespace cupool::device
