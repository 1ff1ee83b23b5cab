// The exported symbols of the simulated driver, and how a program finds them.
//
// One list (exports.def) yields the Symbol enum, the lookup table of cuGetProcAddress, the call counters' keys and
// the loud stubs. Source: CUDA Driver API 13.0, "Driver Entry Point Access". Immutable: needs no lock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cusim {

enum class Symbol : std::uint16_t {
#define EXPORT(base, symbol, since, stream) symbol,
#define LOUD(base, symbol, since, stream) symbol,
#include "tests/sim/exports.def"
#undef EXPORT
#undef LOUD
  kCount
};

inline constexpr std::size_t kSymbolCount = static_cast<std::size_t>(Symbol::kCount);

struct SymbolRow {
  const char* base;    ///< the name cuGetProcAddress takes
  const char* symbol;  ///< the exported name
  int since;           ///< first driver version (13000 = 13.0) that has it
  bool per_thread;     ///< the _ptsz / _ptds variant
  bool loud;           ///< exists, but is not implemented
  void* entry;
};

enum class SearchStatus { found, unknown_name, version_too_low };

struct SearchResult {
  SearchStatus status;
  const SymbolRow* row;  ///< null unless found
};

const SymbolRow& symbol_row(Symbol symbol);

/// `base` is one of the names in `list` (CUSIM_MISSING: "cuA,cuB"; null: none). Called while the loader relocates: it calls nothing.
constexpr bool is_missing(const char* list, const char* base) {
  while (list != nullptr && *list != '\0') {
    const char* at = base;
    while (*at != '\0' && *list == *at) ++list, ++at;
    if (*at == '\0' && (*list == ',' || *list == '\0')) return true;
    while (*list != '\0' && *list++ != ',') {}
  }
  return false;
}

/// The row of an exported symbol, or null.
const SymbolRow* find_symbol(const char* symbol);

/// The newest variant of `base` that a program built for `requested` knows and a driver of version `driver` has.
SearchResult search_symbol(const char* base, int requested, int driver, bool per_thread);

}  // namespace cusim
