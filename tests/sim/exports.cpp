// What sim/libcuda.so.1 exports: each name is resolved at load or dlsym to its implementation, or to null where
// CUSIM_DRIVER_VERSION is older than the function, as an old driver would not have it, or where CUSIM_MISSING names it.
//
// Indirect functions (STT_GNU_IFUNC); libcuda.map says how the implementations hide behind them. Resolvers run while
// the loader relocates programs, before any constructor: they read the environment and one relocated table, nothing
// else. Never include <cuda.h> here.
#include <cstdlib>

#include "tests/sim/symbols.hpp"

using Function = void();

namespace {

Function* resolve(cusim::Symbol symbol) {
  const char* value = std::getenv("CUSIM_DRIVER_VERSION");
  const cusim::SymbolRow& row = cusim::symbol_row(symbol);
  if (value != nullptr && std::atoi(value) < row.since) return nullptr;
  if (cusim::is_missing(std::getenv("CUSIM_MISSING"), row.base)) return nullptr;
  return reinterpret_cast<Function*>(row.entry);
}

}  // namespace

extern "C" {
#define LOUD EXPORT
#define EXPORT(base, symbol, since, stream)                                                                           \
  __attribute__((visibility("hidden"))) Function* cusim_resolve_##symbol() { return resolve(cusim::Symbol::symbol); } \
  __attribute__((visibility("default"), ifunc("cusim_resolve_" #symbol))) void symbol();
#include "tests/sim/exports.def"
}
