// What an address map says, on maps that can be judged by eye.
#include <catch2/catch.hpp>

#include <algorithm>

#include "pool/observe/address_map.hpp"
#include "pool/observe/frequent_size.hpp"
#include "samples.hpp"

using namespace cupool::observe;
using samples::add_region;
using samples::empty_device;
using samples::kGiB;
using samples::kKiB;
using samples::kMiB;

TEST_CASE("a size falls into the bin of its highest power of two, and empty bins are absent") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 512}, {'l', 1023}, {'l', 1024}, {'f', 4096}, {'d', 2048}, {'l', std::uint64_t{1} << 40}});
  const std::vector<HistogramBin> bins = histogram_of(device.blocks);
  REQUIRE(bins.size() == 3);
  CHECK(bins[0].min_bytes == 512);
  CHECK(bins[0].blocks == 2);
  CHECK(bins[0].bytes == 1535);
  CHECK(bins[0].requested_bytes == 1533);
  CHECK(bins[1].min_bytes == 1024);
  CHECK(bins[1].blocks == 1);
  CHECK(bins[2].min_bytes == std::uint64_t{1} << 40);
}

TEST_CASE("the histogram of nothing is empty") { CHECK(histogram_of({}).empty()); }

TEST_CASE("the largest holes come first, equal ones by address, and the totals count all") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'f', kKiB}, {'l', kKiB}, {'f', 3 * kKiB}, {'l', kKiB}, {'f', 2 * kKiB}, {'d', kKiB}, {'f', 3 * kKiB}});
  const HoleList holes = largest_holes(device.blocks, 3);
  CHECK(holes.count == 4);
  CHECK(holes.bytes == 9 * kKiB);
  REQUIRE(holes.largest.size() == 3);
  CHECK(holes.largest[0].bytes == 3 * kKiB);
  CHECK(holes.largest[1].bytes == 3 * kKiB);
  CHECK(holes.largest[0].address < holes.largest[1].address);
  CHECK(holes.largest[2].bytes == 2 * kKiB);
  CHECK(largest_holes({}, 3).largest.empty());
}

TEST_CASE("a small block between two large holes pins both") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', kMiB}, {'f', 8 * kMiB}, {'l', kKiB}, {'f', 9 * kMiB}, {'l', kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, {}, 10);
  REQUIRE(pins.size() == 1);
  CHECK(pins[0].address == device.blocks[2].address);
  CHECK(pins[0].bytes == kKiB);
  CHECK(pins[0].blocks == 1);
  CHECK(pins[0].pinned_free_bytes == 17 * kMiB);
  CHECK_FALSE(pins[0].holds_region);
}

TEST_CASE("neighbouring blocks pin together, with what waits for the GPU told apart") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', kMiB}, {'f', 8 * kMiB}, {'l', kKiB}, {'d', 2 * kKiB}, {'l', kKiB}, {'f', 9 * kMiB}, {'l', kMiB}});
  device.blocks[3].site = 33;
  const std::vector<Pin> pins = largest_pins(device.blocks, {}, 10);
  REQUIRE(pins.size() == 1);
  CHECK(pins[0].bytes == 4 * kKiB);
  CHECK(pins[0].blocks == 3);
  CHECK(pins[0].deferred_bytes == 2 * kKiB);
  CHECK(pins[0].site == 33);
}

TEST_CASE("the only run of a region keeps all of it from being returned, wherever it lies") {
  for (const std::vector<samples::Piece>& pieces : std::vector<std::vector<samples::Piece>>{
           {{'l', kKiB}, {'f', 63 * kMiB}}, {{'f', 63 * kMiB}, {'l', kKiB}}, {{'f', kMiB}, {'l', kKiB}, {'f', 62 * kMiB}}}) {
    DeviceSnapshot device = empty_device(kGiB);
    add_region(device, pieces);
    const std::vector<Pin> pins = largest_pins(device.blocks, {}, 10);
    REQUIRE(pins.size() == 1);
    CHECK(pins[0].holds_region);
    CHECK(pins[0].pinned_free_bytes == 63 * kMiB);
  }
}

TEST_CASE("each region has an only run of its own") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', kMiB}, {'f', 8 * kMiB}});
  add_region(device, {{'l', kMiB}, {'f', 4 * kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, {}, 10);
  REQUIRE(pins.size() == 2);
  CHECK((pins[0].holds_region && pins[1].holds_region));
  CHECK(pins[0].pinned_free_bytes == 8 * kMiB);
  CHECK(pins[1].pinned_free_bytes == 4 * kMiB);
}

TEST_CASE("holes of different regions do not join, nor do runs") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 4 * kMiB}, {'f', kMiB}});
  add_region(device, {{'f', kMiB}, {'l', 4 * kMiB}});
  CHECK(largest_pins(device.blocks, {}, 10).empty());
}

TEST_CASE("a block larger than what it keeps apart is no pin; wholly free and wholly used regions have none") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', kKiB}, {'f', kMiB}, {'l', 8 * kMiB}, {'f', kMiB}, {'l', kKiB}});
  add_region(device, {{'f', kMiB}});
  add_region(device, {{'l', kMiB}});
  CHECK(largest_pins(device.blocks, {}, 10).empty());
}

TEST_CASE("pins come most pinned bytes first, then the smallest, and no more than asked for") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device,
             {{'l', 512}, {'f', 4 * kMiB}, {'l', 2 * kKiB}, {'f', 4 * kMiB}, {'l', kKiB}, {'f', 4 * kMiB}, {'l', 512}, {'f', 9 * kMiB}, {'l', 512}});
  std::vector<Pin> pins = largest_pins(device.blocks, {}, 10);
  REQUIRE(pins.size() == 3);
  CHECK(pins[0].pinned_free_bytes == 13 * kMiB);
  CHECK(pins[1].bytes == kKiB);
  CHECK(pins[2].bytes == 2 * kKiB);
  CHECK(largest_pins(device.blocks, {}, 1).size() == 1);
}

TEST_CASE("on pages a small block pins the handle that it lies in, and every handle that it reaches into") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device,
             {{'f', 2 * kMiB - kKiB}, {'l', 2 * kKiB}, {'f', 2 * kMiB - kKiB}, {'l', 512}, {'d', 512}, {'f', 2 * kMiB - kKiB}, {'f', 2 * kMiB}});
  device.blocks[1].site = 7;
  device.blocks[4].site = 9;
  samples::add_handles(device, {{2 * kMiB}, {2 * kMiB}, {2 * kMiB}, {2 * kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, device.pages.handles, 10);
  REQUIRE(pins.size() == 2);
  CHECK(pins[0].address == device.blocks[1].address);
  CHECK(pins[0].pinned_free_bytes == 4 * kMiB - 2 * kKiB);
  CHECK(pins[0].handles == 2);
  CHECK(pins[0].holds_region);
  CHECK(pins[0].site == 7);
  CHECK(pins[1].blocks == 2);
  CHECK(pins[1].bytes == kKiB);
  CHECK(pins[1].deferred_bytes == 512);
  CHECK(pins[1].handles == 1);
  CHECK(pins[1].pinned_free_bytes == 2 * kMiB - kKiB);
}

TEST_CASE("on pages a handle without a hole is not one of those that are kept, and the largest block has the site") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 2 * kMiB + kKiB}, {'l', 512}, {'f', 2 * kMiB - kKiB - 512}});
  device.blocks[0].site = 7;
  device.blocks[1].site = 9;
  samples::add_handles(device, {{2 * kMiB}, {2 * kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, device.pages.handles, 10);
  REQUIRE(pins.size() == 1);
  CHECK(pins[0].blocks == 2);
  CHECK(pins[0].handles == 1);
  CHECK(pins[0].site == 7);
}

TEST_CASE("on pages a block that holds four times what it pins is none, nor what lies in pinned handles") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 5 * kMiB}, {'f', kMiB}, {'l', 512}, {'f', 2 * kMiB - 512}});
  samples::add_handles(device, {{2 * kMiB}, {2 * kMiB}, {2 * kMiB}, {2 * kMiB, 'p'}});
  CHECK(largest_pins(device.blocks, device.pages.handles, 10).empty());
}

TEST_CASE("on pages the blocks that every other free one lies between are told, although they hold as much as they keep") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 4 * kMiB}, {'f', 4 * kMiB}, {'l', 4 * kMiB}, {'f', 4 * kMiB}});
  samples::add_handles(device, {{16 * kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, device.pages.handles, 10);
  REQUIRE(pins.size() == 1);
  CHECK(pins[0].blocks == 2);
  CHECK(pins[0].bytes == 8 * kMiB);
  CHECK(pins[0].pinned_free_bytes == 8 * kMiB);
}

TEST_CASE("on pages the last block of a large run is enough, when it alone is in the handle") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 4 * kMiB}, {'l', 512}, {'f', 2 * kMiB - 512}, {'f', kMiB}, {'l', 512}, {'f', kMiB - 512}});
  samples::add_handles(device, {{2 * kMiB}, {2 * kMiB}, {2 * kMiB}, {2 * kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, device.pages.handles, 10);
  REQUIRE(pins.size() == 2);
  CHECK(pins[0].address == device.blocks[1].address);
  CHECK(pins[0].blocks == 1);
  CHECK(pins[1].address == device.blocks[4].address);
}

TEST_CASE("contexts on pages and on segments of one device have pins of their own kinds") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', 512}, {'f', 2 * kMiB - 512}});
  samples::add_handles(device, {{2 * kMiB}});
  add_region(device, {{'f', 3 * kMiB}, {'l', 512}, {'f', 3 * kMiB}});
  const std::vector<Pin> pins = largest_pins(device.blocks, device.pages.handles, 10);
  REQUIRE(pins.size() == 2);
  CHECK(pins[0].pinned_free_bytes == 6 * kMiB);
  CHECK(pins[0].handles == 0);
  CHECK(pins[1].handles == 1);
}

TEST_CASE("leaks are grouped by site, and by size where no site is known") {
  DeviceSnapshot device = empty_device(kGiB);
  add_region(device, {{'l', kKiB}, {'l', 1500}, {'l', 4 * kKiB}, {'d', kGiB}, {'f', kGiB}, {'l', 512}, {'l', kMiB}});
  device.blocks[5].site = 7;
  device.blocks[6].site = 7;
  device.blocks[0].allocated_unix_ns = 0;
  device.blocks[5].allocated_unix_ns = 90;
  device.blocks[6].allocated_unix_ns = 80;
  const std::vector<LeakGroup> groups = leak_groups(device.blocks);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].site == 7);
  CHECK(groups[0].blocks == 2);
  CHECK(groups[0].bytes == kMiB + 512);
  CHECK(groups[0].first_allocated_unix_ns == 80);
  CHECK(groups[0].size_class_bytes == 0);
  CHECK(groups[1].site == 0);
  CHECK(groups[1].size_class_bytes == 4 * kKiB);
  CHECK(groups[2].size_class_bytes == kKiB);
  CHECK(groups[2].blocks == 2);
  CHECK(groups[2].first_allocated_unix_ns == device.blocks[1].allocated_unix_ns);
}

namespace {
std::vector<BlockRow> live_rows(const std::vector<std::pair<std::uint64_t, int>>& sizes) {
  std::vector<BlockRow> rows;
  for (int round = 0, is_left = 1; is_left != 0; ++round) {  // in turn, not one size after the other
    is_left = 0;
    for (const auto& [bytes, blocks] : sizes) {
      if (round >= blocks) continue;
      is_left = 1;
      BlockRow row;
      row.requested_bytes = bytes;
      row.bytes = (bytes + 511) / 512 * 512;
      rows.push_back(row);
    }
  }
  return rows;
}
}  // namespace

TEST_CASE("a group of leaks has its exact sizes: smallest, largest, and the one of more than half of its blocks") {
  std::vector<LeakGroup> groups = leak_groups(live_rows({{3 * kMiB, 4}, {2 * kMiB + 1, 2}, {4 * kMiB - 512, 1}}));
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].smallest_bytes == 2 * kMiB + 1);
  CHECK(groups[0].largest_bytes == 4 * kMiB - 512);
  CHECK(groups[0].common_bytes == 3 * kMiB);
  CHECK(groups[0].common_blocks == 4);
  groups = leak_groups(live_rows({{3 * kMiB, 3}, {2 * kMiB + 1, 2}, {4 * kMiB - 512, 1}}));  // a half is no more than a half
  CHECK(groups[0].common_bytes == 0);
  CHECK(groups[0].common_blocks == 0);
  groups = leak_groups(live_rows({{100, 5}}));
  CHECK(groups[0].smallest_bytes == 100);
  CHECK(groups[0].largest_bytes == 100);
  CHECK(groups[0].common_blocks == 5);
}

TEST_CASE("the size that holds most is told if it is a quarter of what is live, however many others there are") {
  std::vector<std::pair<std::uint64_t, int>> sizes = {{3 * kMiB, 22}};
  for (std::uint64_t i = 1; i <= 90; ++i) sizes.emplace_back(kMiB + 512 * i, 2);
  std::vector<BlockRow> rows = live_rows(sizes);
  CHECK(heaviest_size(rows).requested_bytes == 3 * kMiB);
  CHECK(heaviest_size(rows).blocks == 22);
  CHECK(heaviest_size(rows).bytes == 66 * kMiB);
  for (const bool comes_first : {true, false}) {  // all of it before the others, or behind them
    std::stable_partition(rows.begin(), rows.end(), [&](const BlockRow& row) { return (row.bytes == 3 * kMiB) == comes_first; });
    CHECK(heaviest_size(rows).bytes == 66 * kMiB);
  }
  sizes.front().second = 15;  // 45 of more than 225
  CHECK(heaviest_size(live_rows(sizes)).blocks == 0);
  CHECK(heaviest_size({}).blocks == 0);
  for (BlockRow& row : rows)
    if (row.bytes != 3 * kMiB) row.state = BlockState::free;
  CHECK(heaviest_size(rows).bytes == 66 * kMiB);
}
