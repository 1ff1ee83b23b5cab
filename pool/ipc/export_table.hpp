// ExportTable: which blocks of this process have an entry in its registry.
//
// A block is known by its address and its buffer id: the address alone may already be another block's. Bookkeeping
// only: no file, no driver. Thread rule: guarded by the owner's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pool/ipc/block_handle.hpp"

namespace cupool::ipc {

struct Export {
  std::uint64_t buffer_id = 0;
  CUcontext context = nullptr;  ///< owns the block: the entry ends with it
  Nonce nonce{};
  std::uint32_t index = 0;   ///< index of its registry entry
  std::uint64_t serial = 0;  ///< when it was exported, in exports and context deaths
};

class ExportTable {
 public:
  /// The block's export, or nullptr.
  const Export* find(CUdeviceptr base, std::uint64_t buffer_id) const;
  /// The buffer id exported at `base`, or 0.
  std::uint64_t buffer_at(CUdeviceptr base) const;

  /// Books an export under the next free index and the present serial. `evicted` gets the index of an export that still
  /// stood at `base`: its block was freed behind our back. Strong guarantee on bad_alloc.
  const Export& add(CUdeviceptr base, std::uint64_t buffer_id, CUcontext context, const Nonce& nonce, std::optional<std::uint32_t>& evicted);
  /// Forgets the export of the block; its index, which is free from now on.
  std::optional<std::uint32_t> remove(CUdeviceptr base, std::uint64_t buffer_id);
  /// Forgets what `context` had exported up to `serial`: a later export is of another context with the same handle.
  std::vector<std::uint32_t> remove_context(CUcontext context, std::uint64_t serial);

  /// The index that add() would take.
  std::uint32_t next_index() const { return free_.empty() ? used_ : free_.back(); }
  /// A moment for remove_context: what is added from now on is later.
  std::uint64_t mark() { return serial_++; }
  std::size_t size() const { return by_base_.size(); }
  std::string check() const;

 private:
  std::unordered_map<CUdeviceptr, Export> by_base_;
  std::vector<std::uint32_t> free_;  ///< indices below used_ without an export; capacity for all of them
  std::uint32_t used_ = 0;
  std::uint64_t serial_ = 0;
};

}  // namespace cupool::ipc
