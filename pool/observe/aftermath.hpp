// What came after an OOM, as far as the timeline still has it: a program that catches one and goes on was not ended by it.
//
// Pure; one pass over each device's timeline.
#pragma once

#include <optional>
#include <vector>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

/// For each of the snapshot's OOMs: was a block of at least its size allocated on its device since? nullopt: not known.
std::vector<std::optional<bool>> served_since(const Snapshot& snapshot);

}  // namespace cupool::observe
