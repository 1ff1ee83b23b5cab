// A report appears complete or not at all: links, folders, full disks, names at their limits.
#include <catch2/catch.hpp>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <string>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool/observe/report.hpp"
#include "pool/observe/report_file.hpp"
#include "samples.hpp"
#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
using cupool::observe::write_report;
using cupool::observe::write_report_fd;

namespace {

/// What a file system may be unable to do.
struct FileSystem {
  bool has_nameless_files = true;
  bool can_link = true;
};
FileSystem g_file_system;

struct Restored {
  ~Restored() { g_file_system = {}; }
};

/// A folder that goes away with everything in it.
struct Folder : cupool::test::TemporaryFolder {
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path)) count += entry.is_directory() ? 0 : 1;
    return count;
  }
};

std::string read(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_whole_report(const fs::path& path) {
  const std::string text = read(path);
  return text.rfind("{\"schema\":\"cupool.report/1\"", 0) == 0 && text.size() > 2 && text.substr(text.size() - 2) == "}\n";
}

cupool::observe::ReportInput small_input() { return samples::input_of(samples::empty_device(samples::kGiB)); }

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

}  // namespace

// Before libc's in the order of symbols.
extern "C" int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & O_TMPFILE) == O_TMPFILE && !g_file_system.has_nameless_files) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
}

extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  if (!g_file_system.can_link) {
    errno = EPERM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

TEST_CASE("a folder that may not be made is told by that reason, not as missing") {
  const Folder folder;
  REQUIRE(::chmod(folder.path.c_str(), 0555) == 0);
  const bool is_root = ::geteuid() == 0;  // whom no mode keeps out
  if (is_root) REQUIRE(::seteuid(65534) == 0);
  const int error = write_report(small_input(), (folder.path / "a" / "b" / "report.json").string(), 0);
  if (is_root) REQUIRE(::seteuid(0) == 0);
  REQUIRE(::chmod(folder.path.c_str(), 0700) == 0);
  CHECK(error == EACCES);
}

TEST_CASE("a report is written 0600, missing folders 0700, and nothing else stays") {
  const Folder folder;
  const fs::path path = folder.path / "a" / "b" / "report.json";
  REQUIRE(write_report(small_input(), path, 0) == 0);
  CHECK(is_whole_report(path));
  CHECK(mode_of(path) == 0600);
  CHECK(mode_of(folder.path / "a") == 0700);
  CHECK(mode_of(folder.path / "a" / "b") == 0700);
  CHECK(folder.files() == 1);
}

TEST_CASE("a report is its owner's to read under any umask") {
  const Folder folder;
  const fs::path path = folder.path / "a" / "b" / "report.json";
  const mode_t before = ::umask(GENERATE(0277, 0777));
  const int error = write_report(small_input(), path, 0);
  ::umask(before);
  REQUIRE(error == 0);
  CHECK(mode_of(path) == 0600);
  CHECK(mode_of(folder.path / "a") == 0700);
  CHECK(mode_of(folder.path / "a" / "b") == 0700);
}

TEST_CASE("a report replaces what has its name, whatever the file system can do") {
  const Restored restored;
  g_file_system = GENERATE(FileSystem{true, true}, FileSystem{true, false}, FileSystem{false, true}, FileSystem{false, false});
  const Folder folder;
  const fs::path path = folder.path / "report.json";
  std::ofstream(path) << std::string(100000, 'x');
  ::chmod(path.c_str(), 0644);
  REQUIRE(write_report(small_input(), path, 0) == 0);
  CHECK(is_whole_report(path));
  CHECK(mode_of(path) == 0600);
  CHECK(folder.files() == 1);
}

TEST_CASE("a relative name is written beside the program") {
  const Folder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path);
  CHECK(write_report(small_input(), "report.json", 0) == 0);
  CHECK(write_report(small_input(), "sub/report.json", 0) == 0);
  fs::current_path(before);
  CHECK(is_whole_report(folder.path / "report.json"));
  CHECK(is_whole_report(folder.path / "sub" / "report.json"));
}

TEST_CASE("a link at the final name is replaced, its target untouched") {
  const Restored restored;
  g_file_system = GENERATE(FileSystem{true, true}, FileSystem{true, false}, FileSystem{false, true});
  const Folder folder;
  const fs::path victim = folder.path / "precious";
  const fs::path path = folder.path / "report.json";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, path);
  REQUIRE(write_report(small_input(), path, 0) == 0);
  CHECK(read(victim) == "precious");
  CHECK_FALSE(fs::is_symlink(path));
  CHECK(is_whole_report(path));
}

TEST_CASE("a link that leads to what is no file, or to a descriptor, is everybody's and stays") {
  const Folder folder;
  const fs::path path = folder.path / "stdout";
  fs::create_symlink(GENERATE("/proc/self/fd/1", "/dev/null", "/dev/shm/cupool-no-such-file"), path);
  CHECK(write_report(small_input(), path, 0) == EEXIST);
  CHECK(fs::is_symlink(path));
  const fs::path pipe = folder.path / "pipe";
  const fs::path link = folder.path / "link";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, link);
  CHECK(write_report(small_input(), link, 0) == EEXIST);
  CHECK(fs::is_symlink(link));
}

TEST_CASE("a dangling link at the final name creates nothing where it points") {
  const Folder folder;
  fs::create_symlink(folder.path / "elsewhere", folder.path / "report.json");
  REQUIRE(write_report(small_input(), folder.path / "report.json", 0) == 0);
  CHECK_FALSE(fs::exists(folder.path / "elsewhere"));
}

TEST_CASE("a pipe or a folder at the final name is refused and stays") {
  const Folder folder;
  const fs::path pipe = folder.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(write_report(small_input(), pipe.string(), 0) == EEXIST);
  CHECK(fs::is_fifo(pipe));
  fs::create_directory(folder.path / "folder");
  CHECK(write_report(small_input(), (folder.path / "folder").string(), 0) == EISDIR);
  CHECK(folder.files() == 1);
}

TEST_CASE("a hard link at the final name keeps its bytes under its other name") {
  const Folder folder;
  std::ofstream(folder.path / "precious") << "precious";
  fs::create_hard_link(folder.path / "precious", folder.path / "report.json");
  REQUIRE(write_report(small_input(), folder.path / "report.json", 0) == 0);
  CHECK(read(folder.path / "precious") == "precious");
}

TEST_CASE("where no file can be, errno says why and nothing stays") {
  const Folder folder;
  fs::create_directory(folder.path / "folder");
  std::ofstream(folder.path / "file") << "x";
  CHECK(write_report(small_input(), folder.path / "folder", 0) == EISDIR);
  CHECK(write_report(small_input(), (folder.path / "folder" / "").string(), 0) == EISDIR);
  CHECK(write_report(small_input(), (folder.path / "folder" / "..").string(), 0) == EISDIR);
  CHECK(write_report(small_input(), folder.path / "file" / "report.json", 0) == ENOTDIR);
  CHECK(write_report(small_input(), folder.path / "file" / "deeper" / "report.json", 0) == ENOTDIR);
  CHECK(write_report(small_input(), "", 0) == ENOENT);
  CHECK(write_report(small_input(), std::string("a\0b", 3), 0) == EINVAL);
  CHECK(write_report(small_input(), (folder.path / std::string(256, 'n')).string(), 0) == ENAMETOOLONG);
  CHECK(write_report(small_input(), "/proc/cupool/report.json", 0) != 0);
  CHECK(folder.files() == 1);
}

TEST_CASE("a name as long as names can be is served") {
  const Folder folder;
  const fs::path path = folder.path / std::string(255, 'n');
  CHECK(write_report(small_input(), path, 0) == 0);
  CHECK(is_whole_report(path));
}

TEST_CASE("a folder without write permission is EACCES, and nothing stays") {
  if (::geteuid() == 0) {
    // Root may write anywhere: let a child become nobody and try.
    const Folder folder;
    ::chmod(folder.path.c_str(), 0555);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setuid(65534) != 0) ::_exit(99);
      ::_exit(write_report(small_input(), folder.path / "report.json", 0) == EACCES ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(folder.files() == 0);
    return;
  }
  const Folder folder;
  ::chmod(folder.path.c_str(), 0555);
  CHECK(write_report(small_input(), folder.path / "report.json", 0) == EACCES);
  CHECK(folder.files() == 0);
  ::chmod(folder.path.c_str(), 0755);
}

TEST_CASE("a file size limit is EFBIG, leaves nothing, keeps the old report, and does not kill the host") {
  const Folder folder;
  const fs::path path = folder.path / "report.json";
  REQUIRE(write_report(small_input(), path, 0) == 0);
  const std::string before = read(path);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit tiny{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &tiny);
    ::signal(SIGXFSZ, SIG_DFL);
    const int error = write_report(samples::input_of(samples::large_device(20000)), path, 0);
    sigset_t pending;
    ::sigpending(&pending);
    ::_exit(error != EFBIG ? 1 : sigismember(&pending, SIGXFSZ) != 0 ? 2 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(read(path) == before);
  CHECK(folder.files() == 1);
}

TEST_CASE("a full device is ENOSPC for a descriptor") {
  std::FILE* full = std::fopen("/dev/full", "w");
  REQUIRE(full != nullptr);
  CHECK(write_report_fd(small_input(), fileno(full), 0) == ENOSPC);
  std::fclose(full);
}

TEST_CASE("a closed pipe is EPIPE, and the host lives with its own disposition") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  CHECK(write_report_fd(small_input(), ends[1], 0) == EPIPE);
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  CHECK(sigismember(&after, SIGPIPE) == sigismember(&before, SIGPIPE));
  ::close(ends[1]);
  CHECK(write_report_fd(small_input(), -1, 0) == EBADF);
}

TEST_CASE("a signal that waited for the host before a report is still the host's") {
  sigset_t pipe_signal;
  sigset_t before;
  sigset_t pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before) == 0);
  ::raise(SIGPIPE);
  { const cupool::observe::WriteSignals quiet; }
  CHECK((::sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1));
  const timespec at_once{};
  CHECK(::sigtimedwait(&pipe_signal, nullptr, &at_once) == SIGPIPE);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("a file that is never committed goes away, and has no name meanwhile where there are such files") {
  const Restored restored;
  const bool is_nameless = GENERATE(true, false);
  g_file_system.has_nameless_files = is_nameless;
  const Folder folder;
  {
    const cupool::observe::ReportFile file((folder.path / "report.json").string());
    REQUIRE(file.error() == 0);
    CHECK(folder.files() == (is_nameless ? 0 : 1));
    CHECK_FALSE(fs::exists(folder.path / "report.json"));
  }
  CHECK(folder.files() == 0);
}

TEST_CASE("two temporary names are never the same") {
  const Restored restored;
  g_file_system.has_nameless_files = false;
  const Folder folder;
  const cupool::observe::ReportFile one((folder.path / "report.json").string());
  const cupool::observe::ReportFile two((folder.path / "report.json").string());
  CHECK(folder.files() == 2);
}

TEST_CASE("a report that cannot be linked is copied whole, or is an error") {
  const Restored restored;
  g_file_system.can_link = false;
  const Folder folder;
  cupool::observe::ReportFile file((folder.path / "report.json").string());
  const std::string text(100'000, 'x');
  REQUIRE(::write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  SECTION("whole") {
    CHECK(file.commit() == 0);
    CHECK(read(folder.path / "report.json") == text);
    CHECK(mode_of(folder.path / "report.json") == 0600);
    CHECK(folder.files() == 1);
  }
  SECTION("no file may be made any more") {
    const rlimit before = [] {
      rlimit now{};
      ::getrlimit(RLIMIT_FSIZE, &now);
      return now;
    }();
    const cupool::observe::WriteSignals signals;
    const rlimit small{50'000, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const int error = file.commit();
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(error == EFBIG);
    CHECK(folder.files() == 0);
  }
}

TEST_CASE("a folder that is moved away while the report is written still gets it") {
  const Folder folder;
  fs::create_directory(folder.path / "a");
  cupool::observe::ReportFile file((folder.path / "a" / "report.json").string());
  REQUIRE(file.error() == 0);
  fs::rename(folder.path / "a", folder.path / "b");
  fs::create_directory(folder.path / "a");
  CHECK(file.commit() == 0);
  CHECK(fs::exists(folder.path / "b" / "report.json"));
  CHECK_FALSE(fs::exists(folder.path / "a" / "report.json"));
}
