// The file behind CUPOOL_TRACE: who may read it, what it never overwrites, what a full disk, a fork and a closed descriptor do.
#include "shim/trace_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/observe/trace_writer.hpp"
#include "tests/bench/trace.hpp"
#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
using namespace cupool;
using observe::TraceChunk;
using observe::TraceState;
using shim::TraceFile;

namespace {

using Folder = test::TemporaryFolder;

constexpr observe::TraceIdentity kIdentity{7, 8, 9};

/// A process's trace, and a device that writes to it. Never destroyed by the shim: the mappings stay until the test ends.
struct Traced {
  explicit Traced(const fs::path& where) : path(where), file(where.string(), kIdentity, "{}") { file.begin(); }

  /// `pairs` allocations and frees; `with_upkeep`: as calls of the program are, one after the other.
  void play(int pairs, bool with_upkeep = true) {
    for (int i = 0; i < pairs; ++i) {
      observe::Event event;
      event.address = 4096;
      event.bytes = 512;
      event.requested_bytes = 100;
      event.kind = observe::EventKind::allocate;
      writer.record(event, 0);
      event.kind = observe::EventKind::free_requested;
      writer.record(event, 0);
      if (with_upkeep) file.upkeep();
    }
  }
  std::uint64_t read_events() const { return trace::load(path.string()).events.size(); }
  struct Header {
    std::uint64_t magic, readings, dropped;
    std::uint32_t state;
  };
  Header header() const {
    char raw[sizeof(observe::TraceHeader)];
    std::ifstream(path, std::ios::binary).read(raw, sizeof raw);
    Header out{};
    std::memcpy(&out.magic, raw, 8);
    std::memcpy(&out.state, raw + 20, 4);
    std::memcpy(&out.dropped, raw + 40, 8);
    std::memcpy(&out.readings, raw + 56, 8);
    return out;
  }

  fs::path path;
  TraceFile file;
  observe::TraceWriter writer{file.sink(), 0};
};

std::uintmax_t page_bytes() { return static_cast<std::uintmax_t>(sysconf(_SC_PAGESIZE)); }

/// Files of this process may not grow beyond so much while it lives.
struct FileSizeLimit {
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit limited = before;
    limited.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before); }
  rlimit before{};
};

}  // namespace

TEST_CASE("without a name there is no trace, and nothing to write to") {
  TraceFile file("", kIdentity, "");
  file.begin();
  file.upkeep();
  CHECK(file.sink() == nullptr);
  CHECK(file.warning().empty());
  file.finish();
}

TEST_CASE("the file is made at the first allocation, with its folders, for its owner alone") {
  Folder folder;
  const fs::path path = folder.path / "a" / "b" / "t.trace";
  TraceFile idle(path.string(), kIdentity, "{}");
  CHECK_FALSE(fs::exists(path.parent_path()));
  Traced traced(path);
  struct stat facts {};
  REQUIRE(stat(path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  CHECK(static_cast<std::size_t>(facts.st_blocks) * 512 >= fs::file_size(path));  // the space is there: no SIGBUS
  CHECK(traced.header().magic == observe::kTraceMagic);
  CHECK(traced.read_events() == 0);
}

TEST_CASE("what has the name is left alone, whatever it is") {
  const std::string kind = GENERATE("file", "link", "dangling link", "folder", "pipe");
  Folder folder;
  const fs::path path = folder.path / "t";
  const fs::path other = folder.path / "other";
  if (kind == "file") std::ofstream(path) << "mine";
  if (kind == "link") std::ofstream(other) << "mine";
  if (kind == "link" || kind == "dangling link") fs::create_symlink(other, path);
  if (kind == "folder") fs::create_directory(path);
  if (kind == "pipe") REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  Traced traced(path);
  traced.play(10);
  CHECK(traced.file.warning() == "no trace: " + path.string() + ": there is such a file; with %p in CUPOOL_TRACE each process writes its own");
  CHECK(traced.file.dropped() == 0);
  if (kind == "file" || kind == "link") CHECK(fs::file_size(path) == 4);
  CHECK(fs::exists(other) == (kind == "link"));
  traced.file.finish();
}

TEST_CASE("a folder that cannot be is one warning") {
  Folder folder;
  std::ofstream(folder.path / "file") << "x";
  Traced traced(folder.path / "file" / "t");
  CHECK(traced.file.warning().find("Not a directory") != std::string::npos);
}

TEST_CASE("every event of a long run is in the file, also while the process lives") {
  Folder folder;
  Traced traced(folder.path / "t");
  traced.play(100000);  // 4 MB: every size of chunk
  CHECK(traced.file.dropped() == 0);
  CHECK(traced.header().state == static_cast<std::uint32_t>(TraceState::open));
  CHECK(traced.read_events() == 200000);
  CHECK(traced.header().readings > 3);
}

TEST_CASE("a full chunk is unmapped, so that a trace takes no memory") {
  Folder folder;
  Traced traced(folder.path / "t");
  TraceChunk* first = traced.file.sink()->take();
  traced.file.sink()->retire(first);
  unsigned char state = 0;
  REQUIRE(mincore(first->memory, 1, &state) == 0);
  traced.file.upkeep();
  CHECK(mincore(first->memory, 1, &state) == -1);
  CHECK_FALSE(traced.file.sink()->has_work());
  CHECK_FALSE(traced.file.sink()->has_room());
}

TEST_CASE("the end gives back what no event reached, and later events still have their place") {
  Folder folder;
  Traced traced(folder.path / "t");
  traced.play(1, false);
  const std::uintmax_t before = fs::file_size(traced.path);
  traced.file.finish();
  CHECK(fs::file_size(traced.path) == page_bytes() + 64 * kKiB);
  CHECK(fs::file_size(traced.path) < before);
  traced.play(10);  // libraries free memory after our destructors
  CHECK(traced.read_events() == 22);
  CHECK(traced.header().state == static_cast<std::uint32_t>(TraceState::closed));
  traced.play(2000);  // beyond the chunk: no room any more
  CHECK(traced.file.dropped() > 0);
  CHECK(traced.header().dropped == traced.file.dropped());
}

TEST_CASE("a chunk in use is never cut off, even when one before it was not used") {
  Folder folder;
  Traced traced(folder.path / "t");
  TraceChunk* first = traced.file.sink()->take();
  TraceChunk* second = traced.file.sink()->take();
  traced.file.sink()->offer(first);  // as if a writer had been overtaken between its two looks
  const std::uintmax_t before = fs::file_size(traced.path);
  traced.file.finish();
  CHECK(fs::file_size(traced.path) == before);
  second->memory[second->bytes - 1] = std::byte{1};  // no SIGBUS
}

TEST_CASE("a disk that fills up ends the trace with a line: what was written is whole, the rest is counted") {
  Folder folder;
  Traced traced(folder.path / "t");
  {
    const FileSizeLimit limit(600 * 1000);
    traced.play(100000);
  }
  CHECK(traced.file.warning() == "the trace ends here: " + traced.path.string() + ": File too large");
  CHECK(traced.file.dropped() > 0);
  const std::uint64_t read = traced.read_events();
  CHECK(read > 10000);
  CHECK(read + traced.header().dropped == 200000);
  CHECK(fs::file_size(traced.path) <= 600 * 1000);
}

TEST_CASE("a disk that is full from the start leaves nothing behind") {
  Folder folder;
  const FileSizeLimit limit(GENERATE(rlim_t{100}, rlim_t{20000}));
  Traced traced(folder.path / "t");
  CHECK(traced.file.warning().substr(0, 9) == "no trace:");
  CHECK_FALSE(fs::exists(traced.path));
  traced.play(10);
  CHECK(traced.file.dropped() == 0);
  traced.file.finish();
}

TEST_CASE("a forked child has none of the mappings") {
  Folder folder;
  Traced traced(folder.path / "t");
  TraceChunk* chunk = traced.file.sink()->take();
  const pid_t child = fork();
  if (child == 0) {
    unsigned char state = 0;
    _exit(mincore(chunk->memory, 1, &state) == -1 && errno == ENOMEM ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a program that closes every descriptor does not end the trace; another file of the name does") {
  const bool is_replaced = GENERATE(false, true);
  Folder folder;
  Traced traced(folder.path / "t");
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error) == traced.path) close(std::stoi(entry.path().filename()));
  }
  if (is_replaced) {
    fs::remove(traced.path);
    std::ofstream(traced.path) << "x";
  }
  traced.play(100000);
  CHECK((traced.file.dropped() == 0) == !is_replaced);
  CHECK((traced.file.warning().empty()) == !is_replaced);
  if (is_replaced) CHECK(fs::file_size(traced.path) == 1);
  else CHECK(traced.read_events() == 200000);
}

TEST_CASE("the program's errno is its own") {
  Folder folder;
  std::ofstream(folder.path / "t") << "x";
  errno = 77;
  Traced refused(folder.path / "t");
  CHECK(errno == 77);
  Traced traced(folder.path / "u");
  errno = 78;
  {
    const FileSizeLimit limit(600 * 1000);
    errno = 78;
    traced.play(100000);
    CHECK(errno == 78);
  }
  traced.file.finish();
  CHECK(errno == 78);
}
