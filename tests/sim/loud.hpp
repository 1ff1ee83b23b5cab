// What a loud stub does. Free of <cuda.h>, so that stubs need no signatures.
#pragma once

#include "tests/sim/symbols.hpp"

namespace cusim {

/// Counts the call, records a violation, prints one line on stderr; returns CUDA_ERROR_NOT_SUPPORTED as an int.
int refuse_loudly(Symbol symbol);

}  // namespace cusim
