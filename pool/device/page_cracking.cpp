// PageHeap: which empty handles a block gets, and what becomes of one that is too large for it. See page_heap.hpp.
//
// A handle moves whole or not at all, so the part of the last one that a block does not need stays beside the block for as long as it lives. That is
// how free memory is lost on a full device where blocks come and go. So such a handle is cracked: released, and created again in pieces. When pages
// are moved anyway this costs two calls per piece, and keeps free memory in pieces that can move.
// Where memory pools above this one ask for whole pages, they also get no hole that ends within a handle that was empty, once the program has needed
// an eighth of the device. Natively each of their blocks is a driver call, each crack leaves smaller handles, and what they flush when memory is out
// is free for everybody. Blocks of all sizes would gain by it too, but jobs that allocate their tensors here directly would pay for each block
// (DECISIONS.md, "Regions and pages").
#include <algorithm>
#include <bit>

#include "pool/core/bytes.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

using heap::Extent;

namespace {

/// Takes handles that fit into what is missing, the largest first, and those of one size in their order; taken ones are left in the list with no
/// bytes. There are few sizes: a pass for each is cheaper than sorting.
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

/// The last of the smallest handles; one of 0 bytes if none is left.
MappedHandle smallest_left(const std::vector<MappedHandle>& handles) {
  MappedHandle smallest{};
  for (const MappedHandle& handle : handles)
    if (handle.bytes != 0 && (smallest.bytes == 0 || handle.bytes <= smallest.bytes)) smallest = handle;
  return smallest;
}

}  // namespace

/// Does the program need most of the device?
bool PageHeap::program_fills(DeviceState& device) const {
  const std::uint64_t all_bytes = mapped_bytes() + loose_bytes_ + room_bytes(device);
  return saturating_sub(all_bytes, device.peak_live_bytes()) < all_bytes / kFullShare;
}

/// Would the block, which was just cut from the beginning of a hole, end within an otherwise empty handle that has a page or more to spare? Asked for
/// programs that take whole pages; not in jobs whose steps repeat themselves without a shortage, where what one step cracks the next one lacks
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

/// Which holes the handles to be moved are taken from. Taking them from the largest holes leaves whole holes to others; but in a program that asks
/// for whole pages, or whose steps repeat themselves, those holes were cut for the next large block, and each step would move more than the one
/// before.
PageHeap::Holes PageHeap::holes_to_rob(DeviceState& device) const {
  return (takes_whole_pages() || device.repeats_itself()) && !program_fills(device) ? Holes::small : Holes::large;
}

/// Takes empty handles for what is missing: large ones that fit, then smaller ones, and for the remainder the smallest of the others, which is to be
/// cracked. They come from the largest holes; for programs that take whole pages, while they do not fill the device, from the smallest holes, so that
/// the large ones stay and steps that repeat themselves find them again.
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

/// Plans the pieces: first as a growth for that block would have made them, then what is left, the smallest first, where the next small block will
/// begin.
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

/// Creates the pieces before the handle is released if the driver seems to have room for both; otherwise another process may take what was released,
/// and that is all that can be lost. What cannot be had in pieces stays whole, unless it is gone.
void PageHeap::crack(DeviceState& device, Supply& supply) {
  if (supply.cracked.bytes == 0) return;
  std::size_t made = 0;
  const auto make_rest = [&] {
    while (made < supply.pieces.size() && create_one(device, supply, supply.pieces[made])) ++made;
  };
  if (supply.room_bytes >= supply.cracked.bytes) make_rest();
  if (memory_->release(supply.cracked.id) == CUDA_SUCCESS) {
    supply.is_cracked = true;
    device.limit.refund(supply.cracked.bytes);
    make_rest();
  } else {
    supply.handles.push_back(supply.cracked);  // after the pieces, if there are any
    supply.handle_bytes += supply.cracked.bytes;
  }
}

}  // namespace cupool::device
