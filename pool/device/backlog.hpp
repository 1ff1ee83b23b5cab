// Backlog: how much of what was freed may wait for the GPU, and how much of the device is kept free of it. The waiting itself is in deferral.cpp.
//
// Rules only: they follow from what the device's counters say, from the steps of the job (step_ends.hpp), and from what was noted here. Each constant
// was chosen by replaying recorded jobs; the figures are in DECISIONS.md, "Deferred frees", and tests/bench/README.md says how to repeat them.
// *Spare* is what the program has never needed so far (DeviceState::spare_bytes). No driver call.
// Thread rule: the device's lock.
#pragma once

#include <cstdint>

#include "pool/core/bytes.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"

namespace cupool::device {

class Backlog {
 public:
  static constexpr std::uint64_t kAheadOfSteps = 2;  ///< a job that makes steps may have so many times ahead_bytes()

  /// `unpooled`: every block is a driver call of its own.
  Backlog(const ContextPools& homes, bool unpooled) : homes_(homes), unpooled_(unpooled) {}

  /// At how many bytes the open batch of frees becomes an epoch. The more is without an event, the more the next miss cannot wait for; but where each
  /// batch is one large block, each free would cost an event. Where one block after the other is allocated and freed on an idle GPU nobody waits for
  /// what an event would show, so more may gather there.
  std::uint64_t epoch_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// How much of what was freed may wait for the GPU before a free waits: a third of what is spare.
  /// On pages, where nothing had to be moved lately (may_scatter), a quarter of what is not live if that is more, since most of it is free again
  /// before the next peak; and up to two thirds of what is spare, as long as kept_bytes() are left. Once the job's steps are known: all that is
  /// spare, or three quarters of what is not live, less kept_bytes(). For coming down from its peak a step may free more than is spare, and has it
  /// back before the next peak: with less, a job that repeats its steps would wait in each of them and never outgrow it.
  std::uint64_t waiting_share_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// How much may wait for the GPU, or lie in the lanes of streams, however much memory there is: with more the pool would consist of that.
  std::uint64_t ahead_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// A miss asks: may the pool grow without waiting first for what was freed? Yes while the pool has little of the device; while what is not live is
  /// a trifle beside what is left; or while growing leaves enough, and the job makes steps or seems to repeat itself. Else blocks that are made now
  /// would be scattered over memory that the program will need, and stay there.
  bool may_grow_freely(DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// How much of the device is kept free for a peak higher than the last one: half of that one; once the job's steps are known an eighth of it.
  std::uint64_t kept_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Two more steps have come near the peak that an earlier one set.
  bool knows_its_steps(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Its steps are known; or what lives has come down once, and as much as half of that peak can still be had. So the third step is to find all that
  /// it needs, and to wait for nothing.
  bool makes_steps(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// On pages: may blocks lie anywhere? Yes while so much is spare that they are in nobody's way, and no pages had to be moved for the last
  /// allocations: moving takes several driver calls, where a wait takes one.
  bool may_scatter(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// A step of the job has ended: how much more than it has the pool should take now, for what lives in the next steps and for what waits in them. A
  /// little more than that where enough is left, because what waits lies in other places in each step. After the very second step as much again as
  /// waits, beyond what the pool already holds: a job whose first steps differ learns from its third one on only, and that one is to call the driver
  /// for nothing. `has_been_made`: for the same peak, when a step last ended.
  std::uint64_t step_room_bytes(const DeviceState& device, bool has_been_made) const CUPOOL_REQUIRES(device.lock);
  /// A miss asks: may the pool have what the program needs, and has the miss only come at a bad moment, just before the GPU is done with it? Then it
  /// is worth asking the GPU. That costs an event, and a look that may be in vain, so the right to ask comes with time: a job that repeats itself is
  /// kept as small as its first step, while a program that allocates and frees all the time makes the pool grow, so that many frees share an event.
  /// `batch_bytes`: what has no event yet.
  bool is_bad_moment(DeviceState& device, std::uint64_t batch_bytes) CUPOOL_REQUIRES(device.lock);
  /// Do blocks of one size, and nothing else, go round on an idle GPU, on a device of which half was never needed? Then a few of them share an event
  /// however large they are, and a thread may keep as many (Magazines).
  bool is_roomy_loop() const { return is_roomy_loop_; }
  /// An epoch was over when it was closed, and all its blocks had this size; 0: it was not, or they differ.
  void note_idle(const DeviceState& device, std::uint64_t size_bytes) CUPOOL_REQUIRES(device.lock);
  /// Pages had to be moved for an allocation.
  void note_move(const DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  // epoch_bytes(): at most this part of what is spare; within that this part of what the pool has, but no less than DeferredFrees::kBatch_bytes.
  // After kIdleEpochs epochs in a row that were over when they were closed, and of blocks of one size, this part of what is spare instead of
  // kBatch_bytes; in a roomy loop so many blocks, if that is more, and at most this part of what is spare.
  static constexpr std::uint64_t kEpochShare = 12;
  static constexpr std::uint64_t kReservedShare = 8;
  static constexpr std::uint32_t kIdleEpochs = 8;
  static constexpr std::uint64_t kIdleShare = 64;
  static constexpr std::uint64_t kLoopBlocks = 6;
  static constexpr std::uint64_t kLoopShare = 16;
  // waiting_share_bytes(): this part of what is spare, and of what is not live.
  static constexpr std::uint64_t kDeferredShare = 3;
  static constexpr std::uint64_t kNotLiveShare = 4;
  // may_scatter(): this part of everything is spare, and nothing was moved for so many allocations.
  static constexpr std::uint64_t kScatterShare = 20;
  static constexpr std::uint64_t kUnmovedAllocations = 512;
  // kept_bytes(): this part of the last peak; another once so many more steps have come near it.
  static constexpr std::uint64_t kKeptShare = 2;
  static constexpr std::uint64_t kKnownRepeats = 2;
  static constexpr std::uint64_t kKeptShareOfKnown = 8;
  // step_room_bytes(): for what waits at most this part of the last peak, and beside it this part, where more than this part of it is left.
  static constexpr std::uint64_t kStepRoomShare = 2;
  static constexpr std::uint64_t kStepMarginShare = 16;
  static constexpr std::uint64_t kStepPlentyShare = 5;
  // Where the peak is new, that margin, and no less than this or the next part of the peak, also beyond what the pool holds, up to that part more than
  // lived and waited at most; and after the very second step as much as waits (where room has been made already, if that is this part of the peak). At
  // most this part of what is left beyond that.
  static constexpr std::uint64_t kLeastStepMargin_bytes = 128 * kMiB;
  static constexpr std::uint64_t kMostStepMarginShare = 4;
  static constexpr std::uint64_t kStepMuchShare = 4;
  static constexpr std::uint64_t kSecondStepPart = 8;
  // ahead_bytes(): so many times the most that was ever live, and no less than this.
  static constexpr std::uint64_t kAheadOfLive = 4;
  static constexpr std::uint64_t kLeastAhead_bytes = 1024 * kMiB;
  // is_bad_moment(): the GPU is asked when the last miss is so long ago.
  static constexpr std::uint64_t kAskDistance_ns = 50'000;
  // may_grow_freely(): while the pool has less than this part of what it has or may get, and while what is not live is at most this part of what is
  // left.
  static constexpr std::uint64_t kPlentyShare = 2;
  static constexpr std::uint64_t kTrifleShare = 8;

  const ContextPools& homes_;
  const bool unpooled_;
  std::uint64_t moved_at_ = 0;         ///< how many allocations there had been when pages last had to be moved; 0: never
  std::uint32_t idle_epochs_ = 0;      ///< how many of the newest epochs in a row note_idle() was told of, with one size
  std::uint64_t idle_size_bytes_ = 0;  ///< that size
  bool is_roomy_loop_ = false;         ///< as note_idle() last saw it
  std::uint64_t last_miss_ns_ = 0;
};

}  // namespace cupool::device
