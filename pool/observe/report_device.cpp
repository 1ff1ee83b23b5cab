// One device of the report: identity, counters, fragmentation, ledger, and the arrays that grow with the program.
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/observe/address_map.hpp"
#include "pool/observe/ledger.hpp"
#include "pool/observe/report_sections.hpp"

namespace cupool::observe {

namespace {

const char* name_of(BlockState state) {
  switch (state) {
    case BlockState::live: return "live";
    case BlockState::deferred: return "deferred";
    case BlockState::free: return "free";
  }
  return "live";
}

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::allocate: return "allocate";
    case EventKind::free_requested: return "free_requested";
    case EventKind::free_completed: return "free_completed";
    case EventKind::region_create: return "region_create";
    case EventKind::region_release: return "region_release";
    case EventKind::oom: return "oom";
  }
  return "allocate";
}

void write_names(JsonWriter& json, std::string_view member, std::initializer_list<const char*> names) {
  json.begin_array(member);
  for (const char* name : names) json.value(name);
  json.end_array();
}

void write_counters(JsonWriter& json, const DeviceSnapshot& device) {
  json.begin_object("counters");
  for (const CounterValue& counter : device.counters) {
    json.key(counter.name);
    if (!counter.is_gauge) {
      json.value(counter.current);
      continue;
    }
    json.begin_object();
    json.member("current", counter.current);
    json.member("peak", std::max(counter.peak, counter.current));
    json.end_object();
  }
  json.begin_object("driver_calls");
  for (const DriverCallValue& call : device.driver_calls) json.member(call.symbol, call.count);
  json.end_object();
  json.end_object();
}

/// `live_bytes` and `reserved_bytes` give the utilization: both now, or both at the peak. `knows_pieces`: it is known how free memory is divided.
void write_figures(JsonWriter& json, const Fragmentation& f, std::uint64_t live_bytes, std::uint64_t reserved_bytes, bool knows_pieces) {
  const std::uint64_t known_bytes = knows_pieces ? f.free_bytes : 0;  // with 0 the ratios become null
  const auto split = [&](std::uint64_t largest_bytes) { return saturating_sub(f.free_bytes, largest_bytes); };
  json.key("external");
  json.ratio(split(f.largest_free_bytes), known_bytes);
  json.key("external_remapped");
  json.ratio(split(std::max(f.largest_free_bytes, f.largest_free_remapped_bytes)), known_bytes);
  json.key("internal");
  json.ratio(saturating_sub(f.live_bytes, f.requested_bytes), f.live_bytes);
  json.key("utilization");
  json.ratio(live_bytes, reserved_bytes);
  json.member("free_bytes", f.free_bytes);
  json.member("largest_free_bytes", f.largest_free_bytes);
  json.member("inactive_split_bytes", f.inactive_split_bytes);
}

void write_fragmentation(JsonWriter& json, const DeviceSnapshot& device) {
  const bool knows_pieces = device.policy != "async";  // the driver does not say how its pool's memory is divided
  json.begin_object("fragmentation");
  write_figures(json, device.now, counter_peak(device, "live_bytes"), counter_peak(device, "reserved_bytes"), knows_pieces);
  json.begin_object("at_peak");
  write_figures(json, device.at_peak, device.at_peak.live_bytes, device.at_peak.reserved_bytes, knows_pieces);
  json.end_object();
  json.end_object();
}

/// What other processes took or gave back since then is missing in the ledger; what this process did is not.
void warn_of_age(const DeviceSnapshot& device, const std::string& where, Findings& findings) {
  constexpr std::uint64_t kOld_ns = 60'000'000'000;
  const std::uint64_t now_ns = unix_now_ns();
  const std::uint64_t age_ns = saturating_sub(now_ns, device.driver_free_unix_ns);
  if (device.driver_free_unix_ns == 0 || age_ns < kOld_ns) return;
  findings.warnings.push_back(where + "the driver was asked for its free bytes " + std::to_string(age_ns / 1'000'000'000) +
                              " s before; unattributed is as of then");
}

void write_ledger(JsonWriter& json, const DeviceSnapshot& device, Findings& findings) {
  const Ledger ledger = ledger_of(device);
  json.begin_object("ledger");
  for (const LedgerPart& part : ledger.parts) json.member(part.name, part.bytes);
  json.end_object();
  const std::string where = "devices: ledger of device " + std::to_string(device.ordinal) + ": ";
  if (ledger.clamped) findings.warnings.push_back(where + "the parts claimed more than total_bytes and were cut");
  if (ledger.driver_free_stale)
    findings.warnings.push_back(where + "the driver's free bytes were sampled before the pool grew; driver_free is an upper bound");
  if (ledger.driver_free_known) warn_of_age(device, where, findings);
  if (!ledger.driver_free_known)
    findings.warnings.push_back(where +
                                "the driver was never asked for its free bytes; they are in unknown, with what other processes and contexts hold");
  else if (!ledger.others_known) findings.warnings.push_back(where + "other processes and contexts are in unattributed (no NVML)");
}

void write_histogram(JsonWriter& json, const DeviceSnapshot& device) {
  json.begin_array("histogram");
  for (const HistogramBin& bin : histogram_of(device.blocks)) {
    json.begin_object();
    json.member("min_bytes", bin.min_bytes);
    json.member("blocks", bin.blocks);
    json.member("bytes", bin.bytes);
    json.member("requested_bytes", bin.requested_bytes);
    json.end_object();
  }
  json.end_array();
}

void write_holes(JsonWriter& json, const DeviceSnapshot& device) {
  const HoleList holes = largest_holes(device.blocks, kReportedHoles);
  json.begin_object("holes_total");
  json.member("count", holes.count);
  json.member("bytes", holes.bytes);
  json.end_object();
  json.begin_array("holes");
  for (const BlockRow& hole : holes.largest) {
    json.begin_object();
    json.member("address", hole.address);
    json.member("bytes", hole.bytes);
    json.member("region", hole.region);
    json.end_object();
  }
  json.end_array();
}

void write_pins(JsonWriter& json, const DeviceSnapshot& device) {
  json.begin_array("pinned_by");
  for (const Pin& pin : largest_pins(device.blocks, device.pages.handles, kReportedPins)) {
    json.begin_object();
    json.member("address", pin.address);
    json.member("bytes", pin.bytes);
    json.member("blocks", pin.blocks);
    json.member("deferred_bytes", pin.deferred_bytes);
    json.member("region", pin.region);
    json.key("site");
    pin.site == 0 ? json.null() : json.value(pin.site);
    json.member("pinned_free_bytes", pin.pinned_free_bytes);
    json.member("holds_region", pin.holds_region);
    json.member("handles", pin.handles);
    json.end_object();
  }
  json.end_array();
}

/// Call sites that hold live blocks. `frames` is filled by the recorder of stacks; without stacks there is no site.
void write_sites(JsonWriter& json, const DeviceSnapshot& device) {
  json.begin_array("sites");
  for (const LeakGroup& group : leak_groups(device.blocks)) {
    if (group.site == 0) continue;
    json.begin_object();
    json.member("site", group.site);
    json.begin_array("frames");
    json.end_array();
    json.member("blocks", group.blocks);
    json.member("bytes", group.bytes);
    json.member("requested_bytes", group.requested_bytes);
    json.end_object();
  }
  json.end_array();
}

void write_regions(JsonWriter& json, const DeviceSnapshot& device) {
  json.begin_array("regions");
  for (const RegionRow& region : device.regions) {
    json.begin_object();
    json.member("address", region.address);
    json.member("bytes", region.bytes);
    json.member("context", region.context);
    json.end_object();
  }
  json.end_array();
}

void write_blocks(JsonWriter& json, const DeviceSnapshot& device, Findings& findings) {
  write_names(json, "block_columns", {"address", "bytes", "requested_bytes", "state", "region", "site", "allocated_unix_ns"});
  json.begin_array("blocks");
  for (const BlockRow& row : device.blocks) {
    if (findings.deadline.passed()) {
      findings.cut.push_back("blocks of device " + std::to_string(device.ordinal));
      break;
    }
    json.new_line();
    json.begin_array();
    json.value(row.address);
    json.value(row.bytes);
    json.value(row.requested_bytes);
    json.value(name_of(row.state));
    json.value(row.region);
    json.value(row.site);
    json.value(row.allocated_unix_ns);
    json.end_array();
  }
  json.end_array();
}

void write_timeline(JsonWriter& json, const DeviceSnapshot& device, Findings& findings) {
  json.begin_object("timeline");
  json.member("dropped", device.timeline_dropped);
  write_names(json, "columns", {"unix_ns", "kind", "address", "bytes", "requested_bytes", "site", "thread", "stream_class"});
  json.begin_array("events");
  for (const Event& event : device.timeline) {
    if (findings.deadline.passed()) {
      findings.cut.push_back("timeline of device " + std::to_string(device.ordinal));
      break;
    }
    json.new_line();
    json.begin_array();
    json.value(event.ticks);
    json.value(name_of(event.kind));
    json.value(event.address);
    json.value(event.bytes);
    json.value(event.requested_bytes);
    json.value(event.site);
    json.value(std::uint32_t{event.thread});
    json.value(std::uint32_t{event.stream_class});
    json.end_array();
  }
  json.end_array();
  json.end_object();
}

}  // namespace

void write_device(JsonWriter& json, const DeviceSnapshot& device, Findings& findings) {
  json.new_line();
  json.begin_object();
  json.member("ordinal", device.ordinal);
  json.member("uuid", device.uuid);
  json.member("name", device.name);
  json.member("total_bytes", device.total_bytes);
  json.key("limit_bytes");
  device.limit_bytes == 0 ? json.null() : json.value(device.limit_bytes);
  json.member("policy", device.policy);
  json.member("backing", device.backing);
  json.key("driver_free_unix_ns");
  device.driver_free_unix_ns == 0 ? json.null() : json.value(device.driver_free_unix_ns);
  write_counters(json, device);
  write_fragmentation(json, device);
  write_ledger(json, device, findings);
  json.begin_object("outside");
  json.member("arrays", device.outside.arrays);
  json.member("program_vmm", device.outside.program_vmm);
  json.member("mempools", device.outside.mempools);
  json.member("graphs", device.outside.graphs);
  json.member("managed", device.outside.managed);
  json.member("host", device.outside.host);
  json.end_object();
  write_histogram(json, device);
  write_holes(json, device);
  write_pins(json, device);
  write_sites(json, device);
  write_regions(json, device);
  write_pages(json, device, findings);
  write_blocks(json, device, findings);
  write_timeline(json, device, findings);
  json.end_object();
}

}  // namespace cupool::observe
