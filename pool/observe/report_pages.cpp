// The pages of one device: how many physical handles of which size, where they lie, and what keeps each in place.
#include "pool/observe/report_sections.hpp"

namespace cupool::observe {

namespace {

const char* name_of(HandleState state) {
  switch (state) {
    case HandleState::empty: return "empty";
    case HandleState::used: return "used";
    case HandleState::pinned: return "pinned";
    case HandleState::moving: return "moving";
    case HandleState::lost: return "lost";
  }
  return "used";
}

void write_tiers(JsonWriter& json, const PageMap& pages) {
  json.begin_array("tiers");
  for (const HandleTier& tier : pages.tiers) {
    json.begin_object();
    json.member("handle_bytes", tier.handle_bytes);
    json.member("handles", tier.handles);
    json.member("mapped_bytes", tier.mapped_bytes);
    json.member("unmapped_bytes", tier.unmapped_bytes);
    json.member("empty_bytes", tier.empty_bytes);
    json.member("pinned_bytes", tier.pinned_bytes);
    json.member("stranded_bytes", tier.stranded_bytes);
    json.end_object();
  }
  json.end_array();
}

void write_reservations(JsonWriter& json, const PageMap& pages) {
  json.begin_array("reservations");
  for (const ReservationRow& reservation : pages.reservations) {
    json.begin_object();
    json.member("address", reservation.address);
    json.member("bytes", reservation.bytes);
    json.member("vacant_bytes", reservation.vacant_bytes);
    json.member("quarantined_bytes", reservation.quarantined_bytes);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

void write_pages(JsonWriter& json, const DeviceSnapshot& device, Findings& findings) {
  const PageMap& pages = device.pages;
  if (pages.page_bytes == 0) return json.null_member("pages");
  json.begin_object("pages");
  json.member("page_bytes", pages.page_bytes);
  write_tiers(json, pages);
  write_reservations(json, pages);
  json.begin_array("handle_columns");
  for (const char* name : {"address", "bytes", "free_bytes", "state"}) json.value(name);
  json.end_array();
  json.begin_array("handles");
  for (const HandleRow& row : pages.handles) {
    if (findings.deadline.passed()) {
      findings.cut.push_back("handles of device " + std::to_string(device.ordinal));
      break;
    }
    json.new_line();
    json.begin_array();
    json.value(row.address);
    json.value(row.bytes);
    json.value(row.free_bytes);
    json.value(name_of(row.state));
    json.end_array();
  }
  json.end_array();
  json.end_object();
}

}  // namespace cupool::observe
