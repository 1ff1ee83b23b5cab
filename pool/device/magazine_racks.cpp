// Magazines: where their blocks come from and go to. Racks are filled from the depot and from holes; what no thread may keep goes back to the heap.
#include <algorithm>
#include <new>

#include "pool/device/magazines.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

namespace {
constexpr std::uint64_t kDepotShare = 64;  ///< a context's depot may keep this part of the memory that the program has never needed
constexpr std::uint64_t kLargestDepot_bytes = 64 * kMiB;
/// A refill takes at most this part of what the thread may have freed without an event; small blocks cut in one go are in nobody's way.
constexpr std::uint64_t kRefillShare = 64;
constexpr std::size_t kAgingLooks = 4;
constexpr std::uint64_t kOld = 64;  ///< an unused rack is old after this many operations of the magazine

bool is_old(const Magazine& magazine, const SizedRack& sized) CUPOOL_REQUIRES(magazine.lock) {
  return sized.rack.first != nullptr && sized.bytes > kLargestSmallBlock_bytes && magazine.operations - sized.rack.used >= kOld;
}
}  // namespace

/// The rack for this size; null for a large size that is asked for for the first time, or in vain.
Rack* Magazines::make_rack(DeviceState& device, Magazine& magazine, std::uint64_t bytes) {
  if (Rack* rack = magazine.rack_of(bytes)) return rack;
  SizedRack& large = magazine.large_racks.at(bytes);
  if (large.rack.batch != 0) {
    --large.rack.batch;
    return nullptr;
  }
  drop_rack(device, magazine, large.rack);
  large.bytes = bytes;
  return nullptr;
}

/// A block that the magazine keeps goes back to the heap.
void Magazines::drop(DeviceState& device, Magazine& magazine, Extent* extent) {
  change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
  let_go(device, *magazine.home, extent);
}

void Magazines::drop_rack(DeviceState& device, Magazine& magazine, Rack& rack) {
  while (rack.first != nullptr) drop(device, magazine, rack.pop());
}

void Magazines::drop_misfits(DeviceState& device, Magazine& magazine) {
  while (Extent* extent = magazine.misfits) {
    magazine.misfits = extent->bin_next;
    drop(device, magazine, extent);
  }
}

/// Large blocks of sizes that were not asked for lately become holes again, before they push others elsewhere. Checks a few racks at each call.
void Magazines::age(DeviceState& device, Magazine& magazine) {
  constexpr std::size_t kRacks = std::tuple_size_v<decltype(magazine.large_racks.racks)>;
  ++magazine.operations;
  if (magazine.ordered_bytes == 0) {
    SizedRack& sized = magazine.large_racks.racks[magazine.aged++ % kRacks];
    if (is_old(magazine, sized)) drop_rack(device, magazine, sized.rack);
    return;
  }
  for (std::size_t look = 0; look < kAgingLooks; ++look) {
    const std::size_t at = magazine.aged++ % (kRacks * (1 + std::tuple_size_v<decltype(magazine.streams)>));
    const std::size_t of_stream = at / kRacks;
    SizedRack& sized = of_stream == 0 ? magazine.large_racks.racks[at] : magazine.streams[of_stream - 1].sizes.racks[at % kRacks];
    if (!is_old(magazine, sized)) continue;
    if (of_stream == 0) drop_rack(device, magazine, sized.rack);
    else return_to_lane(device, magazine, magazine.streams[of_stream - 1].stream, sized.rack);
  }
}

/// Cuts a block from a hole and puts it into the rack; false when there is none.
bool Magazines::add_from_hole(DeviceState& device, Magazine& magazine, ContextPool& home, const AllocationRequest& request, Rack& rack) {
  Extent* extent = nullptr;
  AllocationRequest own_request = request;
  own_request.keeper = magazine.number;
  try {
    extent = home.pooled->allocate(device, own_request);
  } catch (const std::bad_alloc&) {}
  if (extent == nullptr) return false;
  if (extent->bytes != request.bytes || !home.kept->table.insert(extent)) {
    home.pooled->recycle(device, extent);
    return false;
  }
  extent->is_in_table = true;
  if (extent->bytes > kLargestSmallBlock_bytes) extent->birth = kYoungest;
  extent->state = ExtentState::cached;
  change_kept(magazine, static_cast<std::int64_t>(request.bytes));
  rack.push(extent);
  return true;
}

/// Makes a cached block an extent that lies with the others of this magazine, if that can be.
Extent* Magazines::rehome(Magazine& magazine, ContextPool& home, Extent* extent) {
  if (extent->keeper == magazine.number) return extent;
  home.kept->table.remove(*extent);
  try {
    extent = home.pooled->rehome(extent, magazine.number);
  } catch (const std::bad_alloc&) {}
  extent->is_in_table = home.kept->table.insert(extent);
  return extent;
}

/// Fills a rack from the depot, else from holes. No driver call, and nothing that is not free anyway.
void Magazines::refill(DeviceState& device, Magazine& magazine, ContextPool& home, const AllocationRequest& request, Rack& rack) {
  if (request.bytes > kLargestSmallBlock_bytes) {
    rack.batch = kTurnsAway;
    add_from_hole(device, magazine, home, request, rack);
    return;
  }
  const std::uint64_t most = std::min(
      {std::uint64_t{Magazine::kMostBatch}, Magazine::kMostBatch_bytes / request.bytes, magazine.budget_bytes / kRefillShare / request.bytes});
  const std::uint32_t batch = std::min(rack.batch, static_cast<std::uint32_t>(most));
  rack.batch = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, batch == 0 ? 1 : std::uint64_t{batch} * 2));
  Rack& depot = home.kept->depot[small_size_index(request.bytes)];
  while (rack.count < batch) {
    if (depot.first == nullptr) {
      if (!add_from_hole(device, magazine, home, request, rack)) return;
      continue;
    }
    home.kept->bytes -= request.bytes;
    kept_bytes_ -= request.bytes;
    change_kept(magazine, static_cast<std::int64_t>(request.bytes));
    rack.push(rehome(magazine, home, depot.pop()));
  }
}

Extent* Magazines::take_from_own(DeviceState& device, const ContextPool& home, std::uint64_t bytes) {
  if (!may_keep(device)) return nullptr;
  Magazine* const magazine = own_open_magazine(home);
  if (magazine == nullptr || !enter_own(device, *magazine)) return nullptr;
  const OwnerInside held(magazine->lock);
  Rack* const rack = magazine->rack_of(bytes);
  if (rack == nullptr) return nullptr;
  receive_parcels(device, *magazine);
  while (rack->first == nullptr && magazine->open_parcel()) {}
  if (rack->first == nullptr) return nullptr;
  Extent* extent = rack->pop();
  rack->used = magazine->operations;
  change_kept(*magazine, -static_cast<std::int64_t>(extent->bytes));
  extent->state = ExtentState::live;
  return extent;
}

/// A cached block goes back to the heap.
void Magazines::let_go(DeviceState& device, ContextPool& home, Extent* extent) {
  leave_table(extent);
  home.pooled->recycle(device, extent);
}

void Magazines::leave_table(Extent* extent) {
  if (!extent->is_in_table) return;
  info_of(*extent).home->kept->table.remove(*extent);
  extent->is_in_table = false;
}

std::uint64_t Magazines::depot_limit_bytes(const DeviceState& device) const {
  return may_keep(device) ? std::min(kLargestDepot_bytes, device.spare_now_bytes() / kDepotShare) : 0;
}

bool Magazines::keep_in_depot(Extent* extent, std::uint64_t limit_bytes) {
  ContextPool& home = *info_of(*extent).home;
  if (extent->bytes > kLargestSmallBlock_bytes || home.kept->bytes + extent->bytes > limit_bytes) {
    leave_table(extent);
    return false;
  }
  extent->state = ExtentState::cached;
  extent->flags = 0;
  extent->birth = kYoungest;
  home.kept->depot[small_size_index(extent->bytes)].push(extent);
  home.kept->bytes += extent->bytes;
  kept_bytes_ += extent->bytes;
  return true;
}

}  // namespace cupool::device
