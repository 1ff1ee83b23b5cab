// Writes reports of many kinds into a folder, for check_reports.py. Usage: make_reports FOLDER. Exit 1 when one cannot be written.
//
// File names say what each is; "names.txt" lists the counters and causes of this build.
#include <cstdio>
#include <string>

#include "pool/observe/counters.hpp"
#include "samples.hpp"

using namespace cupool::observe;
using samples::input_of;
using samples::kGiB;
using samples::kMiB;

namespace {

class Maker {
 public:
  explicit Maker(std::string folder) : folder_(std::move(folder)) {}
  void write(const char* name, const ReportInput& input, std::uint64_t deadline_unix_ns = 0) {
    const int error = write_report(input, folder_ + "/" + name + ".json", deadline_unix_ns);
    if (error == 0) return;
    std::fprintf(stderr, "make_reports: %s: errno %d\n", name, error);
    failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  std::string folder_;
  bool failed_ = false;
};

DeviceSnapshot mixed_device() {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  samples::add_region(device, {{'l', 512}, {'f', 40 * kMiB}, {'l', 1024}, {'d', 2 * kMiB}, {'f', 21 * kMiB}, {'l', 3 * kMiB}});
  samples::add_region(device, {{'f', 64 * kMiB}});
  samples::add_region(device, {{'l', 64 * kMiB}});
  samples::add_region(device, {{'f', kMiB}, {'l', 512}, {'f', 127 * kMiB}});
  samples::settle(device);
  device.driver_calls = {{"cuMemAlloc_v2", 4}, {"cuMemGetInfo_v2", 2}};
  device.outside = {kMiB, 2 * kMiB, 4 * kMiB, 5 * kGiB};
  device.driver_free_bytes -= kGiB;
  for (std::uint8_t kind = 0; kind < 6; ++kind) {
    Event event;
    event.ticks = 1700000000000000000 + kind;
    event.address = samples::kBase + kind;
    event.bytes = 512;
    event.kind = static_cast<EventKind>(kind);
    device.timeline.push_back(event);
  }
  return device;
}

/// A block that straddles two handles, one beside a hole, a run in a handle of its own, a pinned handle, empty ones, two that are mapped nowhere.
DeviceSnapshot paged_device() {
  DeviceSnapshot device = samples::empty_device(4 * kGiB);
  samples::add_region(device, {{'l', 4 * kMiB},
                               {'f', kMiB},
                               {'l', 2 * kMiB},
                               {'f', 9 * kMiB},
                               {'l', 512},
                               {'f', 2 * kMiB - 512},
                               {'l', 512},
                               {'d', 512},
                               {'f', 2 * kMiB - 1024}});
  samples::add_handles(device, {{2 * kMiB}, {2 * kMiB}, {2 * kMiB}, {2 * kMiB}, {8 * kMiB}, {2 * kMiB}, {2 * kMiB}});
  samples::add_region(device, {{'f', 2 * kMiB}, {'f', 2 * kMiB}, {'l', 512}, {'f', 4 * kMiB - 512}});
  samples::add_handles(device, {{2 * kMiB}, {2 * kMiB, 'p'}, {4 * kMiB}});
  samples::add_unmapped(device, 2 * kMiB);
  samples::add_unmapped(device, 32 * kMiB);
  samples::settle(device);
  return device;
}

ReportInput paged_input() {
  ReportInput input = input_of(paged_device());
  OomRecord oom = samples::one_of_each_cause().back();
  oom.evidence = samples::stranded_evidence();
  oom.requested_bytes = oom.evidence.request_bytes;
  input.snapshot.ooms = {oom};
  return input;
}

ReportInput without_device() {
  ReportInput input = input_of({});
  input.snapshot.devices.clear();
  return input;
}

ReportInput oom_input() {
  ReportInput input = input_of(mixed_device());
  input.event = ReportEvent::oom;
  input.process.exit_code.reset();
  input.snapshot.ooms = samples::one_of_each_cause();
  return input;
}

ReportInput odd_text_input() {
  ReportInput input = input_of(mixed_device());
  input.process.command = {"\xff\xfe\x80", "tab\tquote\"back\\slash\n", std::string("nul\0byte", 8), "训练.py"};
  input.process.host = "\xc0host";
  input.process.rank = -1;
  input.process.exit_code = 134;
  input.options.push_back({"report", "\xed\xa0\x80/report.json", "env"});
  input.warnings = {"\xf5 in a warning"};
  input.snapshot.devices[0].name = "GPU \xe2\x82";
  return input;
}

/// Every number as large as it can be: nothing may overflow, and the arithmetic must still hold.
ReportInput huge_input() {
  DeviceSnapshot device = samples::empty_device(UINT64_MAX);
  for (CounterValue& counter : device.counters) counter.current = counter.peak = UINT64_MAX;
  device.now = device.at_peak = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
  device.outside = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
  device.other_process_bytes = UINT64_MAX;
  device.limit_bytes = UINT64_MAX;
  ReportInput input = input_of(device);
  input.process.start_unix_ns = input.process.duration_ns = UINT64_MAX;
  input.snapshot.dropped_events = UINT64_MAX;
  OomRecord oom;
  oom.time_unix_ns = oom.requested_bytes = UINT64_MAX;
  oom.api = "cuMemAlloc_v2";
  oom.evidence.device_total_bytes = oom.evidence.held_bytes = UINT64_MAX;
  oom.evidence.deferred_bytes = oom.evidence.pool_free_bytes = UINT64_MAX;
  input.snapshot.ooms.push_back(oom);
  return input;
}

ReportInput stale_input() {
  DeviceSnapshot device = mixed_device();
  device.driver_free_bytes = device.total_bytes;
  device.other_process_bytes = kGiB;
  return input_of(device);
}

ReportInput two_devices() {
  ReportInput input = input_of(mixed_device());
  input.snapshot.devices.push_back(samples::large_device(5000));
  input.snapshot.devices[1].ordinal = 1;
  input.snapshot.devices[1].blocks[0].site = 3;
  input.snapshot.unpooled_apis_seen = {"cuMemAllocAsync", "cuMemPoolCreate"};
  input.snapshot.complete = false;
  return input;
}

bool write_names(const std::string& folder) {
  std::FILE* file = std::fopen((folder + "/names.txt").c_str(), "w");
  if (file == nullptr) return false;
  for (const CounterRow& row : kCounterRows) std::fprintf(file, "counter %s %s\n", row.name, row.is_gauge ? "gauge" : "total");
  for (const OomCause cause : kOomCauses) std::fprintf(file, "cause %s\n", name_of(cause));
  return std::fclose(file) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_reports FOLDER\n");
    return 2;
  }
  Maker maker(argv[1]);
  DeviceSnapshot full = samples::empty_device(kGiB);
  samples::add_region(full, {{'l', kGiB}});
  samples::settle(full);
  DeviceSnapshot unknown = samples::empty_device(kGiB);
  unknown.driver_free_bytes = unknown.driver_free_unix_ns = 0;
  maker.write("no_device", without_device());
  maker.write("empty", input_of(samples::empty_device(kGiB)));
  maker.write("no_free_bytes", input_of(full));
  maker.write("nothing_known", input_of(unknown));
  maker.write("mixed", input_of(mixed_device()));
  maker.write("all_causes", oom_input());
  maker.write("odd_text", odd_text_input());
  maker.write("huge", huge_input());
  maker.write("stale_sample", stale_input());
  maker.write("two_devices", two_devices());
  maker.write("pages", paged_input());
  maker.write("cut", two_devices(), 1);
  return !maker.failed() && write_names(argv[1]) ? 0 : 1;
}
