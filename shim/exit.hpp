// The end of the process: from our exit handler on we make no CUDA call, and one report is written.
//
// The ways out: exit() and a return from main (the handler that arm() registers, then the library's destructor); _exit and _Exit (interposed; the
// other threads stop meanwhile); quick_exit (interposed to learn its status, then the last of its handlers). exec and fatal signals leave the live
// page, from which `cupool run` completes the report. A child, however it was made, does nothing here.
#pragma once

namespace cupool::shim::exit_hooks {

/// Registers the exit handler. Called once, when the process goes live.
void arm();

}  // namespace cupool::shim::exit_hooks
