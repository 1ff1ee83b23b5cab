// Decides what dlsym answers for a name of ours. Called from the assembly in exports.S, in any phase of the process,
// possibly before constructors. Never goes live, never prints. Thread-safe.
//
// Not caught, on purpose: a library loaded with RTLD_DEEPBIND (its own libc's dlsym comes first; overriding dlopen to
// strip the flag would break its callers' RUNPATH), dlsym taken from a libc handle, the RTLD_NEXT of interposers.
#pragma once

namespace cupool::shim {

/// Two registers (rax, rdx) for the assembly: `decided` false means a tail jump to the real dlsym.
struct DlsymDecision {
  void* address;
  bool decided;
};

DlsymDecision decide_dlsym(void* handle, const char* name, const void* caller);

/// CUPOOL_POLICY=off, or a privileged (AT_SECURE) program that somebody preloads us into: lookups stay untouched. Once it was so it stays so.
bool is_switched_off();
/// From now on it is not off, whatever the program makes of its environment. False: it is already.
bool switch_on();

}  // namespace cupool::shim
