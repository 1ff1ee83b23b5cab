// PoolSet: every device pool of the process, behind the operations that the shim needs.
//
// The boundary between pool and shim. It speaks in addresses, bytes, contexts and CUresults, never in ABI
// arguments; it calls the driver only through the DriverApi it was given; it prints nothing and throws
// nothing but std::bad_alloc (the shim's barrier catches it). Thread-safe. Never destroyed by the shim.
// One lock per device; lock order in ARCHITECTURE.md. No driver call that may block is made under a lock.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/options.hpp"
#include "pool/core/clock.hpp"
#include "pool/core/result.hpp"
#include "pool/device/block_life.hpp"
#include "pool/device/message.hpp"
#include "pool/device/stream_name.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/observe/live_page.hpp"
#include "pool/observe/snapshot.hpp"
#include "pool/observe/trace_sink.hpp"

namespace cupool {

namespace device {
struct ContextPool;
}

/// What a live block is to every query. `bytes` is what the program asked for; the block owns round_request(bytes).
struct BlockView {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUcontext context = nullptr;  ///< null: it has outlived its context
  int device = 0;
  std::uint8_t mempool = 0;     ///< index of the memory pool that it was allocated from; 0: by a plain call
  std::uint64_t buffer_id = 0;  ///< unique in the process, never one of the driver's
  CUdeviceptr region_base = 0;  ///< the cuMemAlloc allocation that holds it
  std::size_t region_bytes = 0;
  bool sync_memops = false;
  bool is_native = false;  ///< the block is its own cuMemAlloc (platform, native IPC, fallback)
  bool is_paged = false;   ///< the block lies on mapped pages (cuMemMap): region_base is no allocation to the driver
};

/// Who an address belongs to.
enum class Ownership {
  unknown,  ///< not in any region of ours: the real driver answers
  live,     ///< inside a live block
  vacant,   ///< inside a region of ours but in no live block: to the program it is not allocated; never forward it
};

enum class FreeOutcome {
  freed,    ///< done; the answer is CUDA_SUCCESS
  unknown,  ///< not ours: pass the pointer to the real driver
  invalid,  ///< ours, but not the base of a live block: let the driver answer for an address it does not know
  failed,   ///< ours, and the driver gave an error that is the answer. A native free or a synchronise that was refused leaves
            ///< the block live; a sticky error met while deferring leaves it freed (the context is lost either way)
};

struct FreeResult {
  FreeOutcome outcome = FreeOutcome::unknown;
  Error error{};
};

/// Which high-water mark of a memory pool is meant.
enum class MempoolHigh : std::uint8_t { used, reserved, both };

/// Device memory that the program takes outside the pool; what of it counts against CUPOOL_LIMIT is said in options.def.
enum class OutsideKind : std::uint8_t { array, program_vmm, managed, host, kCount };

/// What a memory pool of the program's own may have, and has.
struct MempoolBounds {
  std::uint64_t max_bytes = 0;   ///< CUmemPoolProps::maxSize, where the program has given one; 0: none
  std::uint64_t used_bytes = 0;  ///< of it, by blocks; asked only where there is a maxSize
};

/// A stream-ordered allocation that the driver is to serve itself, as the program asks for it.
struct DriverServed {
  int device = 0;
  CUcontext context = nullptr;                         ///< the stream's; null: not known
  bool goes_with_context = false;                      ///< the memory dies with it
  bool is_of_default_pool = false;                     ///< of the device's own pool, which `async` preallocates
  std::uint64_t stream = 0;                            ///< its identity (StreamName)
  std::size_t bytes = 0;                               ///< not 0
  const char* api = nullptr;                           ///< the exported symbol that the program called
  std::function<MempoolBounds()> mempool_bounds = {};  ///< of the memory pool that is to give it; asked when limit or driver refuse
  std::function<CUmemoryPool()> mempool = {};          ///< that pool; null: not known. Asked where the limit is near
  CUstream handle = nullptr;                           ///< the stream, for a free in its order
};

/// What a refusal is of.
struct Refused {
  const char* api = nullptr;  ///< exported symbol
  bool is_managed = false;
  MempoolBounds mempool = {};  ///< of the program's own memory pool
};

/// Tells a PoolSet of the end of threads.
class ThreadWatch {
 public:
  /// The calling thread keeps small blocks for itself: thread_ending() is wanted at its end. Called with no lock held, once per thread.
  virtual void watch() = 0;

 protected:
  ~ThreadWatch() = default;  // trivial: used until the process is gone
};

class PoolSet {
 public:
  /// `api`, `devices`, `clock`, `trace` and `threads` must outlive the set (`clock` null: the machine's; `trace` null: no event is traced;
  /// `threads` null: what a thread keeps at its end stays where it is until memory is short). Makes no driver call.
  PoolSet(const DriverApi& api, const config::Options& options, observe::LiveDevice* devices, std::size_t device_slots, Clock* clock = nullptr,
          observe::TraceSink* trace = nullptr, ThreadWatch* threads = nullptr);
  ~PoolSet();
  PoolSet(const PoolSet&) = delete;
  PoolSet& operator=(const PoolSet&) = delete;

  // --- allocation -------------------------------------------------------------------------------------

  /// A block of at least `bytes`, aligned to 512, owned by `context` (the caller's current one, not null).
  /// Precondition: bytes > 0 (the driver answers zero itself). `api` is the exported symbol that the program called.
  /// Errors: CUDA_ERROR_OUT_OF_MEMORY (recorded as an OOM, see take_untold_oom), or a sticky error as itself.
  /// May call the driver; polls deferred frees with no lock held, a second, or as long as Patience has it.
  Result<CUdeviceptr> allocate(CUcontext context, std::size_t bytes, const char* api);

  /// Frees the block whose base is `address`. Under `deferred` it waits for the GPU only where too much of what was freed before waits (backlog.hpp).
  /// See FreeOutcome.
  FreeResult free(CUdeviceptr address);

  /// The same when the process is exiting: host bookkeeping only, no driver call, no wait; try-lock.
  /// True when the address is ours (also when it could not be booked).
  bool free_while_exiting(CUdeviceptr address);

  /// The calling thread is about to end: what it keeps for itself goes back, and it keeps no more. Calls no driver.
  void thread_ending();

  // --- stream-ordered -----------------------------------------------------------------------------------

  /// True when stream-ordered calls may be served: the policy pools, and blocks need not be allocations of their own.
  bool serves_streams() const;
  /// A block as allocate's, that work submitted to `stream` from now on may use. `context` is the caller's current one, and the
  /// stream's; the stream does not capture. `mempool`: index of the memory pool, 1...63. Never waits for work but as allocate does.
  /// CUDA_ERROR_NOT_SUPPORTED, nothing recorded: the driver is to serve it (no pool for the device; or none whose memory has that life).
  Result<CUdeviceptr> allocate_on(CUcontext context, std::size_t bytes, StreamName stream, std::uint8_t mempool, const char* api,
                                  BlockLife life = BlockLife::context);
  /// Frees a block when the work submitted to `stream` so far is over. Never blocks; records an event only while memory is short.
  FreeResult free_on(CUdeviceptr address, CUcontext context, StreamName stream);
  /// The stream (or the thread whose it is) is about to end: its identity may come again. `context` null: it is not known.
  void stream_ending(CUcontext context, std::uint64_t identity);
  /// Some of the streams that lie in `context` are about to end, and nobody knows which: those of a green context.
  void streams_ending(CUcontext context);

  /// What was served in the name of memory pool `mempool` of `device`, as CU_MEMPOOL_ATTR_USED_MEM_{CURRENT,HIGH} and
  /// CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH say.
  struct MempoolFigures {
    std::uint64_t used_bytes, used_high_bytes, reserved_high_bytes;
  };
  MempoolFigures mempool_figures(int device, std::uint8_t mempool);
  void reset_mempool_high(int device, std::uint8_t mempool, MempoolHigh which = MempoolHigh::both);
  /// Under `async`: live bytes of plain calls, which lie in the driver's default pool.
  std::uint64_t plain_bytes(int device);
  static constexpr std::uint8_t kMempools = 64;  ///< so many indices for the memory pools of a device; 0 is those that the driver serves

  /// Runs `call`, the program's own, which sets `*out`, and books the block as any other: counted, held to the limit, listed in reports. To every
  /// call and query it stays the driver's. Its answer; CUDA_ERROR_OUT_OF_MEMORY also when the limit forbids it (recorded as an OOM either way). `ask`
  /// (may be empty) makes the call with a size that no device has: what the driver has against its other arguments comes before the limit.
  using AskDriver = std::function<CUresult()>;
  CUresult allocate_by_driver(const DriverServed& request, CUdeviceptr* out, const std::function<CUresult()>& call, const AskDriver& ask);
  /// The program made a memory pool of `device`, of whatever kind: from now on it may be asked what it keeps idle, and trimmed before a call is
  /// refused.
  void mempool_made(int device, CUmemoryPool handle);
  /// It is about to be destroyed: nobody asks it any more when this returns. Where the driver then refuses, mempool_made() again.
  void mempool_ending(CUmemoryPool handle);
  /// The program has done something to one (trimmed it, destroyed it, set its threshold): what they keep idle may be another.
  void mempools_changed();
  /// The program frees what nobody here has served.
  void count_foreign_free(CUdeviceptr address);
  /// Runs `call`, the driver's free of a block that allocate_by_driver booked; empty, and nothing was called: there is none at `address`.
  /// `stream`: identity of the one that the free names, or 0.
  std::optional<CUresult> free_by_driver(CUdeviceptr address, std::uint64_t stream, const std::function<CUresult()>& call);

  // --- queries ----------------------------------------------------------------------------------------

  /// Who owns `address`; fills `block` when live. Lock-free for addresses that are not ours.
  Ownership find(CUdeviceptr address, BlockView* block);
  /// The device of a context that has been seen and lives; asks no driver.
  std::optional<int> device_of(CUcontext context) const;
  /// Does `address` lie in memory that this set took from the driver? Lock-free: callable by a thread that is already
  /// inside the set (a patched driver calls back) and while exiting.
  bool owns(CUdeviceptr address) const;

  /// What cuMemGetInfo answers on `context`'s device, given what the driver said. Also the freshest sample of
  /// the driver's free bytes. total = min(T, limit); free = what a new allocation could get.
  void adjust_mem_info(CUcontext context, std::size_t* free_bytes, std::size_t* total_bytes);

  /// Somebody outside the pool learns of the memory behind the live block at `address` (a handle, a descriptor, an attribute of the
  /// mapping): its pages stay where they are, after its free as long as others will do. Does nothing for a block that is not paged.
  void pin_pages(CUdeviceptr address);
  /// Contexts that come from now on get segments under CUPOOL_BACKING=auto: the program may export blocks to other processes, or copies of blocks
  /// between devices could not be turned.
  void keep_to_segments();
  /// The same of a program that is about to do it, or did: from now on contexts whose memory is on pages ask the driver for each plain block, which
  /// then can be shared.
  void share_blocks();
  /// Blocks of 2 MiB and more, in whole host pages, that are made from now on begin on one, as they do natively, unless the only hole for them is too
  /// tight: the program may ask cuMemGetHandleForAddressRange for dma-buf descriptors of them, which covers host pages. Other programs are spared the
  /// gaps.
  void begin_on_host_pages();

  /// Marks or clears SYNC_MEMOPS on the live block at `address` and, through the driver, on its region.
  Status set_sync_memops(CUdeviceptr address, bool on);

  // --- memory outside the pool ------------------------------------------------------------------------

  /// Holds `bytes` of the limit for a call that is about to be made; CUDA_ERROR_OUT_OF_MEMORY when the limit forbids it
  /// (recorded as an OOM). Follow with commit_outside or cancel_outside.
  /// `ask` (may be empty) makes the call with a size that no device has: what the driver has against its other arguments comes first.
  Status reserve_outside(int device, OutsideKind kind, std::size_t bytes, const char* api, const AskDriver& ask = {});
  /// `context`: the memory dies with it, if it lives so long; null: it is nobody's (the program's own cuMemCreate).
  void commit_outside(int device, OutsideKind kind, std::uint64_t key, std::size_t bytes, CUcontext context = nullptr);
  void cancel_outside(int device, OutsideKind kind, std::size_t bytes);
  /// The driver had no memory for a call outside the pool, also after the pool had made room: recorded as an OOM.
  void note_refusal(int device, std::size_t bytes, const Refused& what);
  /// It had another error for it: counted.
  void note_failure(int device);
  /// The same of a call whose need nobody knows (code, stacks, graphs, contexts): a warning, the first few times.
  void warn_of_refusal(int device, const char* api);
  /// Forgets `key`; false when it is not known.
  bool release_outside(OutsideKind kind, std::uint64_t key);
  /// The same in two steps, around the driver's free: from take_outside on another thread may get the same key from the driver;
  /// end_take says whether it was freed.
  struct OutsideEntry {
    OutsideKind kind;
    std::uint64_t key;
    int device;
    std::uint64_t bytes;
    CUcontext context = nullptr;
  };
  std::optional<OutsideEntry> take_outside(OutsideKind kind, std::uint64_t key);
  void end_take(const OutsideEntry& entry, bool freed);
  /// A call passed to the driver unpooled, for data_quality. `api` must be a literal.
  /// True when it is new.
  bool saw_unpooled(const char* api);

  // --- contexts, captures -----------------------------------------------------------------------------

  /// A context exists now (created, or a primary that was retained). Idempotent.
  void context_seen(CUcontext context, int device);
  /// Runs `destroy` (the real call that may end `context`) so that no allocation is served from it meanwhile;
  /// when `is_dead()` says so afterwards, everything it held is forgotten without a driver call, but for live blocks of memory pools on mapped pages
  /// that `stay`: their address is theirs until they are freed, and their context is null.
  CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy, const std::function<bool()>& is_dead,
                       PoolBlocks pool_blocks = PoolBlocks::stay);
  /// Waits until nobody here ends a context of this handle: the driver has given it again, and what is still being booked is the old one's.
  void await_end_of(CUcontext context);
  /// Keeps `context` from ending while it lives, for calls with a context that the program's own call did not bring along. Not `held`: it is
  /// gone, or ends just now, and no call may be made with it.
  class ContextHold {
   public:
    ContextHold(PoolSet& pools, CUcontext context);
    ~ContextHold();
    ContextHold(const ContextHold&) = delete;
    ContextHold& operator=(const ContextHold&) = delete;
    bool held() const { return home_ != nullptr; }

   private:
    PoolSet& pools_;
    device::ContextPool* home_;
  };
  /// Waits until what was submitted to `context` so far is over, as a driver's call that unmaps memory of it would, and answers as it: a sticky
  /// error, or that a capture forbids the calling thread such calls (it has ended then). CUDA_ERROR_OUT_OF_MEMORY: during a capture there is no way
  /// to wait.
  CUresult wait_for_context(CUcontext context);
  /// A mark for forget_captures: those that have begun so far.
  std::uint64_t captures_begun() const;
  /// The captures that streams of `context` had begun at the mark are over: it has ended, or is a green context that has.
  void forget_captures(CUcontext context, std::uint64_t before);
  /// The same for a thread and the default streams that were its own. Calls no driver.
  void forget_captures_of_thread(std::uint64_t thread);
  /// Does any stream of the process capture? Lock-free.
  bool capturing() const;
  /// Runs `begin` (the real cuStreamBeginCapture*) under the gate; on success `stream` counts as capturing.
  /// `thread`: not 0 when only that thread can end it (its own default stream); a number that no later thread gets.
  /// `mode`: what the capture forbids this thread and others.
  CUresult begin_capture(CUstream stream, const std::function<CUresult()>& begin, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL,
                         std::uint64_t thread = 0);
  /// The program makes `stream` (not null) wait for an event: while something captures the stream may so come to take part in it.
  void stream_will_wait(CUstream stream);
  /// Runs `end` (the real cuStreamEndCapture, or a stream's destruction); afterwards `stream` captures no more
  /// unless `still_capturing()`.
  CUresult end_capture(CUstream stream, const std::function<CUresult()>& end, const std::function<bool()>& still_capturing);

  // --- upkeep and reports -----------------------------------------------------------------------------

  /// Has this thread, or the pool of `context`, much that was freed and not seen to be over? Lock-free: to be asked after each wait of the program.
  bool much_waits(CUcontext context) const;
  /// The program has waited for the GPU by a call of its own in `context`, and much_waits(): what was freed gets an event, and what is over is free.
  /// Never waits for the GPU.
  void after_wait(CUcontext context);
  /// Has memory been freed in the order of a stream? Lock-free.
  bool has_lanes() const;
  /// How often memory of `context` came into the lane of a stream: to be asked before a wait of the program. 0: the context has no pool.
  std::uint64_t lane_fills(CUcontext context) const;
  /// The program has waited for a stream (by `identity`), or for all streams of the context (0), by a call that began after lane_fills() gave
  /// `fills`: what was freed in their order before is everybody's. No driver call.
  void after_stream_wait(CUcontext context, std::uint64_t identity, std::uint64_t fills);

  /// How many frees the driver got in the order of streams, as far as that matters to a diagnosis; lock-free. To be asked before a wait of the
  /// program. 0: none.
  std::uint64_t freed_at_driver() const;
  /// The program has waited for a stream (by `identity`), or for all of `context` (0), by a call that began after freed_at_driver() gave `freed`.
  void after_wait_at_driver(CUcontext context, std::uint64_t identity, std::uint64_t freed);

  /// Gives every wholly free region back to the driver, and what that keeps for graphs to the device, unless that could block. Returns bytes given
  /// back.
  std::size_t trim();
  /// The same for one device, of which at least `keep_bytes` stay reserved.
  std::size_t trim(int device, std::size_t keep_bytes);
  /// A driver call outside the pool was refused for want of memory: as trim(), but polls deferred frees for at most one second
  /// (natively they had waited). True when something went back since `before`, so that the call is worth another try.
  bool make_room(std::uint64_t before);
  /// The same on one device, first no more than what the driver lacks there for `bytes`.
  bool make_room_for(int device, std::uint64_t bytes);
  bool make_room() { return make_room(times_given_back()); }
  /// How often memory has gone back to the driver: to be asked before a call that may be refused, for another thread may be giving memory back.
  std::uint64_t times_given_back() const;
  /// What the driver keeps for graphs goes back to the devices where none lives. True when it was anything.
  bool trim_graphs();
  /// The program has made a graph with an allocation node: from now on the driver is asked what it keeps for graphs.
  void expect_graph_memory();
  bool expects_graph_memory() const;
  /// So many more executable graphs live that may have such nodes (or fewer), on `devices`, a bit each. What the driver keeps for them there is
  /// theirs.
  void note_living_graphs(std::uint64_t devices, int more) noexcept;
  static constexpr std::uint64_t kAnyDevice = ~std::uint64_t{0};
  /// What it keeps for them may have changed: asks, if there are any.
  void note_graph_memory();
  /// The same after a launch of some graph. After most nothing has changed: the driver is asked after the 1st, 2nd, 4th ... 64th, and every 64th.
  /// The question costs 43 ns on an H100.
  /// `is_new`: of an executable graph's first launches, each of which may take more; the driver is asked then too.
  void graph_launched(bool is_new = false);
  /// The program lets contexts of one device reach memory of another: from now on every context may hold work on any block.
  void link_devices();
  /// And those of `device` reach memory of `owner`, which mapped pages need to be told, present and future ones. Error: as the driver gave it;
  /// then it is as before.
  Status share_pages(CUcontext owner, int device);
  /// True once any device memory was asked for: only then is a report written.
  bool used() const;
  /// Everything known, within `budget`; devices whose lock cannot be had in time are left out (complete = false).
  observe::Snapshot snapshot(std::chrono::nanoseconds budget);
  /// The number (OomRecord::number) of the calling thread's newest OOM, once; 0: it has none that it did not ask for. The caller writes its report.
  std::uint64_t take_untold_oom();
  /// What the user should know (a preallocation cut short, a policy not served), and what CUPOOL_LOG asks for. Each once, oldest first.
  std::vector<Message> take_messages();
  bool has_messages() const;  ///< lock-free: asked after every allocation
  /// Walks every structure; the first broken invariant as a sentence, or an empty string.
  std::string check() const;

  // --- process life -----------------------------------------------------------------------------------

  /// From here on no driver call is made by this set, in any thread.
  void stop_calling_driver();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cupool
