// What the pool notes about one block beside its state: Extent::flags of a live or deferred block. (Those of absent extents: paged_region.hpp.)
//
// Thread rule: a flag is written under the device's lock, or by the thread in whose magazine the block is.
#pragma once

#include <cstdint>

#include "pool/heap/extent.hpp"

namespace cupool::device {

inline constexpr std::uint8_t kSyncMemopsFlag = 1;    ///< live: the program set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
inline constexpr std::uint8_t kFreedInOrderFlag = 2;  ///< deferred: it was free for its own stream before, and its free_completed event is recorded
inline constexpr unsigned kMempoolShift = 2;          ///< from this bit on: index of the memory pool that it was allocated from; 0: none
/// Deferred: the free waits in the driver, and the counters call the block live until it returns. (A deferred block has no SYNC_MEMOPS any more, so
/// both can be the same bit.)
inline constexpr std::uint8_t kBeingFreedFlag = kSyncMemopsFlag;
inline bool is_counted_live(const heap::Extent& extent) {
  return extent.state == heap::ExtentState::live || (extent.state == heap::ExtentState::deferred && (extent.flags & kBeingFreedFlag) != 0);
}
inline std::uint8_t mempool_of(const heap::Extent& extent) { return static_cast<std::uint8_t>(extent.flags >> kMempoolShift); }

}  // namespace cupool::device
