// PageHeap: creating handles, and how large they are. See page_heap.hpp.
#include <algorithm>
#include <bit>

#include "pool/core/bytes.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

/// Blocks of whole pages, as memory pools on top of this one ask for them, lie one behind the other: a handle ends where a block ends, and is as
/// large as a divisor of the block, or an eighth of it, since the next block there may be smaller. Other blocks share their last pages: a shared page
/// is a handle of its own, and what lies between two of them is another, so that a freed block takes everything along that it does not share, however
/// its neighbours live on.
std::uint64_t PageHeap::fitting_bytes(const Supply& supply) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  if (!is_aligned(supply.block_bytes, page_bytes))
    return std::max(align_down(supply.next_block_end_bytes(), page_bytes) - supply.handle_bytes, page_bytes);
  const std::uint64_t divisor_bytes = std::uint64_t{1} << std::countr_zero(supply.block_bytes);
  return std::bit_floor(std::min(std::max(divisor_bytes, supply.block_bytes / kPartsOfBlock), supply.to_block_end_bytes()));
}

/// As many handles as cover what was asked for, and no more.
std::uint64_t PageHeap::preallocated_handle_bytes(const Supply& supply) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  if (supply.zone != 0 && supply.zone_bytes == 0) return page_bytes;  // the first small blocks get a page of their own, since few of them keep little
  const std::uint64_t of_all_bytes = supply.all_bytes > kFewHandlesFrom_bytes ? kLargestHandle_bytes : supply.all_bytes / kPreallocatedShareOfAll;
  const std::uint64_t most_bytes = std::min({supply.missing_bytes(), of_all_bytes, supply.room_bytes / kPreallocatedShare});
  return std::max(std::bit_floor(most_bytes), page_bytes);
}

std::uint64_t PageHeap::grown_handle_bytes(const Supply& supply) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  const std::uint64_t of_all_bytes = supply.all_bytes / (supply.is_of_whole_pages ? kShareOfAllWhole : kShareOfAll);
  const std::uint64_t most_bytes =
      std::min({std::max(supply.zone_bytes, supply.missing_bytes()), kLargestGrown_bytes, of_all_bytes, supply.room_bytes / kHandleShare});
  const std::uint64_t fitting_bytes = this->fitting_bytes(supply);
  return std::max(fitting_bytes <= most_bytes ? fitting_bytes : std::bit_floor(most_bytes), page_bytes);
}

/// Creates one handle, charged to the limit. False: the limit or the driver refused, or supply.error says what else.
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
    const std::uint64_t next_bytes = supply.source == Source::preallocate ? preallocated_handle_bytes(supply) : grown_handle_bytes(supply);
    const std::uint64_t bytes = std::max(least_bytes, std::min(most_bytes, next_bytes));
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
