// Exports: which allocations other processes may open, and how they find the bytes.
//
// A handle names the exporter's process and two of its descriptors: the device's bytes, and a table of live exports. The opener
// reaches both through /proc/<pid>/fd (same user). An allocation that was freed is gone from the table.
// Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tests/sim/allocation.hpp"

namespace cusim {

/// What the 64 bytes of a CUipcMemHandle hold.
struct IpcHandle {
  std::uint64_t magic;
  std::int32_t pid;
  std::int32_t fd;        ///< of the exporter's device bytes
  std::int32_t table_fd;  ///< of its export table
  std::uint32_t slot;     ///< in that table: the buffer id while the allocation lives
  std::uint64_t buffer_id;
  std::uint64_t file_offset;
  std::uint64_t bytes;
  CUuuid device;
};
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));

inline constexpr std::uint64_t kIpcMagic = 0x63757369'6d697063;  // "cusimipc"

class ExportTable {
 public:
  ~ExportTable() { clear(); }
  /// The slot that says `buffer_id` is live.
  std::uint32_t add(std::uint64_t buffer_id);
  void remove(std::uint32_t slot);
  int fd() const { return fd_; }
  void clear();

 private:
  int fd_ = -1;
  std::uint32_t used_ = 0;
};

}  // namespace cusim
