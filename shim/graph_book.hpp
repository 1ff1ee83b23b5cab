// GraphBook: the executable graphs that live and may have allocation nodes, and on which devices. What the driver keeps for them their next launch
// needs: natively it gives no other that memory. Those that end with the context they were made in are gone. Thread-safe. Never calls the driver.
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
    std::uint64_t devices = 0;  ///< a bit each
    CUcontext context = nullptr;
    unsigned launches = 0;  ///< no more than are of interest
  };
  using Graphs = std::unordered_map<CUgraphExec, Living>;

 public:
  using Taken = Graphs::node_type;

  explicit GraphBook(PoolSet& pools) : pools_(pools) {}

  /// `devices`: where it has allocation nodes, a bit each; 0: it has none, and is of no interest. Without host memory it counts for good.
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
  /// One of the first, after which it may have memory that it had not: an upload, and a launch.
  bool is_first_launch(CUgraphExec graph) noexcept {
    constexpr unsigned kFirst = 2;
    const std::lock_guard lock(mutex_);
    const auto found = living_.find(graph);
    return found != living_.end() && found->second.launches < kFirst && ++found->second.launches != 0;
  }
  /// It is about to be destroyed, from when on its handle may be another's; empty: it is of no interest. Counts until it is over().
  Taken take(CUgraphExec graph) noexcept {
    const std::lock_guard lock(mutex_);
    return living_.extract(graph);
  }
  /// `is_gone` false: the driver has refused.
  void over(Taken&& graph, bool is_gone) noexcept {
    if (graph.empty()) return;
    const std::lock_guard lock(mutex_);
    const std::uint64_t devices = graph.mapped().devices;
    try {
      if (is_gone || !living_.insert(std::move(graph)).inserted) pools_.note_living_graphs(devices, -1);
    } catch (const std::bad_alloc&) {}
  }
  /// With `context` those are that were made in it.
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
