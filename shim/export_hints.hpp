// Will this process hand memory to other processes? Legacy handles exist for cuMemAlloc memory only, so that under CUPOOL_BACKING=auto
// such a process keeps to segments. Or ranges of it to other devices (dma-buf)? Those are whole host pages, so that its large blocks begin on one.
// Asked once before the first context is served; a lookup of such a function may tell it later.
//
// Guesses from what is cheap to see: the launcher's variables, what the program itself imports, and whether it calls the exporting function of
// a runtime that was linked into it. Not seen: the same in a program without a symbol table (stripped) or in one of its libraries.
// Thread-safe; never calls the driver.
#pragma once

#include "shim/entry_points.hpp"

namespace cupool::shim::export_hints {

/// Why this process may export memory, as the middle of a sentence; nullptr: nothing says so.
const char* reason();
/// Several ranks of a launcher on this machine?
bool has_local_ranks();
/// Does the main program import a function that exports memory, of the driver or of the runtime?
bool program_imports_export();
/// Was the runtime linked into the program, and does the program call, or take the address of, the function of it that exports memory? Reads
/// the program's file: about 1 ms for each MB of code and symbols.
bool program_calls_its_own_export();

/// May the program ask for descriptors (dma-buf) of ranges: has it looked that function up, by whichever way, or does the main program import it?
bool may_export_ranges();

/// The program has looked `entry` up by dlsym. (By cuGetProcAddress the runtime looks up all that shares memory with other processes, in every
/// program.)
void note_dlsym(Entry entry);
/// The same of a name that is none of ours: the runtime's (vLLM's all-reduce loads libcudart by ctypes).
void note_dlsym(const char* name);
/// The program has looked `entry` up by cuGetProcAddress.
void note_proc_address(Entry entry);
/// The program asks for a descriptor of a range.
void note_range_use();

}  // namespace cupool::shim::export_hints
