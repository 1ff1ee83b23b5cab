// FileIdentity: which file a descriptor of ours was opened on.
//
// A program may close descriptors that it does not know (closefrom, daemons) and get the same number for a file of its own. So whoever keeps a
// descriptor asks is_of() before each use that could write into such a file. Thread rule: assigned once, then read-only.
#pragma once

#include <sys/stat.h>

namespace cupool::shim {

class FileIdentity {
 public:
  FileIdentity() = default;
  explicit FileIdentity(const struct stat& facts) : device_(facts.st_dev), inode_(facts.st_ino) {}

  /// Is `file` still open, and on this file? Any number may be asked about.
  bool is_of(int file) const {
    struct stat facts {};
    return file >= 0 && fstat(file, &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_;
  }

 private:
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace cupool::shim
