// ReportFile: a file that appears under its name complete, or not at all.
//
// Owns a file in the folder of the final name that has no name yet, or, where the file system knows no such files, a temporary name. commit() gives
// it its name, in place of the file that has that name (a symlink is replaced, never followed; anything that is neither is an error); the destructor
// removes it. Missing folders are made, with mode 0700.
// WriteSignals: a write must not kill the host program.
// Thread rule: each object is owned by one thread.
#pragma once

#include <csignal>
#include <string>

namespace cupool::observe {

class ReportFile {
 public:
  /// Makes the folders and the file (mode 0600; a temporary name cannot be guessed). See error().
  explicit ReportFile(const std::string& path);
  ~ReportFile();
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  int error() const { return error_; }  ///< 0 or the errno of opening
  int fd() const { return fd_; }
  /// Closes and names the file. 0 or errno; after an error the file is gone.
  [[nodiscard]] int commit();

 private:
  int check_replaceable() const;
  bool create_nameless();
  int create_named();
  int link_nameless();
  int copy_nameless();
  void discard();

  std::string name_;       ///< final name inside the folder
  std::string temporary_;  ///< empty: the file has no name, or there is no file any more
  int folder_fd_ = -1;
  int fd_ = -1;
  int error_ = 0;
};

/// May a report replace `name` in that folder? 0, or an errno: EISDIR; EEXIST for anything but a file, and for a link that leads to a device, a pipe
/// or a descriptor (as /dev/stdout does), which others use too. Any other link may be replaced. AT_FDCWD is a valid folder.
int check_replaceable_at(int folder_fd, const char* name);

/// While it lives, this thread's writes report EFBIG and EPIPE as errors and raise neither SIGXFSZ nor SIGPIPE, whatever
/// the host's dispositions are; these are not touched.
class WriteSignals {
 public:
  WriteSignals();
  ~WriteSignals();
  WriteSignals(const WriteSignals&) = delete;
  WriteSignals& operator=(const WriteSignals&) = delete;

 private:
  sigset_t held_{};  ///< the signals that we blocked and that were not pending before
  sigset_t old_mask_{};
  bool blocked_ = false;
};

}  // namespace cupool::observe
