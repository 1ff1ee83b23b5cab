// The file behind CUPOOL_LOG_FILE: opened for appending, and found again when the program has closed what it does not know.
//
// Only a file of this user with no second name is appended to, or what is no file (a terminal, a pipe that somebody reads); no link is
// followed and no open or write waits. A descriptor that now belongs to a file of the program's is never written to. Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <string>

#include "shim/file_identity.hpp"

namespace cupool::shim::log {

class LogFile {
 public:
  /// Opens `path`, absolute or relative to the folder of now.
  explicit LogFile(std::string path);
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  bool is_open() const { return is_open_; }
  /// Why it is not open.
  const char* reason() const { return reason_; }
  const std::string& path() const { return path_; }

  /// What to write to now; -1: the file is gone, or just being opened again.
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
