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
#include <utility>
#include <vector>

namespace cupool::config {

enum class Policy : std::uint8_t { grow, preallocate, async, platform, off };
enum class Backing : std::uint8_t { automatic, pages, segments };
enum class FreeMode : std::uint8_t { deferred, sync, immediate };
enum class IpcMode : std::uint8_t { automatic, native };
enum class StackMode : std::uint8_t { off, python, native, all };
enum class LogLevel : std::uint8_t { trace, debug, info, warn, error, off };
enum class Source : std::uint8_t { defaulted, environment };

/// A number of bytes that may depend on the device's total: bytes, a fraction, or the least of several.
struct Amount {
  struct Term { bool is_fraction = false; double fraction = 0; std::uint64_t bytes = 0; };
  std::vector<Term> terms;  ///< at least one; the least counts
  /// Bytes on a device of `total_bytes`; never more than total_bytes for fractions.
  std::uint64_t resolve(std::uint64_t total_bytes) const;
  std::string to_string() const;
};

/// One amount for every device, or one for some: "40GiB" or "0:40GiB,1:50%".
struct DeviceAmounts {
  std::optional<Amount> all;
  std::vector<std::pair<int, Amount>> by_ordinal;
  const Amount* for_device(int ordinal) const;  ///< nullptr: none
  bool empty() const { return !all && by_ordinal.empty(); }
  std::string to_string() const;
};

struct OptionFact {
  std::string name;    ///< lower case, no prefix: "policy"
  std::string value;   ///< the effective value, in the spelling that the variable takes
  Source source = Source::defaulted;
};

struct Options {
  Policy policy = Policy::grow;
  std::optional<Amount> preallocate;      ///< effective: 75% under `preallocate` when unset or -1
  DeviceAmounts limit;
  Backing backing = Backing::automatic;
  FreeMode free = FreeMode::deferred;
  std::optional<std::uint64_t> release_threshold_bytes;  ///< nullopt: unlimited
  IpcMode ipc = IpcMode::automatic;
  std::string report = "cupool-report.%h.%p.json";
  StackMode stacks = StackMode::off;
  std::uint32_t stack_depth = 32;
  std::uint64_t timeline_events = 64 * 1024;
  std::string trace;                       ///< empty: none
  LogLevel log = LogLevel::warn;
  std::string log_file;                    ///< empty: stderr
  std::string run_id;                      ///< set by `cupool run`: which run this process belongs to

  std::vector<OptionFact> facts;           ///< every row of options.def, in its order
  std::vector<std::string> warnings;       ///< one line each, no prefix, no newline
};

/// Reads every CUPOOL_* entry of `environment` ("NAME=value" strings, as in environ). Never throws but bad_alloc.
Options load(const std::vector<std::string_view>& environment);

/// "512MiB", "8G", "8GiB", "1024": bytes. "64Ki", "64K": a count. nullopt when malformed or over 2^63.
std::optional<std::uint64_t> parse_bytes(std::string_view text);
/// "0.75", "75%", "8GiB", "min(75%,8GiB)"; `-1` is not an amount, load() handles it.
std::optional<Amount> parse_amount(std::string_view text);

/// Expands %p %h %r %q{VAR} %%; `/` in expansions becomes `_`. nullopt: a bad pattern.
struct PatternFacts { int pid; std::string host; std::string rank; };
std::optional<std::string> expand_pattern(std::string_view pattern, const PatternFacts& facts,
                                          std::optional<std::string> (*lookup)(std::string_view variable));
/// The name for the k-th OOM report: "a.json" -> "a.oom1.json"; without extension, appended.
std::string oom_name(const std::string& report_path, int k);

}  // namespace cupool::config
