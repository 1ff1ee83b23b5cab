// What a report shows of pages: handles and tiers agree with the address map at any moment; and the evidence of an allocation that failed on pages.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "pool/observe/report.hpp"
#include "stream_rig.hpp"
#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;
using observe::HandleState;

namespace {

RigOptions pages_of(const char* memory) {
  RigOptions options;
  options.memory = memory;
  options.pool.backing = config::Backing::pages;
  return options;
}

std::uint64_t sum(const std::vector<observe::HandleTier>& tiers, std::uint64_t observe::HandleTier::*field) {
  std::uint64_t bytes = 0;
  for (const observe::HandleTier& tier : tiers) bytes += tier.*field;
  return bytes;
}

/// What every report must satisfy. `in_flight`: a thread is in the driver with some of it.
void check_pages(const observe::DeviceSnapshot& device, observe::Counters& counters, bool in_flight = false) {
  const observe::PageMap& pages = device.pages;
  std::map<std::uint64_t, observe::HandleTier> again;
  for (const observe::HandleRow& handle : pages.handles) {
    std::uint64_t free_bytes = 0;
    bool has_block = false;
    for (const observe::BlockRow& block : device.blocks) {
      const std::uint64_t from = std::max(block.address, handle.address);
      const std::uint64_t to = std::min(block.address + block.bytes, handle.address + handle.bytes);
      if (from >= to) continue;
      if (block.state == observe::BlockState::free) free_bytes += to - from;
      else has_block = true;
    }
    REQUIRE(handle.free_bytes == free_bytes);
    REQUIRE((handle.state != HandleState::empty || (free_bytes == handle.bytes && !has_block)));
    REQUIRE((handle.state != HandleState::moving || (free_bytes == handle.bytes && !has_block && in_flight)));
    observe::HandleTier& tier = again[handle.bytes];
    tier.mapped_bytes += handle.bytes;
    (handle.state == HandleState::empty ? tier.empty_bytes : tier.stranded_bytes) += handle.state == HandleState::empty ? handle.bytes : free_bytes;
    if (handle.state == HandleState::pinned) tier.pinned_bytes += handle.bytes;
  }
  for (const observe::HandleTier& tier : pages.tiers) {
    CHECK(tier.handles * tier.handle_bytes == tier.mapped_bytes + tier.unmapped_bytes);
    CHECK(tier.mapped_bytes == again[tier.handle_bytes].mapped_bytes);
    CHECK(tier.empty_bytes == again[tier.handle_bytes].empty_bytes);
    CHECK(tier.pinned_bytes == again[tier.handle_bytes].pinned_bytes);
    CHECK(tier.stranded_bytes == again[tier.handle_bytes].stranded_bytes);
  }
  using Tier = observe::HandleTier;
  CHECK(sum(pages.tiers, &Tier::mapped_bytes) == now(counters.mapped_bytes));
  CHECK(sum(pages.tiers, &Tier::unmapped_bytes) + sum(pages.tiers, &Tier::empty_bytes) + sum(pages.tiers, &Tier::stranded_bytes) ==
        device.now.free_bytes);
  CHECK(sum(pages.tiers, &Tier::stranded_bytes) == device.now.inactive_split_bytes);
  std::uint64_t quarantined_bytes = 0;
  std::uint64_t with_memory_bytes = 0;
  for (const observe::ReservationRow& row : pages.reservations) {
    quarantined_bytes += row.quarantined_bytes;
    with_memory_bytes += row.bytes - row.vacant_bytes - row.quarantined_bytes;
  }
  CHECK(quarantined_bytes == now(counters.quarantined_bytes));
  std::uint64_t in_regions_bytes = 0;
  for (const observe::RegionRow& row : device.regions) in_regions_bytes += row.bytes;
  if (!in_flight && now(counters.native_fallbacks) == 0) CHECK(in_regions_bytes == with_memory_bytes);  // quarantined addresses are in no region
}

observe::OomVerdict last_verdict(Rig& rig) { return observe::classify(rig.snapshot().ooms.back().evidence, {}); }

/// Fills a device of 32 MiB: in each page a block of 1.5 MiB, and one of half a MiB that stays when the others go.
std::vector<CUdeviceptr> riddled(Rig& rig) {
  std::vector<CUdeviceptr> kept;
  std::vector<CUdeviceptr> going;
  for (int i = 0; i < 16; ++i) {
    going.push_back(rig.allocate(kMiB + kMiB / 2));
    kept.push_back(rig.allocate(kMiB / 2));
  }
  for (const CUdeviceptr address : going) rig.free(address);
  return kept;
}

}  // namespace

TEST_CASE("pages in the report: handles, tiers, blocks and counters agree after every step") {
  const unsigned seed = GENERATE(1U, 2U);
  Rig rig(pages_of("18GiB"));  // handles of 4 MiB while there is most of it, of 2 MiB then
  std::mt19937 random(seed);
  std::vector<CUdeviceptr> live;
  for (int step = 0; step < 300; ++step) {
    if (random() % 5 < 3) {
      const Result<CUdeviceptr> block = rig.try_allocate(random() % 3 == 0 ? 1 + random() % (3600 * kMiB) : 1 + random() % (3 * kMiB));
      if (block.ok()) live.push_back(block.value());
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      if (step % 16 == 0) rig.pools().pin_pages(live.back());
      rig.free(live.back());
      live.pop_back();
    }
    if (step % 15 == 0) check_pages(rig.snapshot().devices.at(0), rig.counters());
  }
  CHECK(rig.snapshot().devices.at(0).pages.tiers.size() >= 2);
  CHECK(now(rig.counters().remaps) > 0);
  CHECK(rig.snapshot().devices.at(0).pages.page_bytes == 2 * kMiB);
}

TEST_CASE("pages in the report: what lies free in a stream's lane is free, and moves for whoever needs it") {
  StreamRig rig(pages_of("64MiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr first = rig.on(stream, 8 * kMiB);
  const CUdeviceptr kept = rig.on(stream, 2 * kMiB);
  rig.free_on(first, stream);
  const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  check_pages(device, rig.counters());
  CHECK(sum(device.pages.tiers, &observe::HandleTier::empty_bytes) == device.now.free_bytes);
  CHECK(sum(device.pages.tiers, &observe::HandleTier::stranded_bytes) == 0);
  CHECK(device.now.inactive_split_bytes == 0);
  CHECK(rig.allocate(62 * kMiB) != 0);  // as the report says: the driver has no more than 54 MiB
  CHECK(now(rig.counters().remaps) == 1);
  CHECK(kept != 0);
}

TEST_CASE("pages in the report: figures, handles and blocks agree whichever lanes the holes are in") {
  const bool is_pinning = GENERATE(false, true);
  StreamRig rig(pages_of("400MiB"));
  std::vector<CUstream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(new_stream());
  std::mt19937 random(3);
  std::vector<CUdeviceptr> live;
  for (int step = 0; step < 600; ++step) {
    const CUstream stream = streams[random() % streams.size()];
    const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 12 * kMiB : kMiB);
    if (random() % 5 < 3) {
      if (const Result<CUdeviceptr> block = rig.try_on(stream, bytes); block.ok()) live.push_back(block.value());
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      if (is_pinning && step % 32 == 0) rig.pools().pin_pages(live.back());
      rig.free_on(live.back(), stream);
      live.pop_back();
    }
    if (step % 15 != 0) continue;
    const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
    check_pages(device, rig.counters());
    std::uint64_t largest_bytes = 0;
    for (std::size_t i = 0; i < device.blocks.size(); ++i) {
      const observe::BlockRow& row = device.blocks[i];
      if (row.state != observe::BlockState::free) continue;
      largest_bytes = std::max(largest_bytes, row.bytes);
      const bool is_split = i > 0 && device.blocks[i - 1].state == observe::BlockState::free && device.blocks[i - 1].region == row.region;
      CHECK_FALSE(is_split);  // two lanes' holes beside each other are one
    }
    CHECK(device.now.largest_free_bytes == largest_bytes);
    REQUIRE(rig.pools().check() == "");
  }
}

TEST_CASE("pages in the report: on segments there are none") {
  Rig rig;
  rig.allocate(4 * kMiB);
  CHECK(rig.snapshot().devices.at(0).pages.page_bytes == 0);
}

TEST_CASE("pages in the report: both contexts of a device are told") {
  Rig rig(pages_of("1GiB"));
  rig.allocate(4 * kMiB);
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(second, 0);
  rig.free(rig.allocate(6 * kMiB));
  const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  check_pages(device, rig.counters());
  CHECK(device.pages.reservations.size() == 2);
}

TEST_CASE("pages in the report: memory that holds nothing joins, so external_remapped is less than external") {
  Rig rig(pages_of("1GiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(rig.allocate(8 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.allocate(512);  // retires what was freed
  const observe::Fragmentation now = rig.snapshot().devices.at(0).now;
  CHECK(now.largest_free_remapped_bytes > 4 * now.largest_free_bytes);
}

namespace {
Rig* g_rig = nullptr;
CUresult (*g_unmap)(CUdeviceptr, std::size_t) = nullptr;
int g_reports = 0;

/// The driver's unmap, in the middle of which a report is written.
CUresult report_and_unmap(CUdeviceptr address, std::size_t bytes) {
  const observe::DeviceSnapshot device = g_rig->snapshot().devices.at(0);
  check_pages(device, g_rig->counters(), true);
  const auto moves = [](const observe::HandleRow& row) { return row.state == HandleState::moving; };
  CHECK(std::any_of(device.pages.handles.begin(), device.pages.handles.end(), moves));
  ++g_reports;
  return g_unmap(address, bytes);
}
}  // namespace

TEST_CASE("pages in the report: what a thread is in the driver with is free, and on its way") {
  RigOptions options = pages_of("1GiB");
  options.pool.limit.all = config::parse_amount("64MiB");
  options.patch = [](DriverApi& api) {
    g_unmap = api.cuMemUnmap;
    api.cuMemUnmap = &report_and_unmap;
  };
  Rig rig(options);
  g_rig = &rig;
  g_reports = 0;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(rig.allocate(4 * kMiB));
  for (std::size_t i = 1; i < blocks.size(); i += 2) rig.free(blocks[i]);
  rig.allocate(28 * kMiB);
  CHECK(g_reports > 0);
  check_pages(rig.snapshot().devices.at(0), rig.counters());
}

TEST_CASE("out of memory on pages: what lies beside live blocks is the cause, and says how much and by whom") {
  Rig rig(pages_of("32MiB"));
  const std::vector<CUdeviceptr> kept = riddled(rig);
  REQUIRE(rig.try_allocate(4 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const observe::Snapshot snapshot = rig.snapshot();
  const observe::OomEvidence& evidence = snapshot.ooms.back().evidence;
  CHECK(evidence.can_remap);
  CHECK_FALSE(evidence.pages_available);
  CHECK(evidence.pool_free_bytes == 24 * kMiB);
  CHECK(evidence.stranded_bytes == 24 * kMiB);
  CHECK(evidence.pinned_free_bytes == 0);
  CHECK(evidence.releasable_bytes == 0);
  CHECK(evidence.largest_free_bytes == kMiB + kMiB / 2);
  CHECK(evidence.largest_free_remapped_bytes == kMiB + kMiB / 2);
  CHECK(evidence.stranding_handle_bytes == 2 * kMiB);
  CHECK(evidence.page_bytes == 2 * kMiB);
  CHECK(evidence.whole_page_bytes == 0);  // a live block is on every page
  CHECK_FALSE(evidence.region_edge_bytes);
  CHECK_FALSE(evidence.capturing);
  CHECK(evidence.holes_known);
  CHECK(evidence.deferred_in_order_bytes == 0);
  CHECK(evidence.unattributed_bytes == 0);
  const observe::OomVerdict verdict = last_verdict(rig);
  CHECK(verdict.cause == observe::OomCause::external_fragmentation);
  CHECK(verdict.shortfall_bytes == 2 * kMiB + kMiB / 2);
  rig.free(kept[3]);  // one of those that it names, and one beside it
  rig.free(kept[4]);
  CHECK(rig.try_allocate(4 * kMiB).ok());
}

TEST_CASE("out of memory on pages: what was pinned and is free moves like anything else, and what is not free is told") {
  Rig rig(pages_of("32MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(rig.allocate(kMiB));  // two on a page
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    if (i < 6) rig.pools().pin_pages(blocks[i]);
    rig.free(blocks[i]);
  }
  rig.free(blocks[1]);  // a pinned page is empty
  REQUIRE(rig.try_allocate(8 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const observe::OomEvidence evidence = rig.snapshot().ooms.back().evidence;
  CHECK(evidence.releasable_bytes == 2 * kMiB);
  CHECK(evidence.whole_page_bytes == 2 * kMiB);
  CHECK(evidence.stranded_bytes == 15 * kMiB);
  CHECK(evidence.pinned_free_bytes == 2 * kMiB);
  const observe::OomVerdict verdict = last_verdict(rig);
  CHECK(verdict.cause == observe::OomCause::external_fragmentation);
  CHECK(verdict.shortfall_bytes == 5 * kMiB);  // beside the largest hole
  rig.free(blocks[7]);
  CHECK(rig.try_allocate(4 * kMiB).ok());
}

TEST_CASE("out of memory on pages: a large handle of which a few pages are in use has whole pages free, which smaller handles would move") {
  RigOptions options = pages_of("16GiB");
  options.pool.preallocate = config::parse_amount("8GiB");  // most of it in handles of 8 MiB
  options.pool.limit.all = config::parse_amount("8GiB");
  Rig rig(options);
  for (std::size_t i = 1; i <= 200; ++i) rig.free(rig.allocate(i * 512));  // for a program that only asks for whole pages handles are cracked
  std::vector<CUdeviceptr> going;
  for (int i = 0; i < 1000; ++i) {
    going.push_back(rig.allocate(6 * kMiB));
    rig.allocate(2 * kMiB);
  }
  for (const CUdeviceptr address : going) rig.free(address);
  REQUIRE(rig.try_allocate(5 * kGiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const observe::OomEvidence evidence = rig.snapshot().ooms.back().evidence;
  CHECK(evidence.releasable_bytes < 4 * kGiB);
  CHECK(evidence.stranding_handle_bytes >= 8 * kMiB);
  CHECK(evidence.pool_free_bytes == 8 * kGiB - 1000 * 2 * kMiB);
  CHECK(evidence.whole_page_bytes == 8 * kGiB - 1000 * 2 * kMiB);
}

TEST_CASE("out of memory on segments: what pages, or one large region, would have made of the holes is in the evidence") {
  Rig rig(device_of("64MiB"));
  std::vector<CUdeviceptr> blocks;
  while (true) {
    const Result<CUdeviceptr> block = rig.try_allocate(5 * kMiB);
    if (!block.ok()) break;
    blocks.push_back(block.value());
  }
  REQUIRE(blocks.size() >= 10);
  std::uint64_t free_bytes = 0;
  for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
  REQUIRE(rig.try_allocate(24 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const observe::Snapshot snapshot = rig.snapshot();
  const observe::OomEvidence& evidence = snapshot.ooms.back().evidence;
  std::uint64_t page_bytes = 0;
  struct Ends {
    std::uint64_t head = 0;
    std::uint64_t tail = 0;
  };
  std::map<std::uint32_t, Ends> ends;
  std::uint64_t empty_bytes = 0;
  const std::vector<observe::BlockRow>& rows = snapshot.devices.at(0).blocks;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].state != observe::BlockState::free) continue;
    free_bytes += rows[i].bytes;
    for (std::uint64_t page = align_up(rows[i].address, 2 * kMiB); page + 2 * kMiB <= rows[i].address + rows[i].bytes; page += 2 * kMiB)
      page_bytes += 2 * kMiB;
    const bool is_first = i == 0 || rows[i - 1].region != rows[i].region;
    const bool is_last = i + 1 == rows.size() || rows[i + 1].region != rows[i].region;
    if (is_first && is_last) empty_bytes += rows[i].bytes;
    else if (is_first) ends[rows[i].region].head = rows[i].bytes;
    else if (is_last) ends[rows[i].region].tail = rows[i].bytes;
  }
  std::uint64_t edge_bytes = 0;  // of two regions side by side, with those that hold nothing between them
  for (const auto& [one, left] : ends) {
    edge_bytes = std::max({edge_bytes, left.head, left.tail});
    for (const auto& [other, right] : ends)
      if (one != other) edge_bytes = std::max(edge_bytes, left.tail + right.head);
  }
  edge_bytes += empty_bytes;
  CHECK(evidence.pool_free_bytes == free_bytes);
  CHECK(evidence.whole_page_bytes == page_bytes);
  CHECK(evidence.region_edge_bytes == edge_bytes);
  CHECK(page_bytes != 0);
}
