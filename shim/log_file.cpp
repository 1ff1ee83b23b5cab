// See log_file.hpp. Source: open(2).
#include "shim/log_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "pool/observe/trusted_path.hpp"
#include "shim/private_folder.hpp"

namespace cupool::shim::log {
namespace {

/// Why lines must not be appended to what was opened; nullptr: they may be. In a folder that others can write to, they may have linked our name to a
/// file of another user, or of ours that is no log.
const char* objection(const struct stat& facts) {
  if (!S_ISREG(facts.st_mode)) return nullptr;
  if (facts.st_uid != geteuid()) return "the file belongs to another user";
  if (facts.st_nlink != 1) return "the file has another name too";
  return nullptr;
}

constexpr int kFlags = O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK;

}  // namespace

LogFile::LogFile(std::string path) : path_(std::move(path)) {
  const int file = observe::open_file(path_, kFlags | O_CREAT, observe::Missing::make);
  struct stat facts {};
  if (file < 0 || fstat(file, &facts) != 0) {
    reason_ = observe::reason_of(file < 0 ? -file : errno);
    return;
  }
  if (const char* why = objection(facts)) {
    reason_ = why;
    close(file);
    return;
  }
  opened_ = FileIdentity(facts);
  is_open_ = true;
  file_.store(private_folder::move_high(file), std::memory_order_release);
}

int LogFile::descriptor() {
  const int file = file_.load(std::memory_order_acquire);
  if (opened_.is_of(file)) return file;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return -1;  // another thread is at it: this line is lost
  const int again = observe::open_file(path_, kFlags);
  const bool is_same = opened_.is_of(again);
  if (again >= 0 && !is_same) close(again);
  file_.store(is_same ? private_folder::move_high(again) : -1, std::memory_order_release);
  return file_.load(std::memory_order_relaxed);
}

}  // namespace cupool::shim::log
