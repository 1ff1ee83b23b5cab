// Reading and writing sizes. See units.hpp.
#include "config/units.hpp"

#include <cstddef>

namespace cupool::config {
namespace {

// 2^63 times 10^18 must fit: the only reason for a wider type.
__extension__ typedef unsigned __int128 Wide;

constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
constexpr std::string_view kPrefixes = "KMGTPE";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::uint64_t power(std::uint64_t base, std::size_t exponent) {
  std::uint64_t result = 1;
  for (; exponent > 0; --exponent) result *= base;
  return result;
}

/// What a unit multiplies by; 0: not a unit. `of_bytes` allows the B at its end.
std::uint64_t multiplier(std::string_view unit, bool of_bytes) {
  if (unit.empty()) return 1;
  if (of_bytes && equals_ignoring_case(unit, "B")) return 1;
  for (std::size_t i = 0; i < kPrefixes.size(); ++i) {
    if (to_lower(unit.front()) != to_lower(kPrefixes[i])) continue;
    const std::string_view tail = unit.substr(1);
    if (tail.empty() || equals_ignoring_case(tail, "i")) return power(1024, i + 1);
    if (of_bytes && equals_ignoring_case(tail, "iB")) return power(1024, i + 1);
    if (of_bytes && equals_ignoring_case(tail, "B")) return power(1000, i + 1);
  }
  return 0;
}

std::optional<std::uint64_t> refuse(Problem& problem, std::string_view part, const char* what) {
  problem = Problem{what, part};
  return std::nullopt;
}

std::optional<std::uint64_t> parse_scaled(std::string_view text, bool of_bytes, Problem& problem) {
  const char* const malformed = of_bytes ? "not a size such as 8GiB" : "not a count such as 64Ki";
  text = trim(text);
  const std::optional<Decimal> number = take_decimal(text);
  if (!number) return refuse(problem, text, malformed);
  const std::uint64_t unit = multiplier(number->rest, of_bytes);
  if (unit == 0) return refuse(problem, text, malformed);
  if (unit == 1 && number->has_point) {
    return refuse(problem, text, of_bytes ? "not a whole number of bytes" : "not a whole number");
  }
  const Wide value = Wide{number->whole} * unit + Wide{number->fraction_e18} * unit / kE18;
  if (number->is_too_large || value > kMost) return refuse(problem, text, "too large");
  return static_cast<std::uint64_t>(value);
}

std::string format_scaled(std::uint64_t value, std::string_view tail) {
  for (std::size_t i = kPrefixes.size(); i > 0 && value != 0; --i) {
    const std::uint64_t unit = power(1024, i);
    if (value % unit == 0) return std::to_string(value / unit) + kPrefixes[i - 1] + std::string(tail);
  }
  return std::to_string(value);
}

}  // namespace

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (to_lower(a[i]) != to_lower(b[i])) return false;
  }
  return true;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<Decimal> take_decimal(std::string_view text) {
  Decimal number;
  std::size_t at = 0;
  std::size_t digits = 0;
  for (; at < text.size() && is_digit(text[at]); ++at, ++digits) {
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    number.is_too_large = number.is_too_large || number.whole > (kMost - digit) / 10;
    number.whole = number.whole * 10 + digit;
  }
  if (at < text.size() && text[at] == '.') {
    number.has_point = true;
    std::uint64_t place = kE18;
    for (++at; at < text.size() && is_digit(text[at]); ++at, ++digits) {
      place /= 10;
      number.fraction_e18 += place * static_cast<std::uint64_t>(text[at] - '0');
    }
  }
  if (digits == 0) return std::nullopt;
  number.rest = trim(text.substr(at));
  return number;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text, Problem& problem) { return parse_scaled(text, true, problem); }

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  Problem ignored;
  return parse_bytes(text, ignored);
}

std::optional<std::uint64_t> parse_count(std::string_view text, Problem& problem) { return parse_scaled(text, false, problem); }

std::string format_bytes(std::uint64_t bytes) { return format_scaled(bytes, "iB"); }
std::string format_count(std::uint64_t count) { return format_scaled(count, "i"); }

}  // namespace cupool::config
