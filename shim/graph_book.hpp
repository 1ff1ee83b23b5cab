// GraphBook: the executable graphs that live and may have allocation nodes, and the devices of those nodes. The memory that the driver keeps for such
// a graph is needed by its next launch, so that it must not be trimmed away. A graph ends with the context that it was made in. Thread-safe. Never
// calls the driver.
#pragma once

#include <cuda.h>

#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "pool/device/pool_set.hpp"

namespace cupool::shim {

class GraphBook {
  struct Living {
    std::uint64_t devices = 0;  ///< one bit per device
    CUcontext context = nullptr;
    unsigned launches = 0;  ///< counted up to the first kFirst
  };
  using Graphs = std::unordered_map<CUgraphExec, Living>;

 public:
  using Taken = Graphs::node_type;

  explicit GraphBook(PoolSet& pools) : pools_(pools) {}

  /// An executable graph was made. `devices`: those of its allocation nodes, one bit per device; 0: it has none and is not kept. Without host memory
  /// for an entry it counts as living for good.
  void made(CUgraphExec graph, std::uint64_t devices, CUcontext context) noexcept {
    const std::lock_guard lock(mutex_);
    if (const auto before = living_.find(graph); before != living_.end()) {  // it ended unseen
      pools_.note_living_graphs(before->second.devices, -1);
      living_.erase(before);
    }
    if (devices == 0) return;
    pools_.note_living_graphs(devices, 1);
    try {
      living_.try_emplace(graph, Living{devices, context, 0});
    } catch (const std::bad_alloc&) {}
  }
  /// Is this launch or upload one of the graph's first two, which may each take memory?
  bool is_first_launch(CUgraphExec graph) noexcept {
    constexpr unsigned kFirst = 2;
    const std::lock_guard lock(mutex_);
    const auto found = living_.find(graph);
    return found != living_.end() && found->second.launches < kFirst && ++found->second.launches != 0;
  }
  /// The graph is about to be destroyed, after which its handle may come again: takes its entry out (empty: it has none). It counts until over().
  Taken take(CUgraphExec graph) noexcept {
    const std::lock_guard lock(mutex_);
    return living_.extract(graph);
  }
  /// The call that was to destroy it is over. `is_gone` false: the driver has refused, and the entry is put back.
  void over(Taken&& graph, bool is_gone) noexcept {
    if (graph.empty()) return;
    const std::lock_guard lock(mutex_);
    const std::uint64_t devices = graph.mapped().devices;
    try {
      if (is_gone || !living_.insert(std::move(graph)).inserted) pools_.note_living_graphs(devices, -1);
    } catch (const std::bad_alloc&) {}
  }
  /// `context` has ended, and with it the graphs that were made in it.
  void context_ended(CUcontext context) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(living_, [&](const auto& one) {
      if (one.second.context != context) return false;
      pools_.note_living_graphs(one.second.devices, -1);
      return true;
    });
  }

 private:
  PoolSet& pools_;
  std::mutex mutex_;
  Graphs living_;
};

}  // namespace cupool::shim
