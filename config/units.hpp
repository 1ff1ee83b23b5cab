// Numbers with units, read and written exactly: "1.5GiB", "64Ki".
//
// K, Ki, KiB (and M, G, T, P, E) are binary; KB, MB, GB are powers of ten, as in GNU coreutils. Letters in any case,
// a space before the unit is allowed. Integer arithmetic only: no locale, no rounding surprises (a fraction of a
// byte is dropped). Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cupool::config {

/// Why a text was refused: a phrase for the warning, and the part of the text that is to blame (empty: all of it).
struct Problem {
  std::string what;
  std::string_view part;
};

constexpr std::uint64_t kE18 = 1'000'000'000'000'000'000U;  ///< what a fraction of a decimal number is counted in

/// A decimal number at the start of a text, as read: whole + fraction_e18 / 10^18, then `rest` (trimmed).
struct Decimal {
  std::uint64_t whole = 0;         ///< of no meaning where it is too large
  std::uint64_t fraction_e18 = 0;  ///< digits after the eighteenth are dropped
  bool has_point = false;
  bool is_too_large = false;  ///< the whole part is over 2^63
  std::string_view rest;
};

/// nullopt: the text does not start with a number ("12", "1.5", ".5", "2."). Signs and exponents are not numbers.
std::optional<Decimal> take_decimal(std::string_view text);

/// "512MiB", "8G", "8GiB", "1024": bytes. "64Ki", "64K": a count. nullopt when malformed or over 2^63.
std::optional<std::uint64_t> parse_bytes(std::string_view text);
/// The same, saying why not.
std::optional<std::uint64_t> parse_bytes(std::string_view text, Problem& problem);
/// A count: like bytes, but a unit that ends in B is refused.
std::optional<std::uint64_t> parse_count(std::string_view text, Problem& problem);

/// The shortest exact spelling that parse_bytes reads back: "8GiB", "1536MiB", "1000".
std::string format_bytes(std::uint64_t bytes);
/// The same for a count: "64Ki", "32".
std::string format_count(std::uint64_t count);

/// Without spaces, tabs and line ends around it.
std::string_view trim(std::string_view text);
/// ASCII only, whatever the locale.
char to_lower(char c);
bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace cupool::config
