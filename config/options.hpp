// The options of CUPOOL_*: one struct, generated from options.def; where each value came from; what was wrong.
//
// Pure: the environment is handed in, nothing is read or printed here. Never fails: a bad value is one warning and
// the default. Thread rule: built once, then read-only. Source: DESIGN section 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/amount.hpp"
#include "config/choices.hpp"
#include "config/pattern.hpp"
#include "config/units.hpp"

namespace cupool::config {

enum class Source : std::uint8_t { defaulted, environment };

struct OptionFact {
  std::string name;                   ///< lower case, no prefix: "policy"
  std::string value;                  ///< the effective value, in the spelling that the variable takes
  Source source = Source::defaulted;  ///< a bad value has source default: it is the default that counts
};

/// Members and defaults are the rows of options.def. What needs more than its row says:
///   preallocate              effective: 75% under policy preallocate when unset, and for -1; nullopt: nothing
///   release_threshold_bytes  nullopt: unlimited
///   report                   "none", "stderr", or a pattern for expand_pattern
///   trace, log_file          empty: none, stderr; else a pattern
struct Options {
#define OPTION(name, member, kind, Type, initial, empty, shown, unit, range, visibility, doc) Type member = initial;
#include "config/options.def"

  std::vector<OptionFact> facts;      ///< every row of options.def, in its order
  std::vector<std::string> warnings;  ///< one line each, printable ASCII, no prefix, no newline

  /// The value of option `name` turned out to be of no use: its default counts, as after a bad value, and `warning` is the first one.
  void fall_back(std::string_view name, std::string_view warning);
};

/// Reads every CUPOOL_* entry of `environment` ("NAME=value" strings, as in environ). The first entry of a name
/// counts, as with getenv; an empty or blank value is as good as none. Never throws but bad_alloc.
Options load(const std::vector<std::string_view>& environment);

}  // namespace cupool::config
