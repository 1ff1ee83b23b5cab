// RegionGrowth: how large the next region of a segment heap should be. A rule only: no driver call, no memory.
//
// Twice the last one, up to a 32nd of the device, and never less than what is needed; a request of that cap or more gets a region of its own size.
// Figures (a model without pending work, 31 recorded jobs): with a cap of 256 MiB, 1, 2, 4 and 16 GiB the smallest limit under which a job completes
// is 1.047, 1.048, 1.045, 1.041 and 1.038 times its peak on average; without a limit the pool takes 1.18, 1.23, 1.25, 1.32 and 1.38 times the peak,
// with 67, 23, 17, 14 and 12 driver calls. What the pool takes too much, others on the device may miss: hence a part of the device, and a small one.
// Thread rule: the device's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pool/core/bytes.hpp"

namespace cupool::device {

class RegionGrowth {
 public:
  static constexpr std::uint64_t kFirst_bytes = 2 * kMiB;
  static constexpr std::uint64_t kDeviceShare = 32;             ///< the cap is this part of the device,
  static constexpr std::uint64_t kLeastCap_bytes = 256 * kMiB;  ///< or so much, if that is more
  static constexpr std::uint64_t kFewBlocks = 16;  ///< with fewer blocks of the size that is asked for, a region holds a whole number of them
  /// The program is taken for a pool above this one as long as it asks so many times as often for multiples of 2 MiB as for anything else.
  static constexpr std::uint64_t kWholeOf = 15;

  explicit RegionGrowth(std::uint64_t device_total_bytes)
      : cap_bytes_(std::max(kLeastCap_bytes, align_down(device_total_bytes / kDeviceShare, kRegionGranularity_bytes))) {}

  /// Bytes of the next region: at least `need_bytes`, which is a multiple of 2 MiB. Where only few blocks of that size fill a region it holds a whole
  /// number of them: what would be left over would serve no further request of that size.
  std::uint64_t plan(std::uint64_t need_bytes) const {
    if (is_below_a_pool()) return need_bytes;
    const std::uint64_t bytes = std::max(need_bytes, next_bytes_);
    return need_bytes >= bytes / kFewBlocks ? bytes - bytes % need_bytes : bytes;
  }
  /// The program asks for `bytes`, by a plain call or in stream order.
  void note_request(std::uint64_t bytes, bool is_plain) {
    ++(is_plain && is_aligned(bytes, kRegionGranularity_bytes) ? whole_requests_ : other_requests_);
  }
  /// A memory pool above this one asks for nothing but multiples of 2 MiB, keeps them, and gives them back to have others in their place. There each
  /// request gets a region of its own, as natively: in a larger region one block that stays would hold what was freed beside it.
  bool is_below_a_pool() const { return whole_requests_ >= kWholeOf * other_requests_; }
  /// A region of `bytes` was made where `planned_bytes` were planned.
  void made(std::uint64_t bytes, std::uint64_t planned_bytes) {
    if (bytes >= planned_bytes) next_bytes_ = std::min(2 * next_bytes_, cap_bytes_);
  }
  /// The most that the next region may have beyond the block that it is made for, also under another limit, in a heap that has `region_bytes`.
  std::uint64_t slack_bytes(std::uint64_t region_bytes) const { return is_below_a_pool() ? 0 : std::min(cap_bytes_, region_bytes); }
  /// A region went back to the driver: it was not needed, so the next ones begin smaller.
  void gave_back() { next_bytes_ = std::max(next_bytes_ / 2, kFirst_bytes); }

 private:
  std::uint64_t cap_bytes_;
  std::uint64_t next_bytes_ = kFirst_bytes;
  std::uint64_t whole_requests_ = 0;
  std::uint64_t other_requests_ = 0;
};

}  // namespace cupool::device
