// PageHeap: new handles, and how large they are. See page_heap.hpp.
#include <algorithm>
#include <bit>

#include "pool/core/bytes.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

/// Blocks of whole pages, as memory pools on top of this one ask for, lie behind each other: a handle ends where they end, and is one that divides
/// them or an eighth of them, since the next one there may be smaller. Others share their last pages: one is a handle of its own, and what lies
/// between two of them another, so that a freed block takes all along that it does not share, however its neighbours live on.
std::uint64_t PageHeap::fitting_bytes(const Supply& supply) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  if (!is_aligned(supply.block_bytes, page_bytes))
    return std::max(align_down(supply.next_block_end_bytes(), page_bytes) - supply.handle_bytes, page_bytes);
  const std::uint64_t divisor_bytes = std::uint64_t{1} << std::countr_zero(supply.block_bytes);
  return std::bit_floor(std::min(std::max(divisor_bytes, supply.block_bytes / kPartsOfBlock), supply.to_block_end_bytes()));
}

std::uint64_t PageHeap::next_handle_bytes(const Supply& supply) const {
  // Of what is preallocated the first small blocks get a page: few of them keep little
  if (supply.source == Source::preallocate && supply.zone != 0 && supply.zone_bytes == 0) return memory_->granularity_bytes();
  // What is preallocated is what was asked for, and no handle more
  std::uint64_t most_bytes = std::max(supply.source == Source::preallocate ? 0 : supply.zone_bytes, supply.missing_bytes());
  if (supply.source != Source::preallocate) {
    most_bytes = std::min({most_bytes, kLargestGrown_bytes, supply.all_bytes / (supply.is_of_whole_pages ? kShareOfAllWhole : kShareOfAll),
                           supply.room_bytes / kHandleShare});
    const std::uint64_t fitting_bytes = this->fitting_bytes(supply);
    if (fitting_bytes <= most_bytes) return std::max(fitting_bytes, memory_->granularity_bytes());
  } else if (supply.all_bytes > kFewHandlesFrom_bytes)
    most_bytes = std::min({most_bytes, kLargestHandle_bytes, supply.room_bytes / kPreallocatedShare});
  else most_bytes = std::min({most_bytes, supply.all_bytes / kPreallocatedShareOfAll, supply.room_bytes / kPreallocatedShare});
  return std::max(std::bit_floor(most_bytes), memory_->granularity_bytes());
}

/// Charged to the limit. False: limit or driver refused, or supply.error says what else.
bool PageHeap::create_one(DeviceState& device, Supply& supply, std::uint64_t bytes) {
  supply.is_charged = device.limit.charge(bytes);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = supply.is_charged ? memory_->create(bytes, &handle) : CUDA_ERROR_OUT_OF_MEMORY;
  if (code == CUDA_SUCCESS) {
    supply.handles.push_back({handle, bytes, true});
    supply.handle_bytes += bytes;
    supply.created_bytes += bytes;
    ++supply.created_handles;
    supply.zone_bytes += bytes;
    supply.room_bytes -= std::min(supply.room_bytes, bytes);
    return true;
  }
  if (supply.is_charged) device.limit.refund(bytes);
  if (code != CUDA_ERROR_OUT_OF_MEMORY && supply.error == CUDA_SUCCESS) supply.error = code;
  return false;
}

void PageHeap::create_missing(DeviceState& device, Supply& supply) {
  std::uint64_t most_bytes = kLargestHandle_bytes;
  const std::uint64_t least_bytes = memory_->granularity_bytes();
  while (supply.missing_bytes() != 0 && supply.handles.size() < supply.handles.capacity()) {
    const std::uint64_t bytes = std::max(least_bytes, std::min(most_bytes, next_handle_bytes(supply)));
    if (create_one(device, supply, bytes)) continue;
    if (supply.error != CUDA_SUCCESS) return;
    if (bytes == least_bytes) {
      supply.is_refused = supply.is_charged;
      return;
    }
    most_bytes = bytes / 2;
  }
}

}  // namespace cupool::device
