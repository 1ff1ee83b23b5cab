// File names with %p %h %r %q{VAR} %%: checking and expanding them, and the names of OOM reports.
//
// Pure: pid, host, rank and the environment are handed in. Thread rule: pure functions. Source: REPORT section 6.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace cupool::config {

struct PatternFacts {
  int pid;
  std::string host;
  std::string rank;
};

/// nullptr: `pattern` names a file. Else a phrase that says why not.
const char* pattern_problem(std::string_view pattern);

/// Expands %p %h %r %q{VAR} %%. In what is put in, `/` and control characters become `_`, and so do the dots of "."
/// and ".."; a variable that is not set puts in nothing. nullopt: a bad pattern, or nothing is left of it.
std::optional<std::string> expand_pattern(std::string_view pattern, const PatternFacts& facts,
                                          std::optional<std::string> (*lookup)(std::string_view variable));

/// The name for the k-th OOM report: "a.json" -> "a.oom1.json"; without extension, appended.
std::string oom_name(const std::string& report_path, int k);
/// The same with another word than "oom": a report that somebody asked for is "request".
std::string numbered_name(const std::string& report_path, const std::string& word, int k);

}  // namespace cupool::config
