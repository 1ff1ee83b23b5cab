// ImportTable: the blocks of other processes that this one has open, and the regions that hold them.
//
// A region is opened in the driver for its first block and closed with its last. Two open blocks may overlap: the
// exporter freed one whose opener still has it, and exported its address again; queries then see the newer. Closing
// is by address, oldest first. Bookkeeping only. Thread rule: guarded by the owner's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "pool/ipc/registry_format.hpp"

namespace cupool::ipc {

struct OpenedBlock {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;
  std::uint64_t buffer_id = 0;  ///< unique among ours: the region's own id would make two blocks one
  CUdeviceptr region = 0;
  Nonce nonce{};
  std::uint32_t references = 0;  ///< opens that were not closed yet
  std::uint64_t opens = 0;       ///< how often it was opened, ever
  bool sync_memops = false;
};

struct OpenedRegion {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;
  CUcontext context = nullptr;
  CUipcMemHandle handle{};         ///< the driver's
  std::uint32_t driver_opens = 0;  ///< opens by the driver, which counts them: it needs as many closes
  std::uint32_t blocks = 0;
  std::uint64_t serial = 0;
};

class ImportTable {
 public:
  /// The region that `handle` names, when `context` has it open already.
  const OpenedRegion* find_region(const CUipcMemHandle& handle, CUcontext context) const;
  /// The region at or around `address`.
  const OpenedRegion* find_region(CUdeviceptr address) const;
  /// The newest open block around `address`.
  const OpenedBlock* find(CUdeviceptr address) const;

  /// Books one more open by the driver. A region that is known (same base, same context) counts it; a new one has no block yet. Any other region at
  /// these addresses was of a context that is gone, and is forgotten: the driver has given them again. `is_measured`: `bytes` are what the driver
  /// says, not only the exporter's file. A region of 0 bytes contains no address. Follow with open() or take_idle().
  void add_driver_open(const OpenedRegion& region, bool is_measured = true);
  /// Books the opening of the block at `place` in the region at `region`; returns its address, or 0 where it does not fit into the region.
  CUdeviceptr open(CUdeviceptr region, const BlockPlace& place);

  /// What closing `base` would need; `block` gets the one that it would close.
  enum class Close { unknown, counted, last_of_block, last_of_region };
  Close peek_close(CUdeviceptr base, OpenedBlock& block) const;
  /// Drops one reference. If it was the region's last, the region is forgotten and returned: close it in the driver as often as it says, or put it
  /// back.
  std::optional<OpenedRegion> close(CUdeviceptr base);
  /// Forgets the region at `base` if it has no block.
  std::optional<OpenedRegion> take_idle(CUdeviceptr base);

  /// Marks the newest block around `address`; true when no block of its region needs SYNC_MEMOPS any more (or one now does).
  bool set_sync_memops(CUdeviceptr address, bool on);
  /// Forgets what `context` had open up to `serial`.
  void remove_context(CUcontext context, std::uint64_t serial);
  std::uint64_t mark() { return serial_++; }
  std::size_t region_count() const { return regions_.size(); }
  std::string check() const;

 private:
  using Key = std::pair<CUdeviceptr, std::uint64_t>;  ///< base, buffer id: blocks at one base in the order of their opening

  std::map<Key, OpenedBlock>::const_iterator oldest_at(CUdeviceptr base) const;
  void forget_others_at(const OpenedRegion& region, std::uint64_t bytes);
  template <class Which> void forget(Which&& which);

  std::map<CUdeviceptr, OpenedRegion> regions_;
  std::map<Key, OpenedBlock> blocks_;
  std::uint64_t longest_bytes_ = 0;                                                              ///< no open block is longer
  std::uint64_t next_buffer_id_ = (std::uint64_t{1} << 63) | (std::uint64_t{0x7fff} << 48) | 1;  ///< above every device's
  std::uint64_t serial_ = 0;
};

}  // namespace cupool::ipc
