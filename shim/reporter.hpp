// Reporter: writes the reports of this process, one for each out-of-memory (after the eighth the newest replaces the last one) and one at the exit.
//
// Reads host state only, takes a bounded time, never runs under a pool's lock and never throws into the program. Thread rule: any thread may call
// anything but write_exit, which is called once.
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

  /// Logs the messages that the pool has left for the user; one load where there are none.
  void pass_messages() noexcept {
    if (pools_.has_messages()) [[unlikely]]
      take_messages();
  }

  /// After a call of this thread that ran out of memory: writes its report, and tells the user in the log.
  void after_oom() noexcept;

  /// Writes the report that `cupool dump` has asked for, under the exit report's name with `.request<k>` before the extension.
  void write_requested() noexcept;

  /// Writes the exit report; `exit_code` where it is known. True: it was written, or there was nothing to write.
  bool write_exit(std::optional<int> exit_code) noexcept;

 private:
  /// A report that this thread is writing, for which the exit waits. False as a bool: the exit has begun, and no report may begin.
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
  std::atomic<std::uint64_t> newest_oom_{0};       ///< number of the newest OOM that a thread has come here with
  std::atomic<bool> replacing_oom_{false};         ///< a thread is replacing the last OOM report
  std::atomic<std::uint64_t> next_replace_ns_{0};  ///< CLOCK_MONOTONIC
  std::atomic<std::uint64_t> next_line_ns_{0};
  std::atomic<int> requested_reports_{0};
  std::atomic<int> writers_{0};
  std::atomic<bool> closed_{false};
  std::mutex warnings_mutex_;
  std::vector<std::string> warnings_;  ///< of the pool, already logged; each report lists them
};

}  // namespace cupool::shim
