// LogFile: the file behind CUPOOL_LOG_FILE. It is opened for appending, and opened again when the program has closed its descriptor.
//
// Lines are appended only to a regular file of this user that has no second name, or to what is no regular file (a terminal, a pipe that somebody
// reads). No symbolic link is followed, and no open or write waits. A descriptor that belongs to a file of the program's by now is never written to.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <string>

#include "shim/file_identity.hpp"

namespace cupool::shim::log {

class LogFile {
 public:
  /// Opens or makes `path` (0600), which may be relative to the current folder.
  explicit LogFile(std::string path);
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  bool is_open() const { return is_open_; }
  /// Why it is not open; "" where it is.
  const char* reason() const { return reason_; }
  const std::string& path() const { return path_; }

  /// The descriptor to write to; -1: the file is gone, or another thread is just opening it again.
  int descriptor();

 private:
  const std::string path_;
  bool is_open_ = false;
  const char* reason_ = "";
  FileIdentity opened_;
  std::mutex mutex_;  ///< taken to open again, by try-lock
  std::atomic<int> file_{-1};
};

}  // namespace cupool::shim::log
