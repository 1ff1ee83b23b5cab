// The file of an exporter: names, growth, and space that runs out. What openers make of hostile files is in tests/ipc.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "shim/identity.hpp"
#include "shim/ipc_registry.hpp"
#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
using namespace cupool;
using shim::IpcRegistry;

namespace {

/// A folder like /dev/shm of the test's own; inside /dev/shm, so that it is the same kind of file system.
struct SharedFolder : test::TemporaryFolder {
  SharedFolder() : TemporaryFolder("/dev/shm") {}
  fs::path own() const { return path / ("cupool-" + std::to_string(geteuid())); }
};

const ipc::ProcessName kSelf{getpid(), shim::start_ticks_of(getpid())};
/// Alive, and not the one that reads: this process's parent.
const ipc::ProcessName kOther{getppid(), shim::start_ticks_of(getppid())};

ipc::BlockPlace place(std::uint64_t offset) { return {{offset, 1}, {}, std::uint64_t{1} << 30, offset, 512}; }

ipc::BlockHandle put(IpcRegistry& registry, std::uint32_t index) {
  const ipc::BlockPlace written = place(index * 512);
  ipc::write_entry(registry.entry(index), written);
  return {registry.owner(), written.nonce, index};
}

/// One block of another process, which the opener finds.
struct Exported {
  SharedFolder shared;
  IpcRegistry exporter{kOther, shared.path.c_str()};
  IpcRegistry opener{kSelf, shared.path.c_str()};
  ipc::BlockHandle handle{};

  Exported() {
    REQUIRE(exporter.reserve(0));
    handle = put(exporter, 0);
    REQUIRE(is_found());
  }
  fs::path file() const { return *fs::directory_iterator(shared.own()); }
  bool is_found() const {
    ipc::BlockPlace read;
    return opener.read(handle, read);
  }
};

}  // namespace

TEST_CASE("no file before the first entry, one of 0600 afterwards, none after the end") {
  const SharedFolder shared;
  IpcRegistry registry(kSelf, shared.path.c_str());
  CHECK_FALSE(fs::exists(shared.own()));
  CHECK(registry.entry(0) == nullptr);
  REQUIRE(registry.reserve(0));
  REQUIRE(fs::directory_iterator(shared.own()) != fs::directory_iterator{});
  const fs::path file = *fs::directory_iterator(shared.own());
  CHECK(file.filename() == "ipc." + std::to_string(kSelf.pid) + "." + std::to_string(kSelf.start_ticks));
  struct stat facts {};
  REQUIRE(stat(file.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 07777) == 0600);
  registry.retire();
  registry.retire();
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("entries of every chunk are read by another process, and addresses never move") {
  const SharedFolder shared;
  IpcRegistry exporter(kOther, shared.path.c_str());
  const IpcRegistry opener(kSelf, shared.path.c_str());
  REQUIRE(exporter.reserve(0));
  ipc::RegistryEntry* first = exporter.entry(0);
  REQUIRE(exporter.reserve(5000));
  CHECK(exporter.entry(0) == first);
  for (const std::uint32_t index : {0U, 510U, 511U, 1022U, 1023U, 5000U}) {
    ipc::BlockPlace read;
    const ipc::BlockHandle handle = put(exporter, index);
    INFO(index);
    REQUIRE(opener.read(handle, read));
    CHECK(read.offset == index * 512);
  }
  ipc::BlockPlace read;
  CHECK_FALSE(opener.read({kOther, {1, 1}, 100'000}, read));
  CHECK_FALSE(opener.read({kOther, {1, 1}, UINT32_MAX}, read));
  CHECK_FALSE(exporter.read(put(exporter, 0), read));  // one's own file is not opened: closing it would drop its lock
}

TEST_CASE("a process that is no more has no entries") {
  const SharedFolder shared;
  IpcRegistry exporter({kOther.pid, kOther.start_ticks + 1}, shared.path.c_str());
  const IpcRegistry opener(kSelf, shared.path.c_str());
  REQUIRE(exporter.reserve(0));
  ipc::BlockPlace read;
  CHECK_FALSE(opener.read(put(exporter, 0), read));  // the lock is this process's own, so it does not count
}

TEST_CASE("where shared memory has no folder for it, the file lies elsewhere, and is found there") {
  const SharedFolder missing;
  const SharedFolder elsewhere;
  fs::remove_all(missing.path);
  IpcRegistry exporter(kOther, missing.path.c_str(), elsewhere.path.c_str());
  const IpcRegistry opener(kSelf, missing.path.c_str(), elsewhere.path.c_str());
  REQUIRE(exporter.reserve(5000));
  ipc::BlockPlace read;
  CHECK(opener.read(put(exporter, 5000), read));
  CHECK_FALSE(fs::is_empty(elsewhere.own()));
  exporter.retire();
  CHECK(fs::is_empty(elsewhere.own()));
}

TEST_CASE("there is an end to indices") {
  const SharedFolder shared;
  IpcRegistry registry(kSelf, shared.path.c_str());
  CHECK_FALSE(registry.reserve(ipc::kEntriesMax));
  CHECK_FALSE(registry.reserve(UINT32_MAX));
}

TEST_CASE("space that runs out refuses, without a signal, and may come back") {
  const SharedFolder shared;
  IpcRegistry registry(kSelf, shared.path.c_str());
  REQUIRE(registry.reserve(0));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{64 * 1024, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const bool is_refused = !registry.reserve(5000);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(is_refused);
  CHECK(registry.entry(0) != nullptr);
  CHECK(registry.reserve(5000));
}

TEST_CASE("a descriptor that the program closed and uses for its own file is not written to") {
  const SharedFolder shared;
  IpcRegistry registry(kSelf, shared.path.c_str());
  REQUIRE(registry.reserve(0));
  const fs::path theirs = shared.path / "theirs";
  const int file = open(theirs.c_str(), O_CREAT | O_RDWR, 0600);
  for (int number = 900; number < 1000; ++number)
    if (fcntl(number, F_GETFD) >= 0) dup2(file, number);
  CHECK(registry.reserve(5000));
  CHECK(fs::file_size(theirs) == 0);
  close(file);
}

TEST_CASE("a file that is gone takes no further entries") {
  const SharedFolder shared;
  IpcRegistry registry(kSelf, shared.path.c_str());
  REQUIRE(registry.reserve(0));
  fs::remove_all(shared.own());
  for (int number = 900; number < 1000; ++number) close(number);
  CHECK_FALSE(registry.reserve(5000));
  CHECK(registry.entry(0) != nullptr);
}

TEST_CASE("nor does another file that has its name since") {
  const SharedFolder shared;
  IpcRegistry registry(kSelf, shared.path.c_str());
  REQUIRE(registry.reserve(0));
  const fs::path file = *fs::directory_iterator(shared.own());
  fs::rename(file, shared.path / "first");
  std::ofstream(file) << "theirs";
  for (int number = 900; number < 1000; ++number) close(number);
  CHECK_FALSE(registry.reserve(5000));
  CHECK(fs::file_size(file) == 6);
}

TEST_CASE("a file that others may read is no exporter's") {
  const Exported block;
  fs::permissions(block.file(), fs::perms::group_read, fs::perm_options::add);
  CHECK_FALSE(block.is_found());
}

TEST_CASE("a file of another user is no exporter's") {
  const Exported block;
  constexpr uid_t kSomebody = 65000;
  if (chown(block.file().c_str(), kSomebody, kSomebody) != 0) {
    WARN("not run here: files cannot be given away");
    return;
  }
  CHECK_FALSE(block.is_found());
}

TEST_CASE("a file whose header is another process's is no exporter's") {
  const Exported block;
  const ipc::RegistryHeader header = ipc::make_header({kOther.pid, kOther.start_ticks + 1});
  std::fstream file(block.file(), std::ios::binary | std::ios::in | std::ios::out);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.close();
  CHECK_FALSE(block.is_found());
}

TEST_CASE("a folder that is a link or open to others is not used: another stands in for it, and openers find it") {
  const SharedFolder shared;
  fs::create_directory(shared.path / "elsewhere");
  const bool is_link = GENERATE(true, false);
  if (is_link) {
    fs::create_directory_symlink(shared.path / "elsewhere", shared.own());
  } else {
    fs::create_directory(shared.own());
    fs::permissions(shared.own(), fs::perms::all);
  }
  IpcRegistry exporter(kOther, shared.path.c_str());
  const IpcRegistry opener(kSelf, shared.path.c_str());
  REQUIRE(exporter.reserve(0));
  const ipc::BlockHandle handle = put(exporter, 0);
  ipc::BlockPlace read;
  CHECK(opener.read(handle, read));
  CHECK(fs::is_empty(shared.own()));
  fs::remove(shared.own());
  fs::create_directory(shared.own());
  fs::permissions(shared.own(), fs::perms::owner_all);
  CHECK(opener.read(handle, read));
  exporter.retire();
  CHECK_FALSE(opener.read(handle, read));
}
