// ReportFile: see report_file.hpp. Everything happens relative to a descriptor of the folder, so that swapping the folder underneath changes nothing.
#include "pool/observe/report_file.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool/observe/trusted_path.hpp"

namespace cupool::observe {

namespace {

constexpr int kAttempts = 16;
constexpr mode_t kFileMode = 0600;

/// 64 bits that another user cannot foresee; where the kernel has no random bytes yet, O_EXCL still keeps the file ours.
std::uint64_t unpredictable() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof bits)) return bits;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_nsec) * 0x9E3779B97F4A7C15u ^ static_cast<std::uint64_t>(::getpid()) ^
         reinterpret_cast<std::uintptr_t>(&bits);
}

/// Moves the file to a descriptor above 2. A daemon may have no stdin, stdout or stderr, and what is printed there must not end up in the report.
int above_standard(int file) {
  if (file < 0 || file > STDERR_FILENO) return file;
  const int high = ::fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (high < 0) return file;
  ::close(file);
  return high;
}

using TemporaryName = std::array<char, 40>;

/// Not derived from the final name, which may already be as long as a name can be.
TemporaryName temporary_name() {
  TemporaryName name{};
  std::snprintf(name.data(), name.size(), ".cupool-%016llx.tmp", static_cast<unsigned long long>(unpredictable()));
  return name;
}

std::array<char, 32> path_of_descriptor(int file) {
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", file);
  return path;
}

}  // namespace

ReportFile::ReportFile(const std::string& path) {
  name_ = name_of(path);
  if (path.empty() || name_.empty() || name_ == "." || name_ == "..") {
    error_ = path.empty() ? ENOENT : EISDIR;
    return;
  }
  if (path.find('\0') != std::string::npos) {
    error_ = EINVAL;
    return;
  }
  folder_fd_ = open_folder(folder_of(path), Missing::make);
  error_ = folder_fd_ < 0 ? -folder_fd_ : check_replaceable();
  if (error_ == 0) error_ = create_nameless() ? 0 : create_named();
}

ReportFile::~ReportFile() {
  discard();
  if (folder_fd_ >= 0) ::close(folder_fd_);
}

int ReportFile::check_replaceable() const { return check_replaceable_at(folder_fd_, name_.c_str()); }

int check_replaceable_at(int folder_fd, const char* name) {
  struct stat facts {};
  if (::fstatat(folder_fd, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  if (S_ISDIR(facts.st_mode)) return EISDIR;
  if (!S_ISLNK(facts.st_mode)) return S_ISREG(facts.st_mode) ? 0 : EEXIST;
  std::array<char, 8> target{};  // as /dev/stdout, which leads to whatever descriptor 1 is
  const ssize_t length = ::readlinkat(folder_fd, name, target.data(), target.size());
  const std::string_view text(target.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (text.starts_with("/proc/") || text.starts_with("/dev/")) return EEXIST;
  return ::fstatat(folder_fd, name, &facts, 0) == 0 && !S_ISREG(facts.st_mode) ? EEXIST : 0;
}

/// Creates a file without a name (Linux 3.11; not every file system can), which vanishes if this process is killed before it is named. It gets its
/// name by way of /proc.
bool ReportFile::create_nameless() {
  fd_ = above_standard(::openat(folder_fd_, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, kFileMode));
  if (fd_ < 0) return false;
  (void)::fchmod(fd_, kFileMode);
  std::array<char, 8> target{};
  if (::readlink(path_of_descriptor(fd_).data(), target.data(), target.size()) > 0) return true;
  ::close(fd_);
  fd_ = -1;
  return false;
}

int ReportFile::create_named() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const TemporaryName name = temporary_name();
    fd_ = above_standard(::openat(folder_fd_, name.data(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (fd_ >= 0) {
      (void)::fchmod(fd_, kFileMode);  // readable by its owner whatever the umask is. Some file systems have no modes
      temporary_ = name.data();
      return 0;
    }
    if (errno != EEXIST && errno != EINTR) return errno;
  }
  return EEXIST;
}

/// Gives the nameless file its own name, or, where that is taken, a temporary one that is to be renamed. 0 or an errno.
int ReportFile::link_nameless() {
  const std::array<char, 32> path = path_of_descriptor(fd_);
  const auto link_as = [&](const char* name) { return ::linkat(AT_FDCWD, path.data(), folder_fd_, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno; };
  int error = link_as(name_.c_str());
  for (int attempt = 0; attempt < kAttempts && error == EEXIST; ++attempt) {
    const TemporaryName name = temporary_name();
    error = link_as(name.data());
    if (error == 0) temporary_ = name.data();
  }
  return error;
}

/// Where files cannot get a name later, copies it into a file that has a name from the beginning.
int ReportFile::copy_nameless() {
  const int from = std::exchange(fd_, -1);
  int error = create_named();
  std::array<char, 4096> bytes;  // the thread's stack may be small
  for (off_t done = 0; error == 0;) {
    const ssize_t count = ::pread(from, bytes.data(), bytes.size(), done);
    if (count == 0) break;
    const ssize_t written = count > 0 ? ::write(fd_, bytes.data(), static_cast<std::size_t>(count)) : count;
    if (written < 0 && errno != EINTR) error = errno;
    done += written > 0 ? written : 0;
  }
  ::close(from);
  return error;
}

int ReportFile::commit() {
  if (error_ != 0) return error_;
  const bool is_nameless = temporary_.empty();
  if (is_nameless && link_nameless() != 0) error_ = copy_nameless();
  // On EINTR Linux has closed the descriptor all the same, and a file on a local disk has lost nothing.
  const int closed = ::close(fd_);
  const int close_error = closed != 0 && errno != EINTR ? errno : 0;
  fd_ = -1;
  if (error_ == 0) error_ = close_error;
  if (error_ == 0 && !temporary_.empty()) {
    if (::renameat(folder_fd_, temporary_.c_str(), folder_fd_, name_.c_str()) != 0) error_ = errno;
    else temporary_.clear();
  }
  discard();
  return error_;
}

void ReportFile::discard() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlinkat(folder_fd_, temporary_.c_str(), 0);
  temporary_.clear();
}

WriteSignals::WriteSignals() {
  sigset_t wanted;
  sigset_t pending;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGXFSZ);
  sigaddset(&wanted, SIGPIPE);
  sigemptyset(&held_);
  sigemptyset(&pending);
  ::sigpending(&pending);
  for (const int signal : {SIGXFSZ, SIGPIPE}) {
    if (sigismember(&pending, signal) == 0) sigaddset(&held_, signal);
  }
  blocked_ = ::pthread_sigmask(SIG_BLOCK, &wanted, &old_mask_) == 0;
}

WriteSignals::~WriteSignals() {
  if (!blocked_) return;
  // A failed write raises its signal in this very thread: it is taken back before the host program can see it.
  const timespec at_once{};
  while (::sigtimedwait(&held_, nullptr, &at_once) > 0) {}
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace cupool::observe
