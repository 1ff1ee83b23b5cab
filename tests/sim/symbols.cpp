// The lookup table over exports.def. Built once, on first use; searched through a hash of the base names.
#include "tests/sim/symbols.hpp"

#include <string_view>
#include <unordered_map>
#include <vector>

// Only the addresses are wanted here, so the signatures do not matter; <cuda.h> must not be included.
extern "C" {
#define EXPORT(base, symbol, since, stream) void symbol();
#define LOUD(base, symbol, since, stream) void symbol();
#include "tests/sim/exports.def"
#undef EXPORT
#undef LOUD
}

namespace cusim {
namespace {

constexpr bool LEGACY = false;
constexpr bool PER_THREAD = true;

const SymbolRow kRows[] = {
#define EXPORT(base, symbol, since, stream) {#base, #symbol, since, stream, false, reinterpret_cast<void*>(&::symbol)},
#define LOUD(base, symbol, since, stream) {#base, #symbol, since, stream, true, reinterpret_cast<void*>(&::symbol)},
#include "tests/sim/exports.def"
#undef EXPORT
#undef LOUD
};

struct Index {
  std::unordered_map<std::string_view, const SymbolRow*> by_symbol;
  std::unordered_map<std::string_view, std::vector<const SymbolRow*>> by_base;
};

const Index& index() {
  static const Index* const built = [] {
    auto* fresh = new Index;
    for (const SymbolRow& row : kRows) {
      fresh->by_symbol.emplace(row.symbol, &row);
      fresh->by_base[row.base].push_back(&row);
    }
    return fresh;
  }();
  return *built;
}

}  // namespace

const SymbolRow& symbol_row(Symbol symbol) { return kRows[static_cast<std::size_t>(symbol)]; }

const SymbolRow* find_symbol(const char* symbol) {
  const auto found = index().by_symbol.find(symbol);
  return found == index().by_symbol.end() ? nullptr : found->second;
}

SearchResult search_symbol(const char* base, int requested, int driver, bool per_thread) {
  const auto found = index().by_base.find(base);
  if (found == index().by_base.end()) return {SearchStatus::unknown_name, nullptr};
  const SymbolRow* best = nullptr;
  bool exists = false;
  for (const SymbolRow* row : found->second) {
    if (row->since > driver) continue;
    exists = true;
    if (row->since > requested || (row->per_thread && !per_thread)) continue;
    // A per-thread variant wins over a legacy one of any version; within a kind the newest wins.
    const bool better = best == nullptr || (row->per_thread != best->per_thread ? row->per_thread : row->since > best->since);
    if (better) best = row;
  }
  if (best != nullptr) return {SearchStatus::found, best};
  return {exists ? SearchStatus::version_too_low : SearchStatus::unknown_name, nullptr};
}

}  // namespace cusim
