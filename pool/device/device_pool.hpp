// DevicePool: one device's pool: it books allocations and frees, and owns the parts that know a matter each. Methods without a comment here are those
// of PoolSet with the same name (pool_set.hpp), for one device.
//
// device_pool.cpp has the hot paths, stream_ordered.cpp the calls in stream order, ladder.cpp what happens on a miss, device_contexts.cpp births and
// ends of contexts, outside_calls.cpp what the program has outside the pool, device_figures.cpp what a report is told. The parts, none of which knows
// this class: what threads keep (Magazines), what happens between a free and reuse (Deferral, Backlog), frees in stream order (StreamFrees), what
// goes back to the driver (GivingBack, Orphans), what makes room (MakingRoom), what is refused (Refusals), and what the driver serves and keeps
// itself (DriverBlocks, IdlePools, GraphMemory).
// Thread rule: thread-safe; one lock (DeviceState::lock), let go of around every driver call.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/core/result.hpp"
#include "pool/device/backlog.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/deferral.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/driver_blocks.hpp"
#include "pool/device/driver_free.hpp"
#include "pool/device/giving_back.hpp"
#include "pool/device/graph_memory.hpp"
#include "pool/device/idle_pools.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/magazines.hpp"
#include "pool/device/making_room.hpp"
#include "pool/device/moves.hpp"
#include "pool/device/orphans.hpp"
#include "pool/device/patience.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/device/preallocation.hpp"
#include "pool/device/refusals.hpp"
#include "pool/device/shortage.hpp"
#include "pool/device/stream_frees.hpp"

namespace cupool::device {

/// One allocation on its way up the ladder.
struct Attempt {
  ContextPool* home = nullptr;
  CUcontext context = nullptr;
  AllocationRequest request;
  const char* api = "";
  Error refusal{CUDA_ERROR_OUT_OF_MEMORY, ""};  ///< the latest refusal, by the limit or the driver
  bool has_hole = false;                        ///< a hole was refused because its rest would be stranded
  bool is_short = false;                        ///< memory is so short that threads keep nothing for themselves
  std::uint64_t moves = 0;                      ///< count of Moves when this attempt last asked for more memory
};

/// allocate()'s error when `home` is not, or no longer, the pool of `context`: look it up again. Compared by address, so it is one object: equal
/// literals in two files need not be.
inline constexpr char kStaleMark[] = "context is not (or no longer) known";
inline constexpr Error kStaleContext{CUDA_ERROR_CONTEXT_IS_DESTROYED, kStaleMark};
/// allocate_on()'s error when the block would not outlive its context as it must: the driver is to serve the call.
inline constexpr char kDriversMark[] = "memory that outlives its context";
inline constexpr Error kDriversOwn{CUDA_ERROR_NOT_SUPPORTED, kDriversMark};

class DevicePool {
 public:
  static constexpr std::uint64_t kPollBound_ns = Patience::kPollBound_ns;
  static constexpr std::uint64_t kEndBound_ns = 100'000'000;  ///< how long other contexts' work is waited for before a context ends
  static constexpr std::uint64_t kTryPause_ns = 100'000;      ///< between two attempts of a report to take a lock

  DevicePool(PoolServices& services, int ordinal, observe::LiveDevice& live, std::uint64_t total_bytes, std::uint64_t limit_bytes,
             config::Policy policy);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // Arguments in registers, and the error in the caller's object: a Result that is copied right after it was written field by field stalls (two
  // narrow stores cannot be forwarded to one wide load) for longer than a pool hit takes.
  /// Returns 0 with `*answer` set when there is no block.
  CUdeviceptr allocate(ContextPool* home, CUcontext context, std::size_t bytes, const char* api, std::uint16_t thread, MagazineUser user,
                       Error* answer);
  /// `*answer` is set where the outcome is `failed`.
  FreeOutcome free(CUdeviceptr address, std::uint16_t thread, Error* answer);
  /// The calling thread ends: it keeps nothing for itself any more.
  void thread_ending();
  /// As allocate(), for a stream of `context`.
  CUdeviceptr allocate_on(ContextPool* home, CUcontext context, std::size_t bytes, StreamName stream, std::uint8_t mempool, BlockLife life,
                          const char* api, std::uint16_t thread, MagazineUser user, Error* answer);
  /// `user`: the calling thread's for `context`, or null.
  FreeOutcome free_on(CUdeviceptr address, CUcontext context, StreamName stream, std::uint16_t thread, MagazineUser* user, Error* answer);
  /// The stream (0: any that is named by a handle) is ending: what it freed without an event gets one now, if that can be recorded.
  void end_unstamped(std::uint64_t identity);
  void stream_ending(ContextPool* home, CUcontext context, std::uint64_t identity);
  void stream_ending(std::uint64_t identity);                 ///< of any context
  void streams_ending(ContextPool* home, CUcontext context);  ///< any stream of the context may have ended
  PoolSet::MempoolFigures mempool_figures(std::uint8_t mempool);
  void reset_mempool_high(std::uint8_t mempool, MempoolHigh which);
  std::uint64_t plain_bytes();
  /// Has the program freed much that is not known to be over? Lock-free. `own`: the calling thread's magazine in this pool, or null.
  bool much_waits(const Magazine* own) const;
  bool may_have_surplus() const;
  void after_wait(const ContextPool& home, CUcontext asking) CUPOOL_EXCLUDES(device_.lock);
  void open_waited_lanes(ContextPool& home, std::uint64_t identity, std::uint64_t fills) CUPOOL_EXCLUDES(device_.lock);
  bool free_while_exiting(CUdeviceptr address);
  Ownership find(CUdeviceptr address, BlockView* block);
  bool pin_pages(CUdeviceptr address) CUPOOL_EXCLUDES(device_.lock);
  Status set_sync_memops(CUdeviceptr address, bool on);
  void before_capture();
  void stamp_late();  ///< records the events that streams' frees lack, unless something captures

  /// The pool of `context`, which is made if the context is new. One whose blocks of memory pools outlive it may go on with an orphan's memory.
  ContextPool* context_seen(CUcontext context, BlockLife life);
  /// Runs `destroy` while no other thread is in the driver with the context; forgets what the context held when `is_dead()` says that it is gone.
  /// Returns what `destroy` returned.
  CUresult end_context(ContextPool* home, CUcontext context, const std::function<CUresult()>& destroy, const std::function<bool()>& is_dead,
                       PoolBlocks pool_blocks);
  /// Blocks that outlived their contexts may have waited for a context, of any device, that has just ended.
  void retire_outliving() CUPOOL_EXCLUDES(device_.lock);

  /// See PoolSet::allocate_by_driver and PoolSet::free_by_driver.
  CUresult allocate_by_driver(const DriverServed& request, CUdeviceptr* out, std::uint16_t thread, const std::function<CUresult()>& call,
                              const PoolSet::AskDriver& ask) CUPOOL_EXCLUDES(device_.lock);
  std::optional<CUresult> free_by_driver(CUdeviceptr address, std::uint64_t stream, std::uint16_t thread, const std::function<CUresult()>& call)
      CUPOOL_EXCLUDES(device_.lock);
  /// What the driver's memory pools keep idle may have changed. `must_ask`: asks the driver now; otherwise now and then, under a limit always.
  void update_mempools(bool must_ask) CUPOOL_EXCLUDES(device_.lock);
  /// The program has waited for a stream (`identity`), or for a whole context (0), by a call that began when PoolServices::freed_at_driver was
  /// `freed`.
  void after_wait_at_driver(std::uint64_t identity, std::uint64_t freed) CUPOOL_EXCLUDES(device_.lock);
  bool has_driver_block(CUdeviceptr address) CUPOOL_EXCLUDES(device_.lock);
  void forget_driver_block(CUdeviceptr address) CUPOOL_EXCLUDES(device_.lock);
  void forget_driver_blocks(CUcontext context, std::uint64_t before) CUPOOL_EXCLUDES(device_.lock);

  Status charge_outside(OutsideKind kind, std::uint64_t bytes, const char* api, const PoolSet::AskDriver& ask);
  void note_refusal(std::uint64_t bytes, const Refused& what);
  void note_failure() CUPOOL_EXCLUDES(device_.lock);
  void warn_of_refusal(const char* api);
  void book_outside(OutsideKind kind, std::int64_t bytes);
  void refund_outside(OutsideKind kind, std::uint64_t bytes);
  void adjust_mem_info(CUcontext context, std::size_t* free_bytes, std::size_t* total_bytes);
  std::size_t trim(std::uint64_t keep_bytes = 0);
  std::size_t make_room(std::uint64_t until_ns);
  /// As above, but gives back no more than the driver lacks for `bytes`.
  std::size_t make_room_for(std::uint64_t until_ns, std::uint64_t bytes);
  /// See PoolSet::note_graph_memory.
  void note_graph_memory() CUPOOL_EXCLUDES(device_.lock);
  /// Trims what the driver keeps for graphs that do not run. Returns bytes.
  std::size_t give_back_graph_memory() CUPOOL_EXCLUDES(device_.lock);
  /// See PoolSet::share_pages.
  Status share_pages(ContextPool* home, CUcontext context, int ordinal) CUPOOL_EXCLUDES(device_.lock);
  /// False when the lock could not be taken before `deadline_ns`.
  bool snapshot(std::uint64_t deadline_ns, observe::DeviceSnapshot& out);
  std::string check();
  DeviceState& state() { return device_; }
  bool used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend struct Ladder;
  static constexpr std::size_t kEndedStreamEpochs = 16;  ///< so many epochs may wait before the end of a stream polls the oldest

  // device_pool.cpp
  bool may_call_driver() const { return device_.services.may_call_driver(); }
  bool capturing() const { return device_.services.gate.capturing(); }
  CUdeviceptr serve(ContextPool* home, CUcontext context, AllocationRequest& request, const char* api, std::uint16_t thread, MagazineUser* user,
                    Error* answer) CUPOOL_EXCLUDES(device_.lock);
  heap::Extent* begin_free(CUdeviceptr address, FreeOutcome* outcome) CUPOOL_REQUIRES(device_.lock);
  static bool claim(heap::Extent& extent);
  CUdeviceptr book(heap::Extent* extent, const AllocationRequest& request, std::uint16_t thread) CUPOOL_REQUIRES(device_.lock);
  template <class Find> heap::Extent* find_in_homes(Find&& find) CUPOOL_REQUIRES(device_.lock);
  heap::Extent* find_settled(std::uint64_t address) CUPOOL_REQUIRES(device_.lock);
  heap::Extent* find_block(std::uint64_t address) CUPOOL_REQUIRES(device_.lock);
  heap::Extent* find_containing(std::uint64_t address) CUPOOL_REQUIRES(device_.lock);
  FreeOutcome free_locked(CUdeviceptr address, std::uint16_t thread, Error* answer, bool* must_clear) CUPOOL_EXCLUDES(device_.lock);
  FreeOutcome free_block(heap::Extent* extent, std::uint16_t thread, Error* answer) CUPOOL_REQUIRES(device_.lock);
  void note_backlog(std::uint64_t identity, const DriverBacklog::Sums& bytes) CUPOOL_REQUIRES(device_.lock);
  void note_backlog(CUstream stream, std::uint64_t bytes) CUPOOL_REQUIRES(device_.lock);
  FreeOutcome free_native(heap::Extent* extent, std::uint16_t thread, Error* answer, const CUstream* stream = nullptr) CUPOOL_REQUIRES(device_.lock);
  /// `waits_natively`: the program's call would have synchronised; a call in stream order never does.
  FreeOutcome free_deferred(heap::Extent* extent, std::uint16_t thread, Error* answer, bool waits_natively = true) CUPOOL_REQUIRES(device_.lock);
  FreeOutcome settle_frees(ContextPool& home, bool waits_natively, Error* answer) CUPOOL_REQUIRES(device_.lock);
  FreeOutcome free_synchronously(heap::Extent* extent, std::uint16_t thread, Error* answer) CUPOOL_REQUIRES(device_.lock);

  // stream_ordered.cpp
  bool goes_plain_way(const heap::Extent& extent) const CUPOOL_REQUIRES(device_.lock);
  bool is_worth_an_event(const heap::Extent& extent) const CUPOOL_REQUIRES(device_.lock);
  bool frees_in_order(const heap::Extent& extent) const CUPOOL_REQUIRES(device_.lock);
  FreeOutcome free_behind(heap::Extent* extent, CUcontext context, StreamName stream, std::uint16_t thread, Error* answer)
      CUPOOL_REQUIRES(device_.lock);

  // memops.cpp
  void drop_sync_memops(heap::Extent& extent) CUPOOL_REQUIRES(device_.lock);
  void clear_region_memops() CUPOOL_EXCLUDES(device_.lock);

  // program_waits.cpp
  bool ends_step(bool waits_natively) CUPOOL_REQUIRES(device_.lock);
  void make_room_for_steps(ContextPool& home) CUPOOL_REQUIRES(device_.lock);

  // climb.cpp
  bool wants_own(const ContextPool& home, const AllocationRequest& request) const CUPOOL_REQUIRES(device_.lock);
  Result<CUdeviceptr> climb(Attempt& attempt, std::uint16_t thread) CUPOOL_REQUIRES(device_.lock);
  Result<heap::Extent*> climb_rungs(Attempt& attempt) CUPOOL_REQUIRES(device_.lock);
  void begin_use() CUPOOL_REQUIRES(device_.lock);
  void log_rung(const Attempt& attempt, const char* rung) CUPOOL_REQUIRES(device_.lock);
  Error enter(Attempt& attempt) CUPOOL_REQUIRES(device_.lock);
  bool has_waiting_frees() CUPOOL_REQUIRES(device_.lock);
  std::uint64_t wanted_of_mempools(std::uint64_t bytes) CUPOOL_REQUIRES(device_.lock);
  bool could_come(std::uint64_t bytes) CUPOOL_REQUIRES(device_.lock);

  // driver_served.cpp
  void open_driver_pool(const DriverServed& request) CUPOOL_EXCLUDES(device_.lock);
  Refused refusal_of(const DriverServed& request) const CUPOOL_EXCLUDES(device_.lock);

  // device_contexts.cpp
  ContextPool* place_for(BlockLife life) CUPOOL_REQUIRES(device_.lock);
  bool may_page() const CUPOOL_REQUIRES(device_.lock);
  std::unique_ptr<DeviceAllocator> make_heap() CUPOOL_REQUIRES(device_.lock);
  struct Books;
  void forget(ContextPool& home, PoolBlocks pool_blocks) CUPOOL_REQUIRES(device_.lock);
  void forget_given_again(ContextPool& home) CUPOOL_REQUIRES(device_.lock);
  void await_deferred(ContextPool& home) CUPOOL_EXCLUDES(device_.lock);

  // device_figures.cpp
  void count_late(std::size_t* free_bytes) CUPOOL_REQUIRES(device_.lock);

  // outside_calls.cpp
  /// `take`: charges the limit, if it can be charged. `tell`: describes the call, should the limit refuse it.
  Status charge(std::uint64_t bytes, std::uint64_t requested_bytes, const std::function<Refused()>& tell, const PoolSet::AskDriver& ask,
                const std::function<bool()>& take) CUPOOL_EXCLUDES(device_.lock);

  // device_snapshot.cpp
  bool try_snapshot(bool is_last_try, observe::DeviceSnapshot& out);
  bool is_any_ending() const CUPOOL_REQUIRES(device_.lock);
  void copy_counts(observe::DeviceSnapshot& out) CUPOOL_REQUIRES(device_.lock);
  void copy_blocks(const TickConverter& time, observe::DeviceSnapshot& out) CUPOOL_REQUIRES(device_.lock);

  DeviceState device_;
  const config::Policy policy_;  ///< the policy in force on this device
  const bool unpooled_;          ///< every block is a driver call of its own
  std::atomic<bool> used_{false};
  ContextPools homes_ CUPOOL_GUARDED_BY(device_.lock);
  DeferredFrees deferred_ CUPOOL_GUARDED_BY(device_.lock);
  Shortage shortage_ CUPOOL_GUARDED_BY(device_.lock);
  Moves moves_ CUPOOL_GUARDED_BY(device_.lock);
  // The parts. Each is declared after those that it refers to.
  Backlog backlog_ CUPOOL_GUARDED_BY(device_.lock);
  Magazines magazines_ CUPOOL_GUARDED_BY(device_.lock);
  LiveFigures figures_ CUPOOL_GUARDED_BY(device_.lock);
  DriverBlocks driver_blocks_ CUPOOL_GUARDED_BY(device_.lock);
  IdlePools idle_pools_;  ///< each of its calls says which lock it needs
  DriverFree driver_free_ CUPOOL_GUARDED_BY(device_.lock);
  Preallocation preallocation_ CUPOOL_GUARDED_BY(device_.lock);
  GraphMemory graph_memory_ CUPOOL_GUARDED_BY(device_.lock);
  Orphans orphans_ CUPOOL_GUARDED_BY(device_.lock);
  GivingBack giving_back_ CUPOOL_GUARDED_BY(device_.lock);
  Deferral deferral_ CUPOOL_GUARDED_BY(device_.lock);
  StreamFrees stream_frees_ CUPOOL_GUARDED_BY(device_.lock);
  Refusals refusals_ CUPOOL_GUARDED_BY(device_.lock);
  MakingRoom making_room_;  ///< each of its calls says which lock it needs
  std::uint32_t operations_ CUPOOL_GUARDED_BY(device_.lock) = 0;
  std::uint64_t roomy_peak_bytes_ CUPOOL_GUARDED_BY(device_.lock) = 0;         ///< the peak when make_room_for_steps() was last called
  std::uint64_t end_bound_ns_ CUPOOL_GUARDED_BY(device_.lock) = kEndBound_ns;  ///< shortened after each wait in vain
  std::atomic<std::uint64_t> surplus_seen_bytes_{0};  ///< free bytes when CUPOOL_RELEASE_THRESHOLD was last checked after a wait
  std::vector<std::uint64_t> memops_to_clear_ CUPOOL_GUARDED_BY(device_.lock);  ///< addresses of regions whose flag is to be cleared
};

}  // namespace cupool::device
