// The names that exist but are not modelled: calling one says so on stderr, is a violation, and fails.
// Never include <cuda.h> here: the stubs are declared without their signatures (any arguments are ignored).
#include "tests/sim/loud.hpp"

extern "C" {
#define EXPORT(base, symbol, since, stream)
#define LOUD(base, symbol, since, stream)              \
  __attribute__((visibility("default"))) int symbol(); \
  int symbol() { return cusim::refuse_loudly(cusim::Symbol::symbol); }
#include "tests/sim/exports.def"
#undef EXPORT
#undef LOUD
}
