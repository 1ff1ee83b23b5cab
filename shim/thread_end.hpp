// Tells the pool of the end of threads that matter to it: those that have begun a capture on their own default stream, which nobody else can end or
// ask about, and those that keep small blocks for themselves.
//
// By a pthread key, made when the first such thread is seen, whose destructor runs after those of C++ objects. It waits as many rounds as pthreads
// allow, so that libraries which end their captures in destructors of their own have done so. Where no key is free, the pool is not told. Thread
// rule: called by the thread in question. Never calls the driver.
#pragma once

#include <cstdint>

namespace cupool::shim::thread_end {

/// The calling thread's end is to be told. `thread`: its number (StreamBook::thread_number), if it has begun a capture; 0: it only keeps small
/// blocks.
void watch(std::uint64_t thread);

}  // namespace cupool::shim::thread_end
