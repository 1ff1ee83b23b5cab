// Short ways to load options in a test and to look at what came out.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "config/options.hpp"

namespace cupool::config {

inline Options load_from(std::initializer_list<std::string_view> entries) { return load(std::vector<std::string_view>(entries)); }

inline const OptionFact& fact_of(const Options& options, std::string_view name) {
  for (const OptionFact& fact : options.facts) {
    if (fact.name == name) return fact;
  }
  throw std::logic_error("no fact " + std::string(name));
}

/// The only warning of loading `entry` alone; what is wrong when there is not exactly one.
inline std::string warning_of(std::string_view entry) {
  const Options options = load_from({entry});
  if (options.warnings.size() != 1) return std::to_string(options.warnings.size()) + " warnings";
  return options.warnings.front();
}

}  // namespace cupool::config
