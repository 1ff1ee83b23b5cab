// How the text of each kind of option is read into its member, and how the member is spelled again.
//
// One pair of functions per kind column of options.def, chosen by overload; the two are inverse to each other.
// Internal to config/. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/amount.hpp"
#include "config/choices.hpp"
#include "config/units.hpp"

namespace cupool::config {

enum class Kind : std::uint8_t { choice, amount, device_amounts, size, count, pattern, report, text };
template <Kind kKind> struct KindTag {};

/// What a reader may need of its row.
struct RowRules {
  std::string_view range;  ///< of a count: "least..most"
  std::string_view empty;  ///< the word that asks for an empty member: "none", "stderr"; or no such word
};

/// 75%: what `preallocate` takes unless told otherwise, and what -1 asks for.
Amount usual_preallocation();

/// read(): fills `member` and returns true, or leaves it alone, says why in `problem` and returns false. `text` is
/// trimmed and not empty.
bool read(KindTag<Kind::amount>, std::string_view text, RowRules rules, std::optional<Amount>& member, Problem& problem);
bool read(KindTag<Kind::device_amounts>, std::string_view text, RowRules rules, DeviceAmounts& member, Problem& problem);
bool read(KindTag<Kind::size>, std::string_view text, RowRules rules, std::optional<std::uint64_t>& member, Problem& problem);
bool read(KindTag<Kind::count>, std::string_view text, RowRules rules, std::uint64_t& member, Problem& problem);
bool read(KindTag<Kind::count>, std::string_view text, RowRules rules, std::uint32_t& member, Problem& problem);
bool read(KindTag<Kind::pattern>, std::string_view text, RowRules rules, std::string& member, Problem& problem);
bool read(KindTag<Kind::report>, std::string_view text, RowRules rules, std::string& member, Problem& problem);
bool read(KindTag<Kind::text>, std::string_view text, RowRules rules, std::string& member, Problem& problem);

/// The value of the choice that `text` spells; nullopt: none, `problem` lists them.
std::optional<std::uint8_t> read_choice(std::string_view text, std::span<const Choice> choices, Problem& problem);
template <class Enum> bool read(KindTag<Kind::choice>, std::string_view text, RowRules, Enum& member, Problem& problem) {
  const std::optional<std::uint8_t> value = read_choice(text, choices_of(member), problem);
  if (value) member = static_cast<Enum>(*value);
  return value.has_value();
}

/// spell(): what the variable would have to hold for `member` to come out.
std::string spell(KindTag<Kind::amount>, RowRules rules, const std::optional<Amount>& member);
std::string spell(KindTag<Kind::device_amounts>, RowRules rules, const DeviceAmounts& member);
std::string spell(KindTag<Kind::size>, RowRules rules, const std::optional<std::uint64_t>& member);
std::string spell(KindTag<Kind::count>, RowRules rules, std::uint64_t member);
std::string spell(KindTag<Kind::pattern>, RowRules rules, const std::string& member);
std::string spell(KindTag<Kind::report>, RowRules rules, const std::string& member);
std::string spell(KindTag<Kind::text>, RowRules rules, const std::string& member);
template <class Enum> std::string spell(KindTag<Kind::choice>, RowRules, Enum member) { return name_of(member); }

}  // namespace cupool::config
