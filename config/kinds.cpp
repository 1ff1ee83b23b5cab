// See kinds.hpp.
#include "config/kinds.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "config/nearest.hpp"
#include "config/pattern.hpp"

namespace cupool::config {
namespace {

constexpr std::size_t kMostTextBytes = 256;

bool asks_for_empty(std::string_view text, RowRules rules) { return !rules.empty.empty() && equals_ignoring_case(text, rules.empty); }

bool is_plain(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-'; }

/// What turns something on or off, or names a stream, elsewhere. As a file name it would be a surprise in the working folder.
bool is_switch(std::string_view text) {
  constexpr std::string_view kSwitches[] = {"off", "on", "none", "true", "false", "yes", "no", "0", "1", "stdout", "stderr"};
  return std::any_of(std::begin(kSwitches), std::end(kSwitches), [&](std::string_view word) { return equals_ignoring_case(text, word); });
}

/// "grow, preallocate or off", then a guess if there is a near one.
std::string describe(std::string_view text, std::span<const Choice> choices) {
  std::string list;
  Nearest nearest(text);
  const auto shown = static_cast<std::size_t>(std::count_if(choices.begin(), choices.end(), [](const Choice& choice) { return !choice.is_alias; }));
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) list += i + 1 == shown ? " or " : ", ";
    list += choices[i].spelling;
    nearest.offer(choices[i].spelling);
  }
  if (nearest.is_close()) list.append(" (did you mean ").append(nearest.best()).append("?)");
  return list;
}

}  // namespace

Amount usual_preallocation() { return Amount{{{true, 0.75, 0}}}; }

std::optional<std::uint8_t> read_choice(std::string_view text, std::span<const Choice> choices, Problem& problem) {
  for (const Choice& choice : choices) {
    if (equals_ignoring_case(text, choice.spelling)) return choice.value;
  }
  problem = {"must be " + describe(text, choices), {}};
  return std::nullopt;
}

bool read(KindTag<Kind::amount>, std::string_view text, RowRules rules, std::optional<Amount>& member, Problem& problem) {
  if (asks_for_empty(text, rules)) {
    member.reset();
    return true;
  }
  std::optional<Amount> amount = text == "-1" ? usual_preallocation() : parse_amount(text, problem);
  if (!amount) return false;
  member = std::move(amount);
  return true;
}

bool read(KindTag<Kind::device_amounts>, std::string_view text, RowRules rules, DeviceAmounts& member, Problem& problem) {
  if (asks_for_empty(text, rules)) {
    member = {};
    return true;
  }
  std::optional<DeviceAmounts> amounts = parse_device_amounts(text, problem);
  if (amounts) member = *std::move(amounts);
  return amounts.has_value();
}

bool read(KindTag<Kind::size>, std::string_view text, RowRules rules, std::optional<std::uint64_t>& member, Problem& problem) {
  constexpr std::string_view kDriversOwn = "18446744073709551615";  // UINT64_MAX, the driver's word for it
  if (asks_for_empty(text, rules) || (!rules.empty.empty() && text == kDriversOwn)) {
    member.reset();
    return true;
  }
  const std::optional<std::uint64_t> bytes = parse_bytes(text, problem);
  if (bytes) member = bytes;
  return bytes.has_value();
}

bool read(KindTag<Kind::count>, std::string_view text, RowRules rules, std::uint64_t& member, Problem& problem) {
  const std::size_t dots = rules.range.find("..");
  const std::string_view least = rules.range.substr(0, dots);
  const std::string_view most = rules.range.substr(dots + 2);
  const std::optional<std::uint64_t> count = parse_count(text, problem);
  if (!count) return false;
  if (*count < parse_bytes(least).value_or(0) || *count > parse_bytes(most).value_or(0)) {
    problem = {std::string("not from ").append(least).append(" to ").append(most), {}};
    return false;
  }
  member = *count;
  return true;
}

bool read(KindTag<Kind::count> kind, std::string_view text, RowRules rules, std::uint32_t& member, Problem& problem) {
  std::uint64_t count = 0;
  if (!read(kind, text, rules, count, problem)) return false;
  member = static_cast<std::uint32_t>(count);  // the range of such a row fits: a test looks
  return true;
}

bool read(KindTag<Kind::pattern>, std::string_view text, RowRules rules, std::string& member, Problem& problem) {
  if (asks_for_empty(text, rules)) {
    member.clear();
    return true;
  }
  if (is_switch(text)) {  // as for other options: whoever says it means no file
    problem = {
        "no file name: the word here is " + std::string(rules.empty.empty() ? "none" : rules.empty) + ", a file of that name ./" + std::string(text),
        {}};
    return false;
  }
  if (const char* what = pattern_problem(text); what != nullptr) {
    problem = {what, {}};
    return false;
  }
  member = text;
  return true;
}

bool read(KindTag<Kind::report>, std::string_view text, RowRules rules, std::string& member, Problem& problem) {
  for (const char* word : {"none", "stderr"}) {
    if (!equals_ignoring_case(text, word)) continue;
    member = word;
    return true;
  }
  return read(KindTag<Kind::pattern>{}, text, rules, member, problem);
}

bool read(KindTag<Kind::text>, std::string_view text, RowRules, std::string& member, Problem& problem) {
  if (text.size() > kMostTextBytes || !std::all_of(text.begin(), text.end(), is_plain)) {
    problem = {"not up to 256 of A-Z a-z 0-9 . _ -", {}};
    return false;
  }
  member = text;
  return true;
}

std::string spell(KindTag<Kind::amount>, RowRules rules, const std::optional<Amount>& member) {
  return member ? member->to_string() : std::string(rules.empty);
}

std::string spell(KindTag<Kind::device_amounts>, RowRules rules, const DeviceAmounts& member) {
  return member.empty() ? std::string(rules.empty) : member.to_string();
}

std::string spell(KindTag<Kind::size>, RowRules rules, const std::optional<std::uint64_t>& member) {
  return member ? format_bytes(*member) : std::string(rules.empty);
}

std::string spell(KindTag<Kind::count>, RowRules, std::uint64_t member) { return format_count(member); }

std::string spell(KindTag<Kind::pattern>, RowRules rules, const std::string& member) { return member.empty() ? std::string(rules.empty) : member; }

std::string spell(KindTag<Kind::report>, RowRules, const std::string& member) { return member; }
std::string spell(KindTag<Kind::text>, RowRules, const std::string& member) { return member; }

}  // namespace cupool::config
