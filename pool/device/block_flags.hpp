// What the pool notes about one block beside its state: Extent::flags.
//
// Thread rule: as the extent's; a flag is written under the device's lock, or by the magazine that has the block.
#pragma once

#include <cstdint>

#include "pool/heap/extent.hpp"

namespace cupool::device {

/// Extent::flags of a live or deferred block.
inline constexpr std::uint8_t kSyncMemopsFlag = 1;    ///< the program set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
inline constexpr std::uint8_t kFreedInOrderFlag = 2;  ///< deferred: its free was complete for its stream already
inline constexpr unsigned kMempoolShift = 2;          ///< above: index of the memory pool it came from
/// Deferred, which has no SYNC_MEMOPS any more: its free still waits in the driver, and until it returns the counters call it live.
inline constexpr std::uint8_t kBeingFreedFlag = kSyncMemopsFlag;
inline bool is_counted_live(const heap::Extent& extent) {
  return extent.state == heap::ExtentState::live || (extent.state == heap::ExtentState::deferred && (extent.flags & kBeingFreedFlag) != 0);
}
inline std::uint8_t mempool_of(const heap::Extent& extent) { return static_cast<std::uint8_t>(extent.flags >> kMempoolShift); }

}  // namespace cupool::device
