// SizeBins: bin boundaries, and which extent pick prefers.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "pool/heap/size_bins.hpp"

using namespace cupool::heap;

TEST_CASE("sizes below 64 KiB have a bin of their own, larger ones share with at most 1/64 more") {
  for (std::uint64_t granules = 1; granules < 127; ++granules) {
    CHECK(!(SizeBins::slot_of(granules * 512) == SizeBins::slot_of((granules + 1) * 512)));
  }
  for (std::uint64_t bytes = 64 * 1024; bytes < std::uint64_t{1} << 46; bytes *= 2) {
    for (const std::uint64_t size : {bytes, bytes * 3 / 2, bytes + bytes / 64}) {
      CHECK(SizeBins::slot_of(size) == SizeBins::slot_of(size + size / 128 / 512 * 512 / 2));
      CHECK(!(SizeBins::slot_of(size) == SizeBins::slot_of(size + size / 32)));
    }
  }
}

TEST_CASE("slots grow with the size and stay inside the table") {
  SizeBins::Slot last{0, 0};
  for (unsigned log2 = 9; log2 <= 48; ++log2) {
    for (std::uint64_t part = 0; part < 64 && log2 < 48; ++part) {
      const std::uint64_t bytes = ((std::uint64_t{1} << log2) + (std::uint64_t{1} << log2) / 64 * part) / 512 * 512;
      const SizeBins::Slot slot = SizeBins::slot_of(bytes);
      REQUIRE((slot.row > last.row || (slot.row == last.row && slot.column >= last.column)));
      last = slot;
    }
  }
  CHECK(SizeBins::slot_of(SizeBins::kLargest_bytes).row == SizeBins::kRows - 1);
}

TEST_CASE("the largest size is exact while extents come, change and go") {
  SizeBins bins;
  std::vector<Extent> extents(6);
  CHECK(bins.largest_bytes() == 0);
  const std::vector<std::uint64_t> sizes = {512, 1 << 20, (1 << 20) + 512, (1 << 20) + 512, 4096, 1 << 20};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    extents[i].bytes = sizes[i];
    extents[i].address = i << 30;
    bins.insert(&extents[i]);
  }
  CHECK(bins.largest_bytes() == (1 << 20) + 512);
  bins.remove(&extents[2]);
  CHECK(bins.largest_bytes() == (1 << 20) + 512);
  bins.resize(&extents[3], 1 << 20);
  CHECK(bins.largest_bytes() == 1 << 20);
  bins.resize(&extents[4], 1 << 30);
  CHECK(bins.largest_bytes() == 1 << 30);
  bins.resize(&extents[4], (1 << 30) + 512);
  CHECK(bins.largest_bytes() == (1 << 30) + 512);
  CHECK(bins.check() == "");
  for (const std::size_t i : {4, 0, 1, 3, 5}) bins.remove(&extents[i]);
  CHECK(bins.largest_bytes() == 0);
  CHECK(bins.check() == "");
}

TEST_CASE("the largest size is exact whatever comes and goes, asked about or not") {
  std::mt19937_64 random(7);
  SizeBins bins;
  std::vector<Extent> extents(200);
  std::vector<bool> listed(extents.size(), false);
  const auto any_size = [&] {
    const std::uint64_t base = std::uint64_t{1} << (12 + random() % 3 * 8);  // few bins, each with some sizes
    return base + base / 128 / 512 * 512 * (random() % 3);
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t i = random() % extents.size();
    const std::uint64_t bytes = any_size();
    if (!listed[i]) {
      extents[i].bytes = bytes;
      bins.insert(&extents[i]);
      listed[i] = true;
    } else if (random() % 3 == 0) {
      bins.resize(&extents[i], bytes);
    } else {
      bins.remove(&extents[i]);
      listed[i] = false;
    }
    if (random() % 4 != 0) continue;
    std::uint64_t largest_bytes = 0;
    for (std::size_t k = 0; k < extents.size(); ++k)
      if (listed[k]) largest_bytes = std::max(largest_bytes, extents[k].bytes);
    REQUIRE(bins.largest_bytes() == largest_bytes);
  }
}

TEST_CASE("from a size on, each extent is visited once, smaller bins first, until the visitor has had enough") {
  std::mt19937_64 random(11);
  SizeBins bins;
  std::vector<Extent> extents(500);
  for (Extent& extent : extents) {
    extent.bytes = (random() % (std::uint64_t{1} << (random() % 24)) + 1) * 512;
    bins.insert(&extent);
  }
  for (const std::uint64_t least_bytes :
       {std::uint64_t{512}, std::uint64_t{5120}, std::uint64_t{2} << 20, std::uint64_t{3} << 20, SizeBins::kLargest_bytes}) {
    const SizeBins::Slot least = SizeBins::slot_of(least_bytes);
    std::vector<const Extent*> seen;
    CHECK_FALSE(bins.any_smallest_first(least_bytes, [&](const Extent* extent) {
      const SizeBins::Slot slot = SizeBins::slot_of(extent->bytes);
      const SizeBins::Slot last = seen.empty() ? least : SizeBins::slot_of(seen.back()->bytes);
      CHECK((slot.row > last.row || (slot.row == last.row && slot.column >= last.column)));
      seen.push_back(extent);
      return false;
    }));
    const auto is_wanted = [&](const Extent& extent) {
      const SizeBins::Slot slot = SizeBins::slot_of(extent.bytes);
      return slot.row > least.row || (slot.row == least.row && slot.column >= least.column);
    };
    CHECK(seen.size() == static_cast<std::size_t>(std::count_if(extents.begin(), extents.end(), is_wanted)));
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  }
  std::size_t visits = 0;
  CHECK(bins.any_smallest_first(512, [&](const Extent*) { return ++visits == 3; }));
  CHECK(visits == 3);
}
