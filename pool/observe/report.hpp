// Turns a Snapshot into the JSON report of DESIGN section 2 and writes it, atomically.
//
// Pure: no driver call, no environment, no lock. Thread-safe. One of the two .cpp files with nlohmann/json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

enum class ReportEvent : std::uint8_t { exit, oom, request, checkpoint };

struct ProcessFacts {
  int pid = 0;
  std::vector<std::string> command;
  std::string host;
  std::optional<int> rank;
  std::uint64_t start_unix_ns = 0;
  std::uint64_t duration_ns = 0;
  std::optional<int> exit_code;   ///< `exit: {code}`; null while the process lives
};

struct OptionFact { std::string name; std::string value; std::string source; };

struct ReportInput {
  ReportEvent event = ReportEvent::exit;
  ProcessFacts process;
  std::vector<OptionFact> options;
  Snapshot snapshot;
  std::vector<std::string> warnings;
  bool final_of_series = false;   ///< marks the last OOM report of a process
};

/// Writes the report to `path`: temporary name in the same folder (O_CREAT|O_EXCL|O_NOFOLLOW, 0600), fsync-free, rename.
/// Parent folders are created (0700). `deadline_unix_ns`: past it the address map and timeline are cut and the report says so.
/// Returns 0 or errno; on error nothing is left behind.
int write_report(const ReportInput& input, const std::string& path, std::uint64_t deadline_unix_ns);
/// The same to an open descriptor (CUPOOL_REPORT=stderr).
int write_report_fd(const ReportInput& input, int fd, std::uint64_t deadline_unix_ns);

/// One OOM judged by the ordered counterfactuals of REPORT.md section 2.
struct Suggestion { std::string rule_id, level, message, evidence; bool already_enabled = false; };
struct OomVerdict {
  OomCause cause = OomCause::true_exhaustion;
  std::uint64_t shortfall_bytes = 0;
  std::string confidence;                                          ///< high | medium | low
  std::vector<std::string> missing_inputs;
  std::vector<std::pair<OomCause, std::uint64_t>> shortfalls;      ///< of each counterfactual
  std::vector<Suggestion> suggestions;
};
OomVerdict classify(const OomEvidence& evidence, const std::vector<OptionFact>& options);
const char* name_of(OomCause cause);
/// The stderr block of REPORT.md section 2: at most ten lines, each starting with "cupool[pid]: " or two spaces.
std::string oom_message(const OomRecord& oom, const OomVerdict& verdict, const ProcessFacts& process, const DeviceSnapshot* device,
                        const std::string& report_path);

}  // namespace cupool::observe
