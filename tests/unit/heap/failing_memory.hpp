// Host memory that fails on demand: operator new is replaced, calloc and aligned_alloc are wrapped by the
// linker (-Wl,--wrap).
// A translation unit of its own, so that no compiler sees both sides of a new and a delete.
#pragma once

namespace failing_memory {

/// Allocations of this thread that still succeed before one fails; -1: none fails. The failing one sets it to -1.
extern thread_local int g_fail_in;

}  // namespace failing_memory
