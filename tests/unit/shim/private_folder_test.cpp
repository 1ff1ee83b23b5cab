// What is removed from the user's folder in shared memory, and what a search there leaves behind.
#include "shim/private_folder.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
namespace private_folder = cupool::shim::private_folder;

namespace {

using Names = std::set<std::string>;

std::size_t open_descriptors() { return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator{})); }

Names names_in(const fs::path& folder) {
  Names names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

fs::path usual_in(const cupool::test::TemporaryFolder& shared) { return shared.path / ("cupool-" + std::to_string(geteuid())); }

}  // namespace

TEST_CASE("only files that are named after a process which is gone are removed") {
  const cupool::test::TemporaryFolder shared;
  const int folder = private_folder::open(shared.path);
  REQUIRE(folder >= 0);
  const Names stay = {"ipc.999999999.5x",           "ipc.999999999.", "ipc.999999999",  "ipc.999999999-5", "ipc.x.5", "ipc..5", "ipc.", "ipc.1.",
                      "ipc.1.99999999999999999999", "999999999.5",    "ipc.999999999.7"};
  for (const std::string& name : stay) std::ofstream(usual_in(shared) / name);
  for (const char* name : {"ipc.999999999.5", "ipc.999999999.6", "ipc.999999998.5"}) std::ofstream(usual_in(shared) / name);
  const std::size_t before = open_descriptors();
  private_folder::remove_dead(folder, "ipc.", "ipc.999999999.7", 0);
  CHECK(names_in(usual_in(shared)) == stay);
  CHECK(open_descriptors() == before);
  close(folder);
}

TEST_CASE("a folder of another user is not ours, whatever may be opened") {
  const cupool::test::TemporaryFolder shared;
  constexpr uid_t kSomebody = 65000;
  REQUIRE(mkdir(usual_in(shared).c_str(), 0700) == 0);
  std::ofstream{usual_in(shared) / "file"};
  if (chown(usual_in(shared).c_str(), kSomebody, kSomebody) != 0) {
    WARN("not run here: files cannot be given away");
    return;
  }
  const std::size_t before = open_descriptors();
  CHECK(private_folder::open_with(shared.path, "file") == -1);
  const int folder = private_folder::open(shared.path);
  struct stat facts {};
  REQUIRE(fstat(folder, &facts) == 0);
  CHECK(facts.st_uid == geteuid());
  CHECK((facts.st_mode & 07777) == 0700);
  close(folder);
  CHECK(open_descriptors() == before);
}

TEST_CASE("of the files of processes that are gone the newest are kept") {
  for (int newest = 0; newest < 3; ++newest) {
    const cupool::test::TemporaryFolder shared;
    const int folder = private_folder::open(shared.path);
    REQUIRE(folder >= 0);
    for (int i = 0; i < 3; ++i) {
      const fs::path file = usual_in(shared) / ("999999999." + std::to_string(i + 1));
      std::ofstream{file};
      const timespec made{1'000'000 + (i == newest ? 1 : 0), 0};
      const timespec times[] = {made, made};
      REQUIRE(utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
    }
    private_folder::remove_dead(folder, "", "", 1);
    CHECK(names_in(usual_in(shared)) == Names{"999999999." + std::to_string(newest + 1)});
    close(folder);
  }
}

TEST_CASE("a descriptor moves away from low numbers, or as far as the limit lets it, and the low one is free again") {
  const std::size_t before = open_descriptors();
  const int high = private_folder::move_high(open("/dev/null", O_RDONLY));
  CHECK(high >= 900);
  CHECK((fcntl(high, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(open_descriptors() == before + 1);
  close(high);
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const int low = open("/dev/null", O_RDONLY);
  const rlimit two_numbers{static_cast<rlim_t>(low) + 2, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &two_numbers) == 0);
  const int moved = private_folder::move_high(low);
  const int filler = open("/dev/null", O_RDONLY);
  const int stays = private_folder::move_high(moved);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(moved == low + 1);
  CHECK(filler == low);
  CHECK(stays == moved);
  CHECK(fcntl(stays, F_GETFD) != -1);
  close(stays);
  close(filler);
  CHECK(open_descriptors() == before);
}

TEST_CASE("a file is looked for in every folder of the user, and none stays open that does not have it") {
  const cupool::test::TemporaryFolder shared;
  const fs::path usual = usual_in(shared), stand_in = usual.string() + ".aaaaaa", open_to_all = usual.string() + ".bbbbbb";
  for (const fs::path& path : {usual, stand_in, open_to_all}) {
    REQUIRE(mkdir(path.c_str(), 0700) == 0);
  }
  REQUIRE(chmod(open_to_all.c_str(), 0755) == 0);
  std::ofstream{stand_in / "ours"};
  std::ofstream{open_to_all / "anybodys"};
  const std::size_t before = open_descriptors();
  CHECK(private_folder::open_with(shared.path, "nowhere") == -1);
  CHECK(private_folder::open_with(shared.path, "anybodys") == -1);
  CHECK(open_descriptors() == before);
  const int folder = private_folder::open_with(shared.path, "ours");
  REQUIRE(folder >= 0);
  CHECK(open_descriptors() == before + 1);
  CHECK(faccessat(folder, "ours", F_OK, 0) == 0);
  close(folder);
}
