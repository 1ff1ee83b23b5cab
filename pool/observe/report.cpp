// The report's document: the order of its members, and where it is written. Large arrays are streamed row by row.
#include "pool/observe/report.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/observe/report_file.hpp"
#include "pool/observe/report_sections.hpp"

namespace cupool::observe {

namespace {

const char* name_of(ReportEvent event) {
  switch (event) {
    case ReportEvent::exit: return "exit";
    case ReportEvent::oom: return "oom";
    case ReportEvent::request: return "request";
    case ReportEvent::checkpoint: return "checkpoint";
  }
  return "request";
}

void write_data_quality(JsonWriter& json, const ReportInput& input, const Findings& findings) {
  const Snapshot& snapshot = input.snapshot;
  std::uint64_t dropped = 0;
  for (const DeviceSnapshot& device : snapshot.devices) dropped += device.timeline_dropped;
  json.begin_object("data_quality");
  json.member("source", "process");
  json.member("complete", snapshot.complete && findings.cut.empty());
  json.member("dropped_events", std::max(dropped, snapshot.dropped_events));
  json.begin_array("unpooled_apis_seen");
  for (const std::string& api : snapshot.unpooled_apis_seen) json.value(api);
  json.end_array();
  json.begin_array("cut");
  for (const std::string& part : findings.cut) json.value(part);
  json.end_array();
  json.begin_array("warnings");
  for (const std::string& warning : input.warnings) json.value(warning);
  for (const std::string& warning : findings.warnings) json.value(warning);
  if (input.process.is_command_cut) json.value("process.command is cut: the command line is longer");
  if (!snapshot.complete) json.value("a pool was busy when the report was written: some of its devices or figures are missing");
  if (snapshot.older_ooms != 0)
    json.value("only the newest " + std::to_string(snapshot.ooms.size()) + " out-of-memory events are listed, of " +
               std::to_string(snapshot.older_ooms + snapshot.ooms.size()));
  if (!findings.cut.empty()) json.value("the report ran out of time: the parts named in cut are incomplete");
  json.end_array();
  json.end_object();
}

void write_document(JsonWriter& json, const ReportInput& input, std::uint64_t deadline_unix_ns) {
  Findings findings{Deadline(deadline_unix_ns), {}, {}};
  json.begin_object();
  json.member("schema", "cupool.report/1");
  json.member("event", name_of(input.event));
  json.member("written_unix_ns", unix_now_ns());
  json.member("final_of_series", input.final_of_series);
  write_process(json, input.process, input.event);
  write_options(json, input.options);
  json.begin_array("devices");
  for (const DeviceSnapshot& device : input.snapshot.devices) write_device(json, device, findings);
  json.end_array();
  write_ooms(json, input.snapshot, input.options);
  write_leaks(json, input.snapshot.devices, findings);
  write_data_quality(json, input, findings);
  json.end_object();
}

/// How long to wait for the reader: not at all for a regular file, and otherwise no longer than the report may take.
int patience_ms(std::uint64_t deadline_unix_ns) {
  constexpr std::uint64_t kMost_ms = 4000;
  constexpr std::uint64_t kMillisecond_ns = 1'000'000;
  if (deadline_unix_ns == 0) return -1;
  const std::uint64_t left_ns = saturating_sub(deadline_unix_ns, unix_now_ns());
  return static_cast<int>(std::min(left_ns / kMillisecond_ns, kMost_ms));
}

}  // namespace

int write_report(const ReportInput& input, const std::string& path, std::uint64_t deadline_unix_ns) noexcept try {
  const WriteSignals quiet;
  ReportFile file(path);
  if (file.error() != 0) return file.error();
  JsonWriter json(file.fd());
  write_document(json, input, deadline_unix_ns);
  const int error = json.finish();
  return error != 0 ? error : file.commit();
} catch (const std::bad_alloc&) {
  return ENOMEM;
} catch (const std::exception&) {
  return EIO;
}

int write_report_fd(const ReportInput& input, int fd, std::uint64_t deadline_unix_ns) noexcept try {
  if (fd < 0) return EBADF;
  const WriteSignals quiet;
  JsonWriter json(fd, patience_ms(deadline_unix_ns));
  write_document(json, input, deadline_unix_ns);
  return json.finish();
} catch (const std::bad_alloc&) {
  return ENOMEM;
} catch (const std::exception&) {
  return EIO;
}

std::string process_json(const ProcessFacts& process, const std::vector<OptionFact>& options, const std::string& report_path) {
  std::string text;
  JsonWriter json(&text);
  json.begin_object();
  write_process(json, process, ReportEvent::request);
  write_options(json, options);
  json.member("report_path", report_path);
  json.end_object();
  json.finish();
  return text;
}

}  // namespace cupool::observe
