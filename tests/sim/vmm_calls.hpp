// What the files of virtual memory management share.
#pragma once

#include "tests/sim/call.hpp"

namespace cusim {

/// The handle's memory; null, and a violation, when it is released or unknown.
PhysicalMemory* find_physical(Call& c, CUmemGenericAllocationHandle handle);

}  // namespace cusim
