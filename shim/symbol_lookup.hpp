// Decides what dlsym answers for a name of ours. Called from the assembly in exports.S, in any phase of the process, possibly before constructors
// have run. Never goes live, never prints. Thread-safe.
//
// Not caught, on purpose: lookups of a library that was loaded with RTLD_DEEPBIND (its libc's dlsym comes first; overriding dlopen to strip the flag
// would break its callers' RUNPATH), by a dlsym that was taken from a libc handle, and by RTLD_NEXT of interposers.
#pragma once

namespace cupool::shim {

/// Two registers (rax, rdx) for the assembly: `decided` false means a tail jump to the real dlsym.
struct DlsymDecision {
  void* address;
  bool decided;
};

/// What dlsym(`handle`, `name`) answers to a caller at the return address `caller`. Leaves dlerror() as the real dlsym would.
DlsymDecision decide_dlsym(void* handle, const char* name, const void* caller);

/// Are lookups left untouched? Under CUPOOL_POLICY=off, and in a privileged program (AT_SECURE) that somebody preloads us into. Once true, it stays
/// so.
bool is_switched_off();
/// From now on it is not switched off, however the program changes its environment. False: it already is.
bool switch_on();

}  // namespace cupool::shim
