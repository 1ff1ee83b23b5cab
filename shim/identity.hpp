// Identity: which process this is: pid, start, host, rank, command line. Read from /proc and the environment once, when the process goes live.
// Never calls the driver. Thread rule: read-only after construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/options.hpp"
#include "pool/observe/live_page.hpp"
#include "pool/observe/report.hpp"

namespace cupool::shim {

class Identity {
 public:
  /// `cupool_version` lives as long as the process. `driver_version` as the driver tells it; 0: nobody has asked.
  explicit Identity(const char* cupool_version = "", int driver_version = 0);

  int pid() const { return live_.pid; }
  const observe::LiveIdentity& live_identity() const { return live_; }
  /// What a report that is written now says of the process. The caller adds the exit code.
  observe::ProcessFacts facts() const;
  /// Expands a file pattern (REPORT.md section 6). A bad one, of which the user was warned when it was read, gives the default's name.
  std::string expand(std::string_view pattern) const;
  /// Expands a pattern to an absolute path, because the program may change its folder; empty where the pattern names no file.
  std::string expand_path(std::string_view pattern) const;

 private:
  observe::LiveIdentity live_;
  const char* const cupool_version_;
  const int driver_version_;
  std::string host_;
  std::string rank_;  ///< as the launcher gives it; empty: there is none
  std::vector<std::string> command_;
  bool is_command_cut_ = false;  ///< the command line is longer than what command_ has of it
};

/// Field 22 of /proc/<pid>/stat: when it started, in clock ticks since boot; 0 when there is no such process.
std::uint64_t start_ticks_of(int pid);

/// `path` made absolute by the current folder, so that it stays good when the program changes that. "" and what begins with / stay as they are.
std::string in_current_folder(const std::string& path);

/// Options whose pattern names no file in this process, because a variable in it is not set, fall back to their default with a warning.
void settle_patterns(config::Options& options);

/// The options as the report and the live page show them.
std::vector<observe::OptionFact> option_facts(const config::Options& options);

std::uint64_t unix_now_ns();
std::uint64_t monotonic_now_ns();

}  // namespace cupool::shim
