// GraphBook: the executable graphs that live and may have allocation nodes. What the driver keeps for them their next launch needs: natively it gives no
// other that memory. Those that end with their context stay in it, on the safe side. Thread-safe. Never calls the driver.
#pragma once

#include <cuda.h>

#include <mutex>
#include <new>
#include <unordered_set>

namespace cupool::shim {

class GraphBook {
 public:
  /// True: it is one more. Not without host memory.
  bool made(CUgraphExec graph) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      return living_.insert(graph).second;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  /// True: it was one of them.
  bool ended(CUgraphExec graph) noexcept {
    const std::lock_guard lock(mutex_);
    return living_.erase(graph) != 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<CUgraphExec> living_;
};

}  // namespace cupool::shim
