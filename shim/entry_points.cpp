// Searches over the rows of entry_points.def. There are so few that a linear scan of their short names costs less than one dladdr, and it needs
// nothing that would have to be built at start.
#include "shim/entry_points.hpp"

namespace cupool::shim {
namespace {

/// Does any row of `name` have a per-thread variant? Rows without one serve both kinds of lookup.
bool has_per_thread_variant(std::string_view name) {
  for (const EntryPoint& row : kEntryPoints) {
    if (row.is_per_thread && name == row.looked_up_name) return true;
  }
  return false;
}

}  // namespace

std::optional<Entry> find_symbol(std::string_view symbol) {
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    if (symbol == kEntryPoints[i].symbol) return static_cast<Entry>(i);
  }
  return std::nullopt;
}

std::optional<Entry> find_looked_up(std::string_view name, int version, bool per_thread) {
  const bool wants_per_thread = per_thread && has_per_thread_variant(name);
  std::optional<Entry> best;
  int best_since = 0;
  bool is_base_name = false;
  for (std::size_t i = 0; i < kEntryCount; ++i) {
    const EntryPoint& row = kEntryPoints[i];
    if (name != row.looked_up_name) continue;
    is_base_name = true;
    if (row.is_per_thread != wants_per_thread || row.since > version || row.since < best_since) continue;
    best = static_cast<Entry>(i);
    best_since = row.since;
  }
  return is_base_name ? best : find_symbol(name);
}

}  // namespace cupool::shim
