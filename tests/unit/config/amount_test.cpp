// Amounts of memory: fractions, bytes, min(), lists by device.
#include <catch2/catch.hpp>

#include <limits>
#include <random>

#include "config/amount.hpp"

using namespace cupool::config;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::uint64_t resolved(std::string_view text, std::uint64_t total_bytes) {
  const std::optional<Amount> amount = parse_amount(text);
  REQUIRE(amount);
  return amount->resolve(total_bytes);
}

std::string why_not(std::string_view text) {
  Problem problem;
  if (parse_amount(text, problem)) return "accepted";
  return problem.what + " (" + std::string(problem.part) + ")";
}

std::string why_not_list(std::string_view text) {
  Problem problem;
  if (parse_device_amounts(text, problem)) return "accepted";
  return problem.what + " (" + std::string(problem.part) + ")";
}

DeviceAmounts list_of(std::string_view text) {
  Problem problem;
  const std::optional<DeviceAmounts> list = parse_device_amounts(text, problem);
  INFO(text << ": " << problem.what);
  REQUIRE(list);
  return *list;
}

}  // namespace

TEST_CASE("a fraction and a percentage are of the device, exactly", "[amount]") {
  CHECK(resolved("0.75", 80 * kGiB) == 60 * kGiB);
  CHECK(resolved("75%", 80 * kGiB) == 60 * kGiB);
  CHECK(resolved(".75", 80 * kGiB) == 60 * kGiB);
  CHECK(resolved("75 %", 80 * kGiB) == 60 * kGiB);
}

TEST_CASE("one with a point is the whole device, one without is a byte", "[amount]") {
  CHECK(resolved("1.0", 80 * kGiB) == 80 * kGiB);
  CHECK(resolved("1.", 80 * kGiB) == 80 * kGiB);
  CHECK(resolved("1", 80 * kGiB) == 1);
  CHECK(resolved("100%", 80 * kGiB) == 80 * kGiB);
  CHECK(resolved("0.0", 80 * kGiB) == 0);
  CHECK(resolved("0", 80 * kGiB) == 0);
}

TEST_CASE("a fraction of every total is the exact floor and never more than the total", "[amount]") {
  CHECK(resolved("75%", std::numeric_limits<std::uint64_t>::max()) == std::numeric_limits<std::uint64_t>::max() / 4 * 3 + 2);
  CHECK(resolved("100%", std::numeric_limits<std::uint64_t>::max()) == std::numeric_limits<std::uint64_t>::max());
  CHECK(resolved("33.3%", 1000) == 333);
  CHECK(resolved("0.1%", 999) == 0);
  CHECK(resolved("75%", 0) == 0);
  CHECK(resolved("0.3333333333333333", 3 * kGiB) == kGiB - 1);
}

TEST_CASE("bytes are taken as they are, whatever the device holds", "[amount]") {
  CHECK(resolved("8GiB", kGiB) == 8 * kGiB);
  CHECK(resolved("1.5GiB", kGiB) == 3 * kGiB / 2);
}

TEST_CASE("min() takes the least of its amounts", "[amount]") {
  CHECK(resolved("min(75%,8GiB)", 80 * kGiB) == 8 * kGiB);
  CHECK(resolved("min(75%,8GiB)", 8 * kGiB) == 6 * kGiB);
  CHECK(resolved(" MIN ( 0.75 , 8 GiB ) ", 8 * kGiB) == 6 * kGiB);
  CHECK(resolved("min(75%)", 8 * kGiB) == 6 * kGiB);
  CHECK(resolved("min(50%,3GiB,40%)", 8 * kGiB) == 3 * kGiB);
}

TEST_CASE("amounts that make no sense are refused with the part that is to blame", "[amount]") {
  CHECK(why_not("101%") == "more than 100% (101%)");
  CHECK(why_not("100.0000001%") == "more than 100% (100.0000001%)");
  CHECK(why_not("99999999999999999999999%") == "more than 100% (99999999999999999999999%)");
  CHECK(why_not("18446744073709551666%") == "more than 100% (18446744073709551666%)");  // 2^64 + 50
  CHECK(why_not("18446744073709551616.5") == "a fraction above 1.0, and no unit (18446744073709551616.5)");
  CHECK(why_not("1.5") == "a fraction above 1.0, and no unit (1.5)");
  CHECK(why_not("2.0") == "a fraction above 1.0, and no unit (2.0)");
  CHECK(why_not("1.000000001") == "a fraction above 1.0, and no unit (1.000000001)");
  CHECK(why_not("-5%") == "not a size such as 8GiB or 75% (-5%)");
  CHECK(why_not("-1") == "not a size such as 8GiB or 75% (-1)");
  CHECK(why_not("nan") == "not a size such as 8GiB or 75% (nan)");
  CHECK(why_not("inf%") == "not a size such as 8GiB or 75% (inf%)");
  CHECK(why_not("75%%") == "not a size such as 8GiB or 75% (75%%)");
  CHECK(why_not("") == "an amount is missing ()");
  CHECK(why_not("min(75%,8GB") == "not a size such as 8GiB or 75% (min(75%,8GB)");
  CHECK(why_not("min75%)") == "not a size such as 8GiB or 75% (min75%))");
  CHECK(why_not("min()") == "an amount is missing ()");
  CHECK(why_not("min(75%,)") == "an amount is missing ()");
  CHECK(why_not("min(75%,8x)") == "not a size such as 8GiB or 75% (8x)");
  CHECK(why_not("min(min(1G,2G),3G)") == "not a size such as 8GiB or 75% (min(1G,2G))");
  CHECK(why_not("max(1G,2G)") == "not a size such as 8GiB or 75% (max(1G,2G))");
  CHECK(why_not("75%,8GiB") == "not a size such as 8GiB or 75% (75%,8GiB)");
  CHECK(why_not("min(1,2,3,4,5,6,7,8)") == "accepted");
  CHECK(why_not("min(1,2,3,4,5,6,7,8,9)") == "more than 8 amounts in min() (min(1,2,3,4,5,6,7,8,9))");
}

TEST_CASE("an amount is written as the variable takes it", "[amount]") {
  CHECK(parse_amount("0.75")->to_string() == "75%");
  CHECK(parse_amount("33.30%")->to_string() == "33.3%");
  CHECK(parse_amount("0.0001%")->to_string() == "0.0001%");
  CHECK(parse_amount("1.0")->to_string() == "100%");
  CHECK(parse_amount("0.05")->to_string() == "5%");
  CHECK(parse_amount("1.5G")->to_string() == "1536MiB");
  CHECK(parse_amount("Min(0.75, 8G)")->to_string() == "min(75%,8GiB)");
  CHECK(Amount{}.to_string().empty());
}

TEST_CASE("every fraction that is written is read back as itself", "[amount]") {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    const std::string digits = std::to_string(random() % 1'000'000'000'000);
    const std::optional<Amount> amount = parse_amount("0." + digits);
    REQUIRE(amount);
    const std::optional<Amount> again = parse_amount(amount->to_string());
    REQUIRE(again);
    REQUIRE(again->terms.front().fraction == amount->terms.front().fraction);
    REQUIRE(again->resolve(random()) <= std::numeric_limits<std::uint64_t>::max());
  }
}

TEST_CASE("an amount built by hand with a senseless fraction still resolves within the device", "[amount]") {
  const auto of = [](double fraction) { return Amount{{{true, fraction, 0}}}.resolve(1000); };
  CHECK(of(std::numeric_limits<double>::quiet_NaN()) == 0);
  CHECK(of(-1) == 0);
  CHECK(of(2) == 1000);
  CHECK(of(std::numeric_limits<double>::infinity()) == 1000);
  CHECK(Amount{}.resolve(1000) == 0);
}

TEST_CASE("one amount is for every device", "[amount]") {
  const DeviceAmounts list = list_of("40GiB");
  CHECK(list.for_device(0)->resolve(80 * kGiB) == 40 * kGiB);
  CHECK(list.for_device(63)->resolve(80 * kGiB) == 40 * kGiB);
  CHECK(list.to_string() == "40GiB");
  CHECK_FALSE(list.empty());
}

TEST_CASE("a list names its devices, in any order, and leaves the others alone", "[amount]") {
  const DeviceAmounts list = list_of(" 2 : 1.5GiB , 0:min(50%,40GiB),1:50%");
  CHECK(list.for_device(0)->resolve(20 * kGiB) == 10 * kGiB);
  CHECK(list.for_device(1)->resolve(20 * kGiB) == 10 * kGiB);
  CHECK(list.for_device(2)->resolve(20 * kGiB) == 3 * kGiB / 2);
  CHECK(list.for_device(3) == nullptr);
  CHECK(list_of("63:1G").for_device(63)->resolve(20 * kGiB) == kGiB);  // the last ordinal there is
  CHECK(list.to_string() == "0:min(50%,40GiB),1:50%,2:1536MiB");
}

TEST_CASE("an entry without ordinal is for the devices that are not named", "[amount]") {
  const DeviceAmounts list = list_of("1:50%,40GiB");
  CHECK(list.for_device(1)->resolve(20 * kGiB) == 10 * kGiB);
  CHECK(list.for_device(0)->resolve(20 * kGiB) == 40 * kGiB);
  CHECK(list.to_string() == "40GiB,1:50%");
  CHECK(list_of(list.to_string()).to_string() == list.to_string());
}

TEST_CASE("a device may be without a limit", "[amount]") {
  const DeviceAmounts list = list_of("40GiB,0:none, 1 : NONE ,2:50%");
  CHECK(list.for_device(0) == nullptr);
  CHECK(list.for_device(1) == nullptr);
  CHECK(list.for_device(2)->resolve(20 * kGiB) == 10 * kGiB);
  CHECK(list.for_device(3)->resolve(20 * kGiB) == 40 * kGiB);
  CHECK(list.to_string() == "40GiB,0:none,1:none,2:50%");
  CHECK(list_of(list.to_string()).to_string() == list.to_string());
  const DeviceAmounts others = list_of("none,0:1G");
  CHECK(others.for_device(0)->resolve(kGiB) == kGiB);
  CHECK(others.for_device(1) == nullptr);
  CHECK(others.to_string() == "none,0:1GiB");
  CHECK(why_not_list("0:none,0:1G") == "device 0 stands twice (0:1G)");
  CHECK(why_not_list("none,1G") == "two entries without a device ordinal (1G)");
  CHECK(why_not_list("0:min(none,1G)") != "accepted");
}

TEST_CASE("lists that contradict themselves or name no device are refused", "[amount]") {
  CHECK(why_not_list("0:1G,0:2G") == "device 0 stands twice (0:2G)");
  CHECK(why_not_list("0:1G,00:2G") == "device 0 stands twice (00:2G)");
  CHECK(why_not_list("1G,2G") == "two entries without a device ordinal (2G)");
  CHECK(why_not_list("-1:1G") == "not a device ordinal from 0 to 63 (-1)");
  CHECK(why_not_list("64:1G") == "not a device ordinal from 0 to 63 (64)");
  CHECK(why_not_list("4294967296:1G") == "not a device ordinal from 0 to 63 (4294967296)");
  CHECK(why_not_list("99999999999999999999:1G") == "not a device ordinal from 0 to 63 (99999999999999999999)");
  CHECK(why_not_list("GPU0:1G") == "not a device ordinal from 0 to 63 (GPU0)");
  CHECK(why_not_list(":1G") == "not a device ordinal from 0 to 63 ()");
  CHECK(why_not_list("1.0:1G") == "not a device ordinal from 0 to 63 (1.0)");
  CHECK(why_not_list("0:1:1G") == "not a size such as 8GiB or 75% (1:1G)");
  CHECK(why_not_list("0:") == "an amount is missing ()");
  CHECK(why_not_list("0:1G,") == "an amount is missing ()");
  CHECK(why_not_list(",") == "an amount is missing ()");
  CHECK(why_not_list("0:1G;1:2G") == "not a size such as 8GiB or 75% (1G;1:2G)");
  CHECK(why_not_list("0:12x,1:5GiB") == "not a size such as 8GiB or 75% (12x)");
  CHECK(why_not_list("0:101%") == "more than 100% (101%)");
  CHECK(why_not_list("min(1G,2G)),1:3G") == "not a size such as 8GiB or 75% (2G))");
}

TEST_CASE("a limit of nothing is refused, since every allocation would fail", "[amount]") {
  CHECK(why_not_list("0") == "must be more than 0 (0)");
  CHECK(why_not_list("0%") == "must be more than 0 (0%)");
  CHECK(why_not_list("0.0") == "must be more than 0 (0.0)");
  CHECK(why_not_list("1:40GiB,0:min(0,5G)") == "must be more than 0 (min(0,5G))");
  CHECK(why_not_list("1") == "accepted");
}
