// SegmentHeap: blocks of one context inside regions of device memory, each a cuMemAlloc of its own.
//
// Regions are multiples of 2 MiB that double in size up to a cap and back off when limit or driver refuse; a wholly free
// region can go back. Geometry is heap::ExtentHeap's. Known from XLA's BFC. Serves `grow` and `preallocate`, backing `segments`.
// Thread rule: as DeviceAllocator; the device's lock.
#pragma once

#include <algorithm>
#include <vector>

#include "pool/device/extent_allocator.hpp"

namespace cupool::device {

/// How large the next region should be: twice the last, up to a share of the device, and never less than what is needed.
///
/// Figures (a model without pending work, 31 traces): with a cap of 256 MiB, 1, 2, 4, 16 GiB the smallest limit under which a
/// job completes is 1.047, 1.048, 1.045, 1.041, 1.038 times its peak on average, without a limit the pool takes 1.18, 1.23, 1.25,
/// 1.32, 1.38 times it, with 67, 23, 17, 14, 12 driver calls. What the pool takes too much, others on the device may miss:
/// so a 32nd of it. A request of the cap or more gets a region of its own size.
class RegionGrowth {
 public:
  static constexpr std::uint64_t kFirst_bytes = 2 * kMiB;
  static constexpr std::uint64_t kFewBlocks = 16;
  static constexpr std::uint64_t kLeastCap_bytes = 256 * kMiB;
  static constexpr std::uint64_t kWholeOf = 15;  ///< so many times as often as for anything else

  explicit RegionGrowth(std::uint64_t device_total_bytes)
      : cap_bytes_(std::max(kLeastCap_bytes, align_down(device_total_bytes / 32, kRegionGranularity_bytes))) {}

  /// At least `need_bytes`, which is a multiple of 2 MiB. Where few of them fill a region it holds a whole number of them: what is
  /// over would serve nobody who asks for the same again.
  std::uint64_t plan(std::uint64_t need_bytes) const {
    if (is_below_a_pool()) return need_bytes;
    const std::uint64_t bytes = std::max(need_bytes, next_bytes_);
    return need_bytes >= bytes / kFewBlocks ? bytes - bytes % need_bytes : bytes;
  }
  /// The program asks for `bytes`, by a plain call or in stream order. A pool above this one asks for nothing but multiples of 2 MiB, keeps them, and
  /// gives them back to have others in their place: each is a region of its own, as natively, or one that stays would hold what was beside it.
  void note_request(std::uint64_t bytes, bool is_plain) {
    ++(is_plain && is_aligned(bytes, kRegionGranularity_bytes) ? whole_requests_ : other_requests_);
  }
  bool is_below_a_pool() const { return whole_requests_ >= kWholeOf * other_requests_; }
  /// A region of `bytes` was made where `planned_bytes` were planned.
  void made(std::uint64_t bytes, std::uint64_t planned_bytes) {
    if (bytes >= planned_bytes) next_bytes_ = std::min(2 * next_bytes_, cap_bytes_);
  }
  /// What one more region may have beyond the block that it is made for, under another limit too, where the heap has `region_bytes`.
  std::uint64_t slack_bytes(std::uint64_t region_bytes) const { return is_below_a_pool() ? 0 : std::min(cap_bytes_, region_bytes); }
  /// A region went back: what came back unused would soon go the same way.
  void gave_back() { next_bytes_ = std::max(next_bytes_ / 2, kFirst_bytes); }

 private:
  std::uint64_t cap_bytes_;
  std::uint64_t next_bytes_ = kFirst_bytes;
  std::uint64_t whole_requests_ = 0;
  std::uint64_t other_requests_ = 0;
};

class SegmentHeap final : public ExtentAllocator {
 public:
  explicit SegmentHeap(std::uint64_t device_total_bytes) : growth_(device_total_bytes) {}
  ~SegmentHeap() override;

  heap::Extent* allocate(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t exchange_bytes(DeviceState& device, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t withheld_bytes(const heap::Extent& extent) const override;
  HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) override;
  void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  bool releases_in_order(const DeviceState& device) const override { return device.frees_in_order(); }
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) override;

  /// One region, or nearly all of `bytes` in one and a small one, which small blocks find first: so the large one stays whole, and can go back.
  Status reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock) override;

 private:
  Status take_region(DeviceState& device, ContextPool& home, std::uint64_t bytes, bool is_of_one_block = false) CUPOOL_REQUIRES(device.lock);
  struct Claim {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool is_of_one_block = false;
  };
  /// False, with nothing changed, when host memory is out.
  bool adopt(DeviceState& device, ContextPool& home, Claim claim) noexcept CUPOOL_REQUIRES(device.lock);
  static void book_release(DeviceState& device, const Claim& claim, int sign) CUPOOL_REQUIRES(device.lock);
  std::vector<Claim> claim_free_regions(DeviceState& device, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock);

  RegionGrowth growth_;
  bool growing_ = false;  ///< a thread is in cuMemAlloc for this heap; the others wait for what it brings
  Condition grown_;
};

}  // namespace cupool::device
