// LateFrees: frees of pooled blocks that cannot be booked when they are made, because the thread is already inside the library (UCX patches the
// driver so that it calls back) or because an exception of ours interrupted the free. They are booked at the next allocation or free.
//
// A lock-free stack of addresses. Thread-safe. Where there is no host memory for a node the block leaks, which is better than a free that never
// returns.
#pragma once

#include <cuda.h>

#include <atomic>
#include <new>

namespace cupool::shim {

class LateFrees {
 public:
  bool empty() const { return head_.load(std::memory_order_relaxed) == nullptr; }

  void push(CUdeviceptr address) {
    Node* node = new (std::nothrow) Node{address, nullptr};
    if (node == nullptr) return;
    node->next = head_.load(std::memory_order_relaxed);
    while (!head_.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed)) {}
  }

  /// Takes everything and calls `free` for each address.
  template <class F> void drain(F&& free) {
    Node* node = head_.exchange(nullptr, std::memory_order_acquire);
    while (node != nullptr) {
      Node* next = node->next;
      const CUdeviceptr address = node->address;
      delete node;
      free(address);
      node = next;
    }
  }

 private:
  struct Node {
    CUdeviceptr address;
    Node* next;
  };
  std::atomic<Node*> head_{nullptr};
};

}  // namespace cupool::shim
