// The warnings, word for word: one line each, precise, printable, bounded.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "loaded.hpp"

using namespace cupool::config;

TEST_CASE("a bad value is one precise line and the default", "[warnings]") {
  CHECK(warning_of("CUPOOL_LIMIT=12x") == R"(CUPOOL_LIMIT=12x: not a size such as 8GiB or 75% ("12x"); using the default (no limit))");
  CHECK(warning_of("CUPOOL_LIMIT=0:12x,1:5GiB") ==
        R"(CUPOOL_LIMIT=0:12x,1:5GiB: not a size such as 8GiB or 75% ("12x"); using the default (no limit))");
  CHECK(warning_of("CUPOOL_LIMIT=120%") == R"(CUPOOL_LIMIT=120%: more than 100% ("120%"); using the default (no limit))");
  CHECK(warning_of("CUPOOL_LIMIT=0") == R"(CUPOOL_LIMIT=0: must be more than 0 ("0"); using the default (no limit))");
  CHECK(warning_of("CUPOOL_LIMIT=1:1G,") == "CUPOOL_LIMIT=1:1G,: an amount is missing; using the default (no limit)");
  CHECK(warning_of("CUPOOL_LIMIT=-1") == R"(CUPOOL_LIMIT=-1: not a size such as 8GiB or 75% ("-1"); using the default (no limit))");
  CHECK(warning_of("CUPOOL_PREALLOCATE=-2") ==
        R"(CUPOOL_PREALLOCATE=-2: not a size such as 8GiB or 75% ("-2"); using the default (none; 75% under preallocate))");
  CHECK(warning_of("CUPOOL_POLICY=gorw") ==
        "CUPOOL_POLICY=gorw: must be grow, preallocate, async, platform or off (did you mean grow?); using the default (grow)");
  CHECK(warning_of("CUPOOL_RELEASE_THRESHOLD=50%") ==
        R"(CUPOOL_RELEASE_THRESHOLD=50%: not a size such as 8GiB ("50%"); using the default (unlimited))");
  CHECK(warning_of("CUPOOL_RELEASE_THRESHOLD=18446744073709551616") ==
        R"(CUPOOL_RELEASE_THRESHOLD=18446744073709551616: too large ("18446744073709551616"); using the default (unlimited))");
  CHECK(warning_of("CUPOOL_STACK_DEPTH=0") == "CUPOOL_STACK_DEPTH=0: not from 1 to 128; using the default (32)");
  CHECK(warning_of("CUPOOL_STACK_DEPTH=129") == "CUPOOL_STACK_DEPTH=129: not from 1 to 128; using the default (32)");
  CHECK(warning_of("CUPOOL_STACK_DEPTH=4294967297") == "CUPOOL_STACK_DEPTH=4294967297: not from 1 to 128; using the default (32)");
  CHECK(warning_of("CUPOOL_TIMELINE=17Mi") == "CUPOOL_TIMELINE=17Mi: not from 0 to 16Mi; using the default (64Ki)");
  CHECK(warning_of("CUPOOL_TIMELINE=64KiB") == R"(CUPOOL_TIMELINE=64KiB: not a count such as 64Ki ("64KiB"); using the default (64Ki))");
  CHECK(warning_of("CUPOOL_REPORT=%x.json") ==
        "CUPOOL_REPORT=%x.json: a % that starts none of %p %h %r %q{VAR} %%; using the default (cupool-report.%h.%p.json)");
  CHECK(warning_of("CUPOOL_REPORT=/jobs/") == "CUPOOL_REPORT=/jobs/: a folder, not a file; using the default (cupool-report.%h.%p.json)");
  CHECK(warning_of("CUPOOL_LOG_FILE=%q") == "CUPOOL_LOG_FILE=%q: %q must be followed by {VARIABLE}; using the default (stderr)");
  CHECK(warning_of("CUPOOL_RUN_ID=" + std::string(257, 'a')).ends_with(": not up to 256 of A-Z a-z 0-9 . _ -; using the default ()"));
  CHECK(warning_of("CUPOOL_TRACE=%") == "CUPOOL_TRACE=%: a % that starts none of %p %h %r %q{VAR} %%; using the default (none)");
}

TEST_CASE("a bad value has source default and the default's value", "[warnings]") {
  for (const char* entry : {"CUPOOL_POLICY=x", "CUPOOL_PREALLOCATE=x", "CUPOOL_LIMIT=x", "CUPOOL_BACKING=x", "CUPOOL_FREE=x",
                            "CUPOOL_RELEASE_THRESHOLD=x", "CUPOOL_IPC=x", "CUPOOL_REPORT=%x", "CUPOOL_STACKS=x", "CUPOOL_STACK_DEPTH=x",
                            "CUPOOL_TIMELINE=x", "CUPOOL_TRACE=%x", "CUPOOL_LOG=x", "CUPOOL_LOG_FILE=%x", "CUPOOL_RUN_ID=a b"}) {
    const Options options = load_from({entry});
    const Options defaults = load_from({});
    INFO(entry);
    CHECK(options.warnings.size() == 1);
    REQUIRE(options.facts.size() == defaults.facts.size());
    for (std::size_t i = 0; i < defaults.facts.size(); ++i) {
      CHECK(options.facts[i].value == defaults.facts[i].value);
      CHECK(options.facts[i].source == Source::defaulted);
    }
  }
}

TEST_CASE("an unknown name is one line with the nearest known name", "[warnings]") {
  CHECK(warning_of("CUPOOL_POLCIY=grow") == "CUPOOL_POLCIY: no such option; did you mean CUPOOL_POLICY?");
  CHECK(warning_of("CUPOOL_RELEASE_TRESHOLD=1") == "CUPOOL_RELEASE_TRESHOLD: no such option; did you mean CUPOOL_RELEASE_THRESHOLD?");
  CHECK(warning_of("CUPOOL_policy=grow") == "CUPOOL_policy: no such option; did you mean CUPOOL_POLICY?");
  CHECK(warning_of("CUPOOL_LOG_LEVEL=info") == "CUPOOL_LOG_LEVEL: no such option; the nearest is CUPOOL_LOG_FILE");
  CHECK(warning_of("CUPOOL_=1").starts_with("CUPOOL_: no such option; the nearest is CUPOOL_"));
  CHECK(warning_of("CUPOOL_RUNID=1").find("RUN_ID") == std::string::npos);  // ours alone
}

TEST_CASE("an unknown name warns once however often it stands there", "[warnings]") {
  CHECK(load_from({"CUPOOL_X=1", "CUPOOL_X=2", "CUPOOL_X="}).warnings.size() == 1);
  CHECK(load_from({"CUPOOL_X=1", "CUPOOL_Y=2"}).warnings.size() == 2);
}

TEST_CASE("a wild environment does not flood the log", "[warnings]") {
  std::vector<std::string> storage;
  for (int i = 0; i < 1000; ++i) storage.push_back("CUPOOL_WILD" + std::to_string(i) + "=1");
  const Options options = load(std::vector<std::string_view>(storage.begin(), storage.end()));
  REQUIRE(options.warnings.size() == 9);
  CHECK(options.warnings.back() == "992 more CUPOOL_ entries are not options either");
}

TEST_CASE("foreign text in a warning is escaped and cut", "[warnings]") {
  CHECK(warning_of("CUPOOL_LOG=a\nb\x1b[31m") ==
        R"(CUPOOL_LOG=a\nb\x1b[31m: must be trace, debug, info, warn, error or off; using the default (warn))");
  CHECK(warning_of("CUPOOL_L\nMIT=1").starts_with(R"(CUPOOL_L\nMIT: no such option; did you mean CUPOOL_LIMIT?)"));
  const std::string line = warning_of("CUPOOL_LIMIT=" + std::string(100000, '\x01'));
  CHECK(line.size() < 250);
  CHECK(line.find("...") != std::string::npos);
  CHECK(std::all_of(line.begin(), line.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
  CHECK(warning_of("CUPOOL_" + std::string(100000, 'A') + "=").size() < 150);
}

TEST_CASE("preallocation under the platform policy is said to have no effect", "[warnings]") {
  const Options options = load_from({"CUPOOL_POLICY=platform", "CUPOOL_PREALLOCATE=8GiB"});
  REQUIRE(options.warnings.size() == 1);
  CHECK(options.warnings[0] == "CUPOOL_PREALLOCATE=8GiB: has no effect under CUPOOL_POLICY=platform");
  CHECK_FALSE(options.preallocate);
  CHECK(fact_of(options, "preallocate").value == "none");
  CHECK(fact_of(options, "preallocate").source == Source::defaulted);
  CHECK(load_from({"CUPOOL_POLICY=platform", "CUPOOL_PREALLOCATE=none"}).warnings.empty());
  CHECK(load_from({"CUPOOL_POLICY=platform", "CUPOOL_PREALLOCATE=x"}).warnings.size() == 1);
}

TEST_CASE("preallocation where every block is its own allocation is said to have no effect", "[warnings]") {
  const Options set = load_from({"CUPOOL_IPC=native", "CUPOOL_PREALLOCATE=50%"});
  REQUIRE(set.warnings.size() == 1);
  CHECK(set.warnings[0] == "CUPOOL_PREALLOCATE=50%: has no effect under CUPOOL_IPC=native");
  const Options implied = load_from({"CUPOOL_IPC=native", "CUPOOL_POLICY=preallocate"});
  REQUIRE(implied.warnings.size() == 1);
  CHECK(implied.warnings[0] == "CUPOOL_POLICY=preallocate: has no effect under CUPOOL_IPC=native; blocks are not pooled");
  CHECK_FALSE(implied.preallocate);
  CHECK(load_from({"CUPOOL_IPC=native"}).warnings.empty());
}

TEST_CASE("warnings of values stand in the order of the table, those of names after them", "[warnings]") {
  const Options options = load_from({"CUPOOL_NOPE=1", "CUPOOL_LOG=x", "CUPOOL_POLICY=x"});
  REQUIRE(options.warnings.size() == 3);
  CHECK(options.warnings[0].starts_with("CUPOOL_POLICY="));
  CHECK(options.warnings[1].starts_with("CUPOOL_LOG="));
  CHECK(options.warnings[2].starts_with("CUPOOL_NOPE:"));
}
