// Simulator: all that the simulated driver knows, behind one lock, and the functions that the API files share.
//
// Lives from load to the end of the process and is never destroyed, because programs call the driver from exit handlers. Thread rule: everything is
// guarded by `mutex`, except `ledger`, the atomic flags, and what belongs to one thread; `settings` change only in a reset, during which no other
// thread may call.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/sim/address_space.hpp"
#include "tests/sim/context.hpp"
#include "tests/sim/device_memory.hpp"
#include "tests/sim/faults.hpp"
#include "tests/sim/graph_memory.hpp"
#include "tests/sim/ipc.hpp"
#include "tests/sim/mempool.hpp"
#include "tests/sim/settings.hpp"
#include "tests/sim/timeline.hpp"
#include "tests/sim/vmm.hpp"

namespace cusim {

/// What belongs to one thread: only that thread reads or writes it, and a reset, during which no thread may call the driver.
struct ThreadState {
  std::vector<Context*> stack;  ///< back = current; may hold null (cuCtxSetCurrent(NULL) pops, cuCtxPushCurrent refuses it)
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool in_host_function = false;
};

struct Device {
  Device(int ordinal, const DeviceSetting& chosen, CUdeviceptr area, std::uint64_t area_bytes)
      : setting(chosen), memory(ordinal, area, area_bytes, chosen.memory_bytes) {}

  DeviceSetting setting;
  DeviceMemory memory;
  CUresult broken = CUDA_SUCCESS;  ///< after an illegal access: the error of every context of the device, and of those to come
  Context* primary = nullptr;
  MemoryPool* default_pool = nullptr;
  MemoryPool* current_pool = nullptr;
  GraphPool graph_pool;
};

struct ExternalMemory {
  int fd = -1;
  std::uint64_t bytes = 0;
};

/// A part of a sparse array, by what cuMemMapArrayAsync names it: kind, level, layer, offsets, extents.
using ArrayPart = std::array<std::uint64_t, 9>;

struct Array {
  int device = 0;
  Context* context = nullptr;
  std::uint64_t charged_bytes = 0;
  CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor{};
  unsigned levels = 1;
  std::map<ArrayPart, PhysicalMemory*> parts;  ///< what is mapped into it
};

/// A module or a library.
struct Module {
  Context* context = nullptr;
  Allocation* variable = nullptr;  ///< null until it is asked for; gone with the context
};

/// When an access is judged. What stream-ordered memory is there can be told only when the access runs, not when the call is made.
enum class Moment { call, completion };

/// Objects by handle. Unless CUSIM_REUSE_HANDLES is set, a handle never comes again, so that the use of an old one is always recognised.
template <class T> using HandleMap = std::unordered_map<std::uint64_t, std::unique_ptr<T>>;

class Simulator {
 public:
  static Simulator& instance();

  /// Puts everything back as it was at load, and reads the settings again.
  void reset();
  ThreadState& thread();

  void violate(const std::string& sentence) { ledger.add_violation(sentence); }
  std::uint64_t new_handle() { return next_handle_ += 64; }
  bool was_handle(const void* handle) const;  ///< was it ever given out?
  std::uint64_t next_id() { return ++next_id_; }

  // Contexts (context.cpp)
  Context* find_context(CUcontext handle);
  Context* create_context(int device, bool primary, unsigned flags);
  /// Takes a reference of the device's primary context, which comes to life with the first.
  CUresult retain_primary(Device& device, Lock& lock);
  /// A new handle, or the last one given back where handles return.
  std::uint64_t take_handle(std::vector<std::uint64_t>& given_back);
  CUstream create_stream(Context& context, unsigned flags, int priority);
  /// The context itself and, of a primary one, its live green contexts.
  std::vector<Context*> family(Context& context);
  /// Waits for the context's work, then frees all that it holds. Returns what the call that ends it answers: under CUSIM_END_ERRORS its sticky error.
  CUresult end_context(Context& context, Lock& lock);
  void leave_pool_memory(Context& context);
  void forget_captures_of(const Context& context);
  /// Waits while another thread ends the context: calls that retain, release or reset a primary context come after that [?].
  void wait_while_ending(const Context& context, Lock& lock);
  /// The calling thread ends. Under CUSIM_THREAD_STREAMS=end its own streams and their captures end with it; work in them goes on.
  void end_thread(ThreadState& state);
  /// Gives the context, and its green contexts, a sticky error.
  void break_context(Context& context, CUresult code);
  /// Gives all contexts of the device a sticky error, and those to come, as an illegal access does on an H100 (driver 580). Other devices go on [?].
  void break_device(int ordinal, CUresult code);

  // Memory (memory.cpp)
  /// The live memory that contains `address`, of whatever kind; nullptr: none.
  Allocation* find_memory(CUdeviceptr address);
  /// The same, as the host's queries see it: to those, graph memory is known from a launch to its free (an H100, driver 580).
  Allocation* find_known(CUdeviceptr address);
  /// Puts the allocation into its context's list.
  void adopt(Allocation& allocation, Context& context);
  /// Takes the allocation out of its context's list.
  void disown(Allocation& allocation);
  /// Takes the allocation out of every list and gives its bytes back.
  void release(Allocation& allocation);
  /// The same for memory that is not cuMemAlloc's (region.cpp).
  void release_region(Allocation& allocation);
  void release_all_regions();
  /// Copies between a host buffer and live memory; false where some byte lies in none, or the range crosses from one allocation into another.
  bool read(CUdeviceptr address, void* out, std::size_t bytes);
  bool write(CUdeviceptr address, const void* data, std::size_t bytes);
  /// True when [address, +bytes) lies in live memory that work of `context` may touch; else why not.
  bool may_touch(const Context& context, CUdeviceptr address, std::size_t bytes, bool writes, std::string* why);

  /// The same for the copy engine, which reaches cuMemAlloc memory of every device; VMM and pool memory only with access.
  bool may_copy(const Context& context, CUdeviceptr address, std::size_t bytes, bool writes, Moment moment, std::string* why);

  /// The file that holds its bytes; made if it was not needed before.
  int file_of(const Allocation& memory);
  /// What kernels of `context` may do with the memory.
  CUmemAccess_flags kernel_access(const Context& context, const Allocation& memory) const;
  /// Tells mappings apart: another one under the same addresses gives another stamp. nullopt: not all of it is mapped by cuMemMap.
  std::optional<std::uint64_t> mapping_stamp(const std::vector<Touched>& ranges) const;

  /// Frees the memory if neither a handle nor a mapping refers to it, nor a descriptor by which it was shared ("its shareable counterparts").
  void drop_if_unused(PhysicalMemory& memory);
  /// The same for all memory that only descriptors hold, some of which may be closed by now.
  void drop_what_is_let_go();
  /// Gives back the memory that the array holds, before it is destroyed.
  void empty_array(Array& array);

  // Memory pools (mempool.cpp)
  /// The device's default pool, created on first use.
  MemoryPool& default_pool(int ordinal);
  /// The pools of a place on the host, created on first use.
  PlacePools& host_pools(const PoolPlace& place);
  /// Device memory for `bytes` in stream order, from the pool or fresh; nullopt when there is none.
  std::optional<PooledRange> take_pooled(MemoryPool& pool, std::size_t bytes, const Stream& stream);
  std::optional<PooledRange> take_divided(MemoryPool& pool, std::size_t requested_bytes, const Stream& stream);
  Allocation* grow_pool(MemoryPool& pool, std::size_t bytes);
  /// Gives a stream-ordered allocation's bytes back to its pool. Once `freed` completes, nothing touches them any more.
  void return_to_pool(Allocation& allocation, const OperationPtr& freed);
  /// Forgets the stream-ordered allocation at `base`, if there is one; its bytes stay with the pool.
  void drop_stream_ordered(CUdeviceptr base);
  /// Gives unused memory back to the device until the pool reserves no more than `keep_bytes`; true when any was.
  bool trim_pool(MemoryPool& pool, std::uint64_t keep_bytes);
  bool trim_pools(int device);
  /// What the driver does before it refuses memory (an H100, driver 580): takes back what pools, and graphs that are gone, do not use. True: there
  /// was any.
  bool give_back_unused(int device);
  /// What a synchronisation does: lets each pool keep no more than its release threshold.
  void trim_to_thresholds(int device);

  // Graph memory (graph_memory.cpp)
  /// Memory of a node of a graph, without bytes as yet; null when there are no addresses left.
  std::shared_ptr<GraphMemory> create_graph_memory(Context& context, int device, std::size_t bytes);
  std::shared_ptr<GraphMemory> find_graph_memory(CUdeviceptr base);
  /// Gives graph memory its bytes, if it has none yet; false: the device has none left.
  bool back_graph_memory(GraphMemory& memory);
  std::uint64_t graph_bytes_in_use(int device) const;
  /// The context of graph memory ends.
  void end_graph_memory(GraphMemory& memory);
  /// Forgets memory whose graphs are gone. Its bytes stay with the device, for other graphs.
  void sweep_graph_memory();
  /// Gives everything back that no live allocation and no work in flight holds.
  void trim_graph_memory(int device);

  // Streams (stream.cpp, event.cpp)
  CUresult resolve_stream(CUstream handle, Stream** out);
  Event* find_event(CUevent handle);
  /// Enqueues `work`, or records it while the stream captures.
  CUresult enqueue(Stream& stream, Work work, Lock& lock, OperationPtr* operation = nullptr);
  OperationPtr submit(Context& context, const Work& work, std::vector<OperationPtr> predecessors, Lock& lock, OperationPtr* tail = nullptr);
  /// An operation that completes when all work of `context` so far has.
  OperationPtr context_marker(Context& context, Lock& lock);
  void wait_for_context(Context& context, Lock& lock);
  std::vector<OperationPtr> stream_predecessors(Stream& stream);
  CUresult record_in_stream(Event& event, Stream& stream, Lock& lock);
  CUresult wait_in_stream(Stream& stream, Event& event, Lock& lock);

  // Captures (capture.cpp)
  /// For an unsafe call: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED where the thread's mode forbids it now; the captures concerned are invalidated then.
  CUresult forbid_while_capturing();
  /// The same for a call that conflicts with every capture in `context`, whatever the modes.
  CUresult conflict_with_captures(Context& context);
  /// For a use of the legacy stream of `context`: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT while a blocking stream of it captures.
  CUresult forbid_implicit(Context& context);
  /// Ends a capture without a graph. Takes it by value, because the streams that hold it let go of it.
  void forget_capture(std::shared_ptr<Capture> capture);

  alignas(64) std::mutex mutex;  // a cache line of its own, so that threads which wait for it do not slow down those that only read the settings
  alignas(64) Settings settings;
  Ledger ledger;
  alignas(64) Timeline timeline;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Context>> contexts;
  std::unordered_map<std::uint64_t, Context*> contexts_by_handle;
  HandleMap<Stream> streams;
  HandleMap<Event> events;
  std::unordered_map<std::uint64_t, const Context*> events_of_primaries;  ///< events that ended with a primary context
  HandleMap<Array> arrays;
  std::unordered_map<std::uint64_t, Module> modules;
  std::unordered_map<std::uint64_t, ExternalMemory> external;
  std::vector<std::uint64_t> given_back_streams;
  std::vector<std::uint64_t> given_back_events;
  HeldObjects user_objects;  ///< the program's own references
  std::unordered_map<std::uint64_t, std::weak_ptr<UserObject>> known_objects;
  std::unordered_map<std::uint64_t, std::shared_ptr<Graph>> graphs;
  std::unordered_map<std::uint64_t, std::shared_ptr<GraphExec>> graph_execs;
  std::vector<std::shared_ptr<GraphMemory>> graph_memory;
  HandleMap<MemoryPool> pools;
  std::map<PoolPlace, PlacePools> pools_of_hosts;
  std::map<std::uint64_t, std::unique_ptr<PhysicalMemory>> physical;
  std::vector<std::uint64_t> held_elsewhere;  ///< handles of memory that only descriptors still hold
  std::map<CUdeviceptr, Reservation> reservations;
  std::map<CUdeviceptr, std::unique_ptr<Allocation>> regions;  ///< all memory that is not cuMemAlloc's, by base
  std::vector<std::shared_ptr<Capture>> captures;              ///< in progress
  std::unique_ptr<AddressSpace> address_space;
  ExportTable exports;
  std::unordered_map<CUdeviceptr, std::unique_ptr<Mapping>> mappings;
  PhysicalStore physical_store;
  std::uint64_t mismatched_bytes = 0;

  alignas(64) std::atomic<bool> initialised{false};
  std::atomic<bool> deinitialised{false};
  std::atomic<bool> forked{false};  ///< a child that inherited an initialised driver

 private:
  Simulator() = default;
  alignas(64) std::uint64_t next_handle_ = 0;
  std::uint64_t next_id_ = 0;
  std::vector<std::unique_ptr<ThreadState>> threads_;
  std::mutex threads_mutex_;
};

/// Device addresses: cuMemAlloc memory first, then what cuMemAddressReserve hands out. Nothing is mapped at them.
inline constexpr CUdeviceptr kDeviceArea = 0x1000'0000'0000;
inline constexpr std::uint64_t kDeviceAreaBytes = 0x2000'0000'0000;
inline constexpr CUdeviceptr kReservationArea = kDeviceArea + kDeviceAreaBytes;
inline constexpr std::uint64_t kReservationAreaBytes = 0x2000'0000'0000;

inline bool is_device_address(std::uint64_t address) { return address >= kDeviceArea && address < kReservationArea + kReservationAreaBytes; }

inline CUstream as_stream(std::uint64_t handle) { return reinterpret_cast<CUstream>(handle); }
inline std::uint64_t as_number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
inline CUcontext as_handle(Context* context) { return context == nullptr ? nullptr : reinterpret_cast<CUcontext>(context->handle); }

}  // namespace cusim
