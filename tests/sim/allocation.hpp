// Allocation: one piece of memory that a program can name, whatever made it.
//
// Device bytes live in a memfd and are moved by pread/pwrite: a device address is a number in a range that
// nothing is mapped at, so a program that dereferences one crashes, as it does natively.
// Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "tests/sim/timeline.hpp"

namespace cusim {

struct Context;
struct MemoryPool;
struct Mapping;
struct GraphMemory;

enum class MemoryKind : std::uint8_t {
  device,          ///< cuMemAlloc, cuMemAllocPitch
  stream_ordered,  ///< cuMemAllocAsync, cuMemAllocFromPoolAsync
  managed,         ///< cuMemAllocManaged
  host,            ///< cuMemHostAlloc, cuMemAllocHost
  registered,      ///< cuMemHostRegister
  mapped,          ///< cuMemMap
  imported,        ///< cuIpcOpenMemHandle
  graph,           ///< of an allocation node
  variable,        ///< __device__, of a module
  external,        ///< cuExternalMemoryGetMappedBuffer
};

struct Allocation {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;  ///< as asked for; the device is charged more
  MemoryKind kind = MemoryKind::device;
  bool live = false;
  bool touched = false;  ///< ever written: its pages of the memfd are given back when it is freed
  bool sync_memops = false;
  unsigned flags = 0;  ///< of cuMemHostAlloc, cuMemAllocManaged, cuMemHostRegister
  int device = 0;
  int fd = -1;  ///< of the bytes, unless `host` is set
  std::uint64_t file_offset = 0;
  std::uint64_t buffer_id = 0;
  std::byte* host = nullptr;
  Context* context = nullptr;      ///< null for mapped memory, and for a pool's whose context has ended
  Allocation* previous = nullptr;  ///< among the memory of the same context
  Allocation* next = nullptr;

  // Rare kinds.
  MemoryPool* pool = nullptr;
  Mapping* mapping = nullptr;
  GraphMemory* graph = nullptr;
  OperationPtr available;     ///< stream-ordered: from here on it may be touched
  OperationPtr reused_after;  ///< stream-ordered: until this is complete, the previous holder's work may touch the bytes
  Allocation* backing = nullptr;
  std::size_t pooled_bytes = 0;  ///< stream-ordered: what it takes of the backing
  bool free_requested = false;
  std::uint64_t freed_on = 0;        ///< id of the stream of the free
  std::uint32_t export_slot = 0;     ///< 1 + its slot in the table of exports; 0: never exported
  std::uint32_t open_count = 0;      ///< imported: times opened
  std::uint64_t reserved_bytes = 0;  ///< imported, external: the address range it takes
  std::int32_t exporter_pid = 0;
  std::uint64_t exporter_buffer_id = 0;

  /// Stream-ordered memory was handed on while work of the previous holder may still touch it, as far as that one reached.
  bool has_previous_holder() const { return reused_after != nullptr && !reused_after->done; }
  std::size_t reach_bytes() const { return has_previous_holder() && backing != nullptr ? pooled_bytes : bytes; }
};

}  // namespace cusim
