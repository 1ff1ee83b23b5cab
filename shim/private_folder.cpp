// Every open refuses links and does not wait: what lies in the folder may be anything.
#include "shim/private_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "shim/identity.hpp"

namespace cupool::shim::private_folder {
namespace {

bool is_locked_by_owner(int folder, const char* name) {
  const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return true;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool is_locked = fcntl(file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  close(file);
  return is_locked;
}

}  // namespace

int open(const std::string& shared_memory, bool create) {
  const std::string path = shared_memory + "/cupool-" + std::to_string(geteuid());
  if (create) mkdir(path.c_str(), 0700);
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat facts{};
  if (folder < 0) return -1;
  if (fstat(folder, &facts) == 0 && facts.st_uid == geteuid() && (facts.st_mode & 077) == 0) return folder;
  close(folder);
  errno = EPERM;
  return -1;
}

int move_high(int file) {
  const int high = fcntl(file, F_DUPFD_CLOEXEC, 900);
  if (high < 0) return file;
  close(file);
  return high;
}

void lock_for_life(int file) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  fcntl(file, F_SETLK, &lock);
}

bool is_dead(int folder, const char* name, std::string_view process) {
  const char* const end = process.data() + process.size();
  int pid = 0;
  std::uint64_t ticks = 0;
  const auto [dot, pid_error] = std::from_chars(process.data(), end, pid);
  if (pid_error != std::errc{} || dot == end || *dot != '.') return false;
  const auto [rest, ticks_error] = std::from_chars(dot + 1, end, ticks);
  if (ticks_error != std::errc{} || rest != end) return false;
  return start_ticks_of(pid) != ticks && !is_locked_by_owner(folder, name);
}

}  // namespace cupool::shim::private_folder
