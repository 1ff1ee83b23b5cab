// Descriptor 2, as long as it is the program's standard error: what is printed there must not end up in a file or a connection of the program's.
//
// A program may be started without one, or close it, and get the number for anything. What it was is noted at load.
// Thread-safe. May be asked in any phase; keeps errno.
#pragma once

namespace cupool::shim {

/// 2; -1: it is closed, or something else by now. Something else may stand there on purpose, for whoever prints: a terminal or another device, what
/// is appended to, and where there was a standard error at load what can only be written (freopen, a pipe that captures it).
int standard_error();

}  // namespace cupool::shim
