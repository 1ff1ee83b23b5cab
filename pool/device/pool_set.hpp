// PoolSet: every device pool of the process, behind the operations that the shim needs.
//
// The boundary between pool and shim. It speaks in addresses, bytes, contexts and CUresults, never in ABI arguments; it calls the driver only through
// the DriverApi that it was given; it prints nothing, and throws nothing but std::bad_alloc (the shim's barrier catches it). Never destroyed by the
// shim.
// Thread rule: thread-safe. One lock per device; lock order in ARCHITECTURE.md. No driver call that may block is made under a lock.
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

/// A live block, as queries see it. `bytes` is what the program asked for; the block owns round_request(bytes).
struct BlockView {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUcontext context = nullptr;  ///< the block has outlived its context
  int device = 0;
  std::uint8_t mempool = 0;     ///< index of the memory pool that it was allocated from; 0: by a plain call
  std::uint64_t buffer_id = 0;  ///< unique in the process, never one of the driver's
  CUdeviceptr region_base = 0;  ///< the cuMemAlloc allocation that holds it
  std::size_t region_bytes = 0;
  bool sync_memops = false;
  bool is_native = false;  ///< the block is its own cuMemAlloc (platform, native IPC, fallback)
  bool is_paged = false;   ///< the block lies on mapped pages (cuMemMap): region_base is no allocation to the driver
};

/// Whom an address belongs to.
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
  std::uint64_t max_bytes = 0;   ///< CUmemPoolProps::maxSize, where the program has set one; 0: none
  std::uint64_t used_bytes = 0;  ///< bytes of it that blocks use; asked only where there is a maxSize
};

/// A stream-ordered allocation that the driver is to serve itself, as the program asks for it.
struct DriverServed {
  int device = 0;
  CUcontext context = nullptr;                         ///< the stream's; null: not known
  bool goes_with_context = false;                      ///< the memory ends with that context
  bool is_of_default_pool = false;                     ///< served from the device's own pool, which `async` preallocates
  std::uint64_t stream = 0;                            ///< identity of the stream (StreamName)
  std::size_t bytes = 0;                               ///< not 0
  const char* api = nullptr;                           ///< the exported symbol that the program called
  std::function<MempoolBounds()> mempool_bounds = {};  ///< bounds of the serving memory pool; asked when the limit or the driver refuses
  std::function<CUmemoryPool()> mempool = {};          ///< that pool; null: not known. Asked when the limit is near
  CUstream handle = nullptr;                           ///< the stream, for a free in its order
};

/// What was refused.
struct Refused {
  const char* api = nullptr;  ///< the exported symbol that the program called
  bool is_managed = false;
  MempoolBounds mempool = {};  ///< of the program's own memory pool
};

/// Tells a PoolSet of the end of threads.
class ThreadWatch {
 public:
  /// The calling thread keeps small blocks for itself: thread_ending() must be called at its end. Called with no lock held, once per thread.
  virtual void watch() = 0;

 protected:
  ~ThreadWatch() = default;  // trivial: used until the process is gone
};

class PoolSet {
 public:
  /// `api`, `devices`, `clock`, `trace` and `threads` must outlive the set. `clock` null: the machine's. `trace` null: no event is traced. `threads`
  /// null: what a thread keeps at its end stays where it is until memory is short. Makes no driver call.
  PoolSet(const DriverApi& api, const config::Options& options, observe::LiveDevice* devices, std::size_t device_slots, Clock* clock = nullptr,
          observe::TraceSink* trace = nullptr, ThreadWatch* threads = nullptr);
  ~PoolSet();
  PoolSet(const PoolSet&) = delete;
  PoolSet& operator=(const PoolSet&) = delete;

  // --- allocation -------------------------------------------------------------------------------------

  /// A block of at least `bytes`, aligned to 512 bytes, owned by `context` (the caller's current one, not null).
  /// Precondition: bytes > 0 (the driver answers zero itself). `api` is the exported symbol that the program called.
  /// Errors: CUDA_ERROR_OUT_OF_MEMORY (recorded as an OOM, see take_untold_oom), or a sticky error as itself.
  /// May call the driver. Where memory is short it polls deferred frees with no lock held, for a second, or for as long as Patience allows.
  Result<CUdeviceptr> allocate(CUcontext context, std::size_t bytes, const char* api);

  /// Frees the block whose base is `address`; see FreeOutcome. Under `deferred` it waits for the GPU only where too much of what was freed before is
  /// waiting (backlog.hpp).
  FreeResult free(CUdeviceptr address);

  /// As free(), while the process is exiting: host bookkeeping only, no driver call, no wait. True when the address is ours (also when the free could
  /// not be booked, because the lock was taken).
  bool free_while_exiting(CUdeviceptr address);

  /// The calling thread is about to end: what it keeps for itself goes back, and it keeps no more. Makes no driver call.
  void thread_ending();

  // --- stream-ordered -----------------------------------------------------------------------------------

  /// May stream-ordered calls be served? Yes where the policy pools and blocks need not be allocations of their own.
  bool serves_streams() const;
  /// As allocate(), for a block that work submitted to `stream` from now on may use. `context` is the caller's current one, and the stream's; the
  /// stream does not capture. `mempool`: index of the memory pool, 1...63. Waits for work only where allocate() would.
  /// CUDA_ERROR_NOT_SUPPORTED, with nothing recorded: the driver is to serve the call (no pool for the device, or none whose memory lives long
  /// enough).
  Result<CUdeviceptr> allocate_on(CUcontext context, std::size_t bytes, StreamName stream, std::uint8_t mempool, const char* api,
                                  BlockLife life = BlockLife::context);
  /// Frees a block once the work submitted to `stream` so far is over. Never blocks; records an event only while memory is short.
  FreeResult free_on(CUdeviceptr address, CUcontext context, StreamName stream);
  /// The stream (or the thread whose default stream it is) is about to end: its identity may come again. `context` null: not known.
  void stream_ending(CUcontext context, std::uint64_t identity);
  /// Some of the streams in `context` are about to end, and it is not known which: those of a green context.
  void streams_ending(CUcontext context);

  /// What was served for memory pool `mempool` of `device`, for CU_MEMPOOL_ATTR_USED_MEM_{CURRENT,HIGH} and CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH. In
  /// bytes.
  struct MempoolFigures {
    std::uint64_t used_bytes, used_high_bytes, reserved_high_bytes;
  };
  MempoolFigures mempool_figures(int device, std::uint8_t mempool);
  void reset_mempool_high(int device, std::uint8_t mempool, MempoolHigh which = MempoolHigh::both);
  /// Under `async`: live bytes of plain calls, which lie in the driver's default pool.
  std::uint64_t plain_bytes(int device);
  static constexpr std::uint8_t kMempools = 64;  ///< indices for the memory pools of a device; 0 is those that the driver serves

  /// Runs `call`, the program's own, which sets `*out`, and books the block as any other: counted, held to the limit, listed in reports. Every call
  /// and query about it is answered by the driver. Returns the answer of `call`; CUDA_ERROR_OUT_OF_MEMORY also when the limit forbids it (recorded as
  /// an OOM either way). `ask` (may be empty) makes the call with a size that no device has: what the driver has against its other arguments comes
  /// before the limit.
  using AskDriver = std::function<CUresult()>;
  CUresult allocate_by_driver(const DriverServed& request, CUdeviceptr* out, const std::function<CUresult()>& call, const AskDriver& ask);
  /// The program has made a memory pool of `device`, of any kind: from now on it may be asked what it keeps idle, and be trimmed before a call is
  /// refused.
  void mempool_made(int device, CUmemoryPool handle);
  /// The memory pool is about to be destroyed: no thread asks about it any more when this returns. Where the driver then refuses, call mempool_made()
  /// again.
  void mempool_ending(CUmemoryPool handle);
  /// The program has done something to a memory pool (trimmed it, destroyed it, set its threshold): what pools keep idle may have changed.
  void mempools_changed();
  /// The program frees something that the pool has not served.
  void count_foreign_free(CUdeviceptr address);
  /// Runs `call`, the driver's free of a block that allocate_by_driver booked; nullopt where there is none at `address`, and `call` was not run.
  /// `stream`: identity of the one that the free names, or 0.
  std::optional<CUresult> free_by_driver(CUdeviceptr address, std::uint64_t stream, const std::function<CUresult()>& call);

  // --- queries ----------------------------------------------------------------------------------------

  /// Who owns `address`; fills `block` when live. Lock-free for addresses that are not ours.
  Ownership find(CUdeviceptr address, BlockView* block);
  /// The device of a context that was seen and lives; makes no driver call.
  std::optional<int> device_of(CUcontext context) const;
  /// Does `address` lie in memory that this set took from the driver? Lock-free: callable while exiting, and by a thread that is already inside the
  /// set (a patched driver calls back).
  bool owns(CUdeviceptr address) const;

  /// What cuMemGetInfo answers on `context`'s device, given what the driver said; also the freshest sample of the driver's free bytes. total = min(T,
  /// limit); free = what a new allocation could get.
  void adjust_mem_info(CUcontext context, std::size_t* free_bytes, std::size_t* total_bytes);

  /// Something outside the pool learns of the memory behind the live block at `address` (a handle, a descriptor, an attribute of the mapping): its
  /// pages stay where they are, and after its free as long as others will do. Does nothing for a block that is not paged.
  void pin_pages(CUdeviceptr address);
  /// Under CUPOOL_BACKING=auto new contexts get segments from now on: the program may export blocks to other processes, or copies of blocks between
  /// devices could not be redirected.
  void keep_to_segments();
  /// As keep_to_segments(), for a program that is exporting blocks, or has: contexts whose memory is on pages also ask the driver for each plain
  /// block from now on, which then can be shared.
  void share_blocks();
  /// From now on blocks of 2 MiB and more, in whole host pages, begin on a host page, as they do natively, unless the only hole for them is too
  /// tight: the program may ask cuMemGetHandleForAddressRange for dma-buf descriptors of them, which cover host pages. Other programs are spared the
  /// gaps.
  void begin_on_host_pages();

  /// Marks or clears SYNC_MEMOPS on the live block at `address` and, through the driver, on its region.
  Status set_sync_memops(CUdeviceptr address, bool on);

  // --- memory outside the pool ------------------------------------------------------------------------

  /// Holds `bytes` of the limit for a call that is about to be made; CUDA_ERROR_OUT_OF_MEMORY when the limit forbids it
  /// (recorded as an OOM). Follow with commit_outside or cancel_outside.
  /// `ask` (may be empty) makes the call with a size that no device has: what the driver has against its other arguments comes first.
  Status reserve_outside(int device, OutsideKind kind, std::size_t bytes, const char* api, const AskDriver& ask = {});
  /// `context`: the memory ends with it, if it lives that long; null: with none (the program's own cuMemCreate).
  void commit_outside(int device, OutsideKind kind, std::uint64_t key, std::size_t bytes, CUcontext context = nullptr);
  void cancel_outside(int device, OutsideKind kind, std::size_t bytes);
  /// The driver had no memory for a call outside the pool, even after the pool had made room: recorded as an OOM.
  void note_refusal(int device, std::size_t bytes, const Refused& what);
  /// The driver had another error for it: counted.
  void note_failure(int device);
  /// As note_refusal(), for a call whose need is not known (code, stacks, graphs, contexts): logs a warning, the first few times.
  void warn_of_refusal(int device, const char* api);
  /// Forgets `key`; false when it is not known.
  bool release_outside(OutsideKind kind, std::uint64_t key);
  /// As release_outside(), in two steps around the driver's free: from take_outside on another thread may get the same key from the driver; end_take
  /// says whether it was freed.
  struct OutsideEntry {
    OutsideKind kind;
    std::uint64_t key;
    int device;
    std::uint64_t bytes;
    CUcontext context = nullptr;
  };
  std::optional<OutsideEntry> take_outside(OutsideKind kind, std::uint64_t key);
  void end_take(const OutsideEntry& entry, bool freed);
  /// Notes a call that passed to the driver unpooled, for data_quality. `api` must be a literal.
  bool saw_unpooled(const char* api);

  // --- contexts, captures -----------------------------------------------------------------------------

  /// A context exists (it was created, or a primary one was retained). Idempotent. `life`: of its blocks of memory pools.
  void context_seen(CUcontext context, int device, BlockLife life = BlockLife::context);
  /// Runs `destroy` (the real call that may end `context`) so that no allocation is served from it meanwhile. When `is_dead()` says so afterwards,
  /// everything it held is forgotten without a driver call, except live blocks of memory pools on mapped pages that `stay`: they keep their address
  /// until they are freed, and their context is null.
  CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy, const std::function<bool()>& is_dead,
                       PoolBlocks pool_blocks = PoolBlocks::stay);
  /// Waits until no thread is ending a context of this handle: the driver has given the handle again, and what is still being booked is the old
  /// context's.
  void await_end_of(CUcontext context);
  /// Keeps `context` from ending while it lives, for calls in a context that the program's own call did not bring along. Not `held`: it is gone, or
  /// is just ending, and no call may be made in it.
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
  /// error, or that a capture forbids the calling thread such calls (the capture has ended then). CUDA_ERROR_OUT_OF_MEMORY: during a capture there is
  /// no way to wait.
  CUresult wait_for_context(CUcontext context);
  /// A mark for forget_captures: the captures that have begun so far.
  std::uint64_t captures_begun() const;
  /// Forgets the captures that streams of `context` had begun at the mark: the context (or green context) has ended.
  void forget_captures(CUcontext context, std::uint64_t before);
  /// As forget_captures(), for a thread and the default streams that were its own. Makes no driver call.
  void forget_captures_of_thread(std::uint64_t thread);
  /// Does any stream of the process capture? Lock-free.
  bool capturing() const;
  /// Runs `begin` (the real cuStreamBeginCapture*) under the gate; on success `stream` counts as capturing.
  /// `thread`: not 0 when only that thread can end it (its own default stream); a number that no later thread gets.
  /// `mode`: what the capture forbids this thread and others.
  CUresult begin_capture(CUstream stream, const std::function<CUresult()>& begin, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL,
                         std::uint64_t thread = 0);
  /// A wait for an event that the program submits: on which stream, of which context, and at what time. For stream_has_waited().
  struct EventWait {
    CUstream stream = nullptr;
    CUcontext context = nullptr;
    std::uint64_t round = 0;
  };
  /// The program makes `stream` (not null) wait for an event: while something captures, the stream may so come to take part in the capture.
  EventWait stream_will_wait(CUstream stream);
  /// The driver's call for that has returned.
  void stream_has_waited(const EventWait& wait);
  /// Runs `end` (the real cuStreamEndCapture, or a stream's destruction); afterwards `stream` captures no more
  /// unless `still_capturing()`.
  CUresult end_capture(CUstream stream, const std::function<CUresult()>& end, const std::function<bool()>& still_capturing);

  // --- upkeep and reports -----------------------------------------------------------------------------

  /// Has this thread, or the pool of `context`, freed much that is not known to be over? Lock-free; asked after each wait of the program.
  bool much_waits(CUcontext context) const;
  /// The program has waited for the GPU by a call of its own in `context`, and much_waits(): what was freed gets an event, and what is over becomes
  /// free. Never waits for the GPU.
  void after_wait(CUcontext context);
  /// Was memory freed in stream order? Lock-free.
  bool has_lanes() const;
  /// How often memory of `context` came into the lane of a stream; ask before a wait of the program. 0: the context has no pool.
  std::uint64_t lane_fills(CUcontext context) const;
  /// The program has waited for a stream (`identity`), or for all streams of the context (0), by a call that began after lane_fills() returned
  /// `fills`: what was freed in their order before is free for everybody. Makes no driver call.
  void after_stream_wait(CUcontext context, std::uint64_t identity, std::uint64_t fills);

  /// How many frees the driver got in stream order, as far as that matters to a diagnosis; lock-free; ask before a wait of the program. 0: none.
  std::uint64_t freed_at_driver() const;
  /// The program has waited for a stream (`identity`), or for all of `context` (0), by a call that began after freed_at_driver() returned `freed`.
  void after_wait_at_driver(CUcontext context, std::uint64_t identity, std::uint64_t freed);

  /// Gives every wholly free region back to the driver, and what the driver keeps for graphs to the device, unless that could block. Returns the
  /// bytes that went.
  std::size_t trim();
  /// As trim(), for one device, of which at least `keep_bytes` stay reserved.
  std::size_t trim(int device, std::size_t keep_bytes);
  /// A driver call outside the pool was refused for lack of memory: as trim(), but polls deferred frees for at most one second (natively they would
  /// have waited). True when something went back since `before`, so that the call is worth another try.
  bool make_room(std::uint64_t before);
  /// As make_room(), on one device; at first no more than what the driver lacks there for `bytes`.
  bool make_room_for(int device, std::uint64_t bytes);
  bool make_room() { return make_room(times_given_back()); }
  /// How often memory has gone back to the driver. Ask before a call that may be refused: another thread may be giving memory back meanwhile.
  std::uint64_t times_given_back() const;
  /// Returns what the driver keeps for graphs on devices where none lives. True when it was anything.
  bool trim_graphs();
  /// The program has made a graph with an allocation node: from now on the driver is asked what it keeps for graphs.
  void expect_graph_memory();
  bool expects_graph_memory() const;
  /// `more` executable graphs that may have such nodes have come (negative: gone) on `devices`, one bit each. What the driver keeps for them there is
  /// theirs.
  void note_living_graphs(std::uint64_t devices, int more) noexcept;
  static constexpr std::uint64_t kAnyDevice = ~std::uint64_t{0};
  /// What the driver keeps for graphs may have changed: asks it, if there are any.
  void note_graph_memory();
  /// As note_graph_memory(), after a launch of a graph. Most launches change nothing, and the question costs 43 ns (H100): the driver is asked after
  /// the 1st, 2nd, 4th ... 64th launch, and every 64th. `is_new`: one of the first launches of an executable graph, each of which may take more
  /// memory; the driver is asked then too.
  void graph_launched(bool is_new = false);
  /// The program lets contexts of one device reach memory of another: from now on every context may hold work on any block.
  void link_devices();
  /// As link_devices(), and mapped pages of `owner`, present and future ones, must be made accessible to `device`. Error: as the driver gave it; then
  /// nothing has changed.
  Status share_pages(CUcontext owner, int device);
  /// True once any device memory was asked for: only then is a report written.
  bool used() const;
  /// Everything known, collected within `budget`; devices whose lock cannot be taken in time are left out (complete = false).
  observe::Snapshot snapshot(std::chrono::nanoseconds budget);
  /// The number (OomRecord::number) of the calling thread's newest OOM, once; 0: it has none that was not asked for yet. The caller writes its
  /// report.
  std::uint64_t take_untold_oom();
  /// What the user should know (a preallocation cut short, a policy not served), and what CUPOOL_LOG asks for. Each once, oldest first.
  std::vector<Message> take_messages();
  bool has_messages() const;  ///< lock-free: asked after every allocation
  /// Walks every structure; returns the first broken invariant as a sentence, or an empty string.
  std::string check() const;

  // --- process life -----------------------------------------------------------------------------------

  /// From here on this set makes no driver call, in any thread.
  void stop_calling_driver();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cupool
