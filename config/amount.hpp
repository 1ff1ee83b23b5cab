// Amounts of device memory that may depend on the device: "75%", "min(75%,8GiB)", "0:40GiB,1:50%".
//
// A fraction is kept in steps of 10^-12 and applied in integers, so that text -> Amount -> text -> Amount is exact.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/units.hpp"

namespace cupool::config {

/// A number of bytes that may depend on the device's total: bytes, a fraction, or the least of several.
struct Amount {
  struct Term {
    bool is_fraction = false;
    double fraction = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Term> terms;  ///< the least counts; without any it is "none", as only an entry of DeviceAmounts may be
  /// Bytes on a device of `total_bytes`; never more than total_bytes for fractions. 0 without terms.
  std::uint64_t resolve(std::uint64_t total_bytes) const;
  std::string to_string() const;
};

/// One amount for every device, or one for some: "40GiB" or "0:40GiB,1:50%"; with both, `all` is for the others.
struct DeviceAmounts {
  std::optional<Amount> all;
  std::vector<std::pair<int, Amount>> by_ordinal;  ///< in ascending order of ordinals, each once
  const Amount* for_device(int ordinal) const;     ///< nullptr: none
  bool empty() const { return !all && by_ordinal.empty(); }
  std::string to_string() const;
};

/// Device ordinals go from 0 to this: more devices than any machine shows to one process.
inline constexpr int kMaxOrdinal = 63;

/// "0.75", "75%", "8GiB", "min(75%,8GiB)", plain bytes; "1" is one byte, "1.0" the whole device.
/// `-1` is not an amount, load() handles it.
std::optional<Amount> parse_amount(std::string_view text);
/// The same, saying why not.
std::optional<Amount> parse_amount(std::string_view text, Problem& problem);
/// One amount, or a list "ordinal:amount" in any order, at most one entry without ordinal; an amount may be "none". Zero is refused.
std::optional<DeviceAmounts> parse_device_amounts(std::string_view text, Problem& problem);

}  // namespace cupool::config
