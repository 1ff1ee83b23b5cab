// The rows of entry_points.def as data: which name a program looks up, which exported symbol answers, since which
// driver version, and the address of our own trampoline.
//
// Constant-initialised: usable before any constructor has run. Never calls the driver. Thread rule: read-only.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace cupool::shim {

/// One per row, in the order of the list.
enum class Entry : std::size_t {
#define HOOK(name, symbol, since, role, method) symbol,
#include "shim/entry_points.def"
#undef HOOK
  kCount
};

inline constexpr std::size_t kEntryCount = static_cast<std::size_t>(Entry::kCount);

/// What a row promises; see entry_points.def.
enum class Role { serve, take, free, copy, wait, read, exporting, ranges, lookup };

struct EntryPoint {
  const char* looked_up_name;
  const char* symbol;
  int since;
  bool is_per_thread;  ///< a _ptsz variant: stream 0 means the calling thread's own default stream
  Role role;
};

constexpr bool is_per_thread_symbol(std::string_view symbol) { return symbol.ends_with("_ptsz") || symbol.ends_with("_ptds"); }

inline constexpr std::array<EntryPoint, kEntryCount> kEntryPoints = {{
#define HOOK(name, symbol, since, role, method) {#name, #symbol, since, is_per_thread_symbol(#symbol), Role::role},
#include "shim/entry_points.def"
#undef HOOK
}};

/// The trampoline that this library exports for `entry`.
void* exported_address(Entry entry);

/// The row whose exported symbol is `symbol`.
std::optional<Entry> find_symbol(std::string_view symbol);

/// The row that cuGetProcAddress(`name`, `version`, flags) means: the newest variant that `version` has, never mixing
/// per-thread and legacy streams. `name` may be a base name or an exported symbol.
std::optional<Entry> find_looked_up(std::string_view name, int version, bool per_thread);

}  // namespace cupool::shim
