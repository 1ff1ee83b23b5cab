// CUSIM_LOG: what the driver saw, as one JSON object, written when the library is unloaded or the process exits.
#pragma once

namespace cusim {

/// Writes the log if one is configured ("%p" in its name is the process id). Silent in a forked child. Uses try-locks.
void write_exit_log();

}  // namespace cusim
