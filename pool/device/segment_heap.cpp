// SegmentHeap: growth and release around the driver calls. Claim under the lock, call without it, publish under it.
#include "pool/device/segment_heap.hpp"

#include <algorithm>
#include <memory>

#include "pool/device/context_pool.hpp"
#include "pool/device/freeing_in_order.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;
using heap::Region;

namespace {
/// Regions are exchanged for what is asked for once this part of the peak of live bytes lies idle,
constexpr std::uint64_t kIdleShare = 2;
constexpr std::uint64_t kLeastIdle_bytes = 256 * kMiB;  ///< and at least this much
constexpr std::uint64_t kSmallShare = 48;               ///< the part of what is preallocated that is a region for small blocks
constexpr std::uint64_t kSmallMost_bytes = 64 * kMiB;

/// One thread grows, the others wait for it; ends with the scope, also by an exception.
class Turn {
 public:
  Turn(bool& is_taken, Condition& over) : is_taken_(is_taken), over_(over) { is_taken_ = true; }
  ~Turn() {
    is_taken_ = false;
    over_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  bool& is_taken_;
  Condition& over_;
};
}  // namespace

/// Frees host memory only: the driver's memory ends with its context, or with the process.
SegmentHeap::~SegmentHeap() {
  heap_.for_each_region([](const Region& region) { delete static_cast<RegionInfo*>(region.owner); });
}

Extent* SegmentHeap::allocate(DeviceState& device, const AllocationRequest& request) {
  if (!request.may_strand) growth_.note_request(request.bytes, request.stream.identity == 0);  // once for each climb
  Extent* block = ExtentAllocator::allocate(device, request);
  if (block == nullptr || request.may_split || request.stream.identity != 0 || !growth_.is_below_a_pool()) return block;
  const Region& region = *block->region;
  // Less than that is what rounding up leaves of any region.
  const bool would_split = region.free_bytes >= kRegionGranularity_bytes && region.free_bytes + block->bytes == region.bytes &&
                           static_cast<RegionInfo*>(region.owner)->is_of_one_block;
  if (!would_split) return block;
  heap_.free(block);
  return nullptr;
}

/// A pool above this one whose blocks nobody else may split would otherwise have a region for each size that it ever asked for.
std::uint64_t SegmentHeap::exchange_bytes(DeviceState& device, std::uint64_t bytes) const {
  const std::uint64_t idle_bytes = heap_.wholly_free_bytes();
  const std::uint64_t most_bytes = std::max(device.peak_live_bytes() / kIdleShare, kLeastIdle_bytes);
  return growth_.is_below_a_pool() && idle_bytes >= most_bytes ? idle_bytes - most_bytes + align_up(bytes, kRegionGranularity_bytes) : 0;
}

HeapFigures SegmentHeap::figures(DeviceState&) const {
  const std::uint64_t largest = heap_.largest_free_bytes();
  return {heap_.region_bytes(), heap_.free_bytes(), largest, heap_.wholly_free_bytes(), heap_.inactive_split_bytes(), largest};
}

HeapFigures SegmentHeap::figures_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const {
  HeapFigures figures = this->figures(device);
  figures.wholly_free_bytes = heap_.blockless_bytes();
  figures.inactive_split_bytes = figures.free_bytes - figures.wholly_free_bytes;
  figures.looks = heap_.for_each_lane_run(
      least_bytes, [&](const Extent&, std::uint64_t bytes) { figures.largest_free_bytes = std::max(figures.largest_free_bytes, bytes); });
  figures.largest_free_remapped_bytes = figures.largest_free_bytes;
  return figures;
}

bool SegmentHeap::adopt(DeviceState& device, ContextPool& home, Claim claim) noexcept {
  if (!device.services.owners.add(claim.address, claim.bytes, device.ordinal)) return false;
  try {
    auto info = std::make_unique<RegionInfo>(RegionInfo{&home, this, 0, false, false, claim.is_of_one_block});
    heap_.add_region(claim.address, claim.bytes, info.get());
    static_cast<void>(info.release());  // owned by the region from here on, and deleted with it
  } catch (const std::bad_alloc&) {
    device.services.owners.remove(claim.address, claim.bytes);
    return false;
  }
  return true;
}

Status SegmentHeap::take_region(DeviceState& device, ContextPool& home, std::uint64_t bytes, bool is_of_one_block) {
  if (!device.limit.charge(bytes)) return Error{CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal};
  CUdeviceptr address = 0;
  CUresult code = CUDA_SUCCESS;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    code = device.driver.cuMemAlloc_v2(&address, bytes);
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    if (code == CUDA_SUCCESS) in_order::stream_of(device, home);  // made while there is still memory for it
    if (code == CUDA_SUCCESS && device.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS)
      device.publish_driver_free(free_bytes, bytes);
  }
  bool usable = code == CUDA_SUCCESS && is_aligned(address, kBlockAlignment_bytes);
  if (code == CUDA_SUCCESS && !usable) device.disable("the driver returned an address that is not a multiple of 512");
  usable = usable && adopt(device, home, {address, bytes, is_of_one_block});
  if (!usable) {
    device.limit.refund(bytes);
    if (code != CUDA_SUCCESS) return Error{code, "cuMemAlloc_v2"};
    const MutexUnlock unlocked(device.lock);
    device.driver.cuMemFree_v2(address);
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "host memory"};
  }
  device.add_reserved(static_cast<std::int64_t>(bytes));
  device.counters().regions_created.add();
  device.note_region(observe::EventKind::region_create, address, bytes);
  return {};
}

Result<Growth> SegmentHeap::grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) {
  while (growing_) {
    grown_.wait(device.lock);
    if (Extent* extent = allocate(device, request)) return Growth{extent, false};
  }
  const std::uint64_t need_bytes = align_up(request.bytes, kRegionGranularity_bytes);
  if (need_bytes < request.bytes) return Error{CUDA_ERROR_OUT_OF_MEMORY, "size"};
  const std::uint64_t planned_bytes = growth_.plan(need_bytes);
  const auto half_of = [need_bytes](std::uint64_t bytes) { return std::max(need_bytes, align_down(bytes / 2, kRegionGranularity_bytes)); };
  Status status{Error{CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal}};
  std::uint64_t bytes = planned_bytes;
  {
    const Turn turn(growing_, grown_);
    for (;;) {
      // By halves here too: what is left of the limit is for other contexts and for memory outside the pool as well.
      while (bytes > need_bytes && bytes > device.limit.headroom_bytes()) bytes = half_of(bytes);
      status = take_region(device, home, bytes, bytes == need_bytes && growth_.is_below_a_pool());
      if (status.ok() || status.code() != CUDA_ERROR_OUT_OF_MEMORY || bytes == need_bytes) break;
      bytes = half_of(bytes);
    }
  }
  if (!status.ok()) return status.error();
  growth_.made(bytes, planned_bytes);
  AllocationRequest for_this = request;
  for_this.may_split = true;  // the region was made for this request, whatever others have asked for meanwhile
  Extent* extent = allocate(device, for_this);
  if (extent == nullptr) return Error{CUDA_ERROR_OUT_OF_MEMORY, "region taken by another thread"};
  return Growth{extent, bytes < planned_bytes};
}

/// A region that holds nothing but this block could go to another context; otherwise the smaller of the holes beside it could join the larger.
std::uint64_t SegmentHeap::withheld_bytes(const Extent& extent) const {
  if (extent.region->free_bytes + extent.bytes == extent.region->bytes) return extent.region->bytes;
  const std::uint64_t before_bytes = extent.previous_is_free ? extent.previous->bytes : 0;
  const std::uint64_t behind_bytes = extent.next_is_free ? extent.next->bytes : 0;
  return extent.bytes + std::min(before_bytes, behind_bytes);
}

/// Takes wholly free regions out of the heap: the smallest that is enough, else the largest ones until they are.
std::vector<SegmentHeap::Claim> SegmentHeap::claim_free_regions(DeviceState& device, std::uint64_t wanted_bytes, bool at_most) {
  std::vector<Claim> free_regions;
  heap_.for_each_region([&](const Region& region) {
    if (heap::ExtentHeap::is_wholly_free(region))
      free_regions.push_back({region.address, region.bytes, static_cast<RegionInfo*>(region.owner)->is_of_one_block});
  });
  std::sort(free_regions.begin(), free_regions.end(), [](const Claim& a, const Claim& b) { return a.bytes > b.bytes; });
  std::vector<Claim> claims;
  claims.reserve(free_regions.size());
  std::uint64_t claimed_bytes = 0;
  for (std::size_t i = 0; i < free_regions.size() && claimed_bytes < wanted_bytes; ++i) {
    const bool next_is_enough = i + 1 < free_regions.size() && free_regions[i + 1].bytes >= wanted_bytes - claimed_bytes;
    const bool is_too_much = at_most && free_regions[i].bytes > wanted_bytes - claimed_bytes;
    if (is_too_much || (next_is_enough && !at_most)) continue;
    claims.push_back(free_regions[i]);
    claimed_bytes += free_regions[i].bytes;
  }
  for (const Claim& claim : claims) {
    Region* region = heap_.find_region(claim.address);
    const std::unique_ptr<RegionInfo> info(static_cast<RegionInfo*>(region->owner));
    heap_.remove_region(region);
    device.services.owners.remove(claim.address, claim.bytes);
  }
  return claims;
}

/// A single small block in a single region would keep all of it from any request that needs more than the rest. Where more than the small region is
/// left outside, a request that the large region cannot serve beside the block gets what is outside and the large region; where less is left, a
/// single region serves more.
Status SegmentHeap::reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) {
  const std::uint64_t room_bytes = std::min(device.driver_free_now(), device.limit.headroom_bytes());
  const std::uint64_t small_bytes = align_down(std::min(bytes / kSmallShare, kSmallMost_bytes), kRegionGranularity_bytes);
  if (small_bytes == 0 || room_bytes < bytes + small_bytes) return take_region(device, home, bytes);
  const Status taken = take_region(device, home, bytes - small_bytes);
  if (taken.ok()) static_cast<void>(take_region(device, home, small_bytes));  // may fail: another process may have it by now
  return taken;
}

/// The region is on its way to the driver (`sign` 1), or has come back (-1).
void SegmentHeap::book_release(DeviceState& device, const Claim& claim, int sign) {
  const std::int64_t bytes = sign * static_cast<std::int64_t>(claim.bytes);
  device.add_reserved(-bytes);
  device.leaving_bytes += static_cast<std::uint64_t>(bytes);
  device.note_region(sign > 0 ? observe::EventKind::region_release : observe::EventKind::region_create, claim.address, claim.bytes);
}

std::uint64_t SegmentHeap::release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) {
  std::vector<CUresult> codes(heap_.region_count(), CUDA_SUCCESS);  // from the claim on nothing may fail for want of host memory
  const std::vector<Claim> claims = claim_free_regions(device, wanted_bytes, at_most);
  if (claims.empty()) return 0;
  // Out of the books before the calls: a report that is written while the driver works does not list them any more.
  for (const Claim& claim : claims) book_release(device, claim, 1);
  bool is_back = true;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    const ScopedContext current(device.driver, home.registered.context);
    const bool in_order = device.frees_in_order();
    CUstream stream = current.status().ok() ? in_order::stream_of(device, home) : nullptr;
    // The caller has not checked whether the driver's free would wait. Where it would the regions stay, and the next caller that needs them checks
    // again.
    const bool may_wait = in_order && stream == nullptr && !(current.status().ok() && in_order::can_look(device) && in_order::is_quiet(device));
    const CUresult refusal = may_wait || !in_order::is_untouched(device) ? CUDA_ERROR_NOT_READY : current.status().code();
    for (std::size_t i = 0; i < claims.size(); ++i) codes[i] = refusal == CUDA_SUCCESS ? in_order::free(device, stream, claims[i].address) : refusal;
    if (stream != nullptr) is_back = in_order::await(device, home, stream);
  }
  std::uint64_t released_bytes = 0;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Claim& claim = claims[i];
    if (codes[i] != CUDA_SUCCESS && adopt(device, home, claim)) {  // the driver kept the region, so the heap does too
      book_release(device, claim, -1);
      continue;
    }
    released_bytes += claim.bytes;
    growth_.gave_back();
    device.leaving_bytes -= claim.bytes;
    device.limit.refund(claim.bytes);
    device.counters().regions_released.add();
  }
  if (!is_back) home.late_given_bytes += released_bytes;
  return released_bytes;
}

void SegmentHeap::abandon(DeviceState& device, LossVisitor& visitor) {
  while (Region* region = heap_.first_region()) {
    const Claim claim{region->address, region->bytes};
    const std::unique_ptr<RegionInfo> info(static_cast<RegionInfo*>(region->owner));
    heap_.abandon_region(region, [&](Extent& extent) { visitor.lost(extent); });
    device.services.owners.remove(claim.address, claim.bytes);
    device.limit.refund(claim.bytes);
    device.add_reserved(-static_cast<std::int64_t>(claim.bytes));
    device.note_region(observe::EventKind::region_release, claim.address, claim.bytes);
  }
  growth_ = RegionGrowth(device.total_bytes);
}

void SegmentHeap::append_map(DeviceState&, const TickConverter& time, observe::DeviceSnapshot& out) const {
  heap_.for_each_region([&](const Region& region) {
    const auto index = static_cast<std::uint32_t>(out.regions.size());
    const auto context = reinterpret_cast<std::uint64_t>(static_cast<const RegionInfo*>(region.owner)->home->context);
    out.regions.push_back({region.address, region.bytes, context});
    heap_.for_each_extent(region, [&](const Extent& extent) { append_block(extent, index, time, out); });
  });
}

namespace {
/// The largest piece if regions stood in one row in the best order: the end of one, those without a block, the beginning of another.
class Edges {
 public:
  void add(std::uint64_t head_bytes, std::uint64_t tail_bytes) {
    joined_bytes_ = std::max({joined_bytes_, head_bytes + tail_bytes_, tail_bytes + head_bytes_});
    head_bytes_ = std::max(head_bytes_, head_bytes);
    tail_bytes_ = std::max(tail_bytes_, tail_bytes);
  }
  void add_empty(std::uint64_t bytes) { empty_bytes_ += bytes; }
  std::uint64_t bytes() const { return empty_bytes_ + std::max({joined_bytes_, head_bytes_, tail_bytes_}); }

 private:
  std::uint64_t head_bytes_ = 0, tail_bytes_ = 0;  ///< the largest free beginning and end so far
  std::uint64_t joined_bytes_ = 0;                 ///< the largest sum of an end and a beginning of two different regions
  std::uint64_t empty_bytes_ = 0;
};
}  // namespace

/// Evidence: what pages, or one large region, would have made of the holes as they lie.
HeapFigures SegmentHeap::survey(DeviceState& device, observe::OomEvidence& evidence) const {
  HeapFigures figures = this->figures(device);
  std::uint64_t whole_page_bytes = 0;
  std::uint64_t wholly_free_bytes = 0;
  Edges edges;
  heap_.for_each_region([&](const Region& region) {
    std::uint64_t head_bytes = 0;
    std::uint64_t tail_bytes = 0;
    const auto take_hole = [&](const Extent& hole) {
      whole_page_bytes += bytes_in_whole_pages(hole.address, hole.bytes, kRegionGranularity_bytes);
      if (hole.previous == nullptr && hole.next == nullptr) return edges.add_empty(hole.bytes);
      if (hole.previous == nullptr) head_bytes = hole.bytes;
      if (hole.next == nullptr) tail_bytes = hole.bytes;
    };
    heap_.for_each_run(region, [&](const Extent& first, std::uint64_t bytes) {
      figures.largest_free_bytes = std::max(figures.largest_free_bytes, bytes);
      if (bytes == region.bytes) wholly_free_bytes += bytes;
      for (const Extent* extent = &first; extent != nullptr && extent->address < first.address + bytes; extent = extent->next)
        if (extent->state == heap::ExtentState::free) take_hole(*extent);
    });
    edges.add(head_bytes, tail_bytes);
  });
  figures.wholly_free_bytes = wholly_free_bytes;
  figures.largest_free_remapped_bytes = figures.largest_free_bytes;
  evidence.whole_page_bytes = evidence.whole_page_bytes.value_or(0) + whole_page_bytes;
  evidence.region_slack_bytes = evidence.region_slack_bytes.value_or(0) + growth_.slack_bytes(heap_.region_bytes());
  evidence.region_edge_bytes = std::max(evidence.region_edge_bytes.value_or(0), edges.bytes());  // the largest over contexts, which share no region
  return figures;
}

std::string SegmentHeap::check(DeviceState& device) const {
  std::string broken = heap_.check();
  heap_.for_each_region([&](const Region& region) {
    const auto* info = static_cast<const RegionInfo*>(region.owner);
    const int owner = device.services.owners.find(region.address);
    if (info == nullptr || info->allocator != this) broken = "a region has lost its owner";
    if (owner != device.ordinal && owner != OwnerMap::kSeveral) broken = "a region's address does not lead to its device";
  });
  return broken;
}

}  // namespace cupool::device
