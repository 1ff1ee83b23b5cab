// Descriptor 2, as long as it is the program's standard error: log lines must not end up in a file or a connection of the program's.
//
// A program may be started without a standard error, or close it, and then get the number for anything. So what descriptor 2 is at load is noted.
// Thread-safe. May be asked in any phase; keeps errno.
#pragma once

namespace cupool::shim {

/// 2, or -1 where nothing may be printed there. It may be printed to if it is still what it was at load, or if it looks as if it was put there for
/// printing: a terminal or another device, a file that is opened for appending, and, where there was a standard error at load, what is opened for
/// writing only (freopen, a pipe that captures it).
int standard_error();

}  // namespace cupool::shim
