// Guesses what the process will do with its memory. If it may hand memory to other processes, it keeps to segments under CUPOOL_BACKING=auto, because
// only cuMemAlloc memory has legacy IPC handles. If it may hand ranges to other devices (dma-buf), which are whole host pages, its large blocks begin
// on a host page. Asked once before the first context is served; a lookup of such a function may change the answer later.
//
// The guess is made from what is cheap to see: the launcher's variables, what the program itself imports, and whether it calls the exporting function
// of a runtime that was linked into it. Not seen is such a call in a stripped program or in a library. Thread-safe; never calls the driver.
#pragma once

#include "shim/entry_points.hpp"

namespace cupool::shim::export_hints {

/// Why this process may export memory, as part of a sentence for the log; nullptr: nothing says so.
const char* reason();
/// Has a launcher started several ranks on this machine, as its variables tell?
bool has_local_ranks();
/// Does the main program import a function that exports memory, of the driver or of the runtime?
bool program_imports_export();
/// Was the runtime linked into the program, and does the program call, or take the address of, the function of it that exports memory? Reads
/// the program's file: about 1 ms for each MB of code and symbols.
bool program_calls_its_own_export();

/// May the program ask for descriptors (dma-buf) of ranges: has it looked that function up, by whichever way, or does the main program import it?
bool may_export_ranges();

/// The program has looked `entry` up by dlsym, which is a hint. (A lookup by cuGetProcAddress is none: in every program the runtime looks up all
/// functions that share memory with other processes.)
void note_dlsym(Entry entry);
/// The same for a name that is no entry of ours: one of the runtime's may be a hint (vLLM's all-reduce loads libcudart by ctypes).
void note_dlsym(const char* name);
/// The program has looked `entry` up by cuGetProcAddress.
void note_proc_address(Entry entry);
/// The program asks for a descriptor of a range.
void note_range_use();

}  // namespace cupool::shim::export_hints
