// What the benches measure: one way of allocating, in one shape. Implementations: the CUDA runtime's two ways (replay.cpp),
// the host allocators that serve as yardsticks (host_allocators.cpp), and the pools of peers (peers/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace bench {

/// A call failed: which, and why.
struct AllocatorFailure : std::runtime_error {
  explicit AllocatorFailure(const std::string& what, bool memory_is_out = false, std::string why = "")
      : std::runtime_error(what), out_of_memory(memory_is_out), reason(std::move(why)) {}
  bool out_of_memory;
  std::string reason;  ///< the driver's words, where it has any
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  /// `stream` is the recorded job's number of it; allocators that are not ordered by streams ignore it. Throws AllocatorFailure.
  virtual void* allocate(std::size_t bytes, std::uint32_t stream) = 0;
  /// `bytes` and `stream` as allocated.
  virtual void release(void* address, std::size_t bytes, std::uint32_t stream) = 0;
  /// Called first by every thread that allocates.
  virtual void enter_thread() {}
  /// The driver's handle of that stream, for work that touches a block.
  virtual void* stream_handle(std::uint32_t /*stream*/) { return nullptr; }
  /// Is reuse of a block ordered by its stream, or may any stream touch any block until it is freed?
  virtual bool is_stream_ordered() const { return false; }
  /// Returns when the device has done all that it was given.
  virtual void wait_for_device() {}
};

/// "glibc" or "mimalloc"; null for other names. Throws AllocatorFailure where the library cannot be loaded.
std::unique_ptr<Allocator> open_host_allocator(const std::string& name);

}  // namespace bench
