// Backlog: how much of what was freed may wait for the GPU, and how much of the device stays out of its way. Waiting itself: deferral.cpp.
//
// Rules only, from what the device's counters say, what its steps are, and what was noted here. No driver call. Figures: tests/bench/README.md,
// DECISIONS.md.
// Thread rule: the device's lock.
#pragma once

#include <cstdint>

#include "pool/core/bytes.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"

namespace cupool::device {

class Backlog {
 public:
  static constexpr std::uint64_t kAheadOfSteps = 2;  ///< times ahead_bytes(), for a job that makes steps

  /// `unpooled`: every block is a call of its own to the driver.
  Backlog(const ContextPools& homes, bool unpooled) : homes_(homes), unpooled_(unpooled) {}

  /// Many bytes without an event are many that the next miss cannot wait for; but an event per large block is an event per free. Where one
  /// goes round on an idle GPU nobody waits for what an event would show to be over.
  std::uint64_t epoch_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// So much of what was freed may wait for the GPU before a free waits: a third of what the program has never needed. Where pages may be scattered,
  /// a quarter of what is not live, since most of that is free again before the next peak; and with plenty up to two thirds of what was never needed.
  /// Once the steps are known all of that, or where pages may be scattered three quarters of what is not live, but what is kept for a higher peak:
  /// coming down from its own a step may free more than was never needed, and has it back before the next one. A job that repeats its steps would
  /// wait in each of them, and never outgrow it.
  std::uint64_t waiting_share_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// So much may wait for the GPU, or lie with streams, where memory is plenty: with more the pool would consist of it.
  std::uint64_t ahead_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Asked by a miss, which need not wait: what waits is a trifle beside what is left; or growing leaves enough, and the job makes steps, or its peak
  /// is what it was as many allocations ago as came before it.
  /// Else what comes now is scattered over what the program will need, and stays so.
  bool may_grow_freely(DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// What of the device stays out of the way of a higher peak: half of the last one, or once two more steps have come near that an eighth.
  std::uint64_t kept_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Two steps have come near the peak that one set.
  bool knows_its_steps(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Its steps are known; or what lives has come down once, and as much as half of that peak can still be had: the third step is to find all that it
  /// needs, and to wait for nothing.
  bool makes_steps(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// On pages: enough was never needed at once for blocks to lie anywhere, and for none of the last allocations pages had to be moved, which is
  /// several calls where a wait is one.
  bool may_scatter(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// The first step has come again: so much more the next ones need beside what the pool has, for what lives and for what waits. A little more where
  /// that leaves enough: it lies in other places in each step. After the very second step also beside what the pool already holds; a job whose first
  /// steps differ is told from its third one on only, and that is to call for nothing.
  std::uint64_t step_room_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// May the pool have what the program needs, and only the moment is bad? Asking costs an event and, when it is in vain, the look, so the right to
  /// ask comes with time and with allocations: a job that repeats itself is kept as small as its first step; where blocks come and go all the time
  /// the pool is to grow, so that many frees share an event. Once the pool has a good part of the device, only where what has no event yet would do
  /// and is a small part of all. `batch_bytes`: what has none.
  bool is_bad_moment(DeviceState& device, std::uint64_t request_bytes, std::uint64_t batch_bytes) CUPOOL_REQUIRES(device.lock);
  /// An epoch of blocks of that size was over when it was closed; 0: it was not, or they differ.
  void note_idle(std::uint64_t size_bytes);
  /// Pages had to be moved for an allocation.
  void note_move(const DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  /// An epoch closes at this share of what is spare at the latest, or earlier at a share of what the pool holds (64 MiB at least; more while a block
  /// goes round on an idle GPU: so many epochs of one size in a row were over when they were closed). What waits in all stays below a share of what
  /// is spare, or where pages move of what is not live, and below so many times what was ever live. Figures: tests/bench/README.md, DECISIONS.md.
  static constexpr std::uint64_t kEpochShare = 12;
  static constexpr std::uint64_t kReservedShare = 8;
  static constexpr std::uint64_t kIdleShare = 64;
  static constexpr std::uint32_t kIdleEpochs = 8;
  static constexpr std::uint64_t kDeferredShare = 3;
  static constexpr std::uint64_t kNotLiveShare = 4;
  /// Pages may be scattered while so much of everything was never needed at once, and none had to be moved for so many allocations.
  static constexpr std::uint64_t kScatterShare = 20;
  static constexpr std::uint64_t kLately = 512;
  /// Kept out of the way of a higher peak: this part of the last one, and less once so many more steps have come near it.
  static constexpr std::uint64_t kKeptShare = 2;
  static constexpr std::uint64_t kKnownRepeats = 2;
  static constexpr std::uint64_t kKeptShareOfKnown = 8;
  /// Of what the program has needed: at most so much more for what waits in its steps, when the first has come again
  static constexpr std::uint64_t kStepRoomShare = 2;
  static constexpr std::uint64_t kStepMarginShare = 16;  ///< and so much beside it,
  static constexpr std::uint64_t kStepPlentyShare = 5;   ///< where more than that is left
  /// After the second step of all: so much of the need more than the pool holds, if that is at most this part of what is left beyond the share above.
  static constexpr std::uint64_t kSecondStepShare = 8;
  static constexpr std::uint64_t kSecondStepPart = 8;
  static constexpr std::uint64_t kAheadOfLive = 4;
  static constexpr std::uint64_t kLeastAhead_bytes = 1024 * kMiB;
  /// A miss asks about what was freed lately when the last one is so long ago, or once for so many allocations, with so many asks saved up; and
  /// so seldom once the pool has a good part of everything.
  static constexpr std::uint64_t kAskDistance_ns = 50'000;
  static constexpr std::uint64_t kAskDistance = 64;
  static constexpr std::uint64_t kMostAsks = 16;
  static constexpr std::uint64_t kShortAskDistance = 1024;
  static constexpr std::uint64_t kPlentyShare = 2;  ///< of everything: while the pool has less, growing is better than waiting,
  static constexpr std::uint64_t kTrifleShare = 8;  ///< and while what does not live is at most this part of what it may still get

  const ContextPools& homes_;
  const bool unpooled_;
  std::uint64_t moved_at_ = 0;         ///< the allocations then, of the last one for which pages had to be moved; 0: none
  std::uint32_t idle_epochs_ = 0;      ///< the newest, in a row, of blocks of one size, that were over when they were closed
  std::uint64_t idle_size_bytes_ = 0;  ///< of their blocks
  std::uint64_t ask_credit_ = 0;       ///< in allocations
  std::uint64_t last_miss_ns_ = 0;
  std::uint64_t credited_allocations_ = 0;
};

}  // namespace cupool::device
