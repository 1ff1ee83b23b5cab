// Giving memory back so that the program, its calls or a limit have room: see making_room.hpp.
#include "pool/device/making_room.hpp"

#include <pthread.h>

#include "pool/core/bytes.hpp"

namespace cupool::device {

namespace {
/// While one exists, threads keep nothing for themselves.
struct NothingKept {
  Shortage& shortage;
  explicit NothingKept(Shortage& of) : shortage(of) { shortage.begin(); }
  ~NothingKept() { shortage.end(); }
};
}  // namespace

bool MakingRoom::is_over(DeviceState& device, Patience& patience) {
  if (patience.is_question_due() && device.services.may_call_driver()) {
    const MutexUnlock unlocked(device.lock);
    if (is_broken(device.driver)) return true;
  }
  if (!patience.is_late()) return false;
  bool is_hopeful = giving_back_.late_bytes() != 0 && !patience.is_over(false);
  for (Epoch* epoch = deferred_.oldest(); epoch != nullptr && epoch->number <= patience.newest() && device.services.may_call_driver();
       epoch = epoch->next) {
    if (!epoch->busy && epoch->is_overdue()) {
      epoch->busy = true;
      {
        const MutexUnlock unlocked(device.lock);
        epoch->fence.poll_where_asked(device);
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

std::size_t MakingRoom::give_back_idle(DeviceState& device, std::uint64_t until_ns, std::uint64_t keep_bytes, bool may_wait,
                                       std::uint64_t wanted_bytes) {
  const MutexLock lock(device.lock);
  const std::uint64_t began_ns = device.services.clock.now_ns();
  Patience patience(device.services.clock, until_ns, may_wait ? deferred_.last_number() : 0, 0);
  const std::uint64_t before = device.services.given_back.load(std::memory_order_relaxed);
  const NothingKept nothing_kept(shortage_);  // otherwise what is retired here would go into the depots
  while (device.services.may_call_driver()) {
    magazines_.close_all(device);  // what they keep for streams goes into the lanes
    stream_frees_.drain_lanes(device);
    stream_frees_.stamp_late(device);
    static_cast<void>(deferral_.close_epoch(device, nullptr, Deferral::Closing::late));
    stream_frees_.retire_all(device, nullptr, may_wait);
    if (policy_ == config::Policy::async) giving_back_.release(device, nullptr, kEverything_bytes);
    if (const std::uint64_t idle_bytes = idle_pools_.trim_ours(device, keep_bytes, wanted_bytes); idle_bytes != 0) return idle_bytes;
    // What the driver's own pool still has after a trim lies between live blocks: waiting will not free it.
    const bool has_idle = !unpooled_ && figures_.sum(device).wholly_free_bytes != 0;
    if (has_idle && giving_back_.may_release(device)) {
      const std::uint64_t reserved_bytes = device.pooled_bytes();
      if (reserved_bytes <= keep_bytes) return 0;
      const bool is_all = wanted_bytes >= reserved_bytes - keep_bytes;
      const std::uint64_t released_bytes = giving_back_.release(device, nullptr, is_all ? reserved_bytes - keep_bytes : wanted_bytes, is_all);
      if (released_bytes != 0) return released_bytes;
    }
    // Somebody is about to be refused: the program's pools are trimmed too.
    if (const std::uint64_t mempool_bytes = may_wait ? idle_pools_.trim_others(device, wanted_bytes) : 0; mempool_bytes != 0) return mempool_bytes;
    if (may_wait && giving_back_.late_bytes() != 0 && giving_back_.await_late(device)) return 1;
    if (may_wait && device.services.given_back.load(std::memory_order_relaxed) != before) return 1;
    if (Error ignored{}; may_wait && deferral_.retire_on_native_terms(device, nullptr, began_ns, &ignored)) continue;
    // Includes a thread that is preallocating: its memory is on no list yet.
    const bool hopeful = has_idle || deferred_.oldest() != nullptr || stream_frees_.has_stamped() || stream_frees_.may_stamp_late(device) ||
                         deferral_.may_record(device) || preallocation_.is_under_way() ||
                         (may_wait && (moves_.are_any() || giving_back_.late_bytes() != 0));
    if (!hopeful || is_over(device, patience)) return 0;
    const MutexUnlock unlocked(device.lock);
    patience.pause();
  }
  return 0;
}

bool MakingRoom::within_limit(DeviceState& device, std::uint64_t bytes, const std::function<bool()>& take) {
  if (take() || make_way(device, bytes)) return true;
  // Natively these frees would have waited; and under `async` it is the driver's pool that keeps idle memory.
  const std::uint64_t until_ns = device.services.clock.now_ns() + Patience::kPollBound_ns;
  constexpr int kMostTries = 100;  // bounded, since other threads may go on freeing what others take
  bool is_more = bytes <= device.limit.limit_bytes();
  for (int tries = 0; is_more && tries < kMostTries; ++tries) {
    // No more than what is missing is taken from the driver's pool: what stays there serves the next calls.
    const std::uint64_t missing_bytes = saturating_sub(bytes, device.limit.headroom_bytes());
    is_more = give_back_idle(device, until_ns, 0, true, policy_ == config::Policy::async ? missing_bytes : kEverything_bytes) != 0;
    if (take()) return true;
  }
  return false;
}

/// Makes room within the limit for memory outside the pool, and charges it; false: there is none.
bool MakingRoom::make_way(DeviceState& device, std::uint64_t bytes) {
  const MutexLock lock(device.lock);
  // What was freed and is no longer in use is empty pool memory too.
  magazines_.close_all(device);
  stream_frees_.drain_lanes(device);
  stream_frees_.stamp_late(device);
  static_cast<void>(deferral_.close_epoch(device, nullptr, Deferral::Closing::late));
  stream_frees_.retire_all(device, nullptr, false);
  // Empty pool memory counts as held: it goes before the program is refused, unless that could block. The driver may refuse to take it once, or may
  // always refuse the way that is tried first.
  constexpr int kAttempts = 6;
  for (int attempt = 0;
       attempt < kAttempts && device.services.may_call_driver() && giving_back_.release_would_do(device, bytes) && giving_back_.may_release(device);
       ++attempt) {
    const std::uint64_t headroom_bytes = device.limit.headroom_bytes();
    giving_back_.release(device, nullptr, bytes > headroom_bytes ? bytes - headroom_bytes : 1);
    if (device.limit.charge(bytes)) return true;
  }
  return false;
}

}  // namespace cupool::device
