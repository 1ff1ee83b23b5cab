// See trusted_path.hpp.
#include "pool/observe/trusted_path.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace cupool::observe {

namespace {

constexpr mode_t kNewFolderMode = 0700;
constexpr mode_t kNewFileMode = 0600;
constexpr int kMostLinks = 40;  // as the kernel
// To read, because an automounted folder is mounted by that, and not by O_PATH.
constexpr int kReadFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
constexpr int kPlace = O_PATH | O_NOFOLLOW | O_CLOEXEC;

/// Closes `file`; returns the errno from before, negative.
int close_after_error(int file) {
  const int error = -errno;
  ::close(file);
  return error;
}

/// Makes a folder that its owner can use whatever the umask is. False: errno says why not.
bool make_folder(int folder, const char* name) {
  if (::mkdirat(folder, name, kNewFolderMode) != 0) return errno == EEXIST;  // by another process
  struct stat facts {};
  if (::fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(facts.st_mode) && (facts.st_mode & kNewFolderMode) != kNewFolderMode)
    (void)::fchmodat(folder, name, (facts.st_mode & 07777) | kNewFolderMode, AT_SYMLINK_NOFOLLOW);
  return true;
}

/// Opens a folder, without following a link, to go on from. A descriptor, or an errno, negative: ELOOP or ENOTDIR for what is no folder.
int enter(int folder, const char* name) {
  const int read = ::openat(folder, name, kReadFolder);
  if (read >= 0 || errno != EACCES) return read >= 0 ? read : -errno;
  const int passed = ::openat(folder, name, kPlace | O_DIRECTORY);  // one that may be passed, and not read
  return passed >= 0 ? passed : -errno;
}

/// A path that is gone through part by part.
class Walk {
 public:
  Walk(const std::string& path, Missing missing) : rest_(path), missing_(missing) {}
  ~Walk() { close_folder(); }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  /// A descriptor of the folder at the end, or an errno, negative.
  int go() {
    folder_ = begin();
    while (folder_ >= 0) {
      const std::string name = next_name();
      if (name.empty()) break;
      const int next = pass(name.c_str());
      close_folder();
      folder_ = next;
    }
    return std::exchange(folder_, -1);
  }

 private:
  void close_folder() {
    if (folder_ >= 0) ::close(folder_);
  }

  int begin() const {
    const int folder = ::open(rest_.starts_with('/') ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return folder >= 0 ? folder : -errno;
  }

  std::string next_name() {
    const std::size_t first = std::min(rest_.find_first_not_of('/'), rest_.size());
    const std::size_t end = std::min(rest_.find('/', first), rest_.size());
    std::string name = rest_.substr(first, end - first);
    rest_.erase(0, end);
    return name;
  }

  int pass(const char* name) {
    int next = enter(folder_, name);
    if (next == -ENOENT && missing_ == Missing::make) next = make_folder(folder_, name) ? enter(folder_, name) : -errno;
    return next == -ELOOP || next == -ENOTDIR ? pass_link(name) : next;
  }

  /// The part may be a link. What it leads to takes its place in the path.
  int pass_link(const char* name) {
    const int link = ::openat(folder_, name, kPlace);
    if (link < 0) return -errno;
    struct stat facts {};
    struct statfs system {};
    if (::fstat(link, &facts) != 0 || ::fstatfs(link, &system) != 0) return close_after_error(link);
    std::array<char, PATH_MAX> target;
    const ssize_t length = S_ISLNK(facts.st_mode) ? ::readlinkat(link, "", target.data(), target.size()) : 0;
    if (length < 0) return close_after_error(link);
    ::close(link);
    if (!S_ISLNK(facts.st_mode)) return -ENOTDIR;
    if (++links_ > kMostLinks) return -ELOOP;
    if (static_cast<std::uint64_t>(system.f_type) == PROC_SUPER_MAGIC) return follow_proc(name);
    if (facts.st_uid != ::geteuid() && facts.st_uid != 0) return -ELOOP;
    rest_.insert(0, std::string(target.data(), static_cast<std::size_t>(length)) + "/");
    return rest_.starts_with('/') ? begin() : duplicate();
  }

  /// Links of procfs, as /proc/self/cwd, lead where their text may not.
  int follow_proc(const char* name) const {
    const int next = ::openat(folder_, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return next >= 0 ? next : -errno;
  }

  int duplicate() const {
    const int copy = ::fcntl(folder_, F_DUPFD_CLOEXEC, 0);
    return copy >= 0 ? copy : -errno;
  }

  int folder_ = -1;  ///< where the walk is
  std::string rest_;
  Missing missing_;
  int links_ = 0;
};

}  // namespace

int open_folder(const std::string& path, Missing missing) try {
  return path.empty() ? -ENOENT : Walk(path, missing).go();
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

int open_file(const std::string& path, int flags, Missing missing) try {
  const std::string name = name_of(path);
  const int folder = open_folder(folder_of(path), missing);
  if (folder < 0) return folder;
  const int file = ::openat(folder, name.empty() ? "." : name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kNewFileMode);
  if (file < 0) return close_after_error(folder);
  ::close(folder);
  return file;
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

void remove_file(const std::string& path) {
  const std::string name = name_of(path);
  const int folder = open_folder(folder_of(path), Missing::refuse);
  if (folder < 0) return;
  ::unlinkat(folder, name.c_str(), 0);
  ::close(folder);
}

const char* reason_of(int error) {
  const char* text = error == ELOOP ? "a symbolic link there is not followed; name what it leads to" : strerrordesc_np(error);
  return text != nullptr ? text : "unknown error";
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace cupool::observe
