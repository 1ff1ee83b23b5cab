// What sim/libcuda.so.1 exports: each name is resolved at load or dlsym to its implementation, or to null where
// CUSIM_DRIVER_VERSION is older than the function, as an old driver would not have it.
//
// Indirect functions (STT_GNU_IFUNC). The build renames the implementations to impl_<symbol>. Resolvers run while
// the loader relocates, before any constructor: they read the environment and nothing else. Never include <cuda.h> here.
#include <cstdlib>

namespace {

int driver_version() {
  const char* value = std::getenv("CUSIM_DRIVER_VERSION");
  return value != nullptr ? std::atoi(value) : 13000;
}

}  // namespace

using Function = void();

extern "C" {
#define LOUD EXPORT
#define EXPORT(base, symbol, since, stream)                                                          \
  Function impl_##symbol;                                                                            \
  __attribute__((visibility("hidden"))) Function* cusim_resolve_##symbol() {                         \
    return driver_version() >= since ? &impl_##symbol : nullptr;                                     \
  }                                                                                                  \
  __attribute__((visibility("default"), ifunc("cusim_resolve_" #symbol))) void symbol();
#include "tests/sim/exports.def"
}
