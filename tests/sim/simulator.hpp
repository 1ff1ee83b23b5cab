// Simulator: everything the simulated driver knows, behind one lock, and the helpers that the API files share.
//
// Lives from load to the end of the process (never destroyed: programs call the driver from exit handlers).
// Thread rule: everything but `ledger`, the flags and what is a thread's own is guarded by `mutex`; `settings` change only in a reset, during which
// no other thread calls.
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

/// Of its thread alone: nobody else reads or writes it but a reset, during which no thread may call the driver.
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
  CUresult broken = CUDA_SUCCESS;  ///< an illegal access has broken every context, and those to come
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

/// When an access is judged: what memory is in stream order is known when the access runs, not when it is asked for.
enum class Moment { call, completion };

/// A handle never returns: an old one is recognised for ever.
template <class T> using HandleMap = std::unordered_map<std::uint64_t, std::unique_ptr<T>>;

class Simulator {
 public:
  static Simulator& instance();

  /// As at load. Reads the settings again.
  void reset();
  ThreadState& thread();

  void violate(const std::string& sentence) { ledger.add_violation(sentence); }
  std::uint64_t new_handle() { return next_handle_ += 64; }
  bool was_handle(const void* handle) const;
  std::uint64_t next_id() { return ++next_id_; }

  // Contexts (context.cpp)
  Context* find_context(CUcontext handle);
  Context* create_context(int device, bool primary, unsigned flags);
  /// Takes a reference of the device's primary context, which comes to life with the first.
  CUresult retain_primary(Device& device, Lock& lock);
  /// A new handle, or the last one given back where handles return.
  std::uint64_t take_handle(std::vector<std::uint64_t>& given_back);
  CUstream create_stream(Context& context, unsigned flags, int priority);
  /// Itself, and the live green contexts of a primary one.
  std::vector<Context*> family(Context& context);
  /// Waits for the context's work, then frees all it holds. What the call that does it answers: with CUSIM_END_ERRORS the sticky error.
  CUresult end_context(Context& context, Lock& lock);
  void leave_pool_memory(Context& context);
  void forget_captures_of(const Context& context);
  /// Whoever retains, releases or resets a primary context while another thread ends it comes after that [?].
  void wait_while_ending(const Context& context, Lock& lock);
  /// The calling thread is over: its own streams, and what they capture, end with it (CUSIM_THREAD_STREAMS=end), their work does not.
  void end_thread(ThreadState& state);
  /// It alone (with its green contexts).
  void break_context(Context& context, CUresult code);
  /// Every context of the device and those to come, as an illegal access does on an H100 (driver 580). Other devices go on [?].
  void break_device(int ordinal, CUresult code);

  // Memory (memory.cpp)
  Allocation* find_memory(CUdeviceptr address);
  /// The same for questions of the host, to which graph memory is known from a launch to its free (an H100, driver 580).
  Allocation* find_known(CUdeviceptr address);
  void adopt(Allocation& allocation, Context& context);
  /// Takes the allocation out of its context's list.
  void disown(Allocation& allocation);
  /// Takes the allocation out of every list and gives its bytes back.
  void release(Allocation& allocation);
  /// Gives back what is not cuMemAlloc memory (region.cpp).
  void release_region(Allocation& allocation);
  void release_all_regions();
  /// Moves bytes between a host buffer and live memory; false when some byte is not of one live allocation.
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

  /// The bytes go when neither a handle nor a mapping refers to them, nor a descriptor by which they were shared ("its shareable counterparts").
  void drop_if_unused(PhysicalMemory& memory);
  /// Of those that only descriptors held, the ones that are closed by now.
  void drop_what_is_let_go();
  /// Gives back what the array holds, before it goes.
  void empty_array(Array& array);

  // Memory pools (mempool.cpp)
  /// The device's default pool, created on first use.
  MemoryPool& default_pool(int ordinal);
  /// The pools of a place on the host, created on first use.
  PlacePools& host_pools(const PoolPlace& place);
  /// Device memory for `bytes` in stream order, from the pool or fresh; nullopt when there is none.
  std::optional<PooledRange> take_pooled(MemoryPool& pool, std::size_t bytes, const Stream& stream);
  /// Puts a stream-ordered allocation's bytes back; nothing touches them any more once `freed` completes.
  void return_to_pool(Allocation& allocation, const OperationPtr& freed);
  /// Forgets the stream-ordered allocation at `base`, if there is one; its bytes stay with the pool.
  void drop_stream_ordered(CUdeviceptr base);
  /// Gives unused memory back to the device until the pool reserves no more than `keep_bytes`; true when any was.
  bool trim_pool(MemoryPool& pool, std::uint64_t keep_bytes);
  bool trim_pools(int device);
  /// What the driver does before it refuses memory (an H100, driver 580): takes what pools, and graphs that are gone, do not use; true when there was
  /// any.
  bool give_back_unused(int device);
  /// What a synchronisation does: pools keep what their release thresholds say.
  void trim_to_thresholds(int device);

  // Graph memory (graph_memory.cpp)
  /// Memory of a node of a graph, without bytes as yet; null when there are no addresses left.
  std::shared_ptr<GraphMemory> create_graph_memory(Context& context, int device, std::size_t bytes);
  std::shared_ptr<GraphMemory> find_graph_memory(CUdeviceptr base);
  /// Gives it bytes, if it has none; false when there are none.
  bool back_graph_memory(GraphMemory& memory);
  std::uint64_t graph_bytes_in_use(int device) const;
  /// Its context ends.
  void end_graph_memory(GraphMemory& memory);
  /// Forgets the memory of graphs that are gone. Its bytes stay with the device's graph memory.
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
  /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the captures are dead, when the thread's mode forbids an unsafe call now.
  CUresult forbid_while_capturing();
  /// The same for calls that conflict with any capture in `context` whatever the mode.
  CUresult conflict_with_captures(Context& context);
  /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT when the legacy stream of `context` is used while a blocking stream captures.
  CUresult forbid_implicit(Context& context);
  /// By value: the streams that hold it let go.
  void forget_capture(std::shared_ptr<Capture> capture);

  alignas(64) std::mutex mutex;  // lines of their own: who waits for the lock does not slow down who only asks
  alignas(64) Settings settings;
  Ledger ledger;
  alignas(64) Timeline timeline;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Context>> contexts;
  std::unordered_map<std::uint64_t, Context*> contexts_by_handle;
  HandleMap<Stream> streams;
  HandleMap<Event> events;
  std::unordered_map<std::uint64_t, const Context*> events_of_primaries;  ///< gone with them
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
  std::vector<std::uint64_t> held_elsewhere;  ///< handles of memory that only descriptors hold
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
