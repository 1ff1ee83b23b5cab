// The small sections: process, options, ooms, leaks.
#include "pool/observe/report_sections.hpp"

#include <algorithm>

#include "pool/core/clock.hpp"
#include "pool/observe/address_map.hpp"
#include "pool/observe/aftermath.hpp"

namespace cupool::observe {

namespace {

/// Null where 0 stands for none.
std::optional<std::uint64_t> unless_zero(std::uint64_t bytes) { return bytes == 0 ? std::nullopt : std::optional(bytes); }

void write_evidence(JsonWriter& json, const OomEvidence& e) {
  json.begin_object("evidence");
  json.member("request_bytes", e.request_bytes);
  json.member("device_total_bytes", e.device_total_bytes);
  json.member("driver_free_bytes", e.driver_free_bytes);
  json.member("pool_free_bytes", e.pool_free_bytes);
  json.member("largest_free_bytes", e.largest_free_bytes);
  json.member("largest_free_remapped_bytes", std::max(e.largest_free_bytes, e.largest_free_remapped_bytes));
  json.member("releasable_bytes", e.releasable_bytes);
  json.member("deferred_bytes", e.deferred_bytes);
  json.member("largest_free_with_deferred_bytes", e.largest_free_with_deferred_bytes);
  json.member("releasable_with_deferred_bytes", e.releasable_with_deferred_bytes);
  json.member("other_process_bytes", e.other_process_bytes);
  json.member("own_outside_bytes", e.own_outside_bytes);
  json.member("graph_bytes", e.graph_bytes);
  json.member("living_graphs", e.living_graphs);
  json.member("mempool_idle_bytes", e.mempool_idle_bytes);
  json.member("limit_bytes", unless_zero(e.limit_bytes));
  json.member("held_bytes", e.held_bytes);
  json.member("refused_by_limit", e.refused_by_limit);
  json.member("can_remap", e.can_remap);
  json.member("pages_available", e.pages_available);
  json.member("stranded_bytes", e.stranded_bytes);
  json.member("pinned_free_bytes", e.pinned_free_bytes);
  json.member("stranding_handle_bytes", e.stranding_handle_bytes);
  json.member("page_bytes", e.page_bytes);
  json.member("capturing", e.capturing);
  json.member("holes_known", e.holes_known);
  json.member("outside_pool", e.is_outside_pool);
  json.member("managed", e.is_managed);
  json.member("mempool_max_bytes", unless_zero(e.mempool_max_bytes));
  json.member("mempool_used_bytes", e.mempool_max_bytes == 0 ? std::nullopt : std::optional(e.mempool_used_bytes));
  json.member("deferred_in_order_bytes", e.deferred_in_order_bytes);
  json.member("deferred_at_driver_bytes", e.deferred_at_driver_bytes);
  json.member("deferred_unheld_bytes", e.deferred_unheld_bytes);
  json.member("whole_page_bytes", e.whole_page_bytes);
  json.member("region_edge_bytes", e.region_edge_bytes);
  json.member("region_slack_bytes", e.region_slack_bytes);
  json.member("other_context_free_bytes", e.other_context_free_bytes);
  json.member("other_device", e.other_device);
  json.member("other_device_free_bytes", e.other_device ? std::optional(e.other_device_free_bytes) : std::nullopt);
  json.member("live_peak_bytes", e.live_peak_bytes);
  json.member("preallocate_bytes", e.preallocate_bytes);
  json.member("native_rounding_bytes", e.native_rounding_bytes);
  json.member("unattributed_bytes", e.unattributed_bytes);
  json.end_object();
}

void write_counterfactuals(JsonWriter& json, const OomVerdict& verdict) {
  json.begin_array("counterfactuals");
  for (const OomCause cause : kOomCauses) {
    const auto known = std::find_if(verdict.shortfalls.begin(), verdict.shortfalls.end(), [&](const auto& row) { return row.first == cause; });
    json.begin_object();
    json.member("cause", name_of(cause));
    json.key("shortfall_bytes");
    known == verdict.shortfalls.end() ? json.null() : json.value(known->second);
    json.end_object();
  }
  json.end_array();
}

void write_suggestions(JsonWriter& json, const OomVerdict& verdict) {
  json.begin_array("suggestions");
  for (const Suggestion& suggestion : verdict.suggestions) {
    json.begin_object();
    json.member("rule_id", suggestion.rule_id);
    json.member("level", suggestion.level);
    json.member("message", suggestion.message);
    json.member("evidence", suggestion.evidence);
    json.member("already_enabled", suggestion.already_enabled);
    json.end_object();
  }
  json.end_array();
}

void write_leak(JsonWriter& json, int device, const LeakGroup& group) {
  json.begin_object();
  json.member("device", device);
  json.key("site");
  group.site == 0 ? json.null() : json.value(group.site);
  json.key("size_class_bytes");
  group.site == 0 ? json.value(group.size_class_bytes) : json.null();
  json.member("blocks", group.blocks);
  json.member("bytes", group.bytes);
  json.member("requested_bytes", group.requested_bytes);
  json.member("smallest_requested_bytes", group.smallest_bytes);
  json.member("largest_requested_bytes", group.largest_bytes);
  json.key("common_requested_bytes");
  group.common_blocks == 0 ? json.null() : json.value(group.common_bytes);
  json.member("common_blocks", group.common_blocks);
  json.key("first_allocated_unix_ns");
  group.first_allocated_unix_ns == 0 ? json.null() : json.value(group.first_allocated_unix_ns);
  json.end_object();
}

}  // namespace

bool Deadline::look() { return passed_ = unix_now_ns() >= unix_ns_; }

void write_process(JsonWriter& json, const ProcessFacts& process, ReportEvent event) {
  json.begin_object("process");
  json.member("pid", process.pid);
  json.begin_array("command");
  for (const std::string& argument : process.command) json.value(argument);
  json.end_array();
  json.member("host", process.host);
  json.member("rank", process.rank);
  json.member("start_unix_ns", process.start_unix_ns);
  json.member("duration_ns", process.duration_ns);
  if (!process.cupool_version.empty()) json.member("cupool_version", process.cupool_version);
  if (process.driver_version != 0) json.member("driver_version", process.driver_version);
  if (event == ReportEvent::exit || process.exit_code) {
    json.begin_object("exit");
    json.member("code", process.exit_code);  // not every exit handler is given the code
    json.null_member("signal");              // set by `cupool run` when it completes a report
    json.end_object();
  } else {
    json.null_member("exit");
  }
  json.end_object();
}

void write_options(JsonWriter& json, const std::vector<OptionFact>& options) {
  json.begin_object("options");
  for (const OptionFact& option : options) {
    json.begin_object(option.name);
    json.member("value", option.value);
    json.member("source", option.source);
    json.end_object();
  }
  json.end_object();
}

void write_ooms(JsonWriter& json, const Snapshot& snapshot, const std::vector<OptionFact>& options) {
  const std::vector<std::optional<bool>> served = served_since(snapshot);
  json.begin_array("ooms");
  for (std::size_t i = 0; i < snapshot.ooms.size(); ++i) {
    const OomRecord& oom = snapshot.ooms[i];
    const OomVerdict verdict = classify(oom.evidence, options);
    json.begin_object();
    json.member("time_unix_ns", oom.time_unix_ns);
    json.member("device", oom.device);
    json.member("api", oom.api);
    json.member("requested_bytes", oom.requested_bytes);
    json.member("result", oom.result);
    json.member("allocations_before", oom.allocations_before);
    json.key("served_since");
    served[i] ? json.value(*served[i]) : json.null();
    json.member("cause", name_of(verdict.cause));
    json.member("shortfall_bytes", verdict.shortfall_bytes);
    json.member("confidence", verdict.confidence);
    json.begin_array("missing_inputs");
    for (const std::string& name : verdict.missing_inputs) json.value(name);
    json.end_array();
    write_evidence(json, oom.evidence);
    write_counterfactuals(json, verdict);
    write_suggestions(json, verdict);
    json.end_object();
  }
  json.end_array();
}

void write_leaks(JsonWriter& json, const std::vector<DeviceSnapshot>& devices, Findings& findings) {
  json.begin_array("leaks");
  for (const DeviceSnapshot& device : devices) {
    const std::vector<LeakGroup> groups = leak_groups(device.blocks);
    const std::size_t kept = std::min(groups.size(), kReportedLeaks);
    for (std::size_t i = 0; i < kept; ++i) write_leak(json, device.ordinal, groups[i]);
    if (kept < groups.size()) {
      findings.warnings.push_back("leaks: only the " + std::to_string(kept) + " largest of " + std::to_string(groups.size()) + " groups of device " +
                                  std::to_string(device.ordinal) + " are listed");
    }
  }
  json.end_array();
}

}  // namespace cupool::observe
