// PageHeap: which empty handles a block gets, and what becomes of one that is too large for it. See page_heap.hpp.
//
// A handle moves whole or not at all, so what a block does not need of the last one stays beside it for as long as it lives. Where blocks come and go
// on a full device that is how memory is lost that is free: such a handle is cracked, released and created again in pieces. When pages are moved
// anyway that costs two calls for each piece and keeps what is free in pieces that move. And where memory pools above this one ask for whole pages,
// they get no hole that ends within a handle that was empty, once the program has needed an eighth of the device: each of their blocks is a call of
// the driver's natively, each crack leaves smaller handles, and what they flush when memory is out is everybody's. Blocks of any size would have it
// too, but jobs that allocate their tensors here pay for each (DECISIONS.md).
#include <algorithm>
#include <bit>

#include "pool/core/bytes.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

using heap::Extent;

namespace {

/// Handles that fit into what is missing, the largest first and of one size in their order; taken ones are left behind with no bytes. There are few
/// sizes: a look at all for each is less than sorting them.
std::vector<MappedHandle> take_largest(std::vector<MappedHandle>& handles, std::uint64_t& missing_bytes) {
  std::vector<MappedHandle> taken;
  while (missing_bytes != 0) {
    std::uint64_t size_bytes = 0;
    for (const MappedHandle& handle : handles)
      if (handle.bytes <= missing_bytes) size_bytes = std::max(size_bytes, handle.bytes);
    if (size_bytes == 0) break;
    for (MappedHandle& handle : handles) {
      if (missing_bytes < size_bytes) break;
      if (handle.bytes != size_bytes) continue;
      taken.push_back(handle);
      missing_bytes -= size_bytes;
      handle.bytes = 0;
    }
  }
  return taken;
}

/// The last of the smallest; bytes 0: none is left.
MappedHandle smallest_left(const std::vector<MappedHandle>& handles) {
  MappedHandle smallest{};
  for (const MappedHandle& handle : handles)
    if (handle.bytes != 0 && (smallest.bytes == 0 || handle.bytes <= smallest.bytes)) smallest = handle;
  return smallest;
}

}  // namespace

/// Does the program need most of what there is?
bool PageHeap::program_fills(DeviceState& device) const {
  const std::uint64_t all_bytes = mapped_bytes() + loose_bytes_ + room_bytes(device);
  return saturating_sub(all_bytes, device.peak_live_bytes()) < all_bytes / kFullShare;
}

/// Would the block, which was cut from the beginning of a hole just now, end within a handle that is empty but for it, with a page of that or more to
/// spare? For programs that take whole pages, and not in steps that repeat themselves without a shortage: what one of them cracks the next one lacks
/// elsewhere, for ever.
bool PageHeap::strands(DeviceState& device, const Extent& block) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  if (block.bytes < page_bytes || !is_aligned(block.bytes, page_bytes) || !takes_whole_pages()) return false;
  if (device.peak_live_bytes() * kCrackedFromShare < mapped_bytes() + loose_bytes_ + room_bytes(device)) return false;
  const bool has_moved = whole_page_requests_ + other_requests_ < moved_at_ + kCrackedAfterMove;
  if (device.repeats_itself() && !(has_moved && program_fills(device))) return false;
  const std::uint64_t end = block.address + block.bytes;
  const MappedHandle last = table_of(block).at(end - 1);
  const std::uint64_t free_until = block.next_is_free && block.next->lane == 0 ? block.next->address + block.next->bytes : end;
  return !last.is_pinned && last.address >= block.address && last.end() <= free_until && last.end() - end >= page_bytes;
}

/// Where the handles that move come from. The largest holes leave whole ones to others; but what is taken from them was cut for the next large block
/// of a program that asks for whole pages, or whose steps repeat themselves: each step would then move more than the one before.
PageHeap::Holes PageHeap::holes_to_rob(DeviceState& device) const {
  return (takes_whole_pages() || device.repeats_itself()) && !program_fills(device) ? Holes::small : Holes::large;
}

/// Empty handles for what is missing: large ones that fit, smaller ones that do, and for what is missing then the smallest of the others, which is to
/// be cracked. Out of those of the largest holes. For programs that take whole pages, while they do not fill the device, out of the smallest holes,
/// so that the large ones stay: steps that repeat themselves find them again.
void PageHeap::take_fitting(Supply& supply, Holes first) {
  const std::size_t looks = first == Holes::large ? kCrackLooks : 0;
  std::uint64_t missing_bytes = supply.missing_bytes();
  const auto look = [&] {
    std::uint64_t empty_bytes = 0;
    looked_at_.clear();
    for_each_empty(
        [&](const MappedHandle& handle) {
          looked_at_.push_back(handle);
          empty_bytes += handle.bytes;
          return looked_at_.size() >= looks && empty_bytes >= missing_bytes;
        },
        first);
    return empty_bytes >= missing_bytes;
  };
  if (!look() && supply.source == Source::move && unpin_empty()) look();
  std::vector<MappedHandle> found = take_largest(looked_at_, missing_bytes);
  const MappedHandle larger = missing_bytes != 0 ? smallest_left(looked_at_) : MappedHandle{};
  if (larger.bytes != 0) {
    found.push_back(larger);
    plan_pieces(supply, {larger.handle, larger.bytes}, missing_bytes);
  }
  std::sort(found.begin(), found.end(), [](const MappedHandle& a, const MappedHandle& b) { return a.address < b.address; });
  take_runs(supply.runs, found);
}

/// As a growth for that block would have made them, then what is left, the smallest first: the next one that is small begins there.
void PageHeap::plan_pieces(Supply& supply, const Handle& handle, std::uint64_t needed_bytes) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  const std::uint64_t most_bytes = std::min(std::max(fitting_bytes(supply), page_bytes), handle.bytes / 2);
  supply.cracked = handle;
  for (std::uint64_t left_bytes = needed_bytes; left_bytes != 0;) {
    supply.pieces.push_back(std::bit_floor(std::min(left_bytes, most_bytes)));
    left_bytes -= supply.pieces.back();
  }
  for (std::uint64_t left_bytes = handle.bytes - needed_bytes; left_bytes != 0;) {
    supply.pieces.push_back(std::uint64_t{1} << std::countr_zero(left_bytes));
    left_bytes -= supply.pieces.back();
  }
  supply.wanted_bytes += handle.bytes - needed_bytes;
}

/// The pieces come before the handle goes, where the driver is believed to have room for both; else another process may take what was released, and
/// that is all that can be lost. What cannot be had in pieces stays whole, unless it is gone.
void PageHeap::crack(DeviceState& device, Supply& supply) {
  if (supply.cracked.bytes == 0) return;
  std::size_t made = 0;
  const auto make = [&](std::size_t until) {
    for (; made < until; ++made)
      if (!create_one(device, supply, supply.pieces[made])) return false;
    return true;
  };
  const bool has_room = supply.room_bytes >= supply.cracked.bytes && make(supply.pieces.size());
  if (memory_->release(supply.cracked.id) == CUDA_SUCCESS) {
    supply.is_cracked = true;
    device.limit.refund(supply.cracked.bytes);
    if (!has_room) make(supply.pieces.size());
  } else {
    supply.handles.push_back(supply.cracked);  // behind the pieces, if there are any
    supply.handle_bytes += supply.cracked.bytes;
  }
}

}  // namespace cupool::device
