// Reading, writing and resolving amounts. See amount.hpp.
#include "config/amount.hpp"

#include <algorithm>
#include <cstddef>

namespace cupool::config {
namespace {

// A device's bytes times 10^12 must fit: the only reason for a wider type.
__extension__ typedef unsigned __int128 Wide;

constexpr std::uint64_t kWhole = 1'000'000'000'000;  // 1.0 in steps of a fraction; exact in a double
constexpr std::uint64_t kPercent = kWhole / 100;
constexpr std::size_t kMaxTerms = 8;

/// The fraction in steps of 10^-12; anything outside 0 to 1, not-a-number included, becomes the nearer end.
std::uint64_t steps_of(double fraction) {
  if (!(fraction > 0)) return 0;
  if (fraction >= 1) return kWhole;
  return static_cast<std::uint64_t>(fraction * static_cast<double>(kWhole) + 0.5);
}

Amount::Term fraction_of_steps(std::uint64_t steps) { return {true, static_cast<double>(steps) / static_cast<double>(kWhole), 0}; }

template <class T> std::optional<T> refuse(Problem& problem, std::string_view part, std::string what) {
  problem = Problem{std::move(what), part};
  return std::nullopt;
}

std::optional<Amount::Term> parse_percent(const Decimal& number, std::string_view text, Problem& problem) {
  if (number.is_too_large || number.whole > 100 || (number.whole == 100 && number.fraction_e18 > 0)) {
    return refuse<Amount::Term>(problem, text, "more than 100%");
  }
  return fraction_of_steps(number.whole * kPercent + number.fraction_e18 / (kE18 / kPercent));
}

std::optional<Amount::Term> parse_term(std::string_view text, Problem& problem) {
  text = trim(text);
  if (text.empty()) return refuse<Amount::Term>(problem, text, "an amount is missing");
  const std::optional<Decimal> number = take_decimal(text);
  if (number && number->rest == "%") return parse_percent(*number, text, problem);
  if (number && number->rest.empty() && number->has_point) {
    if (number->is_too_large || number->whole > 1 || (number->whole == 1 && number->fraction_e18 > 0)) {
      return refuse<Amount::Term>(problem, text, "a fraction above 1.0, and no unit");
    }
    return fraction_of_steps(number->whole * kWhole + number->fraction_e18 / (kE18 / kWhole));
  }
  const std::optional<std::uint64_t> bytes = parse_bytes(text, problem);
  if (bytes) return Amount::Term{false, 0, *bytes};
  if (problem.what.starts_with("not a size")) problem.what += " or 75%";
  return std::nullopt;
}

/// What stands between the parentheses of "min(...)"; nullopt: the text is not of that form.
std::optional<std::string_view> inside_min(std::string_view text) {
  if (!equals_ignoring_case(text.substr(0, 3), "min")) return std::nullopt;
  const std::string_view tail = trim(text.substr(3));
  if (tail.size() < 2 || tail.front() != '(' || tail.back() != ')') return std::nullopt;
  return tail.substr(1, tail.size() - 2);
}

/// Cuts `rest` at its first comma that is not inside parentheses and returns what stood before it.
std::string_view take_entry(std::string_view& rest, bool& is_last) {
  int depth = 0;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '(') ++depth;
    if (rest[i] == ')') --depth;
    if (rest[i] != ',' || depth > 0) continue;
    const std::string_view entry = rest.substr(0, i);
    rest.remove_prefix(i + 1);
    return entry;
  }
  is_last = true;
  return rest;
}

std::optional<int> parse_ordinal(std::string_view text, Problem& problem) {
  text = trim(text);
  int ordinal = 0;
  bool is_good = !text.empty();
  for (const char c : text) {
    is_good = is_good && c >= '0' && c <= '9';
    if (is_good) ordinal = std::min(ordinal * 10 + (c - '0'), kMaxOrdinal + 1);
  }
  if (is_good && ordinal <= kMaxOrdinal) return ordinal;
  return refuse<int>(problem, text, "not a device ordinal from 0 to " + std::to_string(kMaxOrdinal));
}

bool has_zero(const Amount& amount) {
  return std::any_of(amount.terms.begin(), amount.terms.end(),
                     [](const Amount::Term& term) { return term.is_fraction ? steps_of(term.fraction) == 0 : term.bytes == 0; });
}

bool has_ordinal(const DeviceAmounts& list, int ordinal) {
  return std::any_of(list.by_ordinal.begin(), list.by_ordinal.end(), [=](const auto& entry) { return entry.first == ordinal; });
}

/// Adds one entry, "amount" or "ordinal:amount", to `list`; false: refused.
bool add_entry(DeviceAmounts& list, std::string_view entry, Problem& problem) {
  const std::size_t colon = entry.find(':');
  std::optional<int> ordinal;
  if (colon != std::string_view::npos) {
    ordinal = parse_ordinal(entry.substr(0, colon), problem);
    if (!ordinal) return false;
  }
  const std::string_view text = trim(colon == std::string_view::npos ? entry : entry.substr(colon + 1));
  std::optional<Amount> amount = equals_ignoring_case(text, "none") ? Amount{} : parse_amount(text, problem);
  if (!amount) return false;
  if (has_zero(*amount)) {
    problem = {"must be more than 0", text};
    return false;
  }
  if (ordinal ? has_ordinal(list, *ordinal) : list.all.has_value()) {
    problem = {ordinal ? "device " + std::to_string(*ordinal) + " stands twice" : "two entries without a device ordinal", entry};
    return false;
  }
  if (ordinal) list.by_ordinal.emplace_back(*ordinal, std::move(*amount));
  else list.all = std::move(amount);
  return true;
}

std::string format_percent(double fraction) {
  const std::uint64_t steps = steps_of(fraction);
  std::string text = std::to_string(steps / kPercent);
  if (std::uint64_t rest = steps % kPercent; rest != 0) {
    std::string digits = std::to_string(kPercent + rest).substr(1);  // with its leading zeros
    digits.erase(digits.find_last_not_of('0') + 1);
    text += '.' + digits;
  }
  return text + '%';
}

}  // namespace

std::uint64_t Amount::resolve(std::uint64_t total_bytes) const {
  std::uint64_t least = terms.empty() ? 0 : UINT64_MAX;
  for (const Term& term : terms) {
    const auto part = static_cast<std::uint64_t>(Wide{total_bytes} * steps_of(term.fraction) / kWhole);
    least = std::min(least, term.is_fraction ? part : term.bytes);
  }
  return least;
}

std::string Amount::to_string() const {
  std::string text;
  for (const Term& term : terms) {
    if (!text.empty()) text += ',';
    text += term.is_fraction ? format_percent(term.fraction) : format_bytes(term.bytes);
  }
  return terms.size() > 1 ? "min(" + text + ")" : text;
}

const Amount* DeviceAmounts::for_device(int ordinal) const {
  for (const auto& [entry_ordinal, amount] : by_ordinal) {
    if (entry_ordinal == ordinal) return amount.terms.empty() ? nullptr : &amount;
  }
  return all && !all->terms.empty() ? &*all : nullptr;
}

std::string DeviceAmounts::to_string() const {
  const auto spell = [](const Amount& amount) { return amount.terms.empty() ? std::string("none") : amount.to_string(); };
  std::string text = all ? spell(*all) : std::string();
  for (const auto& [ordinal, amount] : by_ordinal) {
    if (!text.empty()) text += ',';
    text += std::to_string(ordinal) + ':' + spell(amount);
  }
  return text;
}

std::optional<Amount> parse_amount(std::string_view text, Problem& problem) {
  text = trim(text);
  Amount amount;
  std::string_view rest = inside_min(text).value_or(text);
  const bool is_min = rest.size() != text.size();
  bool is_last = false;
  while (!is_last) {
    const std::string_view entry = is_min ? take_entry(rest, is_last) : rest;
    is_last = is_last || !is_min;
    const std::optional<Amount::Term> term = parse_term(entry, problem);
    if (!term) return std::nullopt;
    if (amount.terms.size() == kMaxTerms) return refuse<Amount>(problem, text, "more than 8 amounts in min()");
    amount.terms.push_back(*term);
  }
  return amount;
}

std::optional<Amount> parse_amount(std::string_view text) {
  Problem ignored;
  return parse_amount(text, ignored);
}

std::optional<DeviceAmounts> parse_device_amounts(std::string_view text, Problem& problem) {
  DeviceAmounts list;
  std::string_view rest = trim(text);
  bool is_last = false;
  while (!is_last) {
    if (!add_entry(list, trim(take_entry(rest, is_last)), problem)) return std::nullopt;
  }
  std::sort(list.by_ordinal.begin(), list.by_ordinal.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return list;
}

}  // namespace cupool::config
