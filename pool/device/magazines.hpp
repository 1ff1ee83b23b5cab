// Magazines: the magazines of one device's threads, the depots of its contexts, and what the device learns of them.
//
// It owns which thread has which magazine, the sum of what is kept, the ids of blocks, what several magazines may let become live beyond what the
// device knows (magazine_peaks.cpp), and whether a peak of live bytes is new. magazines.cpp opens and closes them, magazine_racks.cpp fills and
// empties them, stream_magazines.cpp has what is kept for streams. Never calls the driver, and never lets go of the device's lock.
// Thread rule: the device's lock for every call; a magazine's own lock besides, as annotated.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pool/device/backlog.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/magazine.hpp"
#include "pool/device/shortage.hpp"
#include "pool/device/step_ends.hpp"

namespace cupool::device {

class Magazines {
 public:
  /// What to do about threads that are inside their magazine, or were stopped there for good.
  enum class BusyOwners : std::uint8_t { wait_for, leave_out };
  /// What is done with a magazine while its thread is outside.
  using Visit = void (Magazines::*)(DeviceState& device, Magazine& magazine);

  /// `unpooled`: every block is a driver call of its own, and nothing is kept.
  Magazines(DeviceState& device, const ContextPools& homes, DeferredFrees& deferred, const Backlog& backlog, const Shortage& shortage, bool unpooled);

  // magazines.cpp
  /// Small blocks are kept for reuse only in ordinary times: every other kind of free must see each block under the lock.
  bool may_keep(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// A block for a thread that asks again: from its magazine, which is refilled for the next requests. Null: take it from the heap.
  heap::Extent* take_kept(DeviceState& device, ContextPool& home, const AllocationRequest& request, MagazineUser& user) CUPOOL_REQUIRES(device.lock);
  /// The freed block joins those that its thread freed in its magazine, and comes back to the thread with them. False: nothing has changed.
  /// Through the depot it could come to another thread. After a while the blocks of all threads would lie mixed, and what the processor fetches
  /// beside the data of one would be another's: measured, two threads together were as slow as one.
  bool send_with_own(DeviceState& device, const ContextPool& home, heap::Extent* extent, std::uint16_t thread) CUPOOL_REQUIRES(device.lock);
  /// Delivers a parcel whose free is complete: to the thread that sent it, or, when that keeps much already or has ended, to where any block goes.
  void deliver(DeviceState& device, Parcel* parcel, std::uint64_t now, std::uint64_t depot_bytes) CUPOOL_REQUIRES(device.lock);
  /// Calls `visit` for the calling thread's magazine in `home`, if it is open.
  void visit_own(DeviceState& device, const ContextPool& home, Visit visit) CUPOOL_REQUIRES(device.lock);
  /// Sends the frees of the magazine on, before the free that is just coming.
  void send(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  /// As send(), and the thread's large blocks become free for everybody, as at the start: how much of them lies here must not differ from step to
  /// step of a job.
  void settle(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  /// Hands completed parcels over to the thread.
  void receive_parcels(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  /// Puts everything where it would be without magazines. False: some magazines were left out.
  bool close_all(DeviceState& device, BusyOwners busy = BusyOwners::wait_for) CUPOOL_REQUIRES(device.lock);
  /// May the magazines stay open on a miss? Yes where as many bytes are on their way back, and closing would bring fewer, at the price of what every
  /// thread keeps. Where nothing comes back, the blocks that threads keep may be what separates the holes: then they are closed before the pool
  /// grows.
  bool may_stay_open(const DeviceState& device, std::uint64_t request_bytes) const CUPOOL_REQUIRES(device.lock);
  /// The calling thread ends: it keeps nothing for itself any more.
  void thread_ending(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// The newest events of the device and of its threads' magazines, oldest first, with times in ticks. Returns how many events are lost.
  /// Precondition: the magazines are closed, except those whose threads are inside: their events are lost here.
  std::uint64_t collect_timeline(DeviceState& device, std::vector<observe::Event>& out) CUPOOL_REQUIRES(device.lock);
  const std::vector<std::unique_ptr<Magazine>>& all() const { return magazines_; }
  /// Bytes of small blocks that no one has, in magazines and depots.
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  /// The id of a block that is served under the device's lock.
  std::uint64_t take_buffer_id() { return next_buffer_id_++; }
  /// The first broken invariant as a sentence, or an empty string. Closes all magazines.
  std::string check(DeviceState& device) CUPOOL_REQUIRES(device.lock);

  // magazine_racks.cpp
  /// A block of that size that has come back to the thread's own magazine meanwhile; nullptr: none.
  heap::Extent* take_from_own(DeviceState& device, const ContextPool& home, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  static void leave_table(heap::Extent* extent);
  /// How many bytes of small blocks with completed frees one context may keep for whichever thread asks for their size next.
  std::uint64_t depot_limit_bytes(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Keeps the block in the depot; false where it is full, and for large blocks.
  bool keep_in_depot(heap::Extent* extent, std::uint64_t limit_bytes);

  // magazine_peaks.cpp
  /// What is live, with what the counters do not show yet.
  StepEnds::Live live_now(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Updates the peaks of what is live, with what the counters do not show yet; exact while no other thread is inside its magazine. `fresh_bytes`: of
  /// the block that has just been counted; 0: none.
  void look_for_peak(DeviceState& device, std::uint64_t fresh_bytes = 0) CUPOOL_REQUIRES(device.lock);
  /// Has what is live come to a peak that was not sampled yet?
  bool is_peak_new() const { return peak_is_new_; }
  void note_peak() { peak_is_new_ = false; }
  /// Are there several magazines? With a single one nothing is promised.
  bool are_several() const { return has_several_.load(std::memory_order_relaxed); }
  /// What is live has grown by a block that was not promised to anybody: where a new peak is near, allowances are taken back.
  void keep_promises(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// A block that a thread gets under the lock is deducted from the thread's allowance, as far as that goes: otherwise each block that goes round
  /// would look like one more, and all allowances would be taken back.
  void spend_allowance(DeviceState& device, Magazine* magazine, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock);

  // stream_magazines.cpp
  /// Offers a block that is being freed to its thread's magazine; true: it is kept, and the free is done. `user`: the thread's, for the block's
  /// context.
  bool keep_for_stream(DeviceState& device, heap::Extent* extent, ContextPool& home, StreamName stream, std::uint16_t thread, MagazineUser& user)
      CUPOOL_REQUIRES(device.lock);
  void return_to_lanes(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  /// A stream is about to end: nothing is kept for it any more.
  void close_of(DeviceState& device, std::uint64_t identity) CUPOOL_REQUIRES(device.lock);
  /// Live bytes of a memory pool, with what magazines have not flushed yet.
  std::uint64_t mempool_used_bytes(const DeviceState& device, std::uint8_t mempool) const CUPOOL_REQUIRES(device.lock);
  void look_for_mempool_peak(DeviceState& device, std::uint8_t mempool) CUPOOL_REQUIRES(device.lock);

 private:
  using Filter = bool (*)(const Magazine& magazine, std::uint64_t key);
  static bool is_any(const Magazine&, std::uint64_t) { return true; }

  // magazines.cpp
  Magazine* own_magazine(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);
  static bool is_too_large_to_keep(std::uint64_t bytes, std::uint64_t spare_bytes, std::uint64_t budget_bytes);
  std::uint64_t free_budget_bytes(std::uint64_t spare_bytes) const;
  std::uint64_t kept_limit_bytes(const Magazine& magazine) const;
  bool find_magazine(DeviceState& device, ContextPool& home, MagazineUser& user) CUPOOL_REQUIRES(device.lock);
  bool open(DeviceState& device, Magazine& magazine, std::uint64_t spare_bytes) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void change_kept(Magazine& magazine, std::int64_t bytes);
  void send_parcel(Magazine& magazine) CUPOOL_REQUIRES(magazine.lock);
  static bool enter_own(const DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock) CUPOOL_TRY_ACQUIRE(true, magazine.lock);
  bool enter_and_visit(DeviceState& device, Magazine& magazine, Visit visit) CUPOOL_REQUIRES(device.lock);
  Magazine* own_open_magazine(const ContextPool& home);
  bool visit_open(DeviceState& device, Visit visit, const Magazine* except, BusyOwners busy = BusyOwners::wait_for, Filter filter = is_any,
                  std::uint64_t key = 0) CUPOOL_REQUIRES(device.lock);
  void close(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);

  // magazine_racks.cpp
  static heap::Extent* rehome(Magazine& magazine, ContextPool& home, heap::Extent* extent) CUPOOL_REQUIRES(magazine.lock);
  void refill(DeviceState& device, Magazine& magazine, ContextPool& home, const AllocationRequest& request, Rack& rack)
      CUPOOL_REQUIRES(device.lock, magazine.lock);
  Rack* make_rack(DeviceState& device, Magazine& magazine, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock, magazine.lock);
  bool add_from_hole(DeviceState& device, Magazine& magazine, ContextPool& home, const AllocationRequest& request, Rack& rack)
      CUPOOL_REQUIRES(device.lock, magazine.lock);
  void drop(DeviceState& device, Magazine& magazine, heap::Extent* extent) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void age(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void drop_rack(DeviceState& device, Magazine& magazine, Rack& rack) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void drop_misfits(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  static void let_go(DeviceState& device, ContextPool& home, heap::Extent* extent) CUPOOL_REQUIRES(device.lock);

  // magazine_peaks.cpp
  void flush_counts(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void add_counts(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);
  bool counts_run_ahead(const DeviceState& device, const AllocationRequest& request) const CUPOOL_REQUIRES(device.lock);
  LiveSum headroom(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  void grant(DeviceState& device, Magazine& magazine, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void use_allowance(Magazine& magazine, const LiveSum& told) CUPOOL_REQUIRES(magazine.lock);
  std::string check_promises(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  void drop_allowance(Magazine& magazine) CUPOOL_REQUIRES(magazine.lock);
  void take_back_allowance(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);

  // stream_magazines.cpp
  bool has_room_to_keep(DeviceState& device, ContextPool& home, std::uint64_t budget_bytes) CUPOOL_REQUIRES(device.lock);
  StreamRacks* racks_for(DeviceState& device, Magazine& magazine, StreamName stream) CUPOOL_REQUIRES(device.lock, magazine.lock);
  void ask_for_rack(DeviceState& device, Magazine& magazine, StreamName stream, SizedRack& sized, std::uint64_t bytes)
      CUPOOL_REQUIRES(device.lock, magazine.lock);
  static bool enter_table(heap::Extent* extent, ContextPool& home);
  heap::Extent* take_for_stream(DeviceState& device, ContextPool& home, const AllocationRequest& request, MagazineUser& user)
      CUPOOL_REQUIRES(device.lock);
  void return_to_lane(DeviceState& device, Magazine& magazine, StreamName stream, Rack& rack) CUPOOL_REQUIRES(device.lock, magazine.lock);
  static void flush_mempool(DeviceState& device, Magazine& magazine) CUPOOL_REQUIRES(device.lock, magazine.lock);

  const ContextPools& homes_;
  DeferredFrees& deferred_;
  const Backlog& backlog_;
  const Shortage& shortage_;
  const bool unpooled_;
  std::atomic<bool> peak_is_new_{false};  ///< written under the device's lock
  std::atomic<bool> has_several_{false};
  LiveSum promised_;  ///< sum of the allowances; with what is live no more than the peaks
  const MagazineSurroundings surroundings_;
  std::vector<std::unique_ptr<Magazine>> magazines_;
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t next_buffer_id_;
};

}  // namespace cupool::device
