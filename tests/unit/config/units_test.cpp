// Sizes and counts: every spelling, every edge, and that what is written is read back.
#include <catch2/catch.hpp>

#include <random>

#include "config/units.hpp"

using namespace cupool::config;

namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 63;

std::string why_not_bytes(std::string_view text) {
  Problem problem;
  return parse_bytes(text, problem) ? "accepted" : problem.what;
}

std::string why_not_count(std::string_view text) {
  Problem problem;
  return parse_count(text, problem) ? "accepted" : problem.what;
}

}  // namespace

TEST_CASE("a size is plain bytes or has a binary unit in any case", "[units]") {
  CHECK(parse_bytes("0") == 0U);
  CHECK(parse_bytes("1") == 1U);
  CHECK(parse_bytes("1024") == 1024U);
  CHECK(parse_bytes("1024B") == 1024U);
  CHECK(parse_bytes("007") == 7U);
  for (const char* text : {"8G", "8g", "8Gi", "8GI", "8gi", "8GiB", "8gib", "8GIB", "8 GiB", " 8GiB\n", "8\tG"}) {
    INFO(text);
    CHECK(parse_bytes(text) == std::uint64_t{8} << 30);
  }
  CHECK(parse_bytes("1K") == std::uint64_t{1} << 10);
  CHECK(parse_bytes("1M") == std::uint64_t{1} << 20);
  CHECK(parse_bytes("1T") == std::uint64_t{1} << 40);
  CHECK(parse_bytes("1P") == std::uint64_t{1} << 50);
  CHECK(parse_bytes("1E") == std::uint64_t{1} << 60);
}

TEST_CASE("KB, MB and GB are powers of ten", "[units]") {
  CHECK(parse_bytes("1KB") == 1000U);
  CHECK(parse_bytes("512mb") == 512'000'000U);
  CHECK(parse_bytes("8GB") == 8'000'000'000U);
}

TEST_CASE("a size may have decimals where whole bytes come out or a unit drops the rest", "[units]") {
  CHECK(parse_bytes("1.5GiB") == 1536U << 20);
  CHECK(parse_bytes("0.5K") == 512U);
  CHECK(parse_bytes(".5K") == 512U);
  CHECK(parse_bytes("2.K") == 2048U);
  CHECK(parse_bytes("0.3K") == 307U);  // 307.2
  CHECK(parse_bytes("0.0009765625K") == 1U);
  CHECK(parse_bytes("0.00097656249K") == 0U);
  CHECK(parse_bytes("7.999999999999999999E") == kMost - 2);  // exact to the last byte: 10^-18 of 2^60 is 1.15
  CHECK(parse_bytes("1.00000000000000000000000000000000000000000000009K") == 1024U);
}

TEST_CASE("a size is refused when it is not one", "[units]") {
  for (const char* text :
       {"",    " ",        "x",     "12x",   "K", "GiB", "-1",    "+1",  "1e9",   "1E9", "0x10", "1_000", "1,000", "nan",   "NaN",
        "inf", "Infinity", "1..5G", "1.2.3", ".", ".G",  "8GiBs", "8GG", "8 G B", "8iB", "75%",  "1\x01", "٣",     "1Ki B", "8Gib8"}) {
    INFO(text);
    CHECK(why_not_bytes(text) == "not a size such as 8GiB");
  }
  CHECK(why_not_bytes(std::string_view("8\0G", 3)) == "not a size such as 8GiB");
  CHECK(why_not_bytes("1.5") == "not a whole number of bytes");
  CHECK(why_not_bytes("1.5B") == "not a whole number of bytes");
}

TEST_CASE("a size goes up to 2^63 and no further", "[units]") {
  CHECK(parse_bytes("9223372036854775808") == kMost);
  CHECK(parse_bytes("8E") == kMost);
  CHECK(parse_bytes("8EiB") == kMost);
  CHECK(why_not_bytes("9223372036854775809") == "too large");
  CHECK(why_not_bytes("18446744073709551615") == "too large");
  CHECK(why_not_bytes("18446744073709551617") == "too large");  // 1, if it wrapped
  CHECK(why_not_bytes("8.000000000000001E") == "too large");
  CHECK(why_not_bytes("8.000000000000000001E") == "too large");  // one byte
  CHECK(why_not_bytes("9E") == "too large");
  CHECK(why_not_bytes("16E") == "too large");
  CHECK(why_not_bytes("9223372036854775808K") == "too large");
  CHECK(why_not_bytes(std::string(5000, '9')) == "too large");
  CHECK(why_not_bytes(std::string(5000, '9') + "K") == "too large");
  CHECK(parse_bytes(std::string(5000, '0') + "1K") == 1024U);
}

TEST_CASE("a count takes binary prefixes but no bytes", "[units]") {
  Problem problem;
  CHECK(parse_count("64Ki", problem) == 65536U);
  CHECK(parse_count("64K", problem) == 65536U);
  CHECK(parse_count("1.5k", problem) == 1536U);
  CHECK(parse_count("32", problem) == 32U);
  CHECK(why_not_count("64KiB") == "not a count such as 64Ki");
  CHECK(why_not_count("64KB") == "not a count such as 64Ki");
  CHECK(why_not_count("64B") == "not a count such as 64Ki");
  CHECK(why_not_count("-1") == "not a count such as 64Ki");
  CHECK(why_not_count("1.5") == "not a whole number");
  CHECK(why_not_count("99999999999999999999") == "too large");
}

TEST_CASE("a size is written with the largest unit that keeps it exact", "[units]") {
  CHECK(format_bytes(0) == "0");
  CHECK(format_bytes(1) == "1");
  CHECK(format_bytes(1000) == "1000");
  CHECK(format_bytes(1024) == "1KiB");
  CHECK(format_bytes(std::uint64_t{1536} << 20) == "1536MiB");
  CHECK(format_bytes(8'000'000'000) == "7812500KiB");
  CHECK(format_bytes(kMost) == "8EiB");
  CHECK(format_count(65536) == "64Ki");
  CHECK(format_count(1000) == "1000");
}

TEST_CASE("every size that is written is read back as itself", "[units]") {
  std::mt19937_64 random(7);
  Problem problem;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t value = (random() >> 1) >> (random() % 63) << (random() % 20) & (kMost - 1);
    REQUIRE(parse_bytes(format_bytes(value)) == value);
    REQUIRE(parse_count(format_count(value), problem) == value);
  }
}

TEST_CASE("a decimal number stops where it ends and says what is left", "[units]") {
  const std::optional<Decimal> number = take_decimal("12.25 GiB ");
  REQUIRE(number);
  CHECK(number->whole == 12);
  CHECK(number->fraction_e18 == 250'000'000'000'000'000U);
  CHECK(number->has_point);
  CHECK(number->rest == "GiB");
  CHECK_FALSE(take_decimal(""));
  CHECK_FALSE(take_decimal("."));
  CHECK_FALSE(take_decimal("-1"));
}

TEST_CASE("trimming and comparing know ASCII only", "[units]") {
  CHECK(trim(" \t\r\n\v\f a b \n") == "a b");
  CHECK(trim("   ").empty());
  CHECK(equals_ignoring_case("GrOw", "grow"));
  CHECK_FALSE(equals_ignoring_case("grow", "grows"));
  CHECK_FALSE(equals_ignoring_case("[", "{"));  // 0x5b and 0x7b differ by the case bit
}
