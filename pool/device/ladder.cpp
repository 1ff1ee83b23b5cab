// The ladder: what an allocation tries, in this order, before the program is told that memory is out.
//
//   own        the driver's own call, for a program that has shared memory with other processes after all: blocks on pages cannot be shared
//   better     when next to nothing is left: waits for a block that this thread freed, if it fits better than the hole that is free now. On pages,
//              once most of the device has been needed, also if the freed block lies beside blocks that stay while the hole is in empty pages, which
//              a small block would keep from others
//   hole       memory that is free now
//   crack      where the rest of a handle (backing pages) would be stranded if the block went into the hole: moves that memory to other addresses, in
//              smaller handles; failing that, any hole will do
//   retire     deferred frees whose work is over (a query, no wait), and what streams have kept for long, or too much of
//   magazines  blocks that threads keep for themselves become free for everybody, and the open batch too if nothing runs any more. How much that
//              brings depends on the moment, and a job that repeats itself must not need more memory in its hundredth step. Where memory is plenty
//              and what would serve is on its way back, the open batch comes first and the magazines stay open: what a thread freed is its own again
//   wait       on pages, once half of the device is taken: waits for what this thread freed, if it would serve; natively these frees would have
//              waited. What the heap grows by now stays, and scattered pages take more calls to move than one wait. Not while free and deferred
//              memory is a trifle beside what is left, nor in a job that makes steps or repeats itself while enough is left: it would wait in each
//              step
//   elsewhere  a hole among blocks of other sizes (backing pages), for a job that has come down from its peak and begins again, before it gets more
//              memory; where memory is plenty before any magazine is closed
//   lanes      what other streams keep, where their work is over at this moment (idle_lanes.cpp)
//   grow       more memory from the driver; backs off to the exact need. Where that fails no magazine stays open
//   steal      for a stream: what other streams freed, behind the events of those frees, on the device
//   lanes      what streams keep for themselves becomes free for everybody when its work is over
//   remap      empty pages move to addresses where the block fits (backing pages)
//   aside      the driver's own call, when the thread that brings pages is stalled in the driver: there is more, but not in time
//   release    whole free regions of this device go back to the driver, then grow: only where that is enough and nothing would block
//   mempools   idle memory of the memory pools that the driver serves goes back to the device, where that is enough; then grow, remap, release
//   instead    the driver's own call, where it has much memory but gives the pool none (the kernel may be out of mappings)
//   poll       every deferred free, unless all free and deferred memory together would be too little. Events recorded inside this thread's own frees
//              are waited for (natively the free did that). Later events are polled, for a second at most in all, or a minute while there are events
//              of other threads' frees that came before the request. After 200 ms: what would be free natively by now, whatever other contexts are
//              doing (native_terms.cpp); then release again. Memory that another thread has taken to the driver is waited for likewise. Without
//              events that cover a context, what was freed during a capture waits for the next free, which synchronises: here that could wait for the
//              caller itself
//   graphs     what the driver keeps for CUDA graphs that do not run goes back to the device, where that is enough; then grow, remap, release
//   native     the driver's own call for exactly these bytes; for a call in stream order where cuCtxDestroy may end the context, the shim makes it
//              (kDriversOwn)
//
// Each rung has a counter (`crack` counts as `remap`; `better` and `wait` as `poll`; `own`, `aside` and `instead` as native; `elsewhere` as `hole`).
// No rung calls the driver under the lock, and only `better`, `wait` and `poll` wait for the GPU.
#include <algorithm>
#include <optional>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/ladder.hpp"
#include "pool/device/patience.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

const Ladder::Rung Ladder::kRungs[23] = {
    {"own", &observe::Counters::native_fallbacks, &Ladder::own},
    {"better", &observe::Counters::rung_poll, &Ladder::better},
    {"hole", &observe::Counters::rung_hole, &Ladder::hole},
    {"crack", &observe::Counters::rung_remap, &Ladder::crack},
    {"hole", &observe::Counters::rung_hole, &Ladder::any_hole},
    {"retire", &observe::Counters::rung_retire, &Ladder::retire},
    {"hole", &observe::Counters::rung_hole, &Ladder::elsewhere_at_leisure},
    {"magazines", &observe::Counters::rung_magazines, &Ladder::magazines},
    {"wait", &observe::Counters::rung_poll, &Ladder::wait},
    {"hole", &observe::Counters::rung_hole, &Ladder::elsewhere},
    {"lanes", &observe::Counters::rung_lanes, &Ladder::idle_lanes},
    {"grow", &observe::Counters::rung_grow, &Ladder::grow},
    {"magazines", &observe::Counters::rung_magazines, &Ladder::all_magazines},
    {"steal", &observe::Counters::rung_steal, &Ladder::steal},
    {"lanes", &observe::Counters::rung_lanes, &Ladder::lanes},
    {"remap", &observe::Counters::rung_remap, &Ladder::remap},
    {"aside", &observe::Counters::native_fallbacks, &Ladder::aside},
    {"release", &observe::Counters::rung_release, &Ladder::release},
    {"mempools", &observe::Counters::rung_mempools, &Ladder::mempools},
    {"instead", &observe::Counters::native_fallbacks, &Ladder::instead},
    {"poll", &observe::Counters::rung_poll, &Ladder::poll},
    {"graphs", &observe::Counters::rung_graphs, &Ladder::graphs},
    {"native", &observe::Counters::native_fallbacks, &Ladder::native},
};

Climbed Ladder::own(DevicePool& pool, Attempt& attempt) {
  return pool.wants_own(*attempt.home, attempt.request) ? native(pool, attempt) : Climbed(nullptr);
}

Climbed Ladder::better(DevicePool& pool, Attempt& attempt) {
  if (attempt.home->pooled == nullptr || pool.device_.disabled || !pool.deferral_.is_better_on_its_way(pool.device_, *attempt.home, attempt.request))
    return nullptr;
  Error error{};
  const bool is_more = pool.deferral_.await_frees(pool.device_, attempt.context, {.least_bytes = attempt.request.bytes}, &error);
  if (error.code != CUDA_SUCCESS) return error;
  return is_more ? hole(pool, attempt) : Climbed(nullptr);
}

Climbed Ladder::hole(DevicePool& pool, Attempt& attempt) {
  if (attempt.home->pooled == nullptr || pool.device_.disabled) return nullptr;
  DeviceAllocator& pooled = *attempt.home->pooled;
  Extent* found = nullptr;
  // Looked up again at every rung: while the lock was let go of, the stream's lane may have become another stream's.
  if (const std::uint64_t identity = attempt.request.stream.identity; identity != 0) attempt.request.lane = attempt.home->streams.find(identity);
  else found = pool.magazines_.take_from_own(pool.device_, *attempt.home, attempt.request.bytes);
  if (found == nullptr) found = pooled.allocate(pool.device_, attempt.request);
  if (found == nullptr && attempt.request.lane != 0 && pooled.gather(attempt.request.lane, attempt.request.bytes))
    found = pooled.allocate(pool.device_, attempt.request);
  return found;
}

Climbed Ladder::crack(DevicePool& pool, Attempt& attempt) {
  const DeviceAllocator* allocator = attempt.home->pooled.get();
  const bool is_refused =
      allocator != nullptr && allocator->can_move() && !pool.device_.disabled && allocator->fit_bytes(pool.device_, attempt.request.bytes) != 0;
  attempt.request.may_strand = true;
  attempt.has_hole = is_refused;
  if (!is_refused || pool.capturing() || attempt.request.stream.identity != 0) return nullptr;
  Mover mover(pool.moves_);
  const Result<Growth> grown = attempt.home->pooled->crack(pool.device_, *attempt.home, attempt.request);
  mover.has_more = grown.ok();
  if (!grown.ok() && grown.code() != CUDA_ERROR_OUT_OF_MEMORY) return grown.error();
  return grown.value().extent;
}

/// The hole that `hole` has refused.
Climbed Ladder::any_hole(DevicePool& pool, Attempt& attempt) { return attempt.has_hole ? hole(pool, attempt) : Climbed(nullptr); }

Climbed Ladder::retire(DevicePool& pool, Attempt& attempt) {
  Error error{};
  const std::uint64_t identity = attempt.request.stream.identity;
  if (identity != 0 && !pool.unpooled_ && !pool.device_.disabled &&
      pool.stream_frees_.take_own(pool.device_, *attempt.home, attempt.request.stream, attempt.request.bytes)) {
    Climbed found = hole(pool, attempt);
    if (found.value() != nullptr) return found;
  }
  pool.stream_frees_.drain_stale_lanes(pool.device_, *attempt.home);
  while (pool.deferral_.retire_oldest(pool.device_, attempt.context, false, &error) ||
         pool.stream_frees_.retire_stamped(pool.device_, *attempt.home, attempt.context, identity, &error) ||
         pool.stream_frees_.retire_late(pool.device_, attempt.context, &error)) {
    Climbed found = hole(pool, attempt);
    if (found.value() != nullptr) return found;
  }
  if (error.code != CUDA_SUCCESS) return error;
  return nullptr;
}

/// As retire(), but what the stream itself freed becomes free for everybody too: in its lane it would keep empty regions from going back.
Climbed Ladder::retire_for_all(DevicePool& pool, Attempt& attempt) {
  Error error{};
  while (pool.deferral_.retire_oldest(pool.device_, attempt.context, false, &error) ||
         pool.stream_frees_.retire_any_stamped(pool.device_, attempt.context, &error)) {
    Climbed found = hole(pool, attempt);
    if (found.value() != nullptr) return found;
  }
  if (error.code != CUDA_SUCCESS) return error;
  return nullptr;
}

/// Is what was freed since the last epoch over already? Asked where only the moment is bad.
Climbed Ladder::ask(DevicePool& pool, Attempt& attempt) {
  if (!pool.backlog_.is_bad_moment(pool.device_, pool.deferred_.batch_bytes())) return nullptr;
  Error error{};
  const bool is_over = pool.deferral_.retire_batch_if_idle(pool.device_, attempt.context, &error);
  while (is_over && pool.deferral_.retire_oldest(pool.device_, attempt.context, false, &error)) {}
  if (error.code != CUDA_SUCCESS) return error;
  return is_over ? hole(pool, attempt) : Climbed(nullptr);
}

Climbed Ladder::magazines(DevicePool& pool, Attempt& attempt) {
  pool.magazines_.visit_own(pool.device_, *attempt.home, &Magazines::send);
  if (!pool.magazines_.may_stay_open(pool.device_, attempt.request.bytes)) return all_magazines(pool, attempt);
  const Climbed found = ask(pool, attempt);
  // Something was retired, but no block of this size.
  const bool is_more = found.ok() && found.value() == nullptr && !pool.magazines_.may_stay_open(pool.device_, attempt.request.bytes);
  return is_more ? all_magazines(pool, attempt) : found;
}

/// From here on threads keep nothing until the attempt is over.
Climbed Ladder::all_magazines(DevicePool& pool, Attempt& attempt) {
  if (attempt.is_short) return nullptr;
  attempt.is_short = true;
  pool.shortage_.begin();
  const bool is_more = pool.magazines_.kept_bytes() != 0;
  pool.magazines_.close_all(pool.device_);
  if (is_more) {
    Climbed found = hole(pool, attempt);
    if (found.value() != nullptr) return found;
    pool.stream_frees_.drain_stale_lanes(pool.device_, *attempt.home);  // lanes that have been filled only now
  }
  return ask(pool, attempt);
}

/// Not for a request in stream order, which natively never waits.
Climbed Ladder::wait(DevicePool& pool, Attempt& attempt) {
  const DeviceAllocator* allocator = attempt.home->pooled.get();
  if (allocator == nullptr || !allocator->can_move() || attempt.request.stream.identity != 0 || pool.device_.disabled) return nullptr;
  if (pool.backlog_.may_grow_freely(pool.device_)) return nullptr;
  Error error{};
  const bool is_more = pool.deferral_.await_frees(pool.device_, attempt.context, {.least_bytes = attempt.request.bytes}, &error);
  if (error.code != CUDA_SUCCESS) return error;
  return is_more ? hole(pool, attempt) : Climbed(nullptr);
}

Climbed Ladder::elsewhere(DevicePool& pool, Attempt& attempt) {
  if (attempt.home->pooled == nullptr || !attempt.home->pooled->can_move()) return nullptr;
  if (!pool.device_.steps.begins_again(pool.magazines_.live_now(pool.device_).bytes, pool.device_.peak_live_bytes())) return nullptr;
  attempt.request.is_anywhere = true;
  const Climbed found = hole(pool, attempt);
  if (found.value() != nullptr) attempt.home->pooled->open_zones();
  return found;
}

/// Where memory is plenty no thread need lose its blocks for a hole that is there.
Climbed Ladder::elsewhere_at_leisure(DevicePool& pool, Attempt& attempt) {
  return pool.backlog_.may_grow_freely(pool.device_) ? elsewhere(pool, attempt) : Climbed(nullptr);
}

Climbed Ladder::idle_lanes(DevicePool& pool, Attempt& attempt) {
  if (attempt.home->pooled == nullptr || pool.device_.disabled) return nullptr;
  return pool.stream_frees_.open_idle_lanes(pool.device_, *attempt.home, attempt.request) ? hole(pool, attempt) : Climbed(nullptr);
}

Climbed Ladder::grow(DevicePool& pool, Attempt& attempt) {
  ContextPool& home = *attempt.home;
  if (pool.device_.disabled && !pool.unpooled_) return nullptr;
  DeviceAllocator* const allocator = pool.unpooled_ ? &home.natives : home.pooled.get();
  if (pool.policy_ == config::Policy::async) {
    pool.orphans_.free_left(pool.device_, false);
    if (home.natives.has_waiting()) pool.giving_back_.release(pool.device_, &home, kEverything_bytes);
  }
  // As natively, where what was freed is the driver's already.
  const bool is_possible = attempt.request.bytes <= pool.device_.total_bytes;
  const std::uint64_t exchange_bytes = is_possible ? allocator->exchange_bytes(pool.device_, attempt.request.bytes) : 0;
  if (exchange_bytes != 0 && pool.giving_back_.may_release(pool.device_)) pool.giving_back_.release(pool.device_, &home, exchange_bytes);
  AllocationRequest request = attempt.request;
  request.lane = 0;  // new memory is in no lane, and the lane may be another stream's when the driver returns
  std::optional<Mover> mover;
  if (!pool.unpooled_) mover.emplace(pool.moves_);  // an unpooled grow brings this one block: nobody need wait for it
  const Result<Growth> grown = allocator->grow(pool.device_, home, request);
  if (mover) mover->has_more = grown.ok();
  if (!grown.ok() && grown.code() != CUDA_ERROR_OUT_OF_MEMORY) return grown.error();
  if (!grown.ok() || grown.value().backed_off) pool.shortage_.note_refusal();
  if (!grown.ok()) attempt.refusal = grown.error();
  return grown.value().extent;
}

Climbed Ladder::steal(DevicePool& pool, Attempt& attempt) {
  if (attempt.request.stream.identity == 0 || attempt.home->pooled == nullptr || pool.device_.disabled) return nullptr;
  return pool.stream_frees_.steal(pool.device_, *attempt.home, attempt.context, attempt.request);
}

Climbed Ladder::lanes(DevicePool& pool, Attempt& attempt) {
  if (pool.device_.disabled || !pool.stream_frees_.has_lanes()) return nullptr;
  // Without events that cover a context, only a synchronising call could free what is not behind an event of its own stream, and a stream-ordered
  // request must not wait.
  const bool ordered = attempt.request.stream.identity != 0;
  pool.stream_frees_.drain_lanes(pool.device_, ordered && !pool.device_.services.has_context_events());
  if (const Error error = pool.deferral_.close_epoch(pool.device_, attempt.context, Deferral::Closing::late); error.code != CUDA_SUCCESS)
    return error;
  return retire_for_all(pool, attempt);
}

Climbed Ladder::remap(DevicePool& pool, Attempt& attempt) {
  if (attempt.home->pooled == nullptr || pool.device_.disabled) return nullptr;
  AllocationRequest request = attempt.request;
  request.lane = 0;
  Mover mover(pool.moves_);
  const Result<Growth> grown = attempt.home->pooled->remap(pool.device_, *attempt.home, request);
  mover.has_more = grown.ok();
  if (grown.ok()) pool.backlog_.note_move(pool.device_);
  if (!grown.ok() && grown.code() != CUDA_ERROR_OUT_OF_MEMORY) return grown.error();
  return grown.value().extent;
}

Climbed Ladder::aside(DevicePool& pool, Attempt& attempt) {
  if (attempt.home->pooled == nullptr || !attempt.home->pooled->is_stalled(pool.device_)) return nullptr;
  return native(pool, attempt);
}

Climbed Ladder::release(DevicePool& pool, Attempt& attempt) {
  const std::uint64_t need_bytes = align_up(attempt.request.bytes, kRegionGranularity_bytes);
  if (pool.unpooled_ || pool.device_.disabled || !pool.giving_back_.release_would_do(pool.device_, need_bytes) ||
      !pool.giving_back_.may_release(pool.device_))
    return nullptr;
  const std::uint64_t driver_free_bytes = pool.device_.live.driver_free_bytes.load(std::memory_order_relaxed);
  const std::uint64_t room_bytes = std::min(driver_free_bytes, pool.device_.limit.headroom_bytes());
  // First only what is missing: what stays needs no call next time. The driver may still refuse; then everything.
  for (const std::uint64_t wanted_bytes : {need_bytes > room_bytes ? need_bytes - room_bytes : 1, kEverything_bytes}) {
    if (pool.giving_back_.release(pool.device_, attempt.home, wanted_bytes) == 0) return nullptr;
    Climbed grown = grow(pool, attempt);
    if (!grown.ok() || grown.value() != nullptr) return grown;
  }
  return nullptr;
}

/// Where the driver has much more memory and yet gave the pool nothing, it is not memory that is out. Nor is another thread just bringing it: where
/// mappings are out, no thread can.
Climbed Ladder::instead(DevicePool& pool, Attempt& attempt) {
  const bool can_bring = attempt.home->pooled == nullptr || !attempt.home->pooled->is_out_of_mappings();
  if (pool.unpooled_ || (can_bring && pool.moves_.are_any())) return nullptr;
  return pool.driver_free_.has_much_room(pool.device_, attempt.request.bytes) ? native(pool, attempt) : Climbed(nullptr);
}

/// Is anything on its way back that waiting would bring?
bool Ladder::may_still_come(DevicePool& pool, const Attempt& attempt) {
  if (pool.deferred_.oldest() != nullptr || pool.deferral_.may_record(pool.device_) || pool.stream_frees_.has_stamped() ||
      pool.stream_frees_.may_stamp_late(pool.device_))
    return true;
  if (pool.moves_.are_any() || pool.moves_.ended() != attempt.moves || pool.giving_back_.late_bytes() != 0) return true;
  return pool.giving_back_.release_would_do(pool.device_, align_up(attempt.request.bytes, kRegionGranularity_bytes));
}

/// Takes whatever can serve now: what was retired, what another thread has brought, what can go back to the driver, or what the driver has freed
/// since.
Climbed Ladder::take_what_came(DevicePool& pool, Attempt& attempt, bool has_retired) {
  Climbed found = hole(pool, attempt);
  const bool has_moved = pool.moves_.ended() != attempt.moves;
  attempt.moves = pool.moves_.ended();
  if (found.value() == nullptr && has_moved) found = grow(pool, attempt);
  if (found.ok() && found.value() == nullptr && (has_retired || has_moved)) found = remap(pool, attempt);
  if (!found.ok() || found.value() != nullptr) return found;
  if (!pool.unpooled_) found = release(pool, attempt);
  else if (pool.giving_back_.release(pool.device_, attempt.home, kEverything_bytes) != 0) found = grow(pool, attempt);
  if (found.ok() && found.value() == nullptr && pool.giving_back_.late_bytes() != 0 && pool.giving_back_.await_late(pool.device_))
    found = grow(pool, attempt);
  return found;
}

Climbed Ladder::poll(DevicePool& pool, Attempt& attempt) {
  if (pool.unpooled_ && !pool.has_waiting_frees() && !pool.moves_.are_any() && pool.moves_.ended() == attempt.moves) return nullptr;
  if (!pool.could_come(attempt.request.bytes)) return nullptr;
  attempt.request.may_split = true;  // by now everything that could go back in its place has gone
  Clock& clock = pool.device_.services.clock;
  const std::uint64_t began_ns = clock.now_ns();
  Patience patience(clock, began_ns + DevicePool::kPollBound_ns, pool.deferred_.last_number(), Patience::kLateBound_ns);
  Error error{};
  for (;;) {
    // Once more, since nothing can be recorded while any context is ending.
    pool.stream_frees_.stamp_late(pool.device_);
    error = pool.deferral_.close_epoch_or_synchronise(pool.device_, attempt.context);
    if (error.code != CUDA_SUCCESS) break;
    bool has_retired = false;
    while (pool.deferral_.retire_oldest(pool.device_, attempt.context, true, &error) ||
           pool.stream_frees_.retire_any_stamped(pool.device_, attempt.context, &error))
      has_retired = true;
    if (error.code != CUDA_SUCCESS) break;
    Climbed found = take_what_came(pool, attempt, has_retired);
    if (!found.ok() || found.value() != nullptr) return found;
    if (pool.deferral_.retire_on_native_terms(pool.device_, attempt.context, began_ns, &error)) continue;
    if (error.code != CUDA_SUCCESS) break;
    if (!may_still_come(pool, attempt) || pool.making_room_.is_over(pool.device_, patience)) return nullptr;
    const MutexUnlock unlocked(pool.device_.lock);
    patience.pause();
  }
  return error;
}

Climbed Ladder::graphs(DevicePool& pool, Attempt& attempt) {
  return pool.graph_memory_.trim_would_do(pool.device_, align_up(attempt.request.bytes, kRegionGranularity_bytes)) &&
                 pool.graph_memory_.trim(pool.device_) != 0
             ? after_trim(pool, attempt)
             : Climbed(nullptr);
}

Climbed Ladder::mempools(DevicePool& pool, Attempt& attempt) {
  const std::uint64_t wanted_bytes = pool.wanted_of_mempools(align_up(attempt.request.bytes, kRegionGranularity_bytes));
  return wanted_bytes != 0 && pool.idle_pools_.trim_others(pool.device_, wanted_bytes) != 0 ? after_trim(pool, attempt) : Climbed(nullptr);
}

/// The rungs that a trim makes worth another try: the device has more memory than when they were climbed.
Climbed Ladder::after_trim(DevicePool& pool, Attempt& attempt) {
  for (const auto climb : {&Ladder::grow, &Ladder::remap, &Ladder::release}) {
    Climbed climbed = climb(pool, attempt);
    if (!climbed.ok() || climbed.value() != nullptr) return climbed;
  }
  return nullptr;
}

Climbed Ladder::native(DevicePool& pool, Attempt& attempt) {
  if (pool.unpooled_) return nullptr;
  if (attempt.request.life == BlockLife::pool) return kDriversOwn;  // a block from cuMemAlloc would end with its context
  Result<Growth> made = attempt.home->natives.grow(pool.device_, *attempt.home, attempt.request);
  // `release` deals in whole regions; a limit or a device that is no multiple of them may have room for exactly this block.
  if (made.code() == CUDA_ERROR_OUT_OF_MEMORY && pool.giving_back_.release_would_do(pool.device_, attempt.request.bytes) &&
      pool.giving_back_.may_release(pool.device_) && pool.giving_back_.release(pool.device_, attempt.home, kEverything_bytes) != 0)
    made = attempt.home->natives.grow(pool.device_, *attempt.home, attempt.request);
  if (!made.ok() && made.code() != CUDA_ERROR_OUT_OF_MEMORY) return made.error();
  if (!made.ok()) attempt.refusal = made.error();
  return made.value().extent;
}

}  // namespace cupool::device
