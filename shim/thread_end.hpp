// Tells of the end of threads that have begun a capture on a default stream of their own, which nobody else can end or ask about, or that keep
// small blocks for themselves.
//
// A pthread key, made when the first such thread is seen; its destructor runs after those of C++ objects. It asks to be called again as often as
// pthreads allow, so that libraries which end their captures in destructors of their own have done so. Without a free key nothing is told.
// Thread rule: called by the thread in question. Never calls the driver.
#pragma once

#include <cstdint>

namespace cupool::shim::thread_end {

/// From now on until the thread is over: its own streams may capture. `thread`: its number (StreamBook); 0: it only keeps small blocks.
void watch(std::uint64_t thread);

}  // namespace cupool::shim::thread_end
