// The file behind the live page: when it has a name, who may read it, and what becomes of dead ones.
#include "shim/live_page.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "shim/identity.hpp"
#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
using namespace cupool;
using cupool::shim::LivePage;

namespace {

/// A folder like /dev/shm of the test's own; inside /dev/shm, so that it is the same kind of file system.
struct SharedFolder : test::TemporaryFolder {
  SharedFolder() : TemporaryFolder("/dev/shm") {}
  /// Stand-ins for the folder of the usual name.
  std::vector<fs::path> stand_ins() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.path().filename().string().starts_with(pages().filename().string() + ".")) found.push_back(entry.path());
    return found;
  }
  fs::path pages() const { return path / ("cupool-" + std::to_string(geteuid())); }
  std::size_t count() const {
    return fs::exists(pages()) ? static_cast<std::size_t>(std::distance(fs::directory_iterator(pages()), fs::directory_iterator{})) : 0;
  }
};

observe::LiveIdentity own_identity() {
  observe::LiveIdentity identity;
  identity.pid = getpid();
  identity.process_start_ticks = shim::start_ticks_of(getpid());
  return identity;
}

}  // namespace

TEST_CASE("the start of a process is known, that of no process is zero") {
  CHECK(shim::start_ticks_of(getpid()) > 0);
  CHECK(shim::start_ticks_of(999999999) == 0);
}

TEST_CASE("a page has no name before it is published and none after it is retired") {
  const SharedFolder shared;
  LivePage page(own_identity(), "{}", shared.path.c_str());
  CHECK(shared.count() == 0);
  page.publish();
  const fs::path file = shared.pages() / (std::to_string(getpid()) + "." + std::to_string(shim::start_ticks_of(getpid())));
  REQUIRE(fs::exists(file));
  struct stat facts {};
  REQUIRE(stat(file.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 07777) == 0600);
  REQUIRE(stat(shared.pages().c_str(), &facts) == 0);
  CHECK((facts.st_mode & 07777) == 0700);
  page.retire();
  CHECK(shared.count() == 0);
}

TEST_CASE("what is written in place is read from the file") {
  const SharedFolder shared;
  LivePage page(own_identity(), "{\"a\":1}", shared.path.c_str());
  page.publish();
  page.set_state(observe::LiveState::exiting);
  std::ifstream file(fs::directory_iterator(shared.pages())->path(), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  REQUIRE(bytes.size() >= sizeof(observe::LiveHeader));
  std::uint64_t magic = 0;
  bytes.copy(reinterpret_cast<char*>(&magic), sizeof magic);
  CHECK(magic == observe::kLivePageMagic);
  CHECK(bytes.find("{\"a\":1}") != std::string::npos);
  CHECK(bytes[offsetof(observe::LiveHeader, state)] == static_cast<char>(observe::LiveState::exiting));
}

TEST_CASE("a folder that others may enter is not used") {
  const SharedFolder shared;
  fs::create_directory(shared.pages());
  fs::permissions(shared.pages(), fs::perms::all);
  LivePage page(own_identity(), "{}", shared.path.c_str());
  page.publish();
  CHECK(shared.count() == 0);
  REQUIRE(shared.stand_ins().size() == 1);
  const fs::path stand_in = shared.stand_ins()[0];
  struct stat facts {};
  REQUIRE(stat(stand_in.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 07777) == 0700);
  CHECK(std::distance(fs::directory_iterator(stand_in), fs::directory_iterator{}) == 1);
  page.retire();
  CHECK(fs::is_empty(stand_in));
}

TEST_CASE("a stand-in is used again, one of others never") {
  const SharedFolder shared;
  fs::create_directory(shared.pages());
  fs::permissions(shared.pages(), fs::perms::all);
  const fs::path theirs = shared.pages().string() + ".AAAAAA", ours = shared.pages().string() + ".BBBBBB";
  for (const fs::path& folder : {theirs, ours}) fs::create_directory(folder);
  fs::permissions(theirs, fs::perms::all);
  fs::permissions(ours, fs::perms::owner_all);
  LivePage page(own_identity(), "{}", shared.path.c_str());
  page.publish();
  CHECK(shared.stand_ins().size() == 2);
  CHECK(fs::is_empty(theirs));
  CHECK_FALSE(fs::is_empty(ours));
  fs::remove(shared.pages());
  fs::create_directory(shared.pages());
  fs::permissions(shared.pages(), fs::perms::owner_all);
  page.retire();
  CHECK(fs::is_empty(ours));
}

TEST_CASE("a link in the folder's place is not followed") {
  const SharedFolder shared;
  fs::create_directory(shared.path / "elsewhere");
  fs::create_directory_symlink(shared.path / "elsewhere", shared.pages());
  LivePage page(own_identity(), "{}", shared.path.c_str());
  page.publish();
  CHECK(fs::is_empty(shared.path / "elsewhere"));
  CHECK(shared.stand_ins().size() == 1);
}

TEST_CASE("without shared memory the page lies in the heap and works") {
  LivePage page(own_identity(), "{}", "/nowhere");
  page.publish();
  page.set_state(observe::LiveState::exiting);
  CHECK(page.header().magic == observe::kLivePageMagic);
  page.retire();
}

TEST_CASE("the user's folder is that user's to enter under any umask") {
  const SharedFolder shared;
  const mode_t before = ::umask(GENERATE(0277, 0777));
  LivePage page(own_identity(), "{}", shared.path.c_str());
  page.publish();
  ::umask(before);
  CHECK(fs::status(shared.pages()).permissions() == fs::perms::owner_all);
  CHECK(shared.count() == 1);
  page.retire();
}

TEST_CASE("of the pages of dead processes the newest stay, and a living one's is never taken") {
  const SharedFolder shared;
  fs::create_directory(shared.pages());
  fs::permissions(shared.pages(), fs::perms::owner_all);
  const auto make = [&](const std::string& name, int age) {
    std::ofstream(shared.pages() / name) << "x";
    fs::last_write_time(shared.pages() / name, fs::file_time_type::clock::now() - std::chrono::hours(age));
  };
  for (int i = 0; i < 100; ++i) make("99999" + std::to_string(1000 + i) + ".7", i + 1);
  const std::string living = "1." + std::to_string(shim::start_ticks_of(1));
  make(living, 5000);
  make("notes.txt", 5000);
  LivePage page(own_identity(), "{}", shared.path.c_str());
  page.publish();
  CHECK(shared.count() == 16 + 3);
  CHECK(fs::exists(shared.pages() / living));
  CHECK(fs::exists(shared.pages() / "notes.txt"));
  CHECK(fs::exists(shared.pages() / "999991000.7"));
  CHECK_FALSE(fs::exists(shared.pages() / "999991099.7"));
}

TEST_CASE("a page whose owner lives in another pid namespace is kept, because it is locked") {
  const SharedFolder shared;
  fs::create_directory(shared.pages());
  fs::permissions(shared.pages(), fs::perms::owner_all);
  int ready[2];
  int done[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(done) == 0);
  const pid_t child = fork();
  if (child == 0) {  // the owner, under a name that no process of ours has
    observe::LiveIdentity stranger;
    stranger.pid = 999999998;
    stranger.process_start_ticks = 1;
    LivePage page(stranger, "{}", shared.path.c_str());
    page.publish();
    char byte = 1;
    bool ok = write(ready[1], &byte, 1) == 1;
    ok = read(done[0], &byte, 1) == 1 && ok;
    _exit(ok ? 0 : 1);
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  for (int i = 0; i < 70; ++i) std::ofstream(shared.pages() / ("99999" + std::to_string(1000 + i) + ".7")) << "x";
  fs::last_write_time(shared.pages() / "999999998.1", fs::file_time_type::clock::now() - std::chrono::hours(100));
  LivePage page(own_identity(), "{}", shared.path.c_str());
  page.publish();
  CHECK(fs::exists(shared.pages() / "999999998.1"));
  CHECK(shared.count() == 16 + 2);
  REQUIRE(write(done[1], &byte, 1) == 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
