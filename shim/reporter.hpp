// Writes the reports of this process: one per out-of-memory (capped; then the newest replaces the last one), one at exit.
//
// From host state only, bounded in time, never under a pool's lock, never throwing into the program. Thread rule:
// after_oom by any thread, write_exit once.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "config/options.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/observe/report.hpp"
#include "shim/identity.hpp"
#include "shim/live_page.hpp"
#include "shim/trace_file.hpp"

namespace cupool::shim {

class Reporter {
 public:
  /// The referents outlive the process. `path` is where the exit report goes: "stderr", or empty for none.
  Reporter(PoolSet& pools, const config::Options& options, const Identity& identity, const std::string& path, TraceFile& trace, LivePage& page)
      : pools_(pools), options_(options), identity_(identity), path_(path), trace_(trace), page_(page) {}

  /// Tells the user what the pool found worth a line; one load when there is nothing.
  void pass_messages() noexcept {
    if (pools_.has_messages()) [[unlikely]]
      take_messages();
  }

  /// After a call that failed: writes what is new since the last time, and tells the user on stderr.
  void after_oom() noexcept;

  /// A report that somebody asked for from outside, to the name with `.request<k>` before the extension.
  void write_requested() noexcept;

  /// The exit report; `exit_code` where it is known. True when there was nothing to write or it was written.
  bool write_exit(std::optional<int> exit_code) noexcept;

 private:
  /// A report under way in this thread, which the exit waits for; none begins once that has.
  class Writing {
   public:
    explicit Writing(Reporter& reporter);
    ~Writing();
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    explicit operator bool() const { return begun_; }

   private:
    Reporter& reporter_;
    bool begun_;
  };

  void take_messages() noexcept;
  void await_writers() noexcept;
  void report_oom();
  bool may_replace(std::uint64_t now_ns);
  static void tell_without_memory(const char* what) noexcept;
  observe::ReportInput input(observe::ReportEvent event, std::chrono::nanoseconds lock_budget);
  bool is_folder_gone(const std::string& path) const;
  bool write(const observe::ReportInput& input, const std::string& path, std::uint64_t deadline_unix_ns);
  void tell(const observe::ReportInput& input, const std::string& path, std::uint64_t k);

  PoolSet& pools_;
  const config::Options& options_;
  const Identity& identity_;
  const std::string& path_;
  TraceFile& trace_;
  LivePage& page_;
  std::atomic<std::uint64_t> newest_oom_{0};       ///< number of the newest one that its thread came to tell
  std::atomic<bool> replacing_oom_{false};         ///< one thread at a time
  std::atomic<std::uint64_t> next_replace_ns_{0};  ///< CLOCK_MONOTONIC
  std::atomic<std::uint64_t> next_line_ns_{0};
  std::atomic<int> requested_reports_{0};
  std::atomic<int> writers_{0};
  std::atomic<bool> closed_{false};
  std::mutex warnings_mutex_;
  std::vector<std::string> warnings_;  ///< the pool's, told already, for the reports
};

}  // namespace cupool::shim
