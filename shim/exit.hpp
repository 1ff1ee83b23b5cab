// The end of the process: from the first exit handler on no CUDA call is ours, and one report is written.
//
// Ways out: exit() and a return from main (the handler armed here, then the library's destructor), _exit and _Exit (interposed; other threads stop
// meanwhile) and quick_exit (interposed for its status; the last of its handlers). exec and fatal signals leave the live page for `cupool run` to
// complete. A child, however it was made, does nothing here.
#pragma once

namespace cupool::shim::exit_hooks {

/// Registers the exit handler. Called once, when the process goes live.
void arm();

}  // namespace cupool::shim::exit_hooks
