// Whatever the environment holds: load() gives usable options, few printable warnings, and facts that read back.
//
// Input: entries of the environment, one per line.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "config/options.hpp"

namespace {

using namespace cupool::config;

constexpr std::size_t kMostUnknownWarnings = 9;
constexpr std::size_t kMostWarningBytes = 320;

void require(bool holds, const char* sentence, std::string_view detail = "") {
  if (holds) return;
  std::fprintf(stderr, "broken: %s: %.*s\n", sentence, static_cast<int>(detail.size()), detail.data());
  std::abort();
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  lines.push_back(text);
  return lines;
}

void check_warnings(const Options& options) {
  require(options.warnings.size() <= options.facts.size() + kMostUnknownWarnings, "at most one warning per option");
  for (const std::string& warning : options.warnings) {
    require(warning.size() <= kMostWarningBytes, "a warning is short", warning);
    for (const char c : warning) require(c >= 0x20 && c < 0x7f, "a warning is printable", warning);
  }
}

void check_amount(const Amount& amount) {
  require(!amount.terms.empty(), "an amount has a term");
  constexpr std::uint64_t kTotal = std::uint64_t{141} << 30;
  for (const Amount::Term& term : amount.terms) {
    require(!term.is_fraction || Amount{{term}}.resolve(kTotal) <= kTotal, "a fraction is within the device", amount.to_string());
    require(amount.resolve(kTotal) <= Amount{{term}}.resolve(kTotal), "the least counts", amount.to_string());
  }
}

bool same(const Amount* a, const Amount* b) {
  if (a == nullptr || b == nullptr) return a == b;
  for (const std::uint64_t total_bytes : {std::uint64_t{1} << 30, std::uint64_t{141} << 30, UINT64_MAX}) {
    if (a->resolve(total_bytes) != b->resolve(total_bytes)) return false;
  }
  return true;
}

/// What the report says would, put into the environment, give the same options without a word.
void check_that_facts_read_back(const Options& options) {
  std::vector<std::string> storage;
  for (const OptionFact& fact : options.facts) {
    std::string entry = "CUPOOL_";
    for (const char c : fact.name) entry += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    storage.push_back(entry + '=' + fact.value);
  }
  const Options again = load(std::vector<std::string_view>(storage.begin(), storage.end()));
  require(again.warnings.empty(), "facts are good values", again.warnings.empty() ? std::string_view("") : again.warnings.front());
  require(again.facts.size() == options.facts.size(), "a fact for every option");
  for (std::size_t i = 0; i < options.facts.size(); ++i) {
    require(again.facts[i].value == options.facts[i].value, "a fact reads back as itself", storage[i]);
  }
  require(options.preallocate.has_value() == again.preallocate.has_value(), "a preallocation reads back");
  if (options.preallocate) require(same(&*options.preallocate, &*again.preallocate), "a preallocation keeps its size");
  for (int ordinal = 0; ordinal <= kMaxOrdinal; ++ordinal) {
    require(same(options.limit.for_device(ordinal), again.limit.for_device(ordinal)), "a limit keeps its size", again.limit.to_string());
  }
  require(options.release_threshold_bytes == again.release_threshold_bytes, "a threshold keeps its size");
  require(options.timeline_events == again.timeline_events, "a timeline keeps its length");
}

void check_pattern(const std::string& pattern) {
  const PatternFacts facts{1, "host/..", "0"};
  const auto lookup = [](std::string_view name) -> std::optional<std::string> {
    if (name.size() % 2 == 0) return std::nullopt;
    return "../\x1b";
  };
  const std::optional<std::string> path = expand_pattern(pattern, facts, lookup);
  if (!path) return;
  const auto slashes = [](const std::string& text) {
    std::size_t count = 0;
    for (const char c : text) count += c == '/' ? 1U : 0U;
    return count;
  };
  require(slashes(*path) == slashes(pattern), "an expansion adds no folder", *path);
  require(path->find('\x1b') == std::string::npos, "an expansion adds no control character", *path);
  require(oom_name(*path, 3).size() == path->size() + 5, "an OOM name is the name and .oom3", *path);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const Options options = load(lines_of({reinterpret_cast<const char*>(data), bytes}));
  check_warnings(options);
  if (options.preallocate) check_amount(*options.preallocate);
  if (options.limit.all && !options.limit.all->terms.empty()) check_amount(*options.limit.all);
  int last = -1;
  for (const auto& [ordinal, amount] : options.limit.by_ordinal) {
    require(ordinal > last && ordinal <= kMaxOrdinal, "ordinals ascend");
    last = ordinal;
    if (!amount.terms.empty()) check_amount(amount);
  }
  require(options.stack_depth >= 1 && options.stack_depth <= 128, "the stack depth is in its range");
  require(options.timeline_events <= (std::uint64_t{16} << 20), "the timeline is in its range");
  check_that_facts_read_back(options);
  check_pattern(options.report);
  for (const std::string* path : {&options.trace, &options.log_file}) {
    if (!path->empty()) check_pattern(*path);
  }
  return 0;
}
