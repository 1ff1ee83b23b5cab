// What came after an OOM, as far as the timeline still has it: a program that catches one and goes on did not end by it.
//
// Pure; one pass over each device's timeline.
#pragma once

#include <optional>
#include <vector>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

/// For each of the snapshot's OOMs: whether a block of at least its size was allocated on its device since. nullopt: nobody knows.
std::vector<std::optional<bool>> served_since(const Snapshot& snapshot);

}  // namespace cupool::observe
