// A line of the log stays one line, and readable, whatever stands in it; a log file is never the wrong file.
#include "shim/log_line.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "shim/log_file.hpp"
#include "tests/unit/temporary_folder.hpp"

namespace fs = std::filesystem;
using cupool::shim::log::LogFile;
using cupool::shim::log::one_line;

namespace {

using Folder = cupool::test::TemporaryFolder;

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("control characters are shown, not obeyed") {
  CHECK(one_line("a\nb\r\x1b[2J\x7f") == "a\\x0ab\\x0d\\x1b[2J\\x7f");
  CHECK(one_line("\xC2\x9B"
                 "2J") == "\\x9b2J");
  CHECK(one_line(std::string("a\0b", 3)) == "a\\x00b");
}

TEST_CASE("other text stays as it is") {
  CHECK(one_line("gr\xC3\xBC\xC3\x9F dich \xE2\x82\xAC \xC2\xA0 \xFF \\n") == "gr\xC3\xBC\xC3\x9F dich \xE2\x82\xAC \xC2\xA0 \xFF \\n");
  CHECK(one_line("\xC2").size() == 1);
}

TEST_CASE("a very long line is cut") { CHECK(one_line(std::string(100'000, 'x')).size() < 9'000); }

TEST_CASE("a log file is found again after its descriptor was closed, and another file under that number is left alone") {
  const Folder folder;
  LogFile log(folder.path / "log");
  REQUIRE(log.is_open());
  const int first = log.descriptor();
  REQUIRE(close(first) == 0);
  const int other = open((folder.path / "data").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(dup2(other, first) == first);
  const int again = log.descriptor();
  REQUIRE(again >= 0);
  CHECK(again != first);
  REQUIRE(write(again, "line", 4) == 4);
  CHECK(contents(folder.path / "log") == "line");
  CHECK(contents(folder.path / "data").empty());
  for (const int file : {first, other, again}) close(file);
}

TEST_CASE("a log file that was removed, or replaced, is gone once its descriptor is") {
  const Folder folder;
  LogFile log(folder.path / "log");
  const int first = log.descriptor();
  fs::remove(folder.path / "log");
  CHECK(log.descriptor() == first);
  std::ofstream(folder.path / "log") << "another";
  close(first);
  CHECK(log.descriptor() == -1);
  CHECK(contents(folder.path / "log") == "another");
}
