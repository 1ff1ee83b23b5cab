// Measures pairs (one free, one allocation of the same size) of an allocator: the main program of hot_path and hot_path_pool.
//
// Each thread keeps a ring of live blocks, or a single one, and replaces one after the other, round by round, so that pool hits are measured;
// what a free defers is paid within the rounds. One thread's time is processor time, so that a busy machine is no finding; several
// threads' is real time, because waiting for each other is part of it. A set of small standing blocks may lie beside the ring.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "allocator.hpp"

namespace bench {

/// Arguments: NAME [--quick]. Prints one line of JSON per shape: bytes, threads, standing blocks, blocks of the ring (0: by their size), whether nine
/// tenths of the ring were freed at random before, and the nanoseconds per pair of each round; no rounds where the allocator could not hold that many
/// blocks. `open` returns null for a name that it does not know.
int pairs_main(int argc, char** argv, const std::function<std::unique_ptr<Allocator>(const std::string& name)>& open);

}  // namespace bench
