// The JSON stream: what it writes is parsed back by another implementation.
#include <catch2/catch.hpp>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

#include "pool/observe/json_writer.hpp"
#include "pool/observe/report_file.hpp"

using cupool::observe::JsonWriter;
using nlohmann::json;

namespace {

std::string as_json(const std::string& text) {
  std::string out;
  JsonWriter writer(&out);
  writer.value(text);
  writer.finish();
  return out;
}

}  // namespace

TEST_CASE("nested objects and arrays get their commas") {
  std::string out;
  JsonWriter writer(&out);
  writer.begin_object();
  writer.begin_array("empty");
  writer.end_array();
  writer.begin_array("rows");
  for (int i = 0; i < 3; ++i) {
    writer.new_line();
    writer.begin_array();
    writer.value(i);
    writer.value("x");
    writer.end_array();
  }
  writer.end_array();
  writer.begin_object("object");
  writer.null_member("nothing");
  writer.member("yes", true);
  writer.end_object();
  writer.member("last", std::uint64_t{18446744073709551615u});
  writer.member("negative", std::int64_t{-9});
  writer.member("maybe", std::optional<int>());
  writer.end_object();
  REQUIRE(writer.finish() == 0);
  const json expected = {{"empty", json::array()},
                         {"rows", {{0, "x"}, {1, "x"}, {2, "x"}}},
                         {"object", {{"nothing", nullptr}, {"yes", true}}},
                         {"last", 18446744073709551615u},
                         {"negative", -9},
                         {"maybe", nullptr}};
  CHECK(json::parse(out) == expected);
}

TEST_CASE("every ASCII character survives quoting") {
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  CHECK(json::parse(as_json(text)).get<std::string>() == text);
}

TEST_CASE("valid UTF-8 passes unchanged, up to the ends of each range") {
  for (const char* text : {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF", "naïve 训练 🚂"}) {
    CHECK(json::parse(as_json(text)).get<std::string>() == text);
  }
}

TEST_CASE("what is not UTF-8 becomes U+FFFD and the rest stays") {
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(as_json("a\xFFz") == "\"a" + bad + "z\"\n");
  CHECK(as_json("\xC0\xAF") == "\"" + bad + bad + "\"\n");                      // overlong
  CHECK(as_json("\xED\xA0\x80") == "\"" + bad + bad + bad + "\"\n");            // a surrogate
  CHECK(as_json("\xF4\x90\x80\x80") == "\"" + bad + bad + bad + bad + "\"\n");  // beyond U+10FFFF
  CHECK(as_json("x\xE2\x82") == "\"x" + bad + bad + "\"\n");                    // cut short
  CHECK(as_json("\xC3") == "\"" + bad + "\"\n");
  // Every pair of bytes, in one document: a writer each would take the sanitizers a minute.
  std::string out;
  JsonWriter writer(&out);
  writer.begin_array();
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second), 'z'};
      writer.value(std::string(bytes, 3));
    }
  }
  writer.end_array();
  REQUIRE(writer.finish() == 0);
  CHECK(json::parse(out, nullptr, false).size() == 65536);
}

TEST_CASE("ratios are fixed point, rounded, and bounded") {
  const auto ratio = [](std::uint64_t a, std::uint64_t b) {
    std::string out;
    JsonWriter writer(&out);
    writer.ratio(a, b);
    writer.finish();
    return out;
  };
  CHECK(ratio(0, 0) == "null\n");
  CHECK(ratio(0, 5) == "0.000000000\n");
  CHECK(ratio(5, 5) == "1.000000000\n");
  CHECK(ratio(9, 5) == "1.000000000\n");
  CHECK(ratio(1, 3) == "0.333333333\n");
  CHECK(ratio(2, 3) == "0.666666667\n");
  CHECK(ratio(1, 1000000000) == "0.000000001\n");
  CHECK(ratio(UINT64_MAX - 1, UINT64_MAX) == "1.000000000\n");
}

TEST_CASE("text longer than the buffer is written whole") {
  const std::string text(3 * 256 * 1024 + 7, 'q');
  CHECK(json::parse(as_json(text)).get<std::string>() == text);
}

TEST_CASE("a full device is an error once, and nothing throws") {
  const int fd = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  JsonWriter writer(fd);
  writer.begin_array();
  for (int i = 0; i < 200000; ++i) writer.value(i);
  writer.end_array();
  CHECK(writer.finish() == ENOSPC);
  ::close(fd);
}

TEST_CASE("a closed pipe is EPIPE, and no signal reaches the host") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::close(ends[0]);
  {
    const cupool::observe::WriteSignals quiet;
    JsonWriter writer(ends[1]);
    writer.value("gone");
    CHECK(writer.finish() == EPIPE);
  }
  // Had SIGPIPE stayed pending it would have ended this process when the guard went.
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(sigismember(&pending, SIGPIPE) == 0);
  ::close(ends[1]);
}

namespace {
std::atomic<int> interruptions{0};
}

TEST_CASE("a write that signals interrupt goes on where it was") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { interruptions.fetch_add(1); };  // without SA_RESTART: write() returns EINTR
  REQUIRE(::sigaction(SIGUSR2, &action, &before) == 0);
  const pthread_t writer_thread = ::pthread_self();
  std::string received;
  // The pipe is full until the writer, blocked in write(), has been interrupted often enough; then all is read.
  std::thread reader([&] {
    constexpr int kPipeBytes = 65536;
    for (int queued = 0; queued < kPipeBytes;) {
      ::ioctl(ends[0], FIONREAD, &queued);
      std::this_thread::yield();
    }
    while (interruptions < 100) ::pthread_kill(writer_thread, SIGUSR2);
    char chunk[65536];
    for (ssize_t got = 0; (got = ::read(ends[0], chunk, sizeof chunk)) > 0;) received.append(chunk, static_cast<std::size_t>(got));
  });
  JsonWriter writer(ends[1]);
  const std::string text(1 << 20, 'i');
  writer.value(text);
  CHECK(writer.finish() == 0);
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  ::sigaction(SIGUSR2, &before, nullptr);
  CHECK(received == "\"" + text + "\"\n");
}
