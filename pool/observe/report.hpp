// Turns a Snapshot into the JSON report and writes it, atomically.
//
// Pure: no driver call, no environment, no lock. JSON is streamed (json_writer.hpp): a report of a million blocks needs no tree in memory. The
// document is described by config/report.schema.json, the causes by config/causes.json.
// Thread rule: thread-safe.
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
  bool is_command_cut = false;  ///< it was longer, which data_quality says
  std::string host;
  std::optional<int> rank;
  std::uint64_t start_unix_ns = 0;
  std::uint64_t duration_ns = 0;
  std::optional<int> exit_code;  ///< `exit: {code}`; null while the process lives
  std::string cupool_version;    ///< empty: not said
  int driver_version = 0;        ///< as cuDriverGetVersion tells it, 13000 is CUDA 13.0; 0: not said
};

struct OptionFact {
  std::string name;
  std::string value;
  std::string source;
};

struct ReportInput {
  ReportEvent event = ReportEvent::exit;
  ProcessFacts process;
  std::vector<OptionFact> options;
  Snapshot snapshot;
  std::vector<std::string> warnings;
  bool final_of_series = false;  ///< marks the last OOM report of a process
};

/// Writes the report to `path`: temporary name in the same folder (O_CREAT|O_EXCL|O_NOFOLLOW, 0600), fsync-free, rename.
/// Parent folders are created (0700). `deadline_unix_ns`: past it the address map and timeline are cut and the report says so;
/// 0: no deadline. Returns 0 or errno; on error nothing is left behind. Never throws; raises no signal in the host
/// (a full quota or a closed pipe would: SIGXFSZ, SIGPIPE).
[[nodiscard]] int write_report(const ReportInput& input, const std::string& path, std::uint64_t deadline_unix_ns) noexcept;
/// As write_report(), to an open descriptor (CUPOOL_REPORT=stderr); on error part of it may have been written. The reader of the other end is waited
/// for until the deadline, four seconds at most (EAGAIN).
[[nodiscard]] int write_report_fd(const ReportInput& input, int fd, std::uint64_t deadline_unix_ns) noexcept;
/// {"process": …, "options": …, "report_path": …} as the report has them: the live page's text.
std::string process_json(const ProcessFacts& process, const std::vector<OptionFact>& options, const std::string& report_path);

/// A suggestion. Level: `fix` would have avoided this failure, `consider` may help the next time, `info` is no advice. A setting that is on already
/// appears only as `info`, with already_enabled.
struct Suggestion {
  std::string rule_id, level, message, evidence;
  std::uint64_t enough_limit_bytes = 0;  ///< the CUPOOL_LIMIT that it asks for, also in `evidence`; 0: none
  bool already_enabled = false;
};

/// The verdict on one OOM, by the ordered counterfactuals of config/causes.json.
struct OomVerdict {
  OomCause cause = OomCause::true_exhaustion;
  std::uint64_t shortfall_bytes = 0;        ///< bytes that were missing, in the cause's own resource
  std::string confidence;                   ///< high | medium | low
  std::vector<std::string> missing_inputs;  ///< names in OomEvidence that are unknown
  /// For each counterfactual, in order: bytes that would still be missing if it alone were true; 0: it would have served the request. One whose input
  /// is unknown is absent.
  std::vector<std::pair<OomCause, std::uint64_t>> shortfalls;
  std::vector<Suggestion> suggestions;
};
/// Every cause in the order in which it is tried.
inline constexpr OomCause kOomCauses[] = {
    OomCause::impossible_request,     OomCause::limit,         OomCause::driver_refused,  OomCause::deferred_free,
    OomCause::external_fragmentation, OomCause::other_process, OomCause::non_pool_memory, OomCause::true_exhaustion};
/// Pure. A request_bytes of 0 stands for a size that overflowed when it was rounded.
OomVerdict classify(const OomEvidence& evidence, const std::vector<OptionFact>& options);
const char* name_of(OomCause cause);
/// The message on stderr: at most ten lines, each starting with "cupool[pid]: " or two spaces.
std::string oom_message(const OomRecord& oom, const OomVerdict& verdict, const ProcessFacts& process, const DeviceSnapshot* device,
                        const std::string& report_path);

}  // namespace cupool::observe
