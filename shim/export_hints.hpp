// Will this process hand memory to other processes? Legacy handles exist for cuMemAlloc memory only, so that under CUPOOL_BACKING=auto
// such a process keeps to segments. Asked once before the first context is served; a lookup of an exporting function may tell it later.
//
// Guesses from what is cheap to see: the launcher's variables, and what the program itself imports. A statically linked runtime shows
// neither. Thread-safe; never calls the driver.
#pragma once

namespace cupool::shim::export_hints {

/// Why this process may export memory, as the middle of a sentence; nullptr: nothing says so.
const char* reason();
/// Several ranks of a launcher on this machine?
bool has_local_ranks();
/// Does the main program import a function that exports memory, of the driver or of the runtime?
bool program_imports_export();

/// The program has looked an exporting function up by its name.
void note_lookup();

}  // namespace cupool::shim::export_hints
