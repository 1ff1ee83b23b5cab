// File patterns: what is refused, what they expand to, OOM names.
#include <catch2/catch.hpp>

#include "config/pattern.hpp"

using namespace cupool::config;

namespace {

std::optional<std::string> variable(std::string_view name) {
  if (name == "JOB") return "17";
  if (name == "_x9") return "a/b";
  if (name == "UP") return "..";
  if (name == "DIRTY") return "a\nb\x1b";
  return std::nullopt;
}

std::string expanded(std::string_view pattern) { return expand_pattern(pattern, {4711, "h1", "3"}, variable).value_or("refused"); }

std::string problem_of(std::string_view pattern) {
  const char* problem = pattern_problem(pattern);
  return problem != nullptr ? problem : "fine";
}

}  // namespace

TEST_CASE("a pattern expands pid, host, rank, variables and percent signs", "[pattern]") {
  CHECK(expanded("cupool-report.%h.%p.json") == "cupool-report.h1.4711.json");
  CHECK(expanded("%r%r/%%%p%%.json") == "33/%4711%.json");
  CHECK(expanded("/jobs/%q{JOB}/r.json") == "/jobs/17/r.json");
  CHECK(expanded("plain") == "plain");
  CHECK(expanded("{%p}") == "{4711}");
}

TEST_CASE("what is put in can neither leave its folder nor garble a terminal", "[pattern]") {
  CHECK(expanded("%q{_x9}.json") == "a_b.json");
  CHECK(expanded("%q{UP}/r.json") == "__/r.json");
  CHECK(expanded("%q{DIRTY}") == "a_b_");
  CHECK(expand_pattern("%h-%r", {1, "a/../b", "."}, variable) == "a_.._b-_");
}

TEST_CASE("a variable that is not set puts in nothing, and a name of nothing is refused", "[pattern]") {
  CHECK(expanded("r%q{UNSET}.json") == "r.json");
  CHECK(expanded("%q{UNSET}") == "refused");
  CHECK(expanded("jobs/%q{UNSET}") == "refused");
  CHECK(expanded("%q{UNSET}.json") == "refused");
  CHECK(expanded("jobs/%q{UNSET}.%p.json") == "refused");
  CHECK(expanded("jobs/.%q{UNSET}r.json") == "jobs/.r.json");
}

TEST_CASE("a bad pattern is refused with the reason, and never expanded", "[pattern]") {
  const std::string unknown = "a % that starts none of %p %h %r %q{VAR} %%";
  for (const char* pattern : {"%", "a%", "%x", "%P", "100%.json", "%%%", "% p"}) {
    INFO(pattern);
    CHECK(problem_of(pattern) == unknown);
    CHECK(expanded(pattern) == "refused");
  }
  for (const char* pattern : {"%q", "%qJOB", "%q{", "%q{JOB", "%q{}", "%q{9A}", "%q{A-B}", "%q{A B}", "%q{%p}"}) {
    INFO(pattern);
    CHECK(problem_of(pattern) == "%q must be followed by {VARIABLE}");
    CHECK(expanded(pattern) == "refused");
  }
  CHECK(problem_of("") == "empty");
  CHECK(problem_of("jobs/") == "a folder, not a file");
  CHECK(problem_of(".") == "a folder, not a file");
  CHECK(problem_of("/jobs/..") == "a folder, not a file");
  CHECK(problem_of("/jobs/..r") == "fine");
  CHECK(expanded("/jobs/.%q{UNSET_ANYWHERE}") == "refused");
  CHECK(problem_of("a\nb") == "a control character in a file name");
  CHECK(problem_of("a\x7f") == "a control character in a file name");
  CHECK(problem_of(std::string_view("%\0", 2)) == "a control character in a file name");
  CHECK(problem_of("größe-%p.json") == "fine");
}

TEST_CASE("an OOM report's number stands before the extension", "[pattern]") {
  CHECK(oom_name("a.json", 1) == "a.oom1.json");
  CHECK(oom_name("/jobs/17/cupool-report.h1.4711.json", 12) == "/jobs/17/cupool-report.h1.4711.oom12.json");
  CHECK(oom_name("report", 2) == "report.oom2");
  CHECK(oom_name("/jobs.d/report", 2) == "/jobs.d/report.oom2");
  CHECK(oom_name(".hidden", 1) == ".hidden.oom1");
  CHECK(oom_name("d/.hidden.json", 1) == "d/.hidden.oom1.json");
  CHECK(oom_name("a.", 1) == "a.oom1.");
}
