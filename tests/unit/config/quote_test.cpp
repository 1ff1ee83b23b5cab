// Foreign text in a log line: escaped, bounded, one line.
#include <catch2/catch.hpp>

#include <string>

#include "config/quote.hpp"

using namespace cupool::config;

TEST_CASE("printable text stays as it is", "[quote]") {
  CHECK(quote("") == "");
  CHECK(quote("min(75%, 8GiB) \"~\"") == "min(75%, 8GiB) \"~\"");
}

TEST_CASE("control characters, escape sequences and other bytes are shown, not sent", "[quote]") {
  CHECK(quote("a\nb\tc\rd") == "a\\nb\\tc\\rd");
  CHECK(quote("\x1b[31m") == "\\x1b[31m");
  CHECK(quote(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(quote("\x7f\xc2\x9b") == "\\x7f\\xc2\\x9b");
  CHECK(quote("C:\\n") == "C:\\\\n");
}

TEST_CASE("what is too long is cut with an ellipsis and never within an escape", "[quote]") {
  CHECK(quote("12345678", 8) == "12345678");
  CHECK(quote("123456789", 8) == "12345...");
  CHECK(quote("\n\n\n\n", 8) == "\\n\\n\\n\\n");
  CHECK(quote("\n\n\n\n\n", 8) == "\\n\\n...");
  CHECK(quote("\x01\x01\x01", 8) == "\\x01...");
  CHECK(quote(std::string(1 << 20, '\x01')).size() <= 80);
}
