// Paths are walked as the kernel walks them, but past no link that another user has placed.
#include <catch2/catch.hpp>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool/observe/trusted_path.hpp"
#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
using namespace cupool::observe;
using cupool::test::TemporaryFolder;

namespace {

constexpr uid_t kOther = 65000;

/// Makes links at these places that belong to another user. False: this user may not, as a root of a user namespace often may not.
bool place_foreign(const fs::path& link, const fs::path& target) {
  fs::create_symlink(target, link);
  return ::lchown(link.c_str(), kOther, kOther) == 0;
}

/// Does the descriptor, which it closes, stand for that folder?
bool leads_to(int folder, const fs::path& path) {
  struct stat found {};
  struct stat wanted {};
  const bool is_same = folder >= 0 && ::fstat(folder, &found) == 0 && ::stat(path.c_str(), &wanted) == 0 && found.st_ino == wanted.st_ino &&
                       found.st_dev == wanted.st_dev;
  if (folder >= 0) ::close(folder);
  return is_same;
}

struct Umask {
  explicit Umask(mode_t mask) : before(::umask(mask)) {}
  ~Umask() { ::umask(before); }
  mode_t before;
};

}  // namespace

TEST_CASE("a path leads where the kernel would go") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path / "a" / "b");
  fs::create_directories(folder.path / "c");
  fs::create_symlink("a/b", folder.path / "relative");
  fs::create_symlink(folder.path / "c", folder.path / "a" / "absolute");
  fs::create_symlink("..", folder.path / "a" / "b" / "up");
  const auto at = [&](const char* path) { return open_folder(folder.path.string() + path, Missing::refuse); };
  CHECK(leads_to(at(""), folder.path));
  CHECK(leads_to(at("//a///b/."), folder.path / "a" / "b"));
  CHECK(leads_to(at("/a/../c"), folder.path / "c"));
  CHECK(leads_to(at("/relative"), folder.path / "a" / "b"));
  CHECK(leads_to(at("/relative/up/absolute/"), folder.path / "c"));
  CHECK(leads_to(open_folder("/", Missing::refuse), "/"));
  CHECK(leads_to(open_folder(".", Missing::refuse), fs::current_path()));
  CHECK(leads_to(open_folder("/proc/self/cwd", Missing::refuse), fs::current_path()));
  const int held = ::open(folder.path.c_str(), O_PATH | O_CLOEXEC);
  CHECK(leads_to(open_folder("/dev/fd/" + std::to_string(held) + "/c", Missing::refuse), folder.path / "c"));
  ::close(held);
}

TEST_CASE("a path that leads nowhere says why") {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "file") << "text";
  fs::create_symlink("circle", folder.path / "circle");
  fs::create_symlink("nowhere", folder.path / "dangling");
  const auto at = [&](const char* path) { return open_folder(folder.path.string() + path, Missing::refuse); };
  CHECK(at("/nowhere") == -ENOENT);
  CHECK(at("/dangling/b") == -ENOENT);
  CHECK(at("/file") == -ENOTDIR);
  CHECK(at("/file/b") == -ENOTDIR);
  CHECK(at("/circle") == -ELOOP);
  CHECK(at(("/" + std::string(300, 'x')).c_str()) == -ENAMETOOLONG);
  CHECK(open_folder("", Missing::make) == -ENOENT);
  CHECK(open_folder("/proc/nowhere/b", Missing::make) == -ENOENT);
  CHECK(open_file(folder.path / "nowhere" / "file", O_RDONLY) == -ENOENT);
  CHECK(open_file(folder.path / "circle", O_RDONLY) == -ELOOP);
  CHECK(open_file(folder.path / "a" / "", O_WRONLY, Missing::make) == -EISDIR);
}

TEST_CASE("missing folders and files are made for their owner alone, whatever the umask") {
  const TemporaryFolder folder;
  {
    const Umask umask(0777);
    CHECK(leads_to(open_folder(folder.path / "a" / "b", Missing::make), folder.path / "a" / "b"));
  }
  const Umask umask(0);
  const int file = open_file(folder.path / "a" / "c" / "file", O_WRONLY | O_CREAT, Missing::make);
  REQUIRE(file >= 0);
  CHECK((::fcntl(file, F_GETFD) & FD_CLOEXEC) != 0);
  ::close(file);
  for (const char* made : {"a", "a/b", "a/c"}) CHECK((fs::status(folder.path / made).permissions() & fs::perms::mask) == fs::perms::owner_all);
  const fs::perms of_file = fs::status(folder.path / "a/c/file").permissions();
  CHECK(of_file == (fs::perms::owner_read | fs::perms::owner_write));
  remove_file(folder.path / "a" / "c" / "file");
  CHECK(fs::is_empty(folder.path / "a" / "c"));
}

TEST_CASE("a link of another user is not followed, one of root is") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path / "precious" / "sub");
  std::ofstream(folder.path / "precious" / "file") << "text";
  if (!place_foreign(folder.path / "theirs", "precious")) {
    WARN("not tested: this user cannot give a link to another one");
    return;
  }
  fs::create_symlink("theirs", folder.path / "ours");
  for (const char* way : {"/theirs", "/theirs/sub", "/theirs/new", "/ours/sub", "/precious/../theirs/sub"})
    CHECK(open_folder(folder.path.string() + way, Missing::make) == -ELOOP);
  CHECK(open_file(folder.path / "theirs" / "file", O_RDWR) == -ELOOP);
  remove_file(folder.path / "theirs" / "file");
  CHECK(fs::exists(folder.path / "precious" / "file"));
  CHECK_FALSE(fs::exists(folder.path / "precious" / "new"));
  REQUIRE(::lchown((folder.path / "theirs").c_str(), 0, 0) == 0);
  CHECK(leads_to(open_folder(folder.path / "theirs" / "sub", Missing::refuse), folder.path / "precious" / "sub"));
}

TEST_CASE("a reason is a sentence for each errno") {
  CHECK(std::string(reason_of(ENOSPC)) == "No space left on device");
  CHECK(std::string(reason_of(ELOOP)).find("symbolic link") != std::string::npos);
  CHECK(std::string(reason_of(100000)) == "unknown error");
}
