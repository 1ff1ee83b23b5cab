// Words: every enum value has one spelling that is understood, in any case.
#include <catch2/catch.hpp>

#include <string>

#include "config/choices.hpp"
#include "config/kinds.hpp"

using namespace cupool::config;

namespace {

template <class Enum> void check_every_word() {
  int words = 0;
  for (const Choice& choice : choices_of(Enum{})) {
    INFO(choice.spelling);
    Enum value{};
    Problem problem;
    std::string upper = choice.spelling;
    for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    CHECK(read(KindTag<Kind::choice>{}, upper, {}, value, problem));
    CHECK(static_cast<std::uint8_t>(value) == choice.value);
    if (!choice.is_alias) {
      CHECK(std::string(name_of(value)) == choice.spelling);
      CHECK(choice.value == words++);
    }
  }
  CHECK(words > 1);
}

std::string why_not(std::string_view text) {
  Problem problem;
  return read_choice(text, choices_of(Policy{}), problem) ? "accepted" : problem.what;
}

}  // namespace

TEST_CASE("every word of every choice is read in any case and written back", "[choices]") {
  check_every_word<Policy>();
  check_every_word<Backing>();
  check_every_word<FreeMode>();
  check_every_word<IpcMode>();
  check_every_word<StackMode>();
  check_every_word<LogLevel>();
}

TEST_CASE("spdlog's other names for its levels are understood and shown as ours", "[choices]") {
  LogLevel level{};
  Problem problem;
  REQUIRE(read(KindTag<Kind::choice>{}, "warning", {}, level, problem));
  CHECK(level == LogLevel::warn);
  REQUIRE(read(KindTag<Kind::choice>{}, "critical", {}, level, problem));
  CHECK(std::string(name_of(level)) == "error");
}

TEST_CASE("a word that is none of them is answered with all of them and a near one", "[choices]") {
  CHECK(why_not("gorw") == "must be grow, preallocate, async, platform or off (did you mean grow?)");
  CHECK(why_not("PREALOCATE") == "must be grow, preallocate, async, platform or off (did you mean preallocate?)");
  CHECK(why_not("xyzzy") == "must be grow, preallocate, async, platform or off");
  CHECK(why_not("1") == "must be grow, preallocate, async, platform or off");
  CHECK(why_not("grow,off") == "must be grow, preallocate, async, platform or off");
}
