// See samples.hpp.
#include "samples.hpp"

#include <algorithm>

#include "pool/observe/counters.hpp"

namespace samples {

using namespace cupool::observe;

std::vector<CounterValue> zero_counters() {
  std::vector<CounterValue> counters;
  for (const CounterRow& row : kCounterRows) counters.push_back({row.name, row.is_gauge, 0, 0});
  return counters;
}

void set_counter(DeviceSnapshot& device, const std::string& name, std::uint64_t current, std::uint64_t peak) {
  for (CounterValue& counter : device.counters) {
    if (counter.name == name) counter.current = current, counter.peak = peak;
  }
}

DeviceSnapshot empty_device(std::uint64_t total_bytes) {
  DeviceSnapshot device;
  device.uuid = "GPU-00000000-1111-2222-3333-444444444444";
  device.name = "Simulated GPU";
  device.policy = "grow";
  device.backing = "segments";
  device.total_bytes = total_bytes;
  device.driver_free_bytes = total_bytes;
  device.driver_free_unix_ns = 1700000000000000000;
  device.counters = zero_counters();
  return device;
}

void add_region(DeviceSnapshot& device, const std::vector<Piece>& pieces) {
  const std::uint64_t start = device.regions.empty() ? kBase : device.regions.back().address + device.regions.back().bytes + kGiB;
  RegionRow region{start, 0, 0xC0};
  for (const Piece& piece : pieces) {
    BlockRow row;
    row.address = start + region.bytes;
    row.bytes = piece.bytes;
    row.region = static_cast<std::uint32_t>(device.regions.size());
    row.state = piece.state == 'l' ? BlockState::live : piece.state == 'd' ? BlockState::deferred : BlockState::free;
    row.requested_bytes = row.state == BlockState::free ? 0 : piece.bytes - 1;
    row.allocated_unix_ns = row.state == BlockState::free ? 0 : 1700000000000000000 + device.blocks.size();
    region.bytes += piece.bytes;
    device.blocks.push_back(row);
  }
  device.regions.push_back(region);
}

namespace {

/// As pool/device does it, the slow way: what lies in the handle at [address, +bytes).
HandleRow handle_at(const DeviceSnapshot& device, std::uint64_t address, std::uint64_t bytes, char state) {
  HandleRow row{address, bytes, 0, HandleState::used};
  for (const BlockRow& block : device.blocks) {
    const std::uint64_t from = std::max(block.address, address);
    const std::uint64_t to = std::min(block.address + block.bytes, address + bytes);
    if (block.state == BlockState::free && from < to) row.free_bytes += to - from;
  }
  if (row.free_bytes == bytes) row.state = HandleState::empty;
  if (state == 'p') row.state = HandleState::pinned;
  return row;
}

HandleTier& tier_of(PageMap& pages, std::uint64_t bytes) {
  auto at = std::find_if(pages.tiers.begin(), pages.tiers.end(), [&](const HandleTier& tier) { return tier.handle_bytes >= bytes; });
  if (at == pages.tiers.end() || at->handle_bytes != bytes) at = pages.tiers.insert(at, {bytes, 0, 0, 0, 0, 0, 0});
  return *at;
}

}  // namespace

void add_handles(DeviceSnapshot& device, const std::vector<Sheet>& sheets) {
  device.backing = "pages";
  device.pages.page_bytes = 2 * kMiB;
  std::uint64_t address = device.regions.back().address;
  device.pages.reservations.push_back({address, kGiB, kGiB - device.regions.back().bytes, 0});
  for (const Sheet& sheet : sheets) {
    const HandleRow row = handle_at(device, address, sheet.bytes, sheet.state);
    device.pages.handles.push_back(row);
    HandleTier& tier = tier_of(device.pages, sheet.bytes);
    ++tier.handles;
    tier.mapped_bytes += row.bytes;
    (row.state == HandleState::empty ? tier.empty_bytes : tier.stranded_bytes) += row.free_bytes;
    if (row.state == HandleState::pinned) tier.pinned_bytes += row.bytes;
    address += sheet.bytes;
  }
}

void add_unmapped(DeviceSnapshot& device, std::uint64_t bytes) {
  HandleTier& tier = tier_of(device.pages, bytes);
  ++tier.handles;
  tier.unmapped_bytes += bytes;
}

void settle(DeviceSnapshot& device) {
  Fragmentation f;
  std::uint64_t deferred = 0;
  std::uint64_t live_blocks = 0;
  std::vector<std::uint64_t> free_in_region(device.regions.size());
  for (const BlockRow& row : device.blocks) {
    f.reserved_bytes += row.bytes;
    if (row.state == BlockState::live) f.live_bytes += row.bytes, f.requested_bytes += row.requested_bytes, ++live_blocks;
    if (row.state == BlockState::deferred) deferred += row.bytes;
    if (row.state != BlockState::free) continue;
    f.free_bytes += row.bytes;
    f.largest_free_bytes = std::max(f.largest_free_bytes, row.bytes);
    free_in_region[row.region] += row.bytes;
  }
  for (std::size_t i = 0; i < device.regions.size(); ++i) {
    if (free_in_region[i] < device.regions[i].bytes) f.inactive_split_bytes += free_in_region[i];
  }
  std::uint64_t empty_bytes = 0;
  std::uint64_t mapped_bytes = 0;
  for (const HandleTier& tier : device.pages.tiers) {
    f.free_bytes += tier.unmapped_bytes;
    f.reserved_bytes += tier.unmapped_bytes;
    empty_bytes += tier.unmapped_bytes + tier.empty_bytes;
    mapped_bytes += tier.mapped_bytes;
  }
  if (device.pages.page_bytes != 0) f.inactive_split_bytes = f.free_bytes - empty_bytes;
  f.largest_free_remapped_bytes = std::max(f.largest_free_bytes, empty_bytes);
  set_counter(device, "mapped_bytes", mapped_bytes, mapped_bytes);
  device.now = device.at_peak = f;
  device.driver_free_bytes = device.total_bytes - std::min(device.total_bytes, f.reserved_bytes);
  set_counter(device, "live_bytes", f.live_bytes, f.live_bytes);
  set_counter(device, "requested_bytes", f.requested_bytes, f.requested_bytes);
  set_counter(device, "reserved_bytes", f.reserved_bytes, f.reserved_bytes);
  set_counter(device, "deferred_bytes", deferred, deferred);
  set_counter(device, "live_blocks", live_blocks, live_blocks);
  set_counter(device, "allocations", live_blocks, 0);
}

DeviceSnapshot large_device(std::size_t blocks) {
  constexpr std::size_t kRowsPerRegion = 65536;
  DeviceSnapshot device = empty_device(141 * kGiB);
  std::vector<Piece> pieces;
  std::uint64_t mixed = 1;
  for (std::size_t i = 0; i < blocks; ++i) {
    mixed = mixed * 6364136223846793005u + 1442695040888963407u;
    pieces.push_back({'l', 512 * (1 + (mixed >> 33) % 200)});
    if (i % 4 == 3) pieces.push_back({'f', 512 * (1 + (mixed >> 40) % 100)});
    if (pieces.size() >= kRowsPerRegion) add_region(device, pieces), pieces.clear();
  }
  if (!pieces.empty()) add_region(device, pieces);
  settle(device);
  return device;
}

std::vector<OptionFact> default_options() {
  return {{"policy", "grow", "default"},
          {"preallocate", "none", "default"},
          {"limit", "none", "default"},
          {"backing", "auto", "default"},
          {"free", "deferred", "default"}};
}

std::vector<OptionFact> with_option(std::vector<OptionFact> options, const std::string& name, const std::string& value) {
  for (OptionFact& option : options) {
    if (option.name == name) option.value = value, option.source = "env";
  }
  return options;
}

OomEvidence exhausted_evidence() {
  OomEvidence e;
  e.request_bytes = 2 * kGiB;
  e.device_total_bytes = 80 * kGiB;
  e.driver_free_bytes = kGiB;
  e.other_process_bytes = 0;
  e.held_bytes = 79 * kGiB;
  return e;
}

OomEvidence stranded_evidence() {
  OomEvidence e = exhausted_evidence();
  e.request_bytes = 4 * kGiB;
  e.driver_free_bytes = kGiB;
  e.can_remap = true;
  e.pool_free_bytes = 4 * kGiB;
  e.releasable_bytes = kGiB;
  e.releasable_with_deferred_bytes = kGiB;
  e.largest_free_bytes = kGiB / 2;
  e.largest_free_remapped_bytes = kGiB;
  e.largest_free_with_deferred_bytes = kGiB;
  e.stranded_bytes = 3 * kGiB;
  e.pinned_free_bytes = 0;
  e.stranding_handle_bytes = e.page_bytes = 2 * kMiB;
  return e;
}

std::vector<OomRecord> one_of_each_cause() {
  std::vector<OomEvidence> all(std::size(kOomCauses), exhausted_evidence());
  const auto of = [&](OomCause cause) -> OomEvidence& { return all[static_cast<std::size_t>(cause)]; };
  of(OomCause::impossible_request).request_bytes = 81 * kGiB;
  of(OomCause::limit).limit_bytes = 40 * kGiB;
  of(OomCause::limit).held_bytes = 39 * kGiB;
  of(OomCause::limit).driver_free_bytes = 30 * kGiB;
  of(OomCause::driver_refused).driver_free_bytes = 3 * kGiB;
  of(OomCause::deferred_free).deferred_bytes = 3 * kGiB;
  of(OomCause::deferred_free).largest_free_with_deferred_bytes = 3 * kGiB;
  of(OomCause::deferred_free).releasable_with_deferred_bytes = 0;
  of(OomCause::external_fragmentation).pool_free_bytes = 5 * kGiB;
  of(OomCause::external_fragmentation).largest_free_bytes = kGiB;
  of(OomCause::other_process).other_process_bytes = 10 * kGiB;
  of(OomCause::other_process).held_bytes = 60 * kGiB;
  of(OomCause::non_pool_memory).own_outside_bytes = 4 * kGiB;
  std::vector<OomRecord> records;
  for (const OomEvidence& evidence : all) {
    OomRecord oom;
    oom.time_unix_ns = 1700000000000000000 + records.size();
    oom.api = "cuMemAlloc_v2";
    oom.requested_bytes = evidence.request_bytes;
    oom.evidence = evidence;
    records.push_back(oom);
  }
  return records;
}

ReportInput input_of(DeviceSnapshot device) {
  ReportInput input;
  input.process.pid = 4711;
  input.process.command = {"python", "train.py"};
  input.process.host = "node1";
  input.process.start_unix_ns = 1700000000000000000;
  input.process.duration_ns = 5000000000;
  input.process.exit_code = 0;
  input.options = default_options();
  input.snapshot.devices.push_back(std::move(device));
  return input;
}

}  // namespace samples
