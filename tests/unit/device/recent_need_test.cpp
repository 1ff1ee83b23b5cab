// RecentNeed by itself: the most that was live lately.
#include <catch2/catch.hpp>

#include <cstdint>

#include "pool/device/recent_need.hpp"

using cupool::device::RecentNeed;

namespace {
/// Allocations until a job whose most was noted after `allocations` of them, and that has needed next to nothing since, is known to need no more.
std::uint64_t remembered(std::uint64_t allocations) {
  RecentNeed need;
  for (std::uint64_t i = 1; i < allocations; ++i) need.note(1, i);
  need.note(1000, allocations);
  std::uint64_t later = 0;
  while (need.bytes() == 1000) need.note(1, allocations + ++later);
  CHECK(need.bytes() == 1);
  return later;
}
}  // namespace

TEST_CASE("what was needed lately: one window of allocations at least, two at most") {
  CHECK(remembered(1) > RecentNeed::kLeast);
  CHECK(remembered(1) <= 2 * RecentNeed::kLeast + 1);
  CHECK(remembered(100'000) >= 65'536);  // 4,096, 8,192 ... 65,536 and so on: it comes in the window from 65,536 on
  CHECK(remembered(100'000) <= 2 * 65'536);
  CHECK(remembered(1'000'000) <= 2 * RecentNeed::kMost);
}

TEST_CASE("what a job needs again and again is always needed lately") {
  RecentNeed need;
  need.note(1000, 1);
  int forgotten = 0;
  for (std::uint64_t allocation = 2; allocation < 500'000; ++allocation) {
    need.note(allocation % RecentNeed::kLeast == 0 ? 1000 : 1, allocation);
    if (need.bytes() != 1000) ++forgotten;
  }
  CHECK(forgotten == 0);
}
