// Every open refuses symbolic links and does not wait, because what lies in the folder may be anything. Source: fcntl(2), open(2), mkdtemp(3).
#include "shim/private_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "shim/identity.hpp"

namespace cupool::shim::private_folder {
namespace {

bool is_locked_by_owner(int folder, const char* name) {
  const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool is_locked = fcntl(file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  close(file);
  return is_locked;
}

std::string usual_name() { return "cupool-" + std::to_string(geteuid()); }

int open_trusted(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat facts {};
  if (folder < 0) return -1;
  if (fstat(folder, &facts) == 0 && facts.st_uid == geteuid() && (facts.st_mode & 077) == 0) return folder;
  close(folder);
  return -1;
}

/// The paths that may stand in for the usual folder, in an order that is the same for all processes.
std::vector<std::string> stand_ins(const std::string& shared_memory) {
  std::vector<std::string> found;
  DIR* entries = opendir(shared_memory.c_str());
  if (entries == nullptr) return found;
  const std::string start = usual_name() + ".";
  while (const dirent* entry = readdir(entries))
    if (std::string_view(entry->d_name).starts_with(start)) found.push_back(shared_memory + "/" + entry->d_name);
  closedir(entries);
  std::sort(found.begin(), found.end());
  return found;
}

/// A descriptor of the first trusted folder for which `is_wanted(descriptor)`; -1: there is none. Stand-ins are looked for only where the usual one
/// will not do.
template <class IsWanted> int open_first(const std::string& shared_memory, IsWanted&& is_wanted) {
  const auto open_wanted = [&is_wanted](const std::string& path) {
    const int folder = open_trusted(path);
    if (folder < 0 || is_wanted(folder)) return folder;
    close(folder);
    return -1;
  };
  if (const int folder = open_wanted(shared_memory + "/" + usual_name()); folder >= 0) return folder;
  for (const std::string& path : stand_ins(shared_memory))
    if (const int folder = open_wanted(path); folder >= 0) return folder;
  return -1;
}

}  // namespace

int open(const std::string& shared_memory) {
  const std::string path = shared_memory + "/" + usual_name();
  // chmod, because of the umask. Nobody else can have replaced the folder in between, since the one that holds it is sticky.
  if (mkdir(path.c_str(), 0700) == 0) chmod(path.c_str(), 0700);
  if (const int folder = open_first(shared_memory, [](int) { return true; }); folder >= 0) return folder;
  std::string made = path + ".XXXXXX";
  if (mkdtemp(made.data()) == nullptr) return -1;
  chmod(made.c_str(), 0700);
  const int folder = open_trusted(made);
  if (folder < 0) rmdir(made.c_str());
  return folder;
}

int open_with(const std::string& shared_memory, const std::string& file) {
  return open_first(shared_memory, [&file](int folder) {
    struct stat facts {};
    return fstatat(folder, file.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
  });
}

int move_high(int file) {
  constexpr int kLowest = 900;  // below the usual limit of 1024, above what programs are likely to use
  int high = fcntl(file, F_DUPFD_CLOEXEC, kLowest);
  if (high < 0) high = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);  // RLIMIT_NOFILE is lower: away from the standard streams at least
  if (high < 0 && file > STDERR_FILENO) return file;
  close(file);
  return high;  // -1: only a number of a standard stream was left
}

void lock_for_life(int file) {
  struct flock lock {};
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

void remove_dead(int folder, std::string_view prefix, const std::string& own, std::size_t kept) noexcept try {
  constexpr std::size_t kMostLooks = 4096;
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy >= 0 ? fdopendir(copy) : nullptr, &closedir);
  if (entries == nullptr) {
    if (copy >= 0) close(copy);
    return;
  }
  std::vector<std::pair<std::pair<std::time_t, long>, std::string>> dead;  // by when they were made
  std::size_t looks = 0;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    struct stat facts {};
    if (++looks > kMostLooks) break;
    if (!name.starts_with(prefix) || name == own || !is_dead(folder, entry->d_name, name.substr(prefix.size()))) continue;
    if (fstatat(folder, entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0)
      dead.push_back({{facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec}, std::string(name)});
  }
  std::sort(dead.begin(), dead.end());
  for (std::size_t i = 0; i + kept < dead.size(); ++i) unlinkat(folder, dead[i].second.c_str(), 0);
} catch (const std::bad_alloc&) {  // the next process that tidies up removes them
}

}  // namespace cupool::shim::private_folder
