// SharedBlocks: the blocks that this process shares with others by cuIpc*, those that it exports and those that it has opened.
//
// An exported block has an entry in this process's registry, which ends with the block or its context. An opened one lies in a region that the driver
// opened once; the program sees the block, never the region. The lock is a leaf: no driver call, pool call or log line is made under it. Thread-safe.
// CUDA Driver API 13.0 §6.14 (cuIpc*).
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "pool/device/pool_set.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/ipc/export_table.hpp"
#include "pool/ipc/import_table.hpp"
#include "shim/ipc_registry.hpp"
#include "shim/real.hpp"

namespace cupool::shim {

class SharedBlocks {
 public:
  using ExportCall = Real<CUresult(CUipcMemHandle*, CUdeviceptr)>;
  using OpenCall = Real<CUresult(CUdeviceptr*, CUipcMemHandle, unsigned)>;
  using CloseCall = Real<CUresult(CUdeviceptr)>;

  SharedBlocks(const DriverApi& api, PoolSet& pools, const ipc::ProcessName& self) : api_(api), pools_(pools), registry_(self) {}

  // --- what this process exports
  /// Writes a handle of ours for the live pooled `block`, the same one as long as it lives. The driver is asked for the handle of its region. Returns
  /// the driver's error, or CUDA_ERROR_OUT_OF_MEMORY where the export cannot be booked.
  CUresult export_block(const ExportCall& real, CUipcMemHandle* out, const BlockView& block);
  /// The buffer id of the block that is exported at `base`, 0: none is. Asked before a free, handed to retire() after it. One load while nothing is
  /// exported.
  std::uint64_t exported_at(CUdeviceptr base) const { return exports_count_.load(std::memory_order_relaxed) != 0 ? find_exported(base) : 0; }
  /// The block that was exported at `base` as `buffer_id` is freed: nobody can open it any more.
  void retire(CUdeviceptr base, std::uint64_t buffer_id);

  // --- what it has open
  /// Opens the block that `handle` names, in `context`. If anything is wrong with the handle, answers what the driver says to a handle of zeros.
  CUresult open(const OpenCall& real, CUdeviceptr* out, const ipc::BlockHandle& handle, unsigned flags, CUcontext context);
  /// Precondition: find_opened() knows `address`, and the thread has a current context.
  CUresult close(const CloseCall& real, CUdeviceptr address);
  /// As PoolSet::find, for opened blocks and what lies between them in their regions. One load while nothing is open.
  Ownership find_opened(CUdeviceptr address, BlockView* block) const {
    return opened_count_.load(std::memory_order_acquire) != 0 ? look_up_opened(address, block) : Ownership::unknown;
  }
  /// Sets SYNC_MEMOPS of the opened block. True: the driver's flag, which covers the whole region, must be set to `on` as well.
  bool set_sync_memops(CUdeviceptr address, bool on);

  // --- ends
  /// A moment before a context may end: exports from it and openings in it up to that moment end with it, later ones are another context's.
  struct Moment {
    std::uint64_t exports = 0;
    std::uint64_t imports = 0;
  };
  Moment mark();
  void context_ended(CUcontext context, Moment before);
  /// At the end of the process: unlinks the registry. Takes no lock.
  void remove_registry() { registry_.retire(); }

 private:
  std::uint64_t find_exported(CUdeviceptr base) const;
  Ownership look_up_opened(CUdeviceptr address, BlockView* block) const;
  bool look_up(const ipc::BlockHandle& handle, ipc::BlockPlace& place);
  CUresult book_export(CUipcMemHandle* out, const BlockView& block, const ipc::BlockPlace& place);
  CUdeviceptr open_again(const ipc::BlockPlace& place, CUcontext context);
  CUresult book_open(CUdeviceptr* out, CUdeviceptr region, const ipc::BlockPlace& place, CUcontext context);
  struct Closing {
    ipc::OpenedBlock block;                   ///< the block at the address
    CUcontext context = nullptr;              ///< the context to wait for before it can be closed
    std::optional<ipc::OpenedRegion> region;  ///< its region, if the driver is to close that as well
  };
  bool close_known(CUdeviceptr address, const ipc::OpenedBlock& waited, Closing& closing);
  CUresult close_region(const CloseCall& real, const ipc::OpenedRegion& region, const ipc::OpenedBlock& block);

  const DriverApi& api_;
  PoolSet& pools_;
  mutable std::mutex mutex_;
  IpcRegistry registry_;      ///< under mutex_, but for read() and retire()
  ipc::ExportTable exports_;  ///< under mutex_
  ipc::ImportTable imports_;  ///< under mutex_
  std::atomic<std::size_t> exports_count_{0};
  std::atomic<std::size_t> opened_count_{0};
  std::atomic<bool> has_warned_{false};
};

}  // namespace cupool::shim
