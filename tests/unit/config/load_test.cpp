// load(): defaults, sources, effective values, and the environment as getenv sees it.
#include <catch2/catch.hpp>

#include <chrono>
#include <string>

#include "loaded.hpp"

using namespace cupool::config;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

struct ShownRow {
  const char* name;
  const char* initial_as_cpp;
};
constexpr ShownRow kRows[] = {
#define OPTION(name, member, kind, Type, initial, empty, shown, unit, range, visibility, doc) {#name, #initial},
#include "config/options.def"
};

void check_fact(std::string_view entry, std::string_view name, std::string_view value) {
  const Options options = load_from({entry});
  INFO(entry);
  CHECK(options.warnings.empty());
  CHECK(fact_of(options, name).value == value);
  CHECK(fact_of(options, name).source == Source::environment);
}

}  // namespace

TEST_CASE("an empty environment gives the defaults, and a fact for every row in its order", "[load]") {
  const Options options = load_from({});
  CHECK(options.warnings.empty());
  CHECK(options.policy == Policy::grow);
  CHECK_FALSE(options.preallocate);
  CHECK(options.limit.empty());
  CHECK(options.backing == Backing::automatic);
  CHECK(options.free == FreeMode::deferred);
  CHECK_FALSE(options.release_threshold_bytes);
  CHECK(options.ipc == IpcMode::automatic);
  CHECK(options.report == "cupool-report.%h.%p.json");
  CHECK(options.stacks == StackMode::off);
  CHECK(options.stack_depth == 32);
  CHECK(options.timeline_events == 65536);
  CHECK(options.trace.empty());
  CHECK(options.log == LogLevel::warn);
  CHECK(options.log_file.empty());
  CHECK(options.run_id.empty());
  REQUIRE(options.facts.size() == std::size(kRows));
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    CHECK(options.facts[i].name == kRows[i].name);
    CHECK(options.facts[i].source == Source::defaulted);
  }
}

TEST_CASE("the default of each row reads back as itself through its variable", "[load]") {
  for (const OptionFact& fact : load_from({}).facts) {
    std::string entry = "CUPOOL_";
    for (const char c : fact.name) entry += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    const Options options = load_from({entry + "=" + fact.value});
    INFO(entry << "=" << fact.value);
    CHECK(options.warnings.empty());
    CHECK(fact_of(options, fact.name).value == fact.value);
  }
}

TEST_CASE("facts spell the effective value as the variable takes it", "[load]") {
  check_fact("CUPOOL_POLICY= Platform ", "policy", "platform");
  check_fact("CUPOOL_PREALLOCATE=0.5", "preallocate", "50%");
  check_fact("CUPOOL_PREALLOCATE=min(0.75,8g)", "preallocate", "min(75%,8GiB)");
  check_fact("CUPOOL_PREALLOCATE=0", "preallocate", "0");
  check_fact("CUPOOL_PREALLOCATE=none", "preallocate", "none");
  check_fact("CUPOOL_LIMIT=1:50%,0:40g", "limit", "0:40GiB,1:50%");
  check_fact("CUPOOL_LIMIT=None", "limit", "none");
  check_fact("CUPOOL_BACKING=SEGMENTS", "backing", "segments");
  check_fact("CUPOOL_FREE=sync", "free", "sync");
  check_fact("CUPOOL_RELEASE_THRESHOLD=1024M", "release_threshold", "1GiB");
  check_fact("CUPOOL_RELEASE_THRESHOLD=Unlimited", "release_threshold", "unlimited");
  check_fact("CUPOOL_RELEASE_THRESHOLD=18446744073709551615", "release_threshold", "unlimited");
  check_fact("CUPOOL_RELEASE_THRESHOLD=0", "release_threshold", "0");
  check_fact("CUPOOL_IPC=native", "ipc", "native");
  check_fact("CUPOOL_REPORT=STDERR", "report", "stderr");
  check_fact("CUPOOL_REPORT=none", "report", "none");
  check_fact("CUPOOL_REPORT=/jobs/%q{JOB}/%r.json", "report", "/jobs/%q{JOB}/%r.json");
  check_fact("CUPOOL_STACKS=all", "stacks", "all");
  check_fact("CUPOOL_STACK_DEPTH=128", "stack_depth", "128");
  check_fact("CUPOOL_TIMELINE=131072", "timeline", "128Ki");
  check_fact("CUPOOL_TIMELINE=0", "timeline", "0");
  check_fact("CUPOOL_TRACE=t.%p", "trace", "t.%p");
  check_fact("CUPOOL_TRACE=none", "trace", "none");
  check_fact("CUPOOL_LOG=warning", "log", "warn");
  check_fact("CUPOOL_LOG_FILE=cupool.%p.log", "log_file", "cupool.%p.log");
  check_fact("CUPOOL_LOG_FILE=stderr", "log_file", "stderr");
  check_fact("CUPOOL_RUN_ID=0a1b.2c3d", "run_id", "0a1b.2c3d");
  check_fact("CUPOOL_RUN_ID=" + std::string(256, 'a'), "run_id", std::string(256, 'a'));
}

TEST_CASE("off is no file name, nor is any other switch: one warning names the word that is meant, and the default stays", "[load]") {
  const struct {
    const char* entry;
    const char* name;
    const char* word;
    const char* value;
  } rows[] = {{"CUPOOL_REPORT=off", "report", "none", "cupool-report.%h.%p.json"},
              {"CUPOOL_TRACE=Off", "trace", "none", "none"},
              {"CUPOOL_LOG_FILE=OFF", "log_file", "stderr", "stderr"},
              {"CUPOOL_REPORT=0", "report", "none", "cupool-report.%h.%p.json"},
              {"CUPOOL_REPORT=stdout", "report", "none", "cupool-report.%h.%p.json"},
              {"CUPOOL_TRACE=1", "trace", "none", "none"},
              {"CUPOOL_TRACE=true", "trace", "none", "none"},
              {"CUPOOL_LOG_FILE=none", "log_file", "stderr", "stderr"},
              {"CUPOOL_LOG_FILE=stdout", "log_file", "stderr", "stderr"}};
  for (const auto& row : rows) {
    const Options options = load_from({row.entry});
    INFO(row.entry);
    REQUIRE(options.warnings.size() == 1);
    CHECK_THAT(options.warnings.front(), Catch::Contains(std::string("the word here is ") + row.word));
    CHECK(fact_of(options, row.name).value == row.value);
  }
  CHECK(load_from({"CUPOOL_REPORT=./off"}).report == "./off");
  CHECK(load_from({"CUPOOL_REPORT=10"}).report == "10");
}

TEST_CASE("a ~ that no shell has expanded makes no folder of that name", "[load]") {
  const Options options = load_from({"CUPOOL_REPORT=~/reports/%p.json"});
  REQUIRE(options.warnings.size() == 1);
  CHECK_THAT(options.warnings.front(), Catch::Contains("write the folder out"));
  CHECK(fact_of(options, "report").value == "cupool-report.%h.%p.json");
  CHECK(load_from({"CUPOOL_REPORT=./~/r.json"}).report == "./~/r.json");
  CHECK(load_from({"CUPOOL_REPORT=~x.json"}).report == "~x.json");
}

TEST_CASE("every option reaches its member", "[load]") {
  const Options options =
      load_from({"CUPOOL_POLICY=async", "CUPOOL_PREALLOCATE=1GiB", "CUPOOL_LIMIT=2GiB", "CUPOOL_BACKING=pages", "CUPOOL_FREE=immediate",
                 "CUPOOL_RELEASE_THRESHOLD=3GiB", "CUPOOL_REPORT=r", "CUPOOL_STACKS=python", "CUPOOL_STACK_DEPTH=7", "CUPOOL_TIMELINE=9",
                 "CUPOOL_TRACE=t", "CUPOOL_LOG=debug", "CUPOOL_LOG_FILE=l", "CUPOOL_RUN_ID=id"});
  CHECK(options.warnings.empty());
  CHECK(options.policy == Policy::async);
  CHECK(options.preallocate->resolve(8 * kGiB) == kGiB);
  CHECK(options.limit.for_device(5)->resolve(8 * kGiB) == 2 * kGiB);
  CHECK(options.backing == Backing::pages);
  CHECK(options.free == FreeMode::immediate);
  CHECK(options.release_threshold_bytes == 3 * kGiB);
  CHECK(options.report == "r");
  CHECK(options.stacks == StackMode::python);
  CHECK(options.stack_depth == 7);
  CHECK(options.timeline_events == 9);
  CHECK(options.trace == "t");
  CHECK(options.log == LogLevel::debug);
  CHECK(options.log_file == "l");
  CHECK(options.run_id == "id");
}

TEST_CASE("a value that turns out to be of no use is as a bad one", "[load]") {
  Options options = load_from({"CUPOOL_LOG_FILE=l", "CUPOOL_TRACE=t", "CUPOOL_POLCIY=x"});
  options.fall_back("log_file", "cannot open it");
  CHECK(options.log_file.empty());
  CHECK(fact_of(options, "log_file").value == "stderr");
  CHECK(fact_of(options, "log_file").source == Source::defaulted);
  REQUIRE(options.warnings.size() == 2);
  CHECK(options.warnings.front() == "cannot open it");
  CHECK(options.trace == "t");
  CHECK(fact_of(options, "trace").source == Source::environment);
}

TEST_CASE("the preallocate policy takes 75% unless told otherwise", "[load]") {
  const Options unset = load_from({"CUPOOL_POLICY=preallocate"});
  CHECK(unset.preallocate->resolve(80 * kGiB) == 60 * kGiB);
  CHECK(fact_of(unset, "preallocate").value == "75%");
  CHECK(fact_of(unset, "preallocate").source == Source::defaulted);

  const Options set = load_from({"CUPOOL_PREALLOCATE=8GiB", "CUPOOL_POLICY=preallocate"});
  CHECK(set.preallocate->resolve(80 * kGiB) == 8 * kGiB);
  CHECK(fact_of(set, "preallocate").source == Source::environment);

  const Options none = load_from({"CUPOOL_PREALLOCATE=none", "CUPOOL_POLICY=preallocate"});
  CHECK_FALSE(none.preallocate);
  CHECK(fact_of(none, "preallocate").value == "none");

  const Options bad = load_from({"CUPOOL_PREALLOCATE=lots", "CUPOOL_POLICY=preallocate"});
  CHECK(bad.preallocate->resolve(80 * kGiB) == 60 * kGiB);
  CHECK(bad.warnings.size() == 1);
}

TEST_CASE("minus one means 75% under every policy that preallocates", "[load]") {
  for (const char* policy : {"CUPOOL_POLICY=grow", "CUPOOL_POLICY=preallocate", "CUPOOL_POLICY=async"}) {
    const Options options = load_from({policy, "CUPOOL_PREALLOCATE= -1 "});
    INFO(policy);
    CHECK(options.warnings.empty());
    CHECK(options.preallocate->resolve(80 * kGiB) == 60 * kGiB);
    CHECK(fact_of(options, "preallocate").value == "75%");
    CHECK(fact_of(options, "preallocate").source == Source::environment);
  }
}

TEST_CASE("an empty or blank variable is as good as none", "[load]") {
  for (const ShownRow& row : kRows) {
    std::string name = "CUPOOL_";
    for (const char* c = row.name; *c != '\0'; ++c) name += *c >= 'a' && *c <= 'z' ? static_cast<char>(*c - 'a' + 'A') : *c;
    for (const char* blank : {"=", "= ", "= \t\n"}) {
      const Options options = load_from({name + blank});
      INFO(name);
      CHECK(options.warnings.empty());
      CHECK(fact_of(options, row.name).source == Source::defaulted);
      CHECK(fact_of(options, row.name).value == fact_of(load_from({}), row.name).value);
    }
  }
}

TEST_CASE("of two entries of one name the first counts, good or bad", "[load]") {
  CHECK(load_from({"CUPOOL_LOG=info", "CUPOOL_LOG=debug"}).log == LogLevel::info);
  const Options bad_first = load_from({"CUPOOL_LOG=loud", "CUPOOL_LOG=debug"});
  CHECK(bad_first.log == LogLevel::warn);
  CHECK(bad_first.warnings.size() == 1);
  CHECK(load_from({"CUPOOL_LOG=", "CUPOOL_LOG=debug"}).log == LogLevel::warn);
  CHECK(load_from({"CUPOOL_LOG=debug", "CUPOOL_LOG=loud"}).warnings.empty());
}

TEST_CASE("what is not an entry of ours is not looked at", "[load]") {
  const Options options = load_from({"", "=", "PATH=/bin", "CUPOOL", "CUPOOL_POLICY", "CUPOOL_NONSENSE", "cupool_policy=off", "XCUPOOL_POLICY=off",
                                     " CUPOOL_POLICY=off", "CUPOOLPOLICY=off", "CUDA_VISIBLE_DEVICES=0"});
  CHECK(options.warnings.empty());
  CHECK(options.policy == Policy::grow);
}

TEST_CASE("a value may hold an equals sign", "[load]") { CHECK(load_from({"CUPOOL_REPORT=a=b.json"}).report == "a=b.json"); }

TEST_CASE("loading an ordinary environment takes microseconds", "[load][cost]") {
  std::vector<std::string> storage;
  for (int i = 0; i < 100; ++i) storage.push_back("SOME_VARIABLE_" + std::to_string(i) + "=/usr/lib/some/value:with/parts");
  storage.insert(storage.end(), {"CUPOOL_POLICY=preallocate", "CUPOOL_LIMIT=0:40GiB,1:50%", "CUPOOL_REPORT=/jobs/%r.json"});
  const std::vector<std::string_view> environment(storage.begin(), storage.end());
  std::chrono::nanoseconds least = std::chrono::seconds(1);
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const Options options = load(environment);
    least = std::min(least, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start));
    REQUIRE(options.warnings.empty());
  }
  INFO(least.count() << " ns");
  CHECK(least < std::chrono::microseconds(100));  // about 1.5 measured; sanitizers and busy machines are slower
}
