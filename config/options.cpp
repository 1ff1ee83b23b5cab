// load(): from the environment's entries to Options, facts and warnings. See options.hpp; each kind of value is read
// in kinds.cpp.
#include "config/options.hpp"

#include <algorithm>
#include <array>

#include "config/kinds.hpp"
#include "config/nearest.hpp"
#include "config/quote.hpp"

namespace cupool::config {
namespace {

constexpr std::string_view kPrefix = "CUPOOL_";
constexpr std::size_t kMostUnknownNames = 8;  // warned about one by one; a wild environment must not flood a log

enum class Row : std::size_t {
#define OPTION(name, member, kind, Type, initial, empty, shown, unit, range, visibility, doc) name,
#include "config/options.def"
  kCount
};
constexpr auto kRowCount = static_cast<std::size_t>(Row::kCount);

enum class Visibility : std::uint8_t { user, internal };

struct RowInfo {
  std::string_view name;
  std::string_view shown_default;
  RowRules rules;
  Visibility visibility;
};

constexpr std::array<RowInfo, kRowCount> kRows = {{
#define OPTION(name, member, kind, Type, initial, empty, shown, unit, range, visibility, doc) {#name, shown, {range, empty}, Visibility::visibility},
#include "config/options.def"
}};

constexpr std::size_t index_of(Row row) { return static_cast<std::size_t>(row); }

/// Whether `name` (what follows CUPOOL_) is the upper-case form of `row_name`.
bool is_variable_of(std::string_view name, std::string_view row_name) {
  return name.size() == row_name.size() &&
         std::equal(name.begin(), name.end(), row_name.begin(), [](char a, char b) { return to_lower(a) == b && (a < 'a' || a > 'z'); });
}

std::string variable_of(std::string_view row_name) {
  std::string variable(kPrefix);
  for (const char c : row_name) variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return variable;
}

class Loader {
 public:
  explicit Loader(Options& options) : options_(options) { options_.facts.reserve(kRowCount); }

  void collect(const std::vector<std::string_view>& environment);
  void read_rows();
  void settle_preallocation();
  void warn_of_unknown_names();

 private:
  void collect(std::string_view name, std::string_view value);
  template <Kind kKind, class Member> void read_row(Row row, KindTag<kKind> kind, Member& member);
  void warn(Row row, const std::string& text);
  void warn_of_value(Row row, const Problem& problem);
  void drop_preallocation(const char* because);

  Options& options_;
  std::array<std::optional<std::string_view>, kRowCount> values_;  // as set, first entry of each
  std::vector<std::string_view> unknown_;                          // names without prefix, each once
  std::size_t unknown_more_ = 0;
};

void Loader::collect(const std::vector<std::string_view>& environment) {
  for (const std::string_view entry : environment) {
    if (!entry.starts_with(kPrefix)) continue;
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;  // not an entry that getenv could find
    collect(entry.substr(kPrefix.size(), equals - kPrefix.size()), entry.substr(equals + 1));
  }
}

void Loader::collect(std::string_view name, std::string_view value) {
  for (std::size_t i = 0; i < kRowCount; ++i) {
    if (!is_variable_of(name, kRows[i].name)) continue;
    if (!values_[i]) values_[i] = value;
    return;
  }
  if (std::find(unknown_.begin(), unknown_.end(), name) != unknown_.end()) return;
  if (unknown_.size() < kMostUnknownNames) unknown_.push_back(name);
  else ++unknown_more_;
}

void Loader::read_rows() {
#define OPTION(name, member, kind, Type, initial, empty, shown, unit, range, visibility, doc) \
  read_row(Row::name, KindTag<Kind::kind>{}, options_.member);
#include "config/options.def"
}

template <Kind kKind, class Member> void Loader::read_row(Row row, KindTag<kKind> kind, Member& member) {
  const RowInfo& info = kRows[index_of(row)];
  const std::string_view text = trim(values_[index_of(row)].value_or(std::string_view()));
  OptionFact fact{std::string(info.name), {}, Source::defaulted};
  if (!text.empty()) {
    Problem problem;
    if (read(kind, text, info.rules, member, problem)) fact.source = Source::environment;
    else warn_of_value(row, problem);
  }
  fact.value = spell(kind, info.rules, member);
  options_.facts.push_back(std::move(fact));
}

/// "CUPOOL_LIMIT=12x: <text>"
void Loader::warn(Row row, const std::string& text) {
  const std::string_view value = trim(values_[index_of(row)].value_or(std::string_view()));
  options_.warnings.push_back(variable_of(kRows[index_of(row)].name) + '=' + quote(value) + ": " + text);
}

void Loader::warn_of_value(Row row, const Problem& problem) {
  std::string text = problem.what;
  if (!problem.part.empty()) text += " (\"" + quote(problem.part, 40) + "\")";
  warn(row, text.append("; using the default (").append(kRows[index_of(row)].shown_default) + ')');
}

/// What policy preallocate implies, and what no policy or mode can do anything with.
void Loader::settle_preallocation() {
  OptionFact& fact = options_.facts[index_of(Row::preallocate)];
  const bool is_asked = options_.policy == Policy::preallocate;
  if (is_asked && fact.source == Source::defaulted) options_.preallocate = usual_preallocation();
  if (!options_.preallocate) return;
  if (options_.policy == Policy::platform) drop_preallocation("CUPOOL_POLICY=platform");
  else if (options_.ipc == IpcMode::native) drop_preallocation("CUPOOL_IPC=native");
  fact.value = spell(KindTag<Kind::amount>{}, kRows[index_of(Row::preallocate)].rules, options_.preallocate);
}

void Loader::drop_preallocation(const char* because) {
  OptionFact& fact = options_.facts[index_of(Row::preallocate)];
  const std::string text = std::string("has no effect under ") + because;
  if (fact.source == Source::environment) warn(Row::preallocate, text);
  else warn(Row::policy, text + "; blocks are not pooled");  // the policy itself asked for it
  options_.preallocate.reset();
  fact.source = Source::defaulted;
}

void Loader::warn_of_unknown_names() {
  for (const std::string_view name : unknown_) {
    Nearest nearest(name);
    for (const RowInfo& row : kRows) {
      if (row.visibility == Visibility::user) nearest.offer(row.name);
    }
    const std::string known = variable_of(nearest.best());
    options_.warnings.push_back(std::string(kPrefix) + quote(name, 40) + ": no such option; " +
                                (nearest.is_close() ? "did you mean " + known + '?' : "the nearest is " + known));
  }
  if (unknown_more_ > 0) {
    options_.warnings.push_back(std::to_string(unknown_more_) + " more CUPOOL_ entries are not options either");
  }
}

}  // namespace

void Options::fall_back(std::string_view name, std::string_view warning) {
  const Options standard = load({});
#define OPTION(row, member, kind, Type, initial, empty, shown, unit, range, visibility, doc) \
  if (name == #row) {                                                                        \
    member = standard.member;                                                                \
    facts[index_of(Row::row)] = standard.facts[index_of(Row::row)];                          \
  }
#include "config/options.def"
  constexpr std::size_t kMost = 400;  // it may name a path
  warnings.insert(warnings.begin(), quote(warning, kMost));
}

Options load(const std::vector<std::string_view>& environment) {
  Options options;
  Loader loader(options);
  loader.collect(environment);
  loader.read_rows();
  loader.settle_preallocation();
  loader.warn_of_unknown_names();
  return options;
}

}  // namespace cupool::config
