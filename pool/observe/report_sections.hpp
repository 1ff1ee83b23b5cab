// The parts of the report's document: each function writes one member of the object that is open. Internal to the report.
//
// Thread rule: each call is owned by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/observe/json_writer.hpp"
#include "pool/observe/report.hpp"

namespace cupool::observe {

/// Is the report's time over? Reads the clock once per kStride questions; once over, always over.
class Deadline {
 public:
  explicit Deadline(std::uint64_t unix_ns) : unix_ns_(unix_ns) {}
  /// To be asked for each row of a large array.
  bool passed() { return passed_ || (unix_ns_ != 0 && questions_++ % kStride == 0 && look()); }

 private:
  static constexpr std::uint64_t kStride = 4096;
  bool look();

  std::uint64_t unix_ns_;
  std::uint64_t questions_ = 0;
  bool passed_ = false;
};

/// Findings while the report was written, for data_quality.
struct Findings {
  Deadline deadline;
  std::vector<std::string> warnings;
  std::vector<std::string> cut;  ///< what was left out for lack of time: "devices[0].blocks"
};

void write_process(JsonWriter& json, const ProcessFacts& process, ReportEvent event);
void write_options(JsonWriter& json, const std::vector<OptionFact>& options);
void write_device(JsonWriter& json, const DeviceSnapshot& device, Findings& findings);
/// `pages`: null where the backing is another.
void write_pages(JsonWriter& json, const DeviceSnapshot& device, Findings& findings);
void write_ooms(JsonWriter& json, const Snapshot& snapshot, const std::vector<OptionFact>& options);
void write_leaks(JsonWriter& json, const std::vector<DeviceSnapshot>& devices, Findings& findings);

}  // namespace cupool::observe
